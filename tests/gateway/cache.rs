//! The cache: what is a hit, for how long, and with which fields. The test moves
//! the clock.

mod fields;

use aws_lc_rs::digest::{SHA256, digest};

use crate::support::upstream::usual_body;
use crate::support::{
    Answer, BLOCK, BLOCK_CANONICAL, Gate, Gateway, Reply, Setup, TOKEN, Upstream, token, until,
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

fn did(answer: &Answer) -> &str {
    answer
        .must("cache-status")
        .strip_prefix("ordgate; ")
        .unwrap()
}

#[tokio::test]
async fn a_miss_then_hits_until_freshness_ends() {
    let upstream = Upstream::start();
    let gateway = manual(&upstream);
    let miss = gateway.get(TOKEN).await;
    assert_eq!((miss.status, miss.text()), (200, &*usual_body(TOKEN)));
    assert_eq!(did(&miss), "fwd=uri-miss; fwd-status=200; stored");
    assert_eq!(miss.must("age"), "0");
    assert_eq!(miss.must("cache-control"), "public, max-age=10");
    assert_eq!(miss.must("content-type"), "application/json; charset=utf-8");
    assert_eq!(miss.must("etag"), tag(&miss.body));
    for (passed, age, ttl) in [(0, 0, 10), (2500, 2, 7), (7499, 9, 0)] {
        gateway.advance(passed);
        let hit = gateway.get(TOKEN).await;
        assert_eq!((hit.status, &hit.body), (200, &miss.body));
        assert_eq!(did(&hit), format!("hit; ttl={ttl}"));
        assert_eq!(hit.number("age"), age);
        for name in ["etag", "content-type", "cache-control", "content-length"] {
            assert_eq!(hit.must(name), miss.must(name));
        }
        assert_ne!(hit.must("x-request-id"), miss.must("x-request-id"));
    }
    assert_eq!(upstream.count(), 1);
    gateway.advance(1);
    let stale = gateway.get(TOKEN).await;
    assert_eq!(did(&stale), "fwd=stale; fwd-status=200; stored");
    assert_eq!(stale.number("age"), 0);
    assert_eq!(did(&gateway.get(TOKEN).await), "hit; ttl=10");
    assert_eq!(upstream.count(), 2);
}

#[tokio::test]
async fn unknown_tickers_and_empty_lists_are_stored_for_a_second() {
    let upstream = Upstream::start();
    let gateway = manual(&upstream);
    let empty = r#"{"limit":20,"offset":0,"total":0,"results":[]}"#;
    for (target, status, body) in [
        (TOKEN, 404, r#"{"error":"Not found"}"#),
        (BLOCK, 200, empty),
    ] {
        upstream.always(Reply::status(status, body));
        let before = upstream.count();
        for (passed, asked) in [(0, 1), (999, 1), (1, 2)] {
            gateway.advance(passed);
            let answer = gateway.get(target).await;
            assert_eq!((answer.status, answer.text()), (status, body));
            assert_eq!(
                answer.must("cache-control"),
                "public, max-age=1",
                "{target}"
            );
            assert_eq!(upstream.count() - before, asked, "{target}");
        }
    }
}

#[tokio::test]
async fn a_status_without_a_lifetime_is_not_stored() {
    let upstream = Upstream::start();
    let body = r#"{"error":"Bad Request"}"#;
    upstream.always(Reply::status(400, body));
    let gateway = manual(&upstream);
    for asked in 1..=2 {
        let answer = gateway.get(TOKEN).await;
        assert_eq!((answer.status, answer.text()), (400, body));
        assert_eq!(did(&answer), "fwd=uri-miss; fwd-status=400");
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
    // A refresh that fails leaves the stale answer.
    let gate = Gate::new();
    upstream.once(TOKEN, Reply::status(400, "{}"));
    upstream.once(TOKEN, Reply::json("\"new\"").behind(&gate));
    for asked in [2, 3, 3, 3] {
        let stale = gateway.get(TOKEN).await;
        assert_eq!(
            (stale.text(), did(&stale)),
            (&*usual_body(TOKEN), "hit; ttl=-2")
        );
        assert_eq!(stale.number("age"), 12);
        upstream.until_requests(asked).await;
        until("it has failed", || asked > 2 || gateway.fetching() == 0).await;
    }
    gate.open();
    until("it is fetched", || gateway.fetching() == 0).await;
    let fresh = gateway.get(TOKEN).await;
    assert_eq!((fresh.text(), did(&fresh)), ("\"new\"", "hit; ttl=10"));
    assert_eq!(upstream.count(), 3);
    // Past its time, it is waited for.
    gateway.advance(30_000);
    let waited = gateway.get(TOKEN).await;
    assert_eq!(did(&waited), "fwd=stale; fwd-status=200; stored");
}

#[tokio::test]
async fn stale_if_error_serves_stale_if_the_upstream_fails() {
    let upstream = Upstream::start();
    // The clock does not move, so a request would wait for a key in cooldown
    // forever.
    let setup = Setup::before(&upstream).config("upstream.queue_timeout = \"20ms\"");
    let gateway = setup.manual().start();
    gateway.get(BLOCK).await;
    gateway.advance(12_000);
    for failure in [
        Reply::status(500, "{}"),
        Reply::raw("garbage\r\n\r\n").close(),
        Reply::nothing().reset(),
        Reply::status(429, "{}"),
    ] {
        upstream.always(failure);
        let stale = gateway.get(BLOCK).await;
        assert_eq!(
            (stale.status, stale.text()),
            (200, &*usual_body(BLOCK_CANONICAL))
        );
        assert_eq!(did(&stale), "fwd=stale; ttl=-2; detail=stale-if-error");
        assert_eq!(stale.number("age"), 12);
    }
    // A client's own 304 holds as well.
    let tag = tag(usual_body(BLOCK_CANONICAL).as_bytes());
    let known = [("if-none-match", &*tag)];
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
    let route = "[[route]]\nname = \"status\"\npath = \"/ordinals/v1\"\ncache = { mode = \"off\" }";
    let gateway = Setup::before(&upstream).config(route).manual().start();
    for asked in 1..=3 {
        let answer = gateway.get("/ordinals/v1").await;
        assert_eq!(
            (answer.status, did(&answer)),
            (200, "fwd=bypass; fwd-status=200")
        );
        assert_eq!(answer.must("cache-control"), "no-store");
        assert_eq!(upstream.count(), asked);
    }
}

#[tokio::test]
async fn bodies_are_unchanged() {
    let upstream = Upstream::start();
    let gateway = manual(&upstream);
    let odd = "  {\"a\" : 1.0e+2,\r\n\t\"a\":\"\\u00e9\u{e9}\u{2022}\", \"n\": 12345678901234567890123 }\n";
    let large = format!("[{}1]", "\"0123456789abcdef\",".repeat(1 << 18));
    let until_end = |version: &str| Reply::raw(format!("{version} 200 OK\r\n\r\n{odd}")).close();
    let rows = [
        (Reply::json(odd), odd),
        (Reply::json(&large), &large),
        (Reply::chunked(odd, 3), odd),
        (Reply::chunked(&large, 65_521), &large),
        (until_end("HTTP/1.1"), odd),
        (until_end("HTTP/1.0"), odd),
    ];
    for (number, (reply, body)) in rows.into_iter().enumerate() {
        let target = token(number);
        upstream.once(&target, reply);
        for outcome in ["fwd=uri-miss; fwd-status=200; stored", "hit; ttl=10"] {
            let answer = gateway.get(&target).await;
            assert_eq!(did(&answer), outcome, "{number}");
            assert!(answer.body == body.as_bytes(), "{number}");
            assert_eq!(answer.must("content-length"), body.len().to_string());
            assert_eq!(answer.must("etag"), tag(body.as_bytes()));
        }
    }
}
