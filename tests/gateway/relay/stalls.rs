//! Bodies of answers that stall: they break off, and that is their target's own matter.

use crate::respect::plain;
use crate::support::{Reply, Upstream, until};

const OK: &str = "HTTP/1.1 200 OK\r\n";
const STORE: &str = "cache-control: max-age=60\r\n";
const NO_STORE: &str = "cache-control: no-store\r\n";
const CHUNKED: &str = "transfer-encoding: chunked\r\n";

#[tokio::test]
async fn a_body_that_stalls_breaks_off_for_all_who_share_it() {
    let rows = [
        Reply::raw(format!("{OK}{STORE}content-length: 9\r\n\r\nhalf")).hang(),
        Reply::raw(format!("{OK}{NO_STORE}content-length: 9\r\n\r\nhalf")).hang(),
        Reply::raw(format!("{OK}{STORE}{CHUNKED}\r\n4\r\nhalf\r\n")).hang(),
    ];
    for (row, reply) in rows.into_iter().enumerate() {
        let upstream = Upstream::start();
        let grace = "upstream.silence_timeout = \"300ms\"\nupstream.first_byte_timeout = \"900ms\"";
        let gateway = plain(&upstream).config(grace).start();
        upstream.always(reply);
        let mut client = gateway.start_get("/v").await;
        assert!(client.some(1).await.starts_with(b"H"), "{row}");
        // Whoever waits for the same has no answer either.
        let mut waiting = match row {
            0 => Some(gateway.start_get("/v").await),
            _ => None,
        };
        let received = client.received().await;
        assert!(received.text.contains("half"), "{row}: {received:?}");
        assert!(!received.is_whole, "{row}: {received:?}");
        if let Some(waiting) = &mut waiting {
            assert_eq!(waiting.answer("GET").await.status, 504);
        }
        until("all is at rest", || {
            gateway.in_flight() == 0 && gateway.relayed() == 0
        })
        .await;
        assert_eq!(upstream.count(), 1, "{row}");
        upstream.once("/v", Reply::raw(format!("{OK}content-length: 0\r\n\r\n")));
        assert_eq!(gateway.get("/v").await.status, 200, "{row}");
    }
}
