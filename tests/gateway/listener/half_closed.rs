//! Clients that have closed their side of a connection, or have gone.

use super::HALF;
use crate::respect;
use crate::support::{Client, Gate, Gateway, Reply, Setup, TOKEN, Upstream, token, until};

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

/// A regression: hyper was not woken to learn that the client had said all, so
/// that the connection of an answered client lasted for `half_closed_timeout`.
#[tokio::test]
async fn a_half_closed_connection_ends_once_it_is_answered() {
    let upstream = Upstream::start();
    let gateway = Gateway::with(&upstream, "server.half_closed_timeout = \"1d\"");
    for _miss_then_hit in 0..2 {
        let gate = Gate::new();
        upstream.always(Reply::json("{}").behind(&gate));
        let mut client = gateway.start_get(TOKEN).await;
        client.finish().await;
        gate.open();
        assert_eq!(client.answer("GET").await.status, 200);
        assert_eq!(client.rest().await, b"");
    }
}

/// A regression: once an answer was made, the client's end was told to hyper,
/// which broke off what was not written yet.
#[tokio::test]
async fn a_half_closed_client_may_read_slowly() {
    let upstream = Upstream::start();
    let body = format!("{{\"long\":\"{}\"}}", "x".repeat(8 << 20));
    upstream.always(Reply::json(&body));
    let gateway = Gateway::with(&upstream, "server.half_closed_timeout = \"1d\"");
    for _miss_then_hit in 0..2 {
        let mut client = Client::connect_narrow(gateway.public).await;
        client.send_request("GET", TOKEN, &[]).await;
        client.finish().await;
        let answer = client.try_answer("GET").await;
        let answer = answer.expect("the answer breaks off");
        assert!(answer.body == body.as_bytes(), "{}", answer.body.len());
        assert_eq!(client.rest().await, b"");
    }
}

/// That both halves have come.
pub(super) fn is_whole(answer: &[u8]) {
    let shown = answer.escape_ascii();
    assert!(answer.ends_with(b"\r\n\r\nhalfhalf"), "{shown}");
}

/// The same where the answer comes in pieces.
#[tokio::test]
async fn a_half_closed_client_gets_the_rest_of_an_answer() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .config("server.half_closed_timeout = \"1d\"")
        .config(respect::ALL)
        .start();
    let gate = Gate::new();
    upstream.always(Reply::raw(HALF).then(&gate, "half"));
    let mut client = gateway.start_get("/x").await;
    client.finish().await;
    let begun = client.some(20).await;
    gate.open();
    is_whole(&[begun, client.rest().await].concat());
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

#[tokio::test]
async fn vanished_clients_leave_no_connection_open() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    for number in 0..20 {
        let mut client = gateway.client().await;
        match number % 3 {
            0 => client.send("GET /").await,
            1 => client.send_request("GET", &token(number), &[]).await,
            _ => {}
        }
        drop(client);
    }
    until("they are gone", || gateway.connections() == 0).await;
    assert_eq!(gateway.get(TOKEN).await.status, 200);
}
