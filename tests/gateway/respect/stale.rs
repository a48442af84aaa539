//! When stale responses are served.

use super::{ALL, did, is_hit, manual, not_modified, ok};
use crate::support::{Gate, Reply, Setup, Upstream, until};

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

#[tokio::test]
async fn many_stale_hits_at_once_refresh_once_also_where_the_answer_cannot_be_shared() {
    let upstream = Upstream::start();
    let gateway = manual(&upstream);
    let fields = ["cache-control: max-age=10, stale-while-revalidate=600"];
    upstream.once("/v", ok(&fields, "body"));
    gateway.get("/v").await;
    gateway.advance(15_000);
    upstream.usually(|_| ok(&["cache-control: no-store"], "other"));
    // In one packet, so that all are answered before the first refresh begins.
    let mut client = gateway.client().await;
    client
        .send("GET /v HTTP/1.1\r\nhost: a\r\n\r\n".repeat(30))
        .await;
    for _ in 0..30 {
        assert_eq!(client.answer("GET").await.text(), "body");
    }
    until("nothing is fetched", || {
        upstream.count() > 1 && gateway.fetching() == 0 && gateway.in_flight() == 0
    })
    .await;
    assert_eq!(upstream.count(), 2);
}

#[tokio::test]
async fn a_variant_that_cannot_be_shared_does_not_keep_others_from_being_refreshed() {
    let upstream = Upstream::start();
    let gateway = manual(&upstream);
    let vary = "vary: accept-language";
    let fields = [
        "cache-control: max-age=10, stale-while-revalidate=600",
        vary,
    ];
    let ask = async |language| {
        let fields = [("accept-language", language)];
        gateway.request("GET", "/v", &fields).await
    };
    upstream.once("/v", ok(&fields, "body"));
    ask("en").await;
    let none = Reply::with(
        404,
        &format!("cache-control: no-store\r\n{vary}\r\n"),
        "none",
    );
    upstream.once("/v", none);
    assert_eq!(ask("xx").await.status, 404);
    gateway.advance(15_000);
    upstream.once("/v", ok(&fields, "new"));
    assert_eq!(ask("en").await.text(), "body");
    upstream.until_requests(3).await;
    let mut fresh = ask("en").await;
    while did(&fresh) != "hit; ttl=10" {
        fresh = ask("en").await;
    }
    assert_eq!(fresh.text(), "new");
}
