//! Freshness lifetimes, and the `age` field.

use super::{did, manual, ok};
use crate::support::{Gateway, Upstream};

/// Asks thrice: at once, a second before the end, and at the end.
async fn lasts(gateway: &Gateway, target: &str, seconds: u64) {
    let miss = did(&gateway.get(target).await);
    assert_eq!(miss, "fwd=uri-miss; fwd-status=200; stored", "{target}");
    gateway.advance(seconds * 1000 - 1000);
    assert_eq!(did(&gateway.get(target).await), "hit; ttl=1", "{target}");
    gateway.advance(1000);
    let over = did(&gateway.get(target).await);
    assert!(over.starts_with("fwd=stale; fwd-status=200"), "{target}");
}

#[tokio::test]
async fn s_maxage_over_max_age_over_expires_over_heuristics() {
    let upstream = Upstream::start();
    for (target, control, expires, modified, seconds) in [
        ("/s", "max-age=20, s-maxage=10", Some(30), None, 10),
        ("/m", "max-age=20", Some(30), Some(-1000), 20),
        ("/e", "public", Some(30), Some(-1000), 30),
        // A tenth of the time since the last modification.
        ("/g", "public", None, Some(-1000), 100),
        // But not more than a day.
        ("/d", "public", None, Some(-100 * 86400), 86400),
    ] {
        let gateway = manual(&upstream);
        let mut fields = vec![
            format!("cache-control: {control}"),
            format!("date: {}", gateway.date(0)),
        ];
        let more = [("expires", expires), ("last-modified", modified)];
        for (name, at) in more {
            fields.extend(at.map(|at| format!("{name}: {}", gateway.date(at))));
        }
        let fields: Vec<_> = fields.iter().map(|field| &**field).collect();
        upstream.always(ok(&fields, "body"));
        lasts(&gateway, target, seconds).await;
    }
}

#[tokio::test]
async fn queries_are_part_of_the_key_unchanged() {
    let upstream = Upstream::start();
    let gateway = manual(&upstream);
    upstream.usually(|seen| ok(&["cache-control: max-age=60"], &seen.target()));
    let targets = [
        "/a",
        "/a?",
        "/a?x=1&y=2",
        "/a?y=2&x=1",
        "/a?x=1&x=2",
        "/A",
        "/a/",
        "/a%2Fb",
        "/a/b",
        "/",
        "/?q=%C3%A9",
    ];
    for _ in 0..2 {
        for target in targets {
            assert_eq!(gateway.get(target).await.text(), target);
        }
    }
    assert_eq!(upstream.targets(), targets);
}
