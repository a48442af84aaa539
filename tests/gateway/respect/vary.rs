//! Several variants of one target, selected by the fields that `vary` names.

use std::cell::Cell;

use proptest::prelude::{Just, Strategy, prop_assert, prop_assert_eq, prop_oneof};
use proptest::test_runner::{Config, TestRunner};

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

#[tokio::test]
async fn an_asterisk_matches_nothing() {
    let upstream = Upstream::start();
    for vary in ["*", "accept, *"] {
        let gateway = manual(&upstream);
        let vary = format!("vary: {vary}");
        upstream.always(ok(&["cache-control: max-age=60", &vary], "body"));
        for _ in 0..2 {
            assert_eq!(
                did(&gateway.get("/v").await),
                "fwd=uri-miss; fwd-status=200"
            );
        }
    }
}

#[tokio::test]
async fn lists_that_mean_the_same_match() {
    let upstream = Upstream::start();
    saying(&upstream, "accept-encoding");
    let gateway = manual(&upstream);
    let name = "accept-encoding";
    assert!(!with(&gateway, name, "gzip, br").await.1.starts_with("hit"));
    for same in ["br, gzip", "gzip,br", "GZIP , br"] {
        let (text, did) = with(&gateway, name, same).await;
        assert_eq!((&*text, &*did), ("gzip, br", "hit; ttl=60"), "{same}");
    }
    for other in ["gzip", "gzip;q=0, br", "gzip, br, zstd", "*"] {
        let (text, _) = with(&gateway, name, other).await;
        assert_eq!(text, other);
    }
}

#[tokio::test]
async fn a_vary_miss_is_validated_with_all_tags() {
    let upstream = Upstream::start();
    let fields = |tag: &str, value: &str| {
        let tag = format!("etag: \"{tag}\"");
        let fields = ["cache-control: max-age=60", "vary: accept", &tag];
        ok(&fields, value)
    };
    let gateway = manual(&upstream);
    let name = "accept";
    upstream.once("/v", fields("a", "A"));
    with(&gateway, name, "a").await;
    upstream.once("/v", fields("b", "B"));
    with(&gateway, name, "b").await;
    let tags = |at: usize| upstream.seen()[at].field("if-none-match");
    assert_eq!(tags(1).unwrap(), "\"a\"");

    // The origin has chosen one that there is already.
    let tag = ["cache-control: max-age=60", "vary: accept", "etag: \"a\""];
    upstream.once("/v", not_modified(&tag));
    let third = with(&gateway, name, "c").await;
    assert_eq!(third.0, "A");
    let asked = tags(2).unwrap();
    assert!(
        asked == "\"a\", \"b\"" || asked == "\"b\", \"a\"",
        "{asked}"
    );
    assert_eq!(upstream.count(), 3);

    // And it answers both from now on.
    for (value, text) in [("a", "A"), ("b", "B"), ("c", "A")] {
        let hit = with(&gateway, name, value).await;
        assert_eq!(hit, (text.to_owned(), "hit; ttl=60".to_owned()), "{value}");
    }
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

#[test]
fn requests_that_differ_in_a_nominated_field_never_share_an_answer() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let upstream = Upstream::start();
    // The body has the values of both fields, and varies by both.
    upstream.usually(|seen| {
        let value = |name| seen.field(name).unwrap_or_else(|| "absent".to_owned());
        let body = format!("[{}][{}]", value("x-one"), value("x-two"));
        ok(&["cache-control: max-age=60", "vary: X-One, x-two"], &body)
    });
    let gateway = manual(&upstream);
    // Space beside a comma means nothing, so there is none.
    let value = || prop_oneof![Just(None), "[a-c,;=]{0,3}[a-c]".prop_map(Some)];
    let request = move || (value(), value());
    let requests = proptest::collection::vec(request(), 2..12);
    let config = Config {
        cases: 48,
        failure_persistence: None,
        ..Config::default()
    };
    let cases = Cell::new(0);
    let ran = TestRunner::new(config).run(&(requests,), |(requests,)| {
        let case = cases.replace(cases.get() + 1);
        let target = format!("/case/{case}");
        runtime.block_on(async {
            let mut client = gateway.client().await;
            let mut asked = Vec::new();
            for (one, two) in requests {
                let trim = |v: &Option<String>| v.as_deref().map(|v| v.trim().to_owned());
                let (one, two) = (trim(&one), trim(&two));
                let fields = [("x-one", &one), ("x-two", &two)];
                let fields = fields.iter().filter_map(|(n, v)| Some((*n, v.as_deref()?)));
                let fields: Vec<_> = fields.collect();
                let answer = client.request("GET", &target, &fields).await;
                let say = |v: &Option<String>| v.clone().unwrap_or_else(|| "absent".to_owned());
                let expected = format!("[{}][{}]", say(&one), say(&two));
                prop_assert_eq!(answer.text(), &expected);
                // And those that do not differ do share it.
                let again = asked.contains(&expected);
                prop_assert!(is_hit(&answer) == again, "{expected}");
                asked.push(expected);
            }
            Ok(())
        })
    });
    ran.unwrap_or_else(|failure| panic!("{failure}"));
}
