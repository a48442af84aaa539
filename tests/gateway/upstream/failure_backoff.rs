//! A key that keeps failing is requested with growing pauses, and followers share
//! their leader's deadline.

use std::time::Duration;

use tokio::time::Instant;

use super::until_idle;
use crate::support::upstream::usual_body;
use crate::support::{Answer, Gate, Gateway, Reply, Setup, TOKEN, Upstream, token, within};

/// Failures are one target's own here, and not the upstream's.
fn gateway(upstream: &Upstream) -> Gateway {
    let setup = Setup::before(upstream).config("upstream.retry = false");
    setup
        .config("cache.stale_wait = \"500ms\"")
        .manual()
        .start()
}

fn is_stale(answer: &Answer) {
    assert_eq!(answer.status, 200);
    let cache_status = answer.must("cache-status");
    assert!(cache_status.contains("stale-if-error"), "{cache_status}");
}

/// How the pauses grow stands in `failure_backoff`.
#[tokio::test]
async fn a_target_that_keeps_failing_is_not_requested_in_a_pause() {
    let cut = Reply::raw("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{").close();
    let html = Reply::with(200, "", "<html>");
    for reply in [Reply::status(500, "{}"), cut, html] {
        let upstream = Upstream::start();
        let gateway = gateway(&upstream);
        upstream.always(reply);
        for asked in [1, 2, 3, 4, 4] {
            gateway.get(TOKEN).await.problem();
            assert_eq!(upstream.count(), asked);
        }
        for (asked, pause) in [(5, 1000), (6, 2000)] {
            gateway.advance(pause - 1);
            assert_eq!(gateway.get(TOKEN).await.status, 502);
            assert_eq!(upstream.count(), asked - 1, "{pause}");
            gateway.advance(1);
            assert_eq!(gateway.get(TOKEN).await.status, 502);
            assert_eq!(upstream.count(), asked, "{pause}");
        }
        assert_eq!(gateway.figure("/failures_in_backoff"), 1);
        // Another target is another matter; and one answer makes it forgotten.
        upstream.always(Reply::json("{}"));
        assert_eq!(gateway.get(&token(1)).await.status, 200);
        gateway.advance(4000);
        assert_eq!(gateway.get(TOKEN).await.status, 200);
        assert_eq!(gateway.figure("/failures_in_backoff"), 0);
    }
}

#[tokio::test]
async fn a_stale_response_is_served_at_once_during_the_backoff() {
    let upstream = Upstream::start();
    let gateway = gateway(&upstream);
    assert_eq!(gateway.get(TOKEN).await.status, 200);
    gateway.advance(11_000);
    upstream.always(Reply::status(500, "{}"));
    for asked in 2..=5 {
        is_stale(&gateway.get(TOKEN).await);
        upstream.until_requests(asked).await;
        until_idle(&gateway, "a fetch").await;
    }
    for _ in 0..10 {
        is_stale(&gateway.get(TOKEN).await);
    }
    assert_eq!(upstream.count(), 5, "none is sent during the pause");
    // After it, one request goes upstream, and a client waits for `stale_wait` at most.
    let gate = Gate::new();
    upstream.always(Reply::json(r#"{"new":1}"#).behind(&gate));
    gateway.advance(1_000);
    is_stale(&gateway.get(TOKEN).await);
    gate.open();
    upstream.until_requests(6).await;
    until_idle(&gateway, "the fetch").await;
    assert_eq!(gateway.get(TOKEN).await.text(), r#"{"new":1}"#);
}

#[tokio::test]
async fn later_followers_share_the_leaders_deadline() {
    let upstream = Upstream::start();
    let gateway = gateway(&upstream);
    assert_eq!(gateway.get(TOKEN).await.status, 200);
    gateway.advance(11_000);
    let gate = Gate::new();
    upstream.always(Reply::json(r#"{"new":1}"#).behind(&gate));
    let began = Instant::now();
    let stale = gateway.get(TOKEN).await;
    assert!(began.elapsed() >= Duration::from_millis(500));
    assert_eq!(stale.text(), usual_body(TOKEN));
    // The leader's request is still under way. If later clients waited too, this would hang.
    let later = async {
        for _ in 0..100 {
            is_stale(&gateway.get(TOKEN).await);
        }
    };
    within("later clients do not wait", later).await;
    assert_eq!(upstream.count(), 2, "one asks for all");
    // The fetch continues, and its answer serves all later clients.
    gate.open();
    until_idle(&gateway, "the leader").await;
    assert_eq!(gateway.get(TOKEN).await.text(), r#"{"new":1}"#);
    assert_eq!(upstream.count(), 2);
}
