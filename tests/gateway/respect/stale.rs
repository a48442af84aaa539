//! When stale responses are served.

use super::{ALL, did, is_hit, manual, not_modified, ok};
use crate::support::{Gate, Reply, Setup, Upstream};

#[tokio::test]
async fn stale_if_error_of_the_route_applies_to_all_responses() {
    let upstream = Upstream::start();
    let route = ALL.replace("\"respect\"", "\"respect\", stale_if_error = \"60s\"");
    let gateway = Setup::before(&upstream).config(&route).manual().start();
    upstream.once("/v", ok(&["cache-control: max-age=10"], "body"));
    gateway.get("/v").await;
    upstream.always(Reply::with(502, "", "sorry"));
    gateway.advance(70_000);
    assert_eq!(gateway.get("/v").await.text(), "body");
    gateway.advance(1000);
    assert_eq!(gateway.get("/v").await.text(), "sorry");
}

#[tokio::test]
async fn stale_while_revalidate_serves_stale_and_validates_once() {
    let upstream = Upstream::start();
    let gateway = manual(&upstream);
    let fields = [
        "cache-control: max-age=10, stale-while-revalidate=20",
        "etag: \"one\"",
    ];
    upstream.once("/v", ok(&fields, "body"));
    gateway.get("/v").await;
    gateway.advance(15_000);
    let gate = Gate::new();
    upstream.once("/v", not_modified(&fields).behind(&gate));
    for _ in 0..5 {
        let stale = gateway.get("/v").await;
        assert_eq!((stale.text(), &*did(&stale)), ("body", "hit; ttl=-5"));
        assert_eq!(stale.number("age"), 15);
    }
    upstream.until_requests(2).await;
    let asked = upstream.seen()[1].field("if-none-match");
    assert_eq!(asked.unwrap(), "\"one\"");
    gate.open();
    let mut fresh = gateway.get("/v").await;
    while did(&fresh) != "hit; ttl=10" {
        fresh = gateway.get("/v").await;
    }
    assert_eq!(upstream.count(), 2);
    gateway.advance(31_000);
    upstream.once("/v", ok(&fields, "new"));
    let late = gateway.get("/v").await;
    assert_eq!(late.text(), "new", "the window has closed");
    assert!(!is_hit(&late));
}
