//! Which responses may be stored, and which a request accepts.

use super::{did, is_hit, manual, ok};
use crate::support::{Gateway, Upstream};

/// Whether a second request is answered from memory.
async fn kept(gateway: &Gateway, target: &str, fields: &[(&str, &str)]) -> bool {
    gateway.request("GET", target, fields).await;
    is_hit(&gateway.request("GET", target, fields).await)
}

#[tokio::test]
async fn answers_that_forbid_storing_are_not_stored() {
    let upstream = Upstream::start();
    let gateway = manual(&upstream);
    for (at, (control, is_kept)) in [
        ("max-age=60", true),
        ("max-age=60, no-store", false),
        ("No-Store, max-age=60", false),
        ("max-age=60, private", false),
        ("max-age=60, private=\"set-cookie\"", true),
        ("max-age=60, no-cache=\"set-cookie\"", true),
        ("max-age=60, x=\"no-store\"", true),
        ("max-age=60, must-understand, no-store", true),
        ("max-age=60, must-revalidate", true),
        ("max-age=60, immutable", true),
    ]
    .into_iter()
    .enumerate()
    {
        upstream.always(ok(&[&format!("cache-control: {control}")], "body"));
        let target = format!("/{at}");
        assert_eq!(kept(&gateway, &target, &[]).await, is_kept, "{control}");
    }
}

#[tokio::test]
async fn authorized_answers_are_shared_only_if_a_directive_allows_it() {
    let upstream = Upstream::start();
    let gateway = manual(&upstream);
    let credentials = [("authorization", "Bearer client")];
    for (at, (control, is_kept)) in [
        ("max-age=60", false),
        ("max-age=60, public", true),
        ("s-maxage=60", true),
        ("max-age=60, must-revalidate", true),
        ("max-age=60, proxy-revalidate", false),
    ]
    .into_iter()
    .enumerate()
    {
        upstream.always(ok(&[&format!("cache-control: {control}")], "body"));
        let target = format!("/{at}");
        let found = kept(&gateway, &target, &credentials).await;
        assert_eq!(found, is_kept, "{control}");
        let seen = upstream.seen();
        let sent = seen.last().unwrap().field("authorization");
        assert_eq!(sent.unwrap(), "Bearer client");
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
