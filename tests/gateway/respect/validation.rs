//! Validation of stored responses, and the effect of a 304.

use super::{did, is_hit, manual, not_modified, ok};
use crate::support::Upstream;

const SOON: &str = "cache-control: max-age=10";
const DATE: &str = "Sat, 01 Nov 2025 00:00:00 GMT";

#[tokio::test]
async fn both_validators_go_up_and_a_304_freshens() {
    let upstream = Upstream::start();
    let gateway = manual(&upstream);
    let modified = format!("last-modified: {DATE}");
    let first = ok(&[SOON, "etag: \"one\"", &modified, "x-old: 1"], "body");
    upstream.once("/v", first);
    gateway.get("/v").await;
    assert_eq!(upstream.seen()[0].field("if-none-match"), None);
    assert_eq!(upstream.seen()[0].field("if-modified-since"), None);
    gateway.advance(10_000);

    let newer = ["cache-control: max-age=20", "etag: \"one\"", "x-new: 2"];
    upstream.once("/v", not_modified(&newer));
    let asked = gateway.get("/v").await;
    let seen = &upstream.seen()[1];
    assert_eq!(seen.method(), "GET");
    assert_eq!(seen.field("if-none-match").unwrap(), "\"one\"");
    assert_eq!(seen.field("if-modified-since").unwrap(), DATE);
    assert_eq!((asked.status, asked.text()), (200, "body"));
    assert_eq!(did(&asked), "fwd=stale; fwd-status=304; stored");
    let hit = gateway.get("/v").await;
    assert_eq!(did(&hit), "hit; ttl=20");
    for answer in [asked, hit] {
        assert_eq!(answer.must("cache-control"), "max-age=20");
        assert_eq!(answer.must("x-new"), "2", "as the 304 said");
        assert_eq!(answer.must("x-old"), "1", "of which the 304 said nothing");
        assert_eq!(answer.must("etag"), "\"one\"");
        assert_eq!(answer.must("content-length"), "4");
        assert_eq!(answer.must("date"), gateway.date(0));
        assert_eq!(answer.must("age"), "0");
    }
    assert_eq!(upstream.count(), 2);
}

#[tokio::test]
async fn a_200_replaces_the_stored_response() {
    let upstream = Upstream::start();
    let gateway = manual(&upstream);
    upstream.once("/v", ok(&[SOON, "etag: \"one\""], "old"));
    upstream.once("/v", ok(&[SOON, "etag: \"two\""], "new"));
    gateway.get("/v").await;
    gateway.advance(10_000);
    for expected in ["fwd=stale; fwd-status=200; stored", "hit; ttl=10"] {
        let answer = gateway.get("/v").await;
        assert_eq!((answer.text(), &*did(&answer)), ("new", expected));
        assert_eq!(answer.must("etag"), "\"two\"");
    }
    assert_eq!(upstream.count(), 2);
    assert_eq!(gateway.explain("/v").await["stored"]["count"], 1);
}

#[tokio::test]
async fn without_a_validator_the_response_is_fetched_again() {
    let upstream = Upstream::start();
    let gateway = manual(&upstream);
    upstream.always(ok(&[SOON, "etag: unquoted"], "body"));
    gateway.get("/v").await;
    gateway.advance(10_000);
    let fields = [("if-none-match", "\"client\""), ("range", "bytes=0-0")];
    let answer = gateway.request("GET", "/v", &fields).await;
    assert_eq!((answer.status, answer.text()), (206, "b"));
    for name in ["if-none-match", "if-modified-since", "range"] {
        assert_eq!(upstream.seen()[1].field(name), None, "{name}");
    }
}

