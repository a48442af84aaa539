//! A key that keeps failing is requested with growing pauses, and followers share
//! their leader's deadline.

use std::time::Duration;

use tokio::time::Instant;

use super::until_idle;
use crate::support::{Gate, Gateway, Reply, Setup, TOKEN, Upstream, token, within};

/// Failures are one target's own here, and not the upstream's.
const CONFIG: &str = "upstream.retry = false";

fn gateway(upstream: &Upstream, config: &str) -> Gateway {
    let setup = Setup::before(upstream).config(CONFIG).config(config);
    setup.manual().start()
}

async fn remembered(gateway: &Gateway) -> u64 {
    let status = gateway.admin("/status").await.json();
    status["remembered_errors"].as_u64().unwrap()
}

#[tokio::test]
async fn a_target_that_keeps_failing_is_requested_with_growing_pauses() {
    let rows = [
        (
            "500",
            Reply::status(500, "{}"),
            "http_protocol_error; received-status=500",
        ),
        (
            "truncated",
            Reply::raw("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{").close(),
            "http_response_incomplete",
        ),
        (
            "HTML",
            Reply::with(200, "", "<html>"),
            "http_protocol_error",
        ),
        (
            "too large",
            Reply::raw("HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n").close(),
            "http_response_body_size",
        ),
    ];
    for (name, reply, error) in rows {
        let upstream = Upstream::start();
        let gateway = gateway(&upstream, "");
        upstream.always(reply);
        for asked in 1..=4 {
            assert_eq!(gateway.get(TOKEN).await.status, 502, "{name}");
            assert_eq!(upstream.count(), asked, "{name}: at once");
        }
        for pause in [1, 2, 4, 8, 16, 30, 30] {
            let asked = upstream.count();
            for _ in 0..3 {
                let answer = gateway.get(TOKEN).await;
                assert_eq!(answer.status, 502, "{name}");
                let proxy_status = answer.must("proxy-status");
                assert_eq!(proxy_status, format!("ordgate; error={error}"), "{name}");
                answer.problem();
            }
            gateway.advance(pause * 1000 - 1);
            gateway.get(TOKEN).await;
            assert_eq!(upstream.count(), asked, "{name}: {pause}");
            gateway.advance(1);
            gateway.get(TOKEN).await;
            assert_eq!(upstream.count(), asked + 1, "{name}: {pause}");
        }
        assert_eq!(remembered(&gateway).await, 1, "{name}");
        // Another target is another matter; and one answer makes it forgotten.
        upstream.always(Reply::json("{}"));
        assert_eq!(gateway.get(&token(1)).await.status, 200, "{name}");
        gateway.advance(30_000);
        assert_eq!(gateway.get(TOKEN).await.status, 200, "{name}");
        assert_eq!(remembered(&gateway).await, 0, "{name}");
        until_idle(&gateway, name).await;
    }
}

#[tokio::test]
async fn a_stale_response_is_served_at_once_during_the_backoff() {
    let upstream = Upstream::start();
    let gateway = gateway(&upstream, "");
    assert_eq!(gateway.get(TOKEN).await.status, 200);
    gateway.advance(11_000);
    upstream.always(Reply::status(500, "{}"));
    for asked in 2..=5 {
        assert_eq!(gateway.get(TOKEN).await.status, 200);
        upstream.until_requests(asked).await;
        until_idle(&gateway, "a fetch").await;
    }
    // A request now would wait for long.
    upstream.always(Reply::nothing().hang());
    for _ in 0..10 {
        let stale = gateway.get(TOKEN).await;
        assert_eq!(stale.status, 200);
        let cache_status = stale.must("cache-status");
        assert!(cache_status.contains("stale-if-error"), "{cache_status}");
    }
    assert_eq!(upstream.count(), 5);
    // A later request goes upstream, which no client waits for: the one before has failed.
    upstream.always(Reply::json(r#"{"new":1}"#));
    gateway.advance(1_000);
    let stale = gateway.get(TOKEN).await;
    assert!(stale.must("cache-status").contains("stale-if-error"));
    upstream.until_requests(6).await;
    until_idle(&gateway, "the fetch").await;
    assert_eq!(gateway.get(TOKEN).await.text(), r#"{"new":1}"#);
    until_idle(&gateway, "stale").await;
}

#[tokio::test]
async fn later_followers_share_the_leaders_deadline() {
    let upstream = Upstream::start();
    let gateway = gateway(&upstream, "cache.stale_wait = \"2s\"");
    assert_eq!(gateway.get(TOKEN).await.status, 200);
    gateway.advance(11_000);
    let gate = Gate::new();
    upstream.always(Reply::json(r#"{"new":1}"#).behind(&gate));
    let began = Instant::now();
    let stale = gateway.get(TOKEN).await;
    assert!(began.elapsed() >= Duration::from_secs(2));
    assert_eq!(
        stale.text(),
        r#"{"asked":"/ordinals/v1/brc-20/tokens/ordi"}"#
    );
    // The leader's request is still under way. If later clients waited too, this would hang.
    let later = async {
        for _ in 0..20 {
            let stale = gateway.get(TOKEN).await;
            let cache_status = stale.must("cache-status");
            assert!(cache_status.contains("stale-if-error"), "{cache_status}");
            assert_eq!(
                stale.text(),
                r#"{"asked":"/ordinals/v1/brc-20/tokens/ordi"}"#
            );
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
