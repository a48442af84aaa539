//! Clients that have closed their side of a connection.

use crate::support::{Gateway, TOKEN, Upstream};

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
