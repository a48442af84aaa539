//! `cache-status` (RFC 9211).

use super::{ALL, did, manual, ok};
use crate::support::{Gateway, Upstream};

#[tokio::test]
async fn fwd_has_the_true_reason() {
    let upstream = Upstream::start();
    let fields = ["cache-control: max-age=10", "vary: accept"];
    upstream.always(ok(&fields, "body"));
    let gateway = manual(&upstream);
    let stored = |why: &str| format!("fwd={why}; fwd-status=200; stored");
    let none: &[(&str, &str)] = &[];
    for (method, fields, expected) in [
        ("GET", none, stored("uri-miss")),
        ("GET", none, "hit; ttl=10".to_owned()),
        ("HEAD", none, "hit; ttl=10".to_owned()),
        ("GET", &[("accept", "a")], stored("vary-miss")),
        ("GET", &[("cache-control", "no-cache")], stored("request")),
        ("OPTIONS", none, "fwd=method; fwd-status=200".to_owned()),
        ("POST", none, "fwd=method; fwd-status=200".to_owned()),
        ("GET", none, stored("uri-miss")),
    ] {
        let answer = gateway.request(method, "/v", fields).await;
        assert_eq!(did(&answer), expected, "{method} {fields:?}");
    }
    gateway.advance(10_000);
    assert_eq!(did(&gateway.get("/v").await), stored("stale"));
}

#[tokio::test]
async fn a_route_that_stores_nothing_says_bypass() {
    let upstream = Upstream::start();
    upstream.always(ok(&["cache-control: max-age=10"], "body"));
    let route = ALL.replace("\"respect\"", "\"off\"");
    let gateway = Gateway::with(&upstream, &route);
    for _ in 0..2 {
        let answer = gateway.get("/v").await;
        assert_eq!(did(&answer), "fwd=bypass; fwd-status=200");
    }
}

#[tokio::test]
async fn cache_status_is_appended_to_that_of_others() {
    let upstream = Upstream::start();
    let gateway = manual(&upstream);
    let theirs = "origin; hit; ttl=9, edge; fwd=stale";
    let cache_status = format!("cache-status: {theirs}");
    upstream.always(ok(&["cache-control: max-age=10", &cache_status], "body"));
    let miss = gateway.get("/v").await;
    let own = "ordgate; fwd=uri-miss; fwd-status=200; stored";
    assert_eq!(miss.all("cache-status"), [theirs, own]);
    let hit = gateway.get("/v").await;
    assert_eq!(hit.all("cache-status"), [theirs, "ordgate; hit; ttl=10"]);
    upstream.always(ok(&["cache-control: no-store", &cache_status], "body"));
    let passed = gateway.get("/passed").await;
    let own = "ordgate; fwd=uri-miss; fwd-status=200";
    assert_eq!(passed.all("cache-status"), [theirs, own]);
}

#[tokio::test]
async fn cache_status_has_the_key_if_configured() {
    let upstream = Upstream::start();
    upstream.always(ok(&["cache-control: max-age=10"], "body"));
    let config = "answers.cache_status_key = true";
    let known = super::plain(&upstream).config(config);
    let gateway = known.manual().start();
    gateway.get("/v?a=b").await;
    let hit = gateway.get("/v?a=b").await;
    assert_eq!(did(&hit), "hit; ttl=10; key=\"/v?a=b\"");
}
