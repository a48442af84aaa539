//! Bodies of answers that stall: they break off, and that is their target's own matter.

use std::time::Duration;

use tokio::time::Instant;

use super::text;
use crate::respect::plain;
use crate::support::{Gateway, Reply, Upstream, until};

const OK: &str = "HTTP/1.1 200 OK\r\n";
const STORE: &str = "cache-control: max-age=60\r\n";
const NO_STORE: &str = "cache-control: no-store\r\n";
const CHUNKED: &str = "transfer-encoding: chunked\r\n";

fn grace(upstream: &Upstream, time: &str) -> Gateway {
    let grace = format!("upstream.response_body.grace = \"{time}\"");
    plain(upstream).config(&grace).start()
}

/// Waits until no request is in flight, and no target is being fetched.
async fn until_idle(gateway: &Gateway) {
    until("all is at rest", || {
        gateway.in_flight() == 0 && gateway.relayed() == 0
    })
    .await;
}

#[tokio::test]
async fn a_body_that_stalls_breaks_off() {
    let drip = Duration::from_millis(5);
    let rows = [
        Reply::raw(format!("{OK}{STORE}content-length: 9\r\n\r\nhalf")).hang(),
        Reply::raw(format!("{OK}{NO_STORE}content-length: 9\r\n\r\nhalf")).hang(),
        Reply::raw(format!("{OK}{STORE}{CHUNKED}\r\n4\r\nhalf\r\n")).hang(),
        Reply::raw(format!("{OK}{NO_STORE}content-length: 9999\r\n\r\nhalf"))
            .drip("~".repeat(9999), drip),
    ];
    for (row, reply) in rows.into_iter().enumerate() {
        let upstream = Upstream::start();
        let gateway = grace(&upstream, "300ms");
        upstream.always(reply);
        for number in 0..3 {
            let path = format!("/{number}");
            let began = Instant::now();
            let mut client = gateway.client().await;
            client.send_request("GET", &path, &[]).await;
            let begun = text(&client.some(1).await);
            assert!(begun.starts_with('H'), "{row}: {begun}");
            // Whoever waits for the same has no answer either.
            let mut waiting = gateway.start_get(&path).await;
            let received = client.received().await;
            assert!(received.text.contains("half"), "{row}: {received:?}");
            assert!(!received.is_whole, "{row}: {received:?}");
            if row == 0 {
                assert_eq!(waiting.answer("GET").await.status, 504, "{row}");
            }
            drop(waiting);
            assert!(began.elapsed() >= Duration::from_millis(300), "{row}");
            until_idle(&gateway).await;
            if row == 0 {
                assert_eq!(upstream.count(), number + 1, "{row}");
            }
        }
        upstream.once(
            "/other",
            Reply::raw(format!("{OK}content-length: 0\r\n\r\n")),
        );
        assert_eq!(gateway.get("/other").await.status, 200, "{row}");
    }
}
