//! Draining: what is under way is answered, and idle connections end.

use crate::respect;
use crate::support::client::request;
use crate::support::{Gate, Gateway, Reply, Setup, TOKEN, Upstream, until};

/// Half of an answer, of which the other half waits for a gate.
const HALF: &str = "HTTP/1.1 200 OK\r\ncontent-length: 8\r\ncache-control: no-store\r\n\r\nhalf";

/// A regression: a drain broke off an answer of which the rest took longer than
/// a connection's last call.
#[tokio::test]
async fn draining_waits_for_the_rest_of_an_answer() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .config("server.drain_timeout = \"60s\"")
        .config(respect::ALL)
        .start();
    let gate = Gate::new();
    upstream.once("/x", Reply::raw(HALF).then(&gate, "half"));
    let mut kept = gateway.client().await;
    let mut silent = gateway.client().await;
    let mut client = gateway.start_get("/x").await;
    let begun = client.some(20).await;
    assert_eq!(kept.get("/").await.status, 200);
    gateway.server().drain(std::time::Duration::ZERO);
    // An idle connection is closed after the accept queue is empty, so that has
    // happened.
    kept.rest().await;
    assert_eq!(silent.rest().await, b"", "one that has never asked");
    gate.open();
    let answer = [begun, client.rest().await].concat();
    assert!(answer.ends_with(b"\r\n\r\nhalfhalf"));
}

/// What was on its way when the gateway was told to stop is answered: a head
/// that had begun, a request that a kept connection sends just then, and what
/// the kernel has let in.
#[tokio::test]
async fn draining_answers_requests_under_way() {
    let upstream = Upstream::start();
    let gateway = Gateway::with(&upstream, "server.drain_timeout = \"10s\"");
    let mut begun = gateway.client().await;
    let whole = request("GET", TOKEN, &[]);
    let (first, last) = whole.split_at(20);
    begun.send(first).await;
    let mut kept = gateway.client().await;
    assert_eq!(kept.get(TOKEN).await.status, 200);
    let mut silent = gateway.client().await;
    until("all are let in", || gateway.connections() == 3).await;
    gateway.server().drain(std::time::Duration::ZERO);
    kept.send_request("GET", TOKEN, &[]).await;
    silent.send_request("GET", TOKEN, &[]).await;
    begun.send(last).await;
    for mut client in [kept, silent, begun] {
        let answer = client.answer("GET").await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.must("connection"), "close");
        assert_eq!(client.rest().await, b"");
    }
}

/// A regression: whom the kernel had let in was turned out where the runtime had
/// not heard of them yet. That is a matter of microseconds, hence the rounds.
#[tokio::test]
async fn draining_answers_connections_in_the_accept_queue() {
    let upstream = Upstream::start();
    for round in 0..40 {
        let gateway = Gateway::with(&upstream, "server.drain_timeout = \"60s\"");
        let mut clients = Vec::new();
        for _ in 0..3 {
            clients.push(gateway.start_get("/openapi.json").await);
        }
        gateway.server().drain(std::time::Duration::ZERO);
        for client in &mut clients {
            let answer = client.try_answer("GET").await;
            assert!(answer.is_some(), "turned out in round {round}");
        }
    }
}
