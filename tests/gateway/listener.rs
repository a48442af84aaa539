//! The listener: ambiguous and malformed requests are refused and never reach the
//! upstream; slow clients are disconnected.

mod addresses;
mod draining;
mod malformed;
mod proxy_protocol;

use crate::support::client::request;
use crate::support::{BLOCK, Client, Gate, Gateway, Reply, TOKEN, Upstream, token, until, within};

#[tokio::test]
async fn pipelined_requests_are_answered_in_their_order() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let mut client = gateway.client().await;
    let asked: Vec<_> = (0..20).map(token).collect();
    let all: String = asked.iter().map(|t| request("GET", t, &[])).collect();
    client.send(all).await;
    for target in &asked {
        let answer = client.answer("GET").await;
        assert_eq!(answer.json()["asked"], **target);
    }
    assert_eq!(upstream.targets(), asked);
}

#[tokio::test]
async fn a_head_that_is_too_slow_ends_its_connection() {
    let upstream = Upstream::start();
    let gateway = Gateway::with(&upstream, "server.idle_timeout = \"60ms\"");
    // One that stalls, and one that never stops to send a little more.
    let mut stalled = gateway.client().await;
    stalled.send(format!("GET {TOKEN} HTTP/1.1\r\nhos")).await;
    let mut dribbling = gateway.client().await;
    dribbling.send("GET / HTTP/1.1\r\nhost: a\r\nx: ").await;
    let dribble = async {
        while gateway.connections() > 0 {
            dribbling.send("y").await;
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    let stall = async {
        assert_eq!(stalled.rest().await, b"");
    };
    within("both are cut off", async { tokio::join!(stall, dribble) }).await;
    assert_eq!(upstream.count(), 0);
}

#[tokio::test]
async fn idle_connections_are_closed() {
    let upstream = Upstream::start();
    let gateway = Gateway::with(&upstream, "server.idle_timeout = \"250ms\"");
    let mut silent = gateway.client().await;
    assert_eq!(silent.rest().await, b"", "one that has never asked");
    let mut used = gateway.client().await;
    assert_eq!(used.get(TOKEN).await.status, 200);
    assert_eq!(used.rest().await, b"", "one that asks no more");
}

#[tokio::test]
async fn a_connection_that_waits_for_an_answer_is_not_idle() {
    let upstream = Upstream::start();
    let gateway = Gateway::with(&upstream, "server.idle_timeout = \"250ms\"");
    let gate = Gate::new();
    upstream.once(TOKEN, Reply::json("{}").behind(&gate));
    let mut waiting = gateway.start_get(TOKEN).await;
    upstream.until_requests(1).await;
    // The time of three others to be closed for idleness passes.
    for _ in 0..3 {
        let mut idle = gateway.client().await;
        assert_eq!(idle.rest().await, b"");
    }
    gate.open();
    assert_eq!(waiting.answer("GET").await.status, 200);
}

#[tokio::test]
async fn a_client_that_does_not_read_is_cut_off() {
    let upstream = Upstream::start();
    let body = format!("\"{}\"", "x".repeat(12 << 20));
    let length = body.len();
    upstream.always(Reply::json(body));
    let gateway = Gateway::with(&upstream, "server.write_timeout = \"500ms\"");
    let mut client = Client::connect_narrow(gateway.public).await;
    client.send_request("GET", TOKEN, &[]).await;
    upstream.until_requests(1).await;
    until("the connection is cut", || gateway.connections() == 0).await;
    let got = client.rest().await.len();
    assert!(got < length, "{got} of {length}");
    assert_eq!(
        gateway.get(BLOCK).await.body.len(),
        length,
        "others are served"
    );
}

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
