//! Throttled keys, the budget, retries, and how many requests are in flight.

use std::time::Duration;

use super::keyed;
use crate::support::{
    BLOCK, BLOCK_CANONICAL, Client, Gateway, Reply, Setup, TOKEN, Upstream, token,
};

#[tokio::test]
async fn a_throttled_key_is_in_cooldown_until_the_date_in_retry_after() {
    let upstream = Upstream::start();
    let gateway = keyed(&upstream, "one");
    let date = gateway.wall() + Duration::from_secs(90);
    let fields = format!("retry-after: {}\r\n", httpdate::fmt_http_date(date));
    upstream.once(TOKEN, Reply::with(429, &fields, "{}"));
    let answer = gateway.get(TOKEN).await;
    assert_eq!(answer.status, 503);
    // A date has no fraction of a second.
    let retry_after = answer.number("retry-after");
    assert!((89..=90).contains(&retry_after), "{retry_after}");
    gateway.advance(88_000);
    assert_eq!(gateway.get(TOKEN).await.status, 503);
    gateway.advance(2_000);
    assert_eq!(gateway.get(TOKEN).await.status, 200);
    assert_eq!(upstream.count(), 2);
}

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
async fn the_budget_is_never_exceeded() {
    const MINUTE: usize = 12;
    const SECOND: usize = 5;
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .keys("one")
        .config(&format!(
            "server.workers = 2\n\
             upstream.requests_per_minute = {MINUTE}\n\
             upstream.requests_per_second = {SECOND}\n\
             upstream.queue_timeout = \"5s\""
        ))
        .start();
    let pending: Vec<_> = (0..100)
        .map(|number| {
            let public = gateway.public;
            tokio::spawn(async move { Client::connect(public).await.get(&token(number)).await })
        })
        .collect();
    let mut served = 0;
    for task in pending {
        let answer = task.await.unwrap();
        match answer.status {
            200 => served += 1,
            503 => {
                assert!((1..=61).contains(&answer.number("retry-after")));
                answer.problem();
            }
            other => panic!("{other}: {}", answer.text()),
        }
    }
    // The rest is spread over the minute.
    assert!(
        (MINUTE / 2..=MINUTE).contains(&served),
        "{served}: much of what there is goes at once"
    );
    let times: Vec<_> = upstream.seen().iter().map(|seen| seen.at).collect();
    assert_eq!(times.len(), served, "and no more");
    for window in times.windows(SECOND + 1) {
        let span = window[SECOND].since(window[0]);
        assert!(span >= Duration::from_secs(1), "{span:?} holds {window:?}");
    }
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
