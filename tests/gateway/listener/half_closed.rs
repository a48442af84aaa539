//! Clients that have closed their side of a connection, or have gone.

use crate::support::{Gateway, Reply, TOKEN, Upstream, until};

#[tokio::test]
async fn a_half_closed_client_still_gets_its_answer() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    for _miss_then_hit in 0..2 {
        let mut client = gateway.start_get(TOKEN).await;
        client.finish().await;
        assert_eq!(client.answer("GET").await.status, 200);
        assert_eq!(client.rest().await, b"");
    }
}

/// That both halves have come.
pub(super) fn is_whole(answer: &[u8]) {
    let shown = answer.escape_ascii();
    assert!(answer.ends_with(b"\r\n\r\nhalfhalf"), "{shown}");
}

#[tokio::test]
async fn a_client_that_has_gone_frees_its_connection() {
    let upstream = Upstream::start();
    upstream.always(Reply::nothing().hang());
    let gateway = Gateway::before(&upstream);
    let client = gateway.start_get(TOKEN).await;
    upstream.until_requests(1).await;
    drop(client);
    until("its connection ends", || gateway.connections() == 0).await;
    assert_eq!(gateway.fetching(), 1, "the fetch goes on");
}