#[tokio::test]
async fn the_clients_condition_is_evaluated_after_the_validation() {
    let upstream = Upstream::start();
    let gateway = manual(&upstream);
    upstream.once("/v", ok(&[SOON, "etag: \"one\""], "body"));
    upstream.once("/v", not_modified(&[SOON, "etag: \"one\""]));
    upstream.once("/v", ok(&[SOON, "etag: \"two\""], "new"));
    gateway.get("/v").await;
    gateway.advance(10_000);
    let ask = |tag| [("if-none-match", tag)];
    let other = gateway.request("GET", "/v", &ask("\"mine\"")).await;
    assert_eq!((other.status, other.text()), (200, "body"));
    let asked = upstream.seen()[1].field("if-none-match").unwrap();
    assert_eq!(asked, "\"one\"", "what is stored, not what the client has");
    gateway.advance(10_000);
    let same = gateway.request("GET", "/v", &ask("\"two\"")).await;
    assert_eq!((same.status, same.must("etag")), (304, "\"two\""));
    assert_eq!(did(&same), "fwd=stale; fwd-status=200; stored");
    assert_eq!(gateway.get("/v").await.text(), "new");
    assert_eq!(upstream.count(), 3);
}

#[tokio::test]
async fn a_304_that_names_another_validator_changes_nothing() {
    let upstream = Upstream::start();
    let gateway = manual(&upstream);
    upstream.once("/v", ok(&[SOON, "etag: \"one\"", "x-f: old"], "body"));
    gateway.get("/v").await;
    gateway.advance(10_000);
    upstream.once("/v", not_modified(&[SOON, "etag: \"two\"", "x-f: new"]));
    let answer = gateway.get("/v").await;
    assert_eq!((answer.status, answer.text()), (200, "body"));
    assert_eq!(answer.must("etag"), "\"one\"");
    assert_eq!(answer.must("x-f"), "old");
    assert_eq!(did(&answer), "fwd=stale; fwd-status=304");
    upstream.once("/v", not_modified(&[SOON, "etag: \"one\"", "x-f: new"]));
    let again = gateway.get("/v").await;
    assert_eq!(did(&again), "fwd=stale; fwd-status=304; stored");
    assert_eq!(again.must("x-f"), "new");
}

#[tokio::test]
async fn an_unrequested_304_is_forwarded() {
    let upstream = Upstream::start();
    let gateway = manual(&upstream);
    upstream.always(not_modified(&[SOON, "etag: \"mine\""]));
    let fields = [("if-none-match", "\"mine\", W/\"other\"")];
    for asked in 0..2 {
        let answer = gateway.request("GET", "/v", &fields).await;
        assert_eq!(answer.status, 304);
        assert_eq!(answer.must("etag"), "\"mine\"");
        assert_eq!(did(&answer), "fwd=uri-miss; fwd-status=304");
        let up = upstream.seen()[asked].field("if-none-match").unwrap();
        assert_eq!(up, fields[0].1);
    }
}

