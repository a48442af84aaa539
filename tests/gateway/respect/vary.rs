//! Several variants of one target, selected by the fields that `vary` names.

use super::{did, is_hit, manual, not_modified, ok};
use crate::support::{Gateway, Upstream};

/// An origin that says back one request field, and varies by it.
fn saying(upstream: &Upstream, name: &'static str) {
    upstream.usually(move |seen| {
        let value = seen.field(name).unwrap_or_else(|| "nothing".to_owned());
        let vary = format!("vary: {name}");
        ok(&["cache-control: max-age=60", &vary], &value)
    });
}

async fn with(gateway: &Gateway, name: &str, value: &str) -> (String, String) {
    let answer = gateway.request("GET", "/v", &[(name, value)]).await;
    (answer.text().to_owned(), did(&answer))
}

#[tokio::test]
async fn variants_live_beside_each_other() {
    let upstream = Upstream::start();
    saying(&upstream, "accept-language");
    let gateway = manual(&upstream);
    let missed = |why: &str| format!("fwd={why}; fwd-status=200; stored");
    let name = "accept-language";
    let first = with(&gateway, name, "en").await;
    assert_eq!(first, ("en".to_owned(), missed("uri-miss")));
    for other in ["de", "fr"] {
        let next = with(&gateway, name, other).await;
        assert_eq!(next, (other.to_owned(), missed("vary-miss")));
    }
    let without = gateway.get("/v").await;
    assert_eq!(without.text(), "nothing", "absence is a value of its own");
    assert_eq!(did(&without), missed("vary-miss"));
    for value in ["fr", "en", "de"] {
        let hit = with(&gateway, name, value).await;
        assert_eq!(hit, (value.to_owned(), "hit; ttl=60".to_owned()));
    }
    assert!(is_hit(&gateway.get("/v").await));
    assert_eq!(upstream.count(), 4);
}

/// Two variants may have one tag: what freshens both must leave each to those
/// whom it is for.
#[tokio::test]
async fn variants_of_one_tag_stay_apart() {
    let upstream = Upstream::start();
    let gateway = manual(&upstream);
    let tag = "etag: \"same\"";
    let fields = ["cache-control: max-age=10", "vary: x-who", tag];
    for who in ["ann", "bob"] {
        upstream.once("/v", ok(&fields, who));
        assert_eq!(with(&gateway, "x-who", who).await.0, who);
    }
    gateway.advance(10_000);
    upstream.once("/v", not_modified(&fields));
    assert_eq!(with(&gateway, "x-who", "ann").await.0, "ann");
    upstream.always(not_modified(&fields));
    assert_eq!(with(&gateway, "x-who", "ann").await.0, "ann");
    assert_eq!(with(&gateway, "x-who", "bob").await.0, "bob");
}
