//! Many clients on one cold target.

use super::{did, not_modified, ok, plain};
use crate::support::{Client, Gate, Gateway, Reply, Upstream, until};

const CLIENTS: usize = 30;

const SOON: &str = "cache-control: max-age=10";

/// So many clients that all wait for one target.
async fn waiting(gateway: &Gateway, clients: usize) -> Vec<Client> {
    let mut pending = Vec::new();
    for _ in 0..clients {
        pending.push(gateway.client().await);
    }
    until("all are connected", || {
        gateway.connections() >= clients as u64
    })
    .await;
    for client in &mut pending {
        client.send_request("GET", "/v", &[]).await;
    }
    gateway.until_all_is_read().await;
    pending
}

#[tokio::test]
async fn storable_requests_are_collapsed() {
    let upstream = Upstream::start();
    let gateway = plain(&upstream).manual().start();
    let gate = Gate::new();
    let fields = ["cache-control: max-age=60", "cache-status: origin; hit"];
    upstream.once("/v", ok(&fields, "body").behind(&gate));
    let pending = waiting(&gateway, CLIENTS).await;
    upstream.until_requests(1).await;
    gate.open();
    let mut collapsed = 0;
    for mut client in pending {
        let answer = client.answer("GET").await;
        assert_eq!((answer.status, answer.text()), (200, "body"));
        let cache_status = answer.all("cache-status");
        assert_eq!(
            (cache_status.len(), cache_status[0]),
            (2, "origin; hit"),
            "{cache_status:?}"
        );
        collapsed += usize::from(did(&answer) == "fwd=uri-miss; fwd-status=200; collapsed");
    }
    assert_eq!((collapsed, upstream.count()), (CLIENTS - 1, 1));
}

/// Moves time so far that what was fresh for 10 s is stale.
const STALE: u64 = 11_000;

#[tokio::test]
async fn a_stale_response_is_validated_once() {
    let upstream = Upstream::start();
    let gateway = plain(&upstream).manual().start();
    upstream.once("/v", ok(&[SOON, "etag: \"one\""], "body"));
    assert_eq!(gateway.get("/v").await.text(), "body");
    gateway.advance(STALE);
    let gate = Gate::new();
    upstream.once("/v", not_modified(&[SOON, "etag: \"one\""]).behind(&gate));
    let mut pending = waiting(&gateway, CLIENTS).await;
    // One request is conditional, and one is for a range.
    let mut holder = gateway.client().await;
    holder
        .send_request("GET", "/v", &[("if-none-match", "\"one\"")])
        .await;
    let mut reader = gateway.client().await;
    reader
        .send_request("GET", "/v", &[("range", "bytes=1-2")])
        .await;
    gateway.until_all_is_read().await;
    upstream.until_requests(2).await;
    gate.open();
    for client in &mut pending {
        let answer = client.answer("GET").await;
        assert_eq!((answer.status, answer.text()), (200, "body"));
    }
    assert_eq!(holder.answer("GET").await.status, 304);
    let part = reader.answer("GET").await;
    assert_eq!((part.status, part.text()), (206, "od"));
    assert_eq!(upstream.count(), 2, "one for all of them");
    let asked = upstream.seen()[1].field("if-none-match");
    assert_eq!(asked.as_deref(), Some("\"one\""));
}

#[tokio::test]
async fn requests_for_a_known_uncacheable_key_do_not_wait() {
    for control in ["private", "no-store", "no-cache", "max-age=0"] {
        let upstream = Upstream::start();
        let gateway = plain(&upstream).manual().start();
        let line = format!("cache-control: {control}");
        let reply = ok(&[&line], "body");
        upstream.always(reply.clone());
        gateway.get("/v").await;
        let (gate, held) = (Gate::new(), reply.clone());
        let behind = gate.clone();
        upstream.usually(move |_| held.clone().behind(&behind));
        let pending = waiting(&gateway, 10).await;
        // None of them waits for another's answer.
        upstream.until_requests(11).await;
        gate.open();
        for mut client in pending {
            assert_eq!(client.answer("GET").await.text(), "body", "{control}");
        }
        // It is forgotten once an answer may be shared, or after a while.
        upstream.always(ok(&["cache-control: max-age=5"], "body"));
        gateway.get("/v").await;
        gateway.advance(6_000);
        let (gate, before) = (Gate::new(), upstream.count());
        upstream.once(
            "/v",
            ok(&["cache-control: max-age=5"], "body").behind(&gate),
        );
        let pending = waiting(&gateway, 10).await;
        upstream.until_requests(before + 1).await;
        gate.open();
        for mut client in pending {
            client.answer("GET").await;
        }
        assert_eq!(upstream.count(), before + 1, "{control}");
    }
}

#[tokio::test]
async fn a_request_that_cannot_be_shared_does_not_make_a_key_uncacheable() {
    let upstream = Upstream::start();
    let gateway = plain(&upstream).manual().start();
    for own in [
        ("range", "bytes=0-1"),
        ("if-none-match", "\"x\""),
        ("authorization", "Basic eDp5"),
        ("cache-control", "no-cache"),
        ("cache-control", "no-store"),
    ] {
        upstream.once("/v", Reply::with(206, "cache-control: no-store\r\n", "bo"));
        gateway.request("GET", "/v", &[own]).await;
    }
    let (gate, before) = (Gate::new(), upstream.count());
    upstream.once("/v", ok(&[SOON], "body").behind(&gate));
    let pending = waiting(&gateway, 10).await;
    upstream.until_requests(before + 1).await;
    gate.open();
    for mut client in pending {
        assert_eq!(client.answer("GET").await.text(), "body");
    }
    assert_eq!(upstream.count(), before + 1);
}

#[tokio::test]
async fn variants_are_collapsed_each_on_its_own() {
    let upstream = Upstream::start();
    let gateway = plain(&upstream).manual().start();
    let varied = |accept: &str| ok(&[SOON, "vary: accept"], accept);
    upstream.usually(move |seen| varied(&seen.field("accept").unwrap_or_default()));
    gateway.request("GET", "/v", &[("accept", "a")]).await;
    let gate = Gate::new();
    let held = gate.clone();
    upstream.usually(move |seen| varied(&seen.field("accept").unwrap_or_default()).behind(&held));
    let mut pending = Vec::new();
    for number in 0..30 {
        let accept = ["b", "c", "d"][number % 3];
        let mut client = gateway.client().await;
        client
            .send_request("GET", "/v", &[("accept", accept)])
            .await;
        gateway.until_all_is_read().await;
        pending.push((client, accept));
    }
    // None of them waits for another variant to be fetched.
    upstream.until_requests(4).await;
    gate.open();
    for (mut client, accept) in pending {
        assert_eq!(client.answer("GET").await.text(), accept);
    }
    assert_eq!(upstream.count(), 4);
}