#[tokio::test]
async fn head_is_answered_from_a_stored_get() {
    let upstream = Upstream::start();
    let gateway = manual(&upstream);
    upstream.always(ok(&[SOON, "etag: \"one\"", "x-f: 1"], "body"));
    gateway.get("/v").await;
    let mut client = gateway.client().await;
    let head = client.request("HEAD", "/v", &[]).await;
    assert_eq!((head.status, &*did(&head)), (200, "hit; ttl=10"));
    assert_eq!(head.must("content-length"), "4");
    assert_eq!(head.must("x-f"), "1");
    assert_eq!(client.get("/v").await.text(), "body", "and nothing is left");
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn a_head_alone_stores_nothing() {
    let upstream = Upstream::start();
    let gateway = manual(&upstream);
    upstream.once(
        "/v",
        super::Reply::raw(
            "HTTP/1.1 200 OK\r\ncache-control: max-age=10\r\ncontent-length: 4\r\n\r\n",
        ),
    );
    let head = gateway.request("HEAD", "/v", &[]).await;
    assert_eq!((head.status, head.must("content-length")), (200, "4"));
    assert_eq!(did(&head), "fwd=uri-miss; fwd-status=200");
    upstream.once("/v", ok(&[SOON], "body"));
    assert_eq!(gateway.get("/v").await.text(), "body");
    assert_eq!(upstream.count(), 2);
}

fn head(fields: &[&str]) -> super::Reply {
    let lines = super::lines(fields);
    super::Reply::raw(format!("HTTP/1.1 200 OK\r\n{lines}\r\n"))
}

#[tokio::test]
async fn a_head_that_agrees_freshens_a_stored_get() {
    let upstream = Upstream::start();
    let gateway = manual(&upstream);
    upstream.once("/v", ok(&[SOON, "x-f: old"], "body"));
    gateway.get("/v").await;
    gateway.advance(10_000);
    let longer = "cache-control: max-age=30";
    upstream.once("/v", head(&[longer, "x-f: new", "content-length: 4"]));
    let asked = gateway.request("HEAD", "/v", &[]).await;
    assert_eq!(asked.must("x-f"), "new");
    let hit = gateway.get("/v").await;
    assert_eq!((hit.text(), &*did(&hit)), ("body", "hit; ttl=30"));
    assert_eq!(hit.must("x-f"), "new");
    assert_eq!(hit.number("age"), 0);
}

#[tokio::test]
async fn a_head_that_differs_makes_a_stored_get_stale() {
    for (other, tag) in [("content-length: 5", "\"one\""), ("x-f: 1", "\"two\"")] {
        let upstream = Upstream::start();
        let gateway = manual(&upstream);
        upstream.once("/v", ok(&[SOON, "etag: \"one\""], "body"));
        gateway.get("/v").await;
        let tag = format!("etag: {tag}");
        upstream.once("/v", head(&[SOON, &tag, other]));
        let fields = [("cache-control", "no-cache")];
        gateway.request("HEAD", "/v", &fields).await;
        upstream.once("/v", ok(&[SOON, "etag: \"two\""], "fresh"));
        let answer = gateway.get("/v").await;
        assert!(!is_hit(&answer), "{other}");
        assert_eq!(answer.text(), "fresh");
    }
}

/// A HEAD for what is stale asks about it too, and its 304 keeps the stored
/// body, which a HEAD could not have brought.
#[tokio::test]
async fn a_304_to_a_head_freshens_a_stored_get() {
    let upstream = Upstream::start();
    let gateway = manual(&upstream);
    upstream.once("/v", ok(&[SOON, "etag: \"one\""], "body"));
    gateway.get("/v").await;
    gateway.advance(10_000);
    upstream.once("/v", not_modified(&[SOON, "etag: \"one\""]));
    let head = gateway.request("HEAD", "/v", &[]).await;
    assert_eq!(head.status, 200);
    assert_eq!(head.must("content-length"), "4");
    assert_eq!(upstream.seen()[1].method(), "HEAD");
    let hit = gateway.get("/v").await;
    assert_eq!((hit.text(), &*did(&hit)), ("body", "hit; ttl=10"));
}

/// What a validating request says of itself (a range, no-store, credentials)
/// must not lose what is stored and still holds.
#[tokio::test]
async fn a_304_to_a_request_that_could_not_be_stored_loses_nothing() {
    for field in [
        ("range", "bytes=0-1"),
        ("cache-control", "no-store"),
        ("authorization", "Basic x"),
    ] {
        let upstream = Upstream::start();
        let gateway = manual(&upstream);
        upstream.once("/v", ok(&[SOON, "etag: \"one\""], "body"));
        gateway.get("/v").await;
        gateway.advance(10_000);
        upstream.once("/v", not_modified(&[SOON, "etag: \"one\""]));
        let asked = gateway.request("GET", "/v", &[field]).await;
        assert!(matches!(asked.status, 200 | 206), "{field:?}");
        upstream.always(not_modified(&[SOON, "etag: \"one\""]));
        let again = gateway.get("/v").await;
        assert_eq!((again.status, again.text()), (200, "body"), "{field:?}");
        if upstream.count() == 3 {
            let asked = upstream.seen()[2].field("if-none-match");
            assert_eq!(asked, Some("\"one\"".to_owned()), "it is still there");
        }
    }
}
