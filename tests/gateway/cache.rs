//! The cache: what is a hit, for how long, and with which fields. The test moves
//! the clock.

mod fields;

use aws_lc_rs::digest::{SHA256, digest};

use crate::support::upstream::usual_body;
use crate::support::{
    BLOCK, BLOCK_CANONICAL, Gate, Gateway, Reply, Setup, TOKEN, TX, Upstream, token, until,
};

/// A route whose answers may be used past their freshness.
const STALE: &str = r#"
    [[route]]
    name = "tokens"
    path = "/ordinals/v1/brc-20/tokens/{ticker}"
    params.ticker = { type = "ticker" }
    cache = { mode = "override", times = { 200 = "10s", 404 = "1s" }, stale_while_revalidate = "20s", stale_if_error = "60s" }
"#;

fn manual(upstream: &Upstream) -> Gateway {
    Setup::before(upstream).manual().start()
}

/// The ETag that a body must have: made from it and from nothing else.
fn tag(body: &[u8]) -> String {
    let hex = |byte: &u8| format!("{byte:02x}");
    let digits: String = digest(&SHA256, body).as_ref()[..16]
        .iter()
        .map(hex)
        .collect();
    format!("\"{digits}\"")
}

#[tokio::test]
async fn a_miss_then_hits_until_freshness_ends() {
    let upstream = Upstream::start();
    let gateway = manual(&upstream);
    let miss = gateway.get(TOKEN).await;
    assert_eq!(miss.status, 200);
    assert_eq!(miss.text(), usual_body(TOKEN));
    assert_eq!(
        miss.must("cache-status"),
        "ordgate; fwd=uri-miss; fwd-status=200; stored"
    );
    assert_eq!(miss.must("age"), "0");
    assert_eq!(miss.must("cache-control"), "public, max-age=10");
    assert_eq!(miss.must("content-type"), "application/json; charset=utf-8");
    assert_eq!(miss.must("etag"), tag(&miss.body));

    for (passed, age, ttl) in [(0, 0, 10), (2500, 2, 7), (7499, 9, 0)] {
        gateway.advance(passed);
        let hit = gateway.get(TOKEN).await;
        assert_eq!(hit.status, 200);
        assert_eq!(hit.body, miss.body);
        assert_eq!(hit.must("cache-status"), format!("ordgate; hit; ttl={ttl}"));
        assert_eq!(hit.number("age"), age);
        assert_eq!(hit.must("etag"), miss.must("etag"));
        assert_eq!(hit.must("content-type"), miss.must("content-type"));
        assert_eq!(hit.must("cache-control"), miss.must("cache-control"));
        assert_eq!(hit.must("content-length"), miss.body.len().to_string());
        assert_ne!(hit.must("x-request-id"), miss.must("x-request-id"));
    }
    assert_eq!(upstream.count(), 1);

    gateway.advance(1);
    let stale = gateway.get(TOKEN).await;
    assert_eq!(
        stale.must("cache-status"),
        "ordgate; fwd=stale; fwd-status=200; stored"
    );
    assert_eq!(stale.number("age"), 0);
    assert_eq!(upstream.count(), 2);
    assert_eq!(
        gateway.get(TOKEN).await.must("cache-status"),
        "ordgate; hit; ttl=10"
    );
}

#[tokio::test]
async fn unknown_tickers_and_empty_lists_are_stored_for_a_second() {
    let upstream = Upstream::start();
    let not_found = r#"{"error":"Not found"}"#;
    let empty = r#"{"limit":20,"offset":0,"total":0,"results":[]}"#;
    upstream.usually(move |seen| match seen.target().contains("brc-20") {
        true => Reply::status(404, not_found),
        false => Reply::json(empty),
    });
    let gateway = manual(&upstream);
    for (target, status, body) in [
        (TOKEN, 404, not_found),
        (TX, 200, empty),
        (BLOCK, 200, empty),
    ] {
        let before = upstream.count();
        let miss = gateway.get(target).await;
        assert_eq!((miss.status, miss.text()), (status, body));
        assert_eq!(miss.must("cache-control"), "public, max-age=1", "{target}");
        assert_eq!(
            miss.must("cache-status"),
            format!("ordgate; fwd=uri-miss; fwd-status={status}; stored")
        );
        gateway.advance(999);
        let hit = gateway.get(target).await;
        assert_eq!((hit.status, hit.text()), (status, body));
        assert_eq!(hit.must("cache-status"), "ordgate; hit; ttl=0");
        assert_eq!(upstream.count(), before + 1, "{target}");
        gateway.advance(1);
        gateway.get(target).await;
        assert_eq!(upstream.count(), before + 2, "{target}");
    }
}

