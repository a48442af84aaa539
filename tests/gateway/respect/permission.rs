//! Which responses may be stored, and which a request accepts.

use super::{did, is_hit, manual, ok};
use crate::support::{Gateway, Reply, Upstream};

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
async fn must_understand_with_an_unknown_status_is_not_stored() {
    let upstream = Upstream::start();
    let gateway = manual(&upstream);
    let fields = "cache-control: max-age=60, must-understand\r\n";
    upstream.always(Reply::with(299, fields, "body"));
    assert!(!kept(&gateway, "/v", &[]).await);
}

#[tokio::test]
async fn no_cache_is_stored_and_validated_each_time() {
    let upstream = Upstream::start();
    let gateway = manual(&upstream);
    let fields = ["cache-control: max-age=60, no-cache", "etag: \"one\""];
    upstream.once("/v", ok(&fields, "body"));
    upstream.always(super::not_modified(&fields));
    let first = did(&gateway.get("/v").await);
    assert_eq!(first, "fwd=uri-miss; fwd-status=200; stored");
    for _ in 0..2 {
        let again = gateway.get("/v").await;
        assert_eq!(again.text(), "body");
        assert_eq!(did(&again), "fwd=stale; fwd-status=304; stored");
    }
    assert_eq!(upstream.count(), 3);
}

#[tokio::test]
async fn fields_named_by_private_are_not_stored() {
    let upstream = Upstream::start();
    for directive in ["private", "no-cache"] {
        let gateway = manual(&upstream);
        let control = format!("cache-control: max-age=60, {directive}=\"x-one, X-Two\"");
        let fields = [&*control, "x-one: 1", "x-two: 2", "x-three: 3"];
        upstream.always(ok(&fields, "body"));
        gateway.get("/v").await;
        let hit = gateway.get("/v").await;
        assert!(is_hit(&hit), "{directive}");
        assert_eq!(hit.field("x-one"), None);
        assert_eq!(hit.field("x-two"), None);
        assert_eq!(hit.must("x-three"), "3");
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
async fn a_request_with_no_store_is_not_stored() {
    let upstream = Upstream::start();
    let gateway = manual(&upstream);
    upstream.always(ok(&["cache-control: max-age=60"], "body"));
    let fields = [("cache-control", "no-store")];
    let first = gateway.request("GET", "/v", &fields).await;
    assert_eq!(did(&first), "fwd=uri-miss; fwd-status=200");
    let second = did(&gateway.get("/v").await);
    assert_eq!(second, "fwd=uri-miss; fwd-status=200; stored");
}

#[tokio::test]
async fn cookies_are_stored_unless_forbidden() {
    let upstream = Upstream::start();
    let gateway = manual(&upstream);
    let fields = [
        "cache-control: max-age=60",
        "set-cookie: a=1; Path=/",
        "set-cookie: b=2",
    ];
    upstream.always(ok(&fields, "body"));
    for _ in 0..2 {
        let answer = gateway.get("/v").await;
        assert_eq!(answer.all("set-cookie"), ["a=1; Path=/", "b=2"]);
    }
    assert_eq!(upstream.count(), 1);
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
async fn request_directives_bound_what_is_served() {
    const FRESH: &str = "hit; ttl=40";
    const ASKED: &str = "fwd=request; fwd-status=200; stored";
    const STALE: &str = "fwd=stale; fwd-status=200; stored";
    let upstream = Upstream::start();
    // What has been stored for 20 s and is fresh for 60 in all, or 15.
    for (lifetime, field, expected) in [
        (60, ("cache-control", "max-age=20"), FRESH),
        (60, ("cache-control", "max-age=19"), ASKED),
        (60, ("cache-control", "max-age=0"), ASKED),
        (60, ("cache-control", "no-cache"), ASKED),
        (60, ("pragma", "no-cache"), ASKED),
        (60, ("cache-control", "min-fresh=40"), FRESH),
        (60, ("cache-control", "min-fresh=41"), ASKED),
        (60, ("cache-control", "max-stale"), FRESH),
        (60, ("cache-control", "unheard-of=1"), FRESH),
        (15, ("cache-control", "max-stale"), "hit; ttl=-5"),
        (15, ("cache-control", "max-stale=5"), "hit; ttl=-5"),
        (15, ("cache-control", "max-stale=4"), STALE),
        (15, ("cache-control", "max-age=100"), STALE),
        (
            15,
            ("cache-control", "max-age=100, max-stale=9"),
            "hit; ttl=-5",
        ),
        (15, ("accept", "*/*"), STALE),
    ] {
        let gateway = manual(&upstream);
        let control = format!("cache-control: max-age={lifetime}");
        upstream.always(ok(&[&control], "body"));
        gateway.get("/v").await;
        gateway.advance(20_000);
        let answer = gateway.request("GET", "/v", &[field]).await;
        assert_eq!(did(&answer), expected, "{lifetime} {field:?}");
    }
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
