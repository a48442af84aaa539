//! Which responses may be stored, and which a request accepts. All rules are in
//! `cache::storable` and `cache::reuse`.

use super::{did, is_hit, manual, ok};
use crate::support::Upstream;

#[tokio::test]
async fn answers_that_forbid_storing_are_not_stored() {
    let upstream = Upstream::start();
    let gateway = manual(&upstream);
    let mine = [("authorization", "Bearer client")];
    let rows: [(&str, &[(&str, &str)], bool); 5] = [
        ("max-age=60", &[], true),
        ("max-age=60, no-store", &[], false),
        ("max-age=60, private", &[], false),
        ("max-age=60", &mine, false),
        ("max-age=60, public", &mine, true),
    ];
    for (at, (control, fields, is_kept)) in rows.into_iter().enumerate() {
        upstream.always(ok(&[&format!("cache-control: {control}")], "body"));
        let target = format!("/{at}");
        gateway.request("GET", &target, fields).await;
        let again = gateway.request("GET", &target, fields).await;
        assert_eq!(is_hit(&again), is_kept, "{control}");
        let sent = upstream.seen().pop().unwrap().field("authorization");
        assert_eq!(sent.is_some(), !fields.is_empty());
    }
}

#[tokio::test]
async fn only_if_cached_never_goes_upstream() {
    let upstream = Upstream::start();
    let gateway = manual(&upstream);
    upstream.always(ok(&["cache-control: max-age=10", "vary: accept"], "body"));
    let only = [("cache-control", "only-if-cached")];
    let absent = gateway.request("GET", "/v", &only).await;
    assert_eq!(absent.status, 504);
    absent.problem();
    assert_eq!(upstream.count(), 0);
    gateway.get("/v").await;
    let hit = gateway.request("GET", "/v", &only).await;
    assert_eq!((hit.status, hit.text()), (200, "body"));
    let other = [("cache-control", "only-if-cached"), ("accept", "text/html")];
    assert_eq!(gateway.request("GET", "/v", &other).await.status, 504);
    gateway.advance(10_000);
    assert_eq!(gateway.request("GET", "/v", &only).await.status, 504);
    let any = [("cache-control", "only-if-cached, max-stale")];
    assert_eq!(gateway.request("GET", "/v", &any).await.status, 200);
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn a_get_with_a_body_is_neither_stored_nor_answered_from_the_cache() {
    let upstream = Upstream::start();
    upstream.always(ok(&["cache-control: max-age=60"], "body"));
    let gateway = manual(&upstream);
    gateway.get("/v").await;
    for _ in 0..2 {
        let mut client = gateway.client().await;
        client
            .send_request("GET", "/v", &[("content-length", "2")])
            .await;
        client.send("{}").await;
        let answer = client.answer("GET").await;
        assert_eq!(did(&answer), "fwd=bypass; fwd-status=200");
    }
    assert_eq!(upstream.count(), 3);
    assert_eq!(upstream.seen()[2].body, b"{}");
}

/// HTTP/2 begins with a method that HTTP/1.1 does not have, and a space.
#[tokio::test]
async fn a_method_that_begins_like_the_preface_of_http2_is_one_of_http1() {
    let upstream = Upstream::start();
    upstream.once("/v", ok(&[], "body"));
    let gateway = manual(&upstream);
    assert_eq!(gateway.request("PRINT", "/v", &[]).await.text(), "body");
}