#[tokio::test]
async fn a_status_without_a_lifetime_is_not_stored() {
    let upstream = Upstream::start();
    upstream.always(Reply::status(400, r#"{"error":"Bad Request"}"#));
    let gateway = manual(&upstream);
    for asked in 1..=2 {
        let answer = gateway.get(TOKEN).await;
        assert_eq!(answer.status, 400);
        assert_eq!(answer.text(), r#"{"error":"Bad Request"}"#);
        assert_eq!(
            answer.must("cache-status"),
            "ordgate; fwd=uri-miss; fwd-status=400"
        );
        assert_eq!(answer.must("cache-control"), "no-store");
        assert_eq!(answer.field("etag"), None);
        assert_eq!(upstream.count(), asked);
    }
}

#[tokio::test]
async fn stale_while_revalidate_serves_stale_and_fetches_once() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream).config(STALE).manual().start();
    gateway.get(TOKEN).await;
    gateway.advance(12_000);

    let gate = Gate::new();
    upstream.once(TOKEN, Reply::json("\"new\"").behind(&gate));
    for _ in 0..5 {
        let stale = gateway.get(TOKEN).await;
        assert_eq!(stale.text(), usual_body(TOKEN));
        assert_eq!(stale.must("cache-status"), "ordgate; hit; ttl=-2");
        assert_eq!(stale.number("age"), 12);
    }
    upstream.until_requests(2).await;
    gate.open();
    until("it is fetched", || gateway.fetching() == 0).await;
    let fresh = gateway.get(TOKEN).await;
    assert_eq!(fresh.text(), "\"new\"");
    assert_eq!(fresh.must("cache-status"), "ordgate; hit; ttl=10");
    assert_eq!(upstream.count(), 2, "one request for five stale answers");

    // Past its time, it is waited for.
    gateway.advance(30_000);
    let waited = gateway.get(TOKEN).await;
    assert_eq!(
        waited.must("cache-status"),
        "ordgate; fwd=stale; fwd-status=200; stored"
    );
}

#[tokio::test]
async fn a_refresh_that_fails_leaves_the_stale_answer() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream).config(STALE).manual().start();
    gateway.get(TOKEN).await;
    gateway.advance(12_000);
    upstream.always(Reply::status(500, "{}"));
    for asked in 2..5 {
        let stale = gateway.get(TOKEN).await;
        assert_eq!(stale.must("cache-status"), "ordgate; hit; ttl=-2");
        assert_eq!(stale.text(), usual_body(TOKEN));
        upstream.until_requests(asked).await;
        until("it has failed", || gateway.fetching() == 0).await;
    }
}

#[tokio::test]
async fn stale_if_error_serves_stale_if_the_upstream_fails() {
    let upstream = Upstream::start();
    // The clock does not move, so a request would wait for a key in cooldown
    // forever.
    let gateway = Setup::before(&upstream)
        .config("upstream.queue_timeout = \"20ms\"")
        .manual()
        .start();
    gateway.get(BLOCK).await;
    gateway.advance(12_000);
    let failures = [
        Reply::status(500, "{}"),
        Reply::raw("garbage\r\n\r\n").close(),
        Reply::nothing().reset(),
        Reply::status(429, "{}"),
    ];
    for failure in failures {
        upstream.always(failure);
        let stale = gateway.get(BLOCK).await;
        assert_eq!(stale.status, 200);
        assert_eq!(stale.text(), usual_body(BLOCK_CANONICAL));
        assert_eq!(
            stale.must("cache-status"),
            "ordgate; fwd=stale; ttl=-2; detail=stale-if-error"
        );
        assert_eq!(stale.number("age"), 12);
    }
    // A client's own 304 holds as well.
    let known = [(
        "if-none-match",
        &*tag(usual_body(BLOCK_CANONICAL).as_bytes()),
    )];
    assert_eq!(gateway.request("GET", BLOCK, &known).await.status, 304);
    // Five minutes past its freshness it is no better than an error.
    gateway.advance(298_000);
    let error = gateway.get(BLOCK).await;
    assert!(matches!(error.status, 502 | 503), "{error:?}");
    error.problem();
}

