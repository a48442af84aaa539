//! Validation of stored responses, and the effect of a 304.

use super::{did, manual, not_modified, ok};
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
