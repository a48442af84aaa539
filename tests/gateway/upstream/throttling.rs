//! Throttled keys, the budget, retries, and how many requests are in flight.

use super::{keyed, until_idle};
use crate::support::{BLOCK, BLOCK_CANONICAL, Gateway, Reply, Setup, TOKEN, Upstream, token};

#[tokio::test]
async fn a_throttled_key_is_in_cooldown() {
    let upstream = Upstream::start();
    let gateway = keyed(&upstream, "one");
    assert_eq!(gateway.get(TOKEN).await.status, 200);
    upstream.once(
        BLOCK_CANONICAL,
        Reply::with(429, "retry-after: 30\r\n", r#"{"telling":"quota"}"#),
    );
    let answer = gateway.get(BLOCK).await;
    assert_eq!(answer.status, 503);
    assert_eq!(answer.field("retry-after"), Some("30"));
    assert!(!answer.problem().to_string().contains("telling"));

    // Until the limit's end nothing is sent, and hits are served.
    for passed in [0, 15_000, 14_900] {
        gateway.advance(passed);
        let answer = gateway.get(BLOCK).await;
        assert_eq!(answer.status, 503);
        assert!(answer.number("retry-after") <= 30);
        answer.problem();
        assert_eq!(upstream.count(), 2);
    }
    assert_eq!(gateway.get(TOKEN).await.status, 200);
    // The token's fetch would be the one that tries the key first.
    until_idle(&gateway, "the fetch that was not sent").await;
    gateway.advance(100);
    assert_eq!(gateway.get(BLOCK).await.status, 200);
}

#[tokio::test]
async fn another_key_is_used_during_a_cooldown() {
    let upstream = Upstream::start();
    upstream.usually(|seen| match seen.field("x-api-key").as_deref() {
        Some("one") => Reply::with(429, "retry-after: 30\r\n", "{}"),
        _ => Reply::json("{}"),
    });
    let gateway = Setup::before(&upstream).keys("one,other").manual().start();
    let statuses = [
        gateway.get(&token(1)).await.status,
        gateway.get(&token(2)).await.status,
        gateway.get(&token(3)).await.status,
        gateway.get(&token(4)).await.status,
    ];
    assert_eq!(statuses, [200; 4]);
    let used: Vec<_> = upstream
        .seen()
        .iter()
        .map(|s| s.field("x-api-key"))
        .collect();
    assert_eq!(used.iter().flatten().filter(|key| *key == "one").count(), 1);
}

#[tokio::test]
async fn a_spent_budget_does_not_affect_hits() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .keys("one")
        .manual()
        .config("upstream.requests_per_minute = 2\nupstream.queue_timeout = \"20ms\"")
        .start();
    assert_eq!(gateway.get(TOKEN).await.status, 200);
    assert_eq!(gateway.get(&token(1)).await.status, 200);
    let answer = gateway.get(&token(2)).await;
    assert_eq!(answer.status, 503);
    assert_eq!(answer.number("retry-after"), 61);
    assert_eq!(
        answer.must("cache-status"),
        "ordgate; fwd=uri-miss; detail=over_budget"
    );
    answer.problem();
    assert_eq!(
        gateway.get(TOKEN).await.must("cache-status"),
        "ordgate; hit; ttl=10"
    );
    // Stale is better than nothing.
    gateway.advance(11_000);
    let stale = gateway.get(TOKEN).await;
    assert_eq!(stale.status, 200);
    assert_eq!(
        stale.must("cache-status"),
        "ordgate; fwd=stale; ttl=-1; detail=stale-if-error"
    );
    assert_eq!(upstream.count(), 2);
    until_idle(&gateway, "the fetch that has had no budget").await;
    gateway.advance(49_051);
    assert_eq!(gateway.get(&token(2)).await.status, 200);
    assert_eq!(upstream.count(), 3);
}

#[tokio::test]
async fn retries_use_the_budget() {
    let upstream = Upstream::start();
    upstream.always(Reply::nothing().close());
    let gateway = Setup::before(&upstream)
        .manual()
        .keys("a-key")
        .config("upstream.requests_per_minute = 3\nupstream.queue_timeout = \"20ms\"")
        .start();
    assert_eq!(gateway.get(&token(1)).await.status, 502);
    assert_eq!(upstream.count(), 2);
    // One is left: the retry of this one has none.
    let answer = gateway.get(&token(2)).await;
    assert!(matches!(answer.status, 502 | 503), "{answer:?}");
    assert_eq!(upstream.count(), 3);
    assert_eq!(gateway.get(&token(3)).await.status, 503);
    assert_eq!(upstream.count(), 3);
}

#[tokio::test]
async fn max_in_flight_is_never_exceeded() {
    let upstream = Upstream::start();
    upstream.always(Reply::nothing().hang());
    let gateway = Gateway::with(
        &upstream,
        "upstream.max_in_flight = 2\nupstream.queue_timeout = \"50ms\"\nserver.workers = 2",
    );
    let mut pending = Vec::new();
    for number in 0..2 {
        pending.push(gateway.start_get(&token(number)).await);
    }
    upstream.until_requests(2).await;
    let answer = gateway.get(&token(2)).await;
    assert_eq!(answer.status, 503);
    assert_eq!(answer.field("retry-after"), Some("1"));
    answer.problem();
    assert_eq!(upstream.count(), 2);
}
