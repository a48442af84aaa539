//! Freshness lifetimes, and the `age` field.

use std::time::SystemTime;

use super::{did, is_hit, manual, not_modified, ok, plain};
use crate::support::{Gateway, Reply, Upstream};

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
async fn an_answer_without_freshness_is_not_stored() {
    let upstream = Upstream::start();
    let gateway = manual(&upstream);
    for (target, fields) in [
        ("/nothing", &[][..]),
        ("/zero", &["expires: 0"]),
        ("/past", &["expires: Thu, 01 Jan 1970 00:00:00 GMT"]),
        ("/negative", &["cache-control: max-age=-5"]),
        ("/maxage0", &["cache-control: max-age=0"]),
    ] {
        upstream.always(ok(fields, "body"));
        for _ in 0..2 {
            let before = upstream.count();
            let answer = gateway.get(target).await;
            assert!(!is_hit(&answer), "{target}: {answer:?}");
            assert_eq!(answer.text(), "body");
            assert_eq!(upstream.count(), before + 1, "{target}");
        }
    }
}

#[tokio::test]
async fn heuristic_freshness_needs_a_status_that_allows_it() {
    let upstream = Upstream::start();
    let gateway = manual(&upstream);
    for (status, hits) in [
        (200, true),
        (203, true),
        (204, true),
        (300, true),
        (301, true),
        (308, true),
        (404, true),
        (405, true),
        (410, true),
        (414, true),
        (501, true),
        (201, false),
        (302, false),
        (307, false),
        (400, false),
        (403, false),
        (500, false),
        (503, false),
        (599, false),
    ] {
        let target = format!("/guess/{status}");
        let fields = format!("last-modified: {}\r\n", gateway.date(-100_000));
        let head = format!("HTTP/1.1 {status} Telling\r\n{fields}");
        upstream.always(match status {
            204 => Reply::raw(format!("{head}\r\n")),
            _ => Reply::with(status, &fields, "body"),
        });
        gateway.get(&target).await;
        let again = gateway.get(&target).await;
        assert_eq!(is_hit(&again), hits, "{status}: {again:?}");
        assert_eq!(again.status, status);

        // Said outright, any final status may be used.
        let target = format!("/said/{status}");
        upstream.always(match status {
            204 => Reply::raw(format!("{head}cache-control: max-age=9\r\n\r\n")),
            _ => Reply::with(status, "cache-control: max-age=9\r\n", "body"),
        });
        gateway.get(&target).await;
        assert!(is_hit(&gateway.get(&target).await), "{status}");
    }
}

#[tokio::test]
async fn a_received_age_counts() {
    let upstream = Upstream::start();
    let gateway = manual(&upstream);
    upstream.always(ok(&["cache-control: max-age=100", "age: 40"], "body"));
    assert_eq!(gateway.get("/aged").await.number("age"), 40);
    gateway.advance(59_000);
    let hit = gateway.get("/aged").await;
    assert_eq!((hit.number("age"), &*did(&hit)), (99, "hit; ttl=1"));
    gateway.advance(1000);
    let stale = gateway.get("/aged").await;
    assert_eq!(did(&stale), "fwd=stale; fwd-status=200; stored");
    assert_eq!(stale.number("age"), 40);

    // A date in the past is an age too, and the greater counts.
    let date = format!("date: {}", gateway.date(-50));
    upstream.always(ok(&["cache-control: max-age=100", &date, "age: 40"], "b"));
    let dated = gateway.get("/dated").await;
    assert_eq!(dated.number("age"), 50);
    assert_eq!(format!("date: {}", dated.must("date")), date);
    // An age that exceeds the lifetime at once.
    upstream.always(ok(&["cache-control: max-age=100", "age: 200"], "b"));
    gateway.get("/old").await;
    assert!(!is_hit(&gateway.get("/old").await));
}

#[tokio::test]
async fn a_missing_date_is_added_and_a_present_one_kept() {
    let upstream = Upstream::start();
    let gateway = manual(&upstream);
    let date = "Sat, 01 Nov 2025 00:00:00 GMT";
    for control in ["max-age=999999999", "no-store"] {
        let control = format!("cache-control: {control}");
        upstream.always(ok(&[&control, &format!("date: {date}")], "b"));
        let target = format!("/kept/{}", control.len());
        assert_eq!(gateway.get(&target).await.must("date"), date);
        upstream.always(ok(&[&control], "b"));
        let target = format!("/given/{}", control.len());
        let given = gateway.get(&target).await;
        assert_eq!(given.must("date"), gateway.date(0));
    }
    gateway.advance(5000);
    let hit = gateway.get("/given/32").await;
    if is_hit(&hit) {
        assert_eq!(hit.must("date"), gateway.date(-5), "the hit has the old");
    }
}

/// Also if it arrives in the middle of a second, of which its added date has only the
/// beginning.
#[tokio::test]
async fn without_a_date_an_answer_is_fresh_until_it_expires() {
    let upstream = Upstream::start();
    let gateway = manual(&upstream);
    // To three quarters of a second.
    let now = gateway.wall().duration_since(SystemTime::UNIX_EPOCH);
    gateway.advance((1750 - u64::from(now.unwrap().subsec_millis())) % 1000);
    let expires = |seconds| format!("expires: {}", gateway.date(seconds));
    upstream.once("/v", ok(&[&expires(10), "etag: \"one\""], "body"));
    let first = gateway.get("/v").await;
    assert_eq!(first.must("date"), gateway.date(0));
    let only = [("cache-control", "only-if-cached")];
    for next in [expires(20), expires(30)] {
        gateway.advance(9249);
        assert!(is_hit(&gateway.get("/v").await));
        gateway.advance(1);
        assert_eq!(gateway.request("GET", "/v", &only).await.status, 504);
        // A 304 without a date counts in the same way.
        gateway.advance(750);
        upstream.once("/v", not_modified(&[&next, "etag: \"one\""]));
        let asked = gateway.get("/v").await;
        assert_eq!(did(&asked), "fwd=stale; fwd-status=304; stored");
        assert_eq!(asked.must("date"), gateway.date(0));
    }
}

#[tokio::test]
async fn the_field_for_caches_like_this_one_governs() {
    let upstream = Upstream::start();
    let setup = plain(&upstream).config("cache.targeted_field = \"ordgate-cache-control\"");
    let gateway = setup.manual().start();
    for (target, fields, seconds) in [
        (
            "/cdn",
            &["cache-control: max-age=90", "cdn-cache-control: max-age=10"][..],
            Some(10),
        ),
        (
            "/own",
            &[
                "cache-control: no-store",
                "cdn-cache-control: max-age=10",
                "ordgate-cache-control: max-age=20",
            ],
            Some(20),
        ),
        (
            "/forbids",
            &["cache-control: max-age=90", "cdn-cache-control: no-store"],
            None,
        ),
        (
            "/broken",
            &["cache-control: max-age=30", "cdn-cache-control: max-age=&"],
            Some(30),
        ),
    ] {
        upstream.always(ok(fields, "body"));
        match seconds {
            Some(seconds) => lasts(&gateway, target, seconds).await,
            None => {
                gateway.get(target).await;
                assert!(!is_hit(&gateway.get(target).await), "{target}");
            }
        }
        let answer = gateway.get(target).await;
        assert_eq!(
            format!("cdn-cache-control: {}", answer.must("cdn-cache-control")),
            *fields[1],
            "it is for the caches behind us too"
        );
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
