//! The fields of an answer from the cache.

use super::{manual, tag};
use crate::support::upstream::usual_body;
use crate::support::{TOKEN, Upstream};

#[tokio::test]
async fn the_upstreams_own_fields_are_removed() {
    let upstream = Upstream::start();
    let gateway = manual(&upstream);
    for _miss_then_hit in 0..2 {
        let answer = gateway.get(TOKEN).await;
        let mut names: Vec<_> = answer.fields.iter().map(|(name, _)| &**name).collect();
        names.sort_unstable();
        let expected = "access-control-allow-origin access-control-expose-headers age cache-control \
            cache-status content-length content-type date etag ratelimit ratelimit-policy vary \
            x-request-id";
        assert_eq!(names.join(" "), expected);
        assert!(!String::from_utf8_lossy(&answer.bytes()).contains("telling"));
        assert_eq!(answer.must("access-control-allow-origin"), "*");
        assert_eq!(answer.must("etag"), tag(&answer.body));
        assert_eq!(answer.must("age"), "0", "the upstream's own is not added");
    }
}

#[tokio::test]
async fn conditional_requests_get_304_if_the_tag_matches() {
    let upstream = Upstream::start();
    let gateway = manual(&upstream);
    let first = gateway.get(TOKEN).await;
    let tag = first.must("etag").to_owned();
    let weak = format!("\"a\", W/{tag} , \"b\"");
    let rows: &[(&[&str], u16)] = &[
        (&[&tag], 304),
        (&[&weak], 304),
        (&["*"], 304),
        (&["\"a\"", &tag], 304),
        (&["\"of-the-tip\""], 200),
        (&["nonsense"], 200),
    ];
    for (lines, status) in rows {
        for method in ["GET", "HEAD"] {
            let fields: Vec<_> = lines.iter().map(|line| ("if-none-match", *line)).collect();
            let answer = gateway.request(method, TOKEN, &fields).await;
            assert_eq!(answer.status, *status, "{method} {lines:?}");
            assert_eq!(answer.must("etag"), tag);
            assert_eq!(answer.must("cache-control"), "public, max-age=10");
            assert_eq!(answer.must("cache-status"), "ordgate; hit; ttl=10");
            assert_eq!(answer.must("access-control-allow-origin"), "*");
            let has_type = answer.field("content-type").is_some();
            assert_eq!(has_type, *status == 200, "{lines:?}");
            assert!(*status == 200 || answer.body.is_empty());
        }
    }
    // A body that is the same after its time keeps its tag, so the client's
    // copy does too.
    gateway.advance(10_000);
    let answer = gateway
        .request("GET", TOKEN, &[("if-none-match", &tag)])
        .await;
    assert_eq!(answer.status, 304);
    assert_eq!(
        answer.must("cache-status"),
        "ordgate; fwd=stale; fwd-status=200; stored"
    );
    assert_eq!(upstream.count(), 2);
    for seen in upstream.seen() {
        assert_eq!(seen.field("if-none-match"), None, "it is not passed on");
    }
}

#[tokio::test]
async fn head_is_answered_from_the_stored_get() {
    let upstream = Upstream::start();
    let gateway = manual(&upstream);
    let mut client = gateway.client().await;
    let head = client.request("HEAD", TOKEN, &[]).await;
    let length = usual_body(TOKEN).len().to_string();
    assert_eq!(head.status, 200);
    assert_eq!(head.must("content-length"), length);
    let get = client.get(TOKEN).await;
    assert_eq!(get.must("cache-status"), "ordgate; hit; ttl=10");
    assert_eq!(get.text(), usual_body(TOKEN));
    let again = client.request("HEAD", TOKEN, &[]).await;
    assert_eq!(again.must("content-length"), length);
    for name in [
        "etag",
        "content-type",
        "cache-control",
        "age",
        "cache-status",
    ] {
        assert_eq!(again.must(name), get.must(name));
    }
    // Nothing of a body came: the next answer begins where it should.
    assert_eq!(client.get(TOKEN).await.status, 200);
    assert_eq!(upstream.count(), 1);
    assert!(upstream.seen()[0].text().starts_with("GET "));
    // A refusal to HEAD has no body either.
    let refused = client.request("HEAD", "/nowhere", &[]).await;
    assert_eq!(refused.status, 404);
    assert_eq!(client.get(TOKEN).await.status, 200);
}

#[tokio::test]
async fn fields_of_one_client_do_not_reach_anothers_answer() {
    let upstream = Upstream::start();
    let gateway = manual(&upstream);
    let names = "origin accept accept-encoding accept-language x-forwarded-host x-forwarded-proto \
        x-original-url x-request-id cookie authorization range access-control-request-method";
    let mut fields: Vec<_> = names.split(' ').map(|name| (name, "evil")).collect();
    fields.push(("cache-control", "no-cache, evil"));
    let first = gateway.request("GET", TOKEN, &fields).await;
    assert_eq!(first.status, 200);
    let second = gateway.get(TOKEN).await;
    assert_eq!(second.must("cache-status"), "ordgate; hit; ttl=10");
    assert_eq!(second.body, first.body);
    for answer in [&first, &second] {
        assert!(!String::from_utf8_lossy(&answer.bytes()).contains("evil"));
    }
    assert!(!upstream.seen()[0].text().contains("evil"));
}
