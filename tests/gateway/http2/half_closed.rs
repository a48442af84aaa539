//! Clients that have closed their side of an HTTP/2 connection, or have gone.

use crate::support::frames::{self, FrameClient, Outcome, request};
use crate::support::{Gate, Gateway, Reply, TOKEN, Upstream, until};

#[tokio::test]
async fn a_half_closed_client_gets_its_answer_and_the_connection_ends() {
    let upstream = Upstream::start();
    let gateway = Gateway::with(&upstream, "server.half_closed_timeout = \"1d\"");
    for _miss_then_hit in 0..2 {
        let gate = Gate::new();
        upstream.always(Reply::json("{}").behind(&gate));
        let mut client = FrameClient::connect(gateway.public).await;
        client.send(&request(1, TOKEN, &[])).await;
        client.finish().await;
        gate.open();
        let outcome = client.outcome(1).await;
        assert!(matches!(outcome, Outcome::Status(200, _)), "{outcome:?}");
        client.end().await;
        until("it is closed", || gateway.connections() == 0).await;
    }
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn a_half_closed_client_waits_for_half_closed_timeout_at_most() {
    let upstream = Upstream::start();
    let gate = Gate::new();
    upstream.always(Reply::json("{}").behind(&gate));
    let gateway = Gateway::before(&upstream);
    let mut client = FrameClient::connect(gateway.public).await;
    client.send(&request(1, TOKEN, &[])).await;
    upstream.until_requests(1).await;
    client.finish().await;
    // The upstream never answers.
    client.end().await;
    until("it is closed", || gateway.connections() == 0).await;
}

#[tokio::test]
async fn a_client_that_closes_between_requests_ends_its_connection() {
    let upstream = Upstream::start();
    let gateway = Gateway::with(&upstream, "server.half_closed_timeout = \"1d\"");
    let mut client = FrameClient::connect(gateway.public).await;
    client.send(&request(1, TOKEN, &[])).await;
    let outcome = client.outcome(1).await;
    assert!(matches!(outcome, Outcome::Status(200, _)), "{outcome:?}");
    client.finish().await;
    client.end().await;
    until("it is closed", || gateway.connections() == 0).await;
}

/// A regression: such a connection stayed for `write_timeout`, and delayed a drain.
#[tokio::test]
async fn a_client_that_has_gone_amid_an_answer_ends_its_connection() {
    let upstream = Upstream::start();
    upstream.always(Reply::json(format!("\"{}\"", "x".repeat(100_000))));
    let gateway = Gateway::with(
        &upstream,
        "server = { half_closed_timeout = \"1d\", write_timeout = \"1d\" }",
    );
    let mut client = FrameClient::connect(gateway.public).await;
    client.send(&request(1, TOKEN, &[])).await;
    client.next_of(frames::DATA).await.unwrap();
    client.finish().await;
    until("it is closed", || gateway.connections() == 0).await;
}