#[tokio::test]
async fn mode_off_stores_nothing() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .config(
            r#"
            [[route]]
            name = "status"
            path = "/ordinals/v1"
            cache = { mode = "off" }
            "#,
        )
        .manual()
        .start();
    for asked in 1..=3 {
        let answer = gateway.get("/ordinals/v1").await;
        assert_eq!(answer.status, 200);
        assert_eq!(
            answer.must("cache-status"),
            "ordgate; fwd=bypass; fwd-status=200"
        );
        assert_eq!(answer.must("cache-control"), "no-store");
        assert_eq!(upstream.count(), asked);
    }
    assert_eq!(
        gateway.get(TOKEN).await.status,
        404,
        "it has no other route"
    );
}

#[tokio::test]
async fn bodies_are_unchanged() {
    let upstream = Upstream::start();
    let gateway = manual(&upstream);
    let odd = "  {\"a\" : 1.0e+2,\r\n\t\"a\":\"\\u00e9\u{e9}\u{2022}\", \"n\": 12345678901234567890123 }\n";
    let large = format!(
        "[{}1]",
        "\"0123456789abcdef\","
            .repeat(5 << 20)
            .split_at(5 << 20)
            .0
            .rsplit_once(',')
            .map(|(head, _)| format!("{head},"))
            .unwrap()
    );
    let rows = [
        ("odd", Reply::json(odd), odd.to_owned()),
        ("large", Reply::json(&large), large.clone()),
        ("odd in chunks", Reply::chunked(odd, 3), odd.to_owned()),
        (
            "large in chunks",
            Reply::chunked(&large, 65_521),
            large.clone(),
        ),
        (
            "until the end of the connection",
            Reply::raw(format!("HTTP/1.1 200 OK\r\n\r\n{odd}")).close(),
            odd.to_owned(),
        ),
        (
            "by HTTP/1.0",
            Reply::raw(format!("HTTP/1.0 200 OK\r\n\r\n{odd}")).close(),
            odd.to_owned(),
        ),
    ];
    for (number, (name, reply, body)) in rows.into_iter().enumerate() {
        let target = token(number);
        upstream.once(&target, reply);
        for outcome in [
            "ordgate; fwd=uri-miss; fwd-status=200; stored",
            "ordgate; hit; ttl=10",
        ] {
            let answer = gateway.get(&target).await;
            assert_eq!(answer.must("cache-status"), outcome, "{name}");
            assert!(answer.body == body.as_bytes(), "{name}");
            assert_eq!(answer.must("content-length"), body.len().to_string());
            assert_eq!(answer.must("etag"), tag(body.as_bytes()));
        }
    }
}

#[tokio::test]
async fn a_body_that_is_too_large_is_served_and_not_stored() {
    let upstream = Upstream::start();
    let body = format!("\"{}\"", "x".repeat(200_000));
    upstream.always(Reply::json(&body));
    let gateway = Setup::before(&upstream)
        .config("cache.max_bytes = \"1MiB\"")
        .manual()
        .start();
    for asked in 1..=2 {
        let answer = gateway.get(TOKEN).await;
        assert_eq!(answer.body.len(), body.len());
        assert_eq!(
            answer.must("cache-status"),
            "ordgate; fwd=uri-miss; fwd-status=200"
        );
        assert_eq!(upstream.count(), asked);
    }
}
