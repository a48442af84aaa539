//! A trusted proxy that sends the requests of several clients on one connection.

use crate::support::frames::{
    DATA, END_HEADERS, END_STREAM, FrameClient, HEADERS, Outcome, block, frame,
};
use crate::support::respect::ALL;
use crate::support::{Gate, Reply, Setup, Upstream, until};

const CONFIG: &str = "clients.trusted_proxies = [\"127.0.0.9/32\"]
limit.burst = 100000
limit.requests_per_minute = 1000000
limit.misses_per_minute = 1000000
upstream.max_in_flight = 4
upstream.queue_timeout = \"60s\"
upstream.request_body.buffer = \"4KiB\"
";
const PROXY: [u8; 4] = [127, 0, 0, 9];
/// So many uploads of one client, each of a stream's whole window, are more than 1 MiB, also
/// without what is buffered of each.
const UPLOADS: u32 = 60;
/// The largest frame, and a stream's window in frames: the client has not acknowledged
/// another one than the initial 65,535 bytes.
const FRAME: usize = 16 * 1024;
const WINDOW: [usize; 4] = [FRAME, FRAME, FRAME, FRAME - 1];

fn post(stream: u32, target: &str, client: &str) -> Vec<u8> {
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", "localhost"),
        (":path", target),
        ("x-forwarded-for", client),
    ];
    frame(HEADERS, END_HEADERS, stream, &block(&fields))
}

#[tokio::test]
async fn one_clients_uploads_leave_the_windows_of_others() {
    let upstream = Upstream::start();
    let gate = Gate::new();
    let held = gate.clone();
    upstream.usually(move |seen| match seen.target().starts_with("/held") {
        true => Reply::json("{}").behind(&held),
        false => Reply::json("{}"),
    });
    let gateway = Setup::before(&upstream).config(ALL).config(CONFIG).start();
    let mut proxy = FrameClient::connect_from(PROXY, gateway.public, &[]).await;
    // This client's share of the slots is in use, so its uploads wait.
    let stream = |nth: u32| nth * 2 + 1;
    for nth in 0..2 {
        proxy
            .send(&post(stream(nth), &format!("/held/{nth}"), "192.0.2.1"))
            .await;
        proxy
            .send(&frame(DATA, END_STREAM, stream(nth), b"x"))
            .await;
    }
    upstream.until_requests(2).await;
    for nth in 2..2 + UPLOADS {
        let mut upload = post(stream(nth), &format!("/held/{nth}"), "192.0.2.1");
        for length in WINDOW {
            upload.extend(frame(DATA, 0, stream(nth), &[b'x'; FRAME][..length]));
        }
        proxy.send(&upload).await;
    }
    let honest = stream(2 + UPLOADS);
    let mut upload = post(honest, "/honest", "192.0.2.2");
    upload.extend(frame(DATA, END_STREAM, honest, &[b'y'; FRAME]));
    proxy.send(&upload).await;
    let outcome = proxy.outcome(honest).await;
    assert!(matches!(outcome, Outcome::Status(200, _)), "{outcome:?}");
    until("their uploads still wait", || {
        gateway.figure("/upstream/queue/waiting") == u64::from(UPLOADS)
    })
    .await;
    gate.open();
}
