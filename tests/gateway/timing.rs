//! `server-timing`: where a request has spent its time.

use crate::support::{Answer, Gate, Gateway, Reply, Setup, Upstream, token, until};

/// One request under way at once, and each until its gate is opened.
const NARROW: &str = r#"
    answers.server_timing = true
    upstream.queue_timeout = "600s"
    upstream.timeout = "600s"
    upstream.first_byte_timeout = "600s"
    upstream.max_in_flight = 1
    upstream.retry = false
"#;

fn timing(answer: &Answer) -> &str {
    answer.must("server-timing")
}

async fn queued(gateway: &Gateway, many: usize) {
    until("so many wait", || gateway.queued() == many).await;
}

#[tokio::test]
async fn queue_upstream_and_the_wait_for_another_request_are_told_apart() {
    let upstream = Upstream::start();
    let (first, second) = (Gate::new(), Gate::new());
    upstream.once(&token(1), Reply::json("{}").behind(&first));
    upstream.once(&token(2), Reply::json("{}").behind(&second));
    let gateway = Setup::before(&upstream).config(NARROW).manual().start();
    let mut sent = gateway.start_get(&token(1)).await;
    upstream.until_requests(1).await;
    let mut waits = gateway.start_get(&token(2)).await;
    queued(&gateway, 1).await;
    gateway.advance(3000);
    first.open();
    let answer = sent.answer("GET").await;
    let expected = "cache;desc=miss, queue;dur=0.0, upstream;dur=3000.0";
    assert_eq!(timing(&answer), expected);
    upstream.until_requests(2).await;
    let mut follows = gateway.start_get(&token(2)).await;
    gateway.until_all_is_read().await;
    gateway.advance(500);
    second.open();
    let expected = "cache;desc=miss, queue;dur=3000.0, upstream;dur=500.0";
    assert_eq!(timing(&waits.answer("GET").await), expected);
    let followed = follows.answer("GET").await;
    assert!(followed.must("cache-status").contains("collapsed"));
    let expected = "cache;desc=collapsed, collapsed;dur=500.0";
    assert_eq!(timing(&followed), expected);
    assert_eq!(timing(&gateway.get(&token(2)).await), "cache;desc=hit");
}
