//! Clients that do not read their answers, and answers that never end.

use crate::support::respect::{ALL, plain};
use crate::support::{Client, Gate, Gateway, Reply, Setup, Upstream, until};

const MIB: usize = 1 << 20;

/// Large, cacheable answers that differ by target.
fn large(upstream: &Upstream) {
    let fields = "cache-control: public, max-age=600\r\n";
    upstream.always(Reply::with(200, fields, vec![b'x'; 2 * MIB]));
}

/// Asks from an address, and reads nothing.
async fn stuck(gateway: &Gateway, from: [u8; 4], target: &str) -> Client {
    let mut client = Client::connect_narrow_from(from, gateway.public).await;
    client.send_request("GET", target, &[]).await;
    client
}

/// All of one address, or each of its own, so that each holds as much as the honest client
/// while that reads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_answers_hold_no_more_than_the_bound() {
    for of_one in [true, false] {
        let upstream = Upstream::start();
        large(&upstream);
        let bounds = "server.max_unsent_bytes = \"8MiB\"\nlimit.enabled = false\ncache.max_bytes = \"32MiB\"";
        let gateway = plain(&upstream).config(bounds).start();
        let mut clients = Vec::new();
        for number in 1..=20 {
            let from = [127, 0, 1, if of_one { 1 } else { number }];
            clients.push(stuck(&gateway, from, &format!("/{number}")).await);
            upstream.until_requests(2 * clients.len() - 1).await;
            let held = gateway.figure("/unsent/bytes");
            assert!(held <= 8 * MIB as u64, "{held}");
            // The honest client gets its misses whole.
            let answer = gateway.get(&format!("/honest/{number}")).await;
            assert_eq!((answer.status, answer.body.len()), (200, 2 * MIB));
        }
        until("all but what fits are closed", || {
            gateway.figure("/connections/reset_unsent") >= 16
        })
        .await;
        // The longest stuck went first, with a reset; the last ones are served.
        assert!(clients[0].rest().await.len() < 2 * MIB);
        let last = clients.pop().unwrap().answer("GET").await;
        assert_eq!((last.status, last.body.len()), (200, 2 * MIB));
        drop(clients);
        until("nothing is held", || gateway.figure("/unsent/bytes") == 0).await;
        let metrics = gateway.admin("/metrics").await;
        let line = "ordgate_connections_reset_total{reason=\"unsent\"} ";
        assert!(metrics.text().contains(line), "{}", metrics.text());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_stored_answer_counts_once_however_many_are_sent_it() {
    let upstream = Upstream::start();
    large(&upstream);
    let setup = plain(&upstream).config("server.max_unsent_bytes = \"4MiB\"");
    let gateway = setup.start();
    assert_eq!(gateway.get("/popular").await.status, 200);
    let mut clients = Vec::new();
    for _ in 0..20 {
        clients.push(stuck(&gateway, [127, 0, 0, 1], "/popular").await);
    }
    until("all are stuck", || gateway.connections() >= 20).await;
    for client in &mut clients {
        let answer = client.answer("GET").await;
        assert_eq!((answer.status, answer.body.len()), (200, 2 * MIB));
    }
    assert_eq!(gateway.figure("/connections/reset_unsent"), 0);
    assert_eq!(upstream.count(), 1);
}

/// Large answers, stored or not, and event streams.
#[tokio::test]
async fn answers_that_are_not_read_hold_no_slots() {
    for fields in [
        "cache-control: no-store",
        "cache-control: max-age=60",
        "content-type: text/event-stream",
    ] {
        let upstream = Upstream::start();
        upstream.usually(move |seen| match seen.target().starts_with("/honest") {
            true => Reply::json("{}"),
            false if fields.contains("event") => {
                Reply::raw(format!("HTTP/1.1 200 OK\r\n{fields}\r\n\r\ndata: 1\n\n")).hang()
            }
            false => Reply::with(200, &format!("{fields}\r\n"), vec![b'x'; 10 * MIB]),
        });
        let narrow = "upstream = { max_in_flight = 8, queue_timeout = \"5s\" }";
        let gateway = Setup::before(&upstream).config(ALL).config(narrow).start();
        let mut hostile = Vec::new();
        for number in 0..if fields.contains("event") { 4 } else { 32 } {
            let client = stuck(&gateway, [127, 0, 0, 1], &format!("/{number}")).await;
            hostile.push(client);
        }
        upstream.until_requests(hostile.len().min(8)).await;
        let mut honest = gateway.client().await;
        for number in 0..30 {
            let answer = honest.get(&format!("/honest/{number}")).await;
            assert_eq!(answer.status, 200, "{fields}, {number}: {}", answer.text());
        }
        drop(hostile);
        if !fields.contains("event") {
            until("all slots are given back", || gateway.in_flight() == 0).await;
        }
    }
}

/// An answer that is larger than may be stored, so that it cannot all be held for the slow
/// reader.
#[tokio::test]
async fn a_slow_reader_does_not_slow_down_others_of_the_same_answer() {
    let upstream = Upstream::start();
    let head = "HTTP/1.1 200 OK\r\ncache-control: max-age=60\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhead\r\n";
    let rest = format!("{:x}\r\n{}\r\n0\r\n\r\n", 10 * MIB, "x".repeat(10 * MIB));
    let gate = Gate::new();
    upstream.always(Reply::raw(head).then(&gate, rest));
    let setup = plain(&upstream).config("upstream.max_body_bytes = \"1MiB\"");
    let gateway = setup.start();
    let mut slow = stuck(&gateway, [127, 0, 0, 1], "/same").await;
    slow.some(10).await;
    let mut honest = gateway.start_get("/same").await;
    gateway.until_all_is_read().await;
    gate.open();
    let answer = honest.answer("GET").await;
    assert_eq!((answer.status, answer.body.len()), (200, 10 * MIB + 4));
    // Nothing is stored that it could wait for.
    assert_eq!(upstream.count(), 2);
}
