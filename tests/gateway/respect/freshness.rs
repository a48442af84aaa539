//! Freshness lifetimes, of which all rules are in `cache::freshness`, and the key.

use super::{did, manual, ok};
use crate::support::Upstream;

#[tokio::test]
async fn a_lifetime_ends_by_the_origins_fields() {
    let upstream = Upstream::start();
    for (target, name, seconds) in [
        ("/s", "cache-control", 10),
        ("/e", "expires", 30),
        // A tenth of the time since the last modification.
        ("/m", "last-modified", 100),
    ] {
        let gateway = manual(&upstream);
        let value = match name {
            "cache-control" => "max-age=20, s-maxage=10".to_owned(),
            "expires" => gateway.date(30),
            _ => gateway.date(-1000),
        };
        let date = format!("date: {}", gateway.date(0));
        upstream.always(ok(&[&format!("{name}: {value}"), &date], "body"));
        let miss = did(&gateway.get(target).await);
        assert_eq!(miss, "fwd=uri-miss; fwd-status=200; stored", "{target}");
        gateway.advance(seconds * 1000 - 1000);
        assert_eq!(did(&gateway.get(target).await), "hit; ttl=1", "{target}");
        gateway.advance(1000);
        let over = did(&gateway.get(target).await);
        assert!(over.starts_with("fwd=stale; fwd-status=200"), "{target}");
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
