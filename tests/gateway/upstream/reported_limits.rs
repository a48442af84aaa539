//! Limits that the upstream reports tighten the key's budget, whatever answer
//! reports them.

use serde_json::Value;

use super::{key, keyed, must_wait};
use crate::support::respect;
use crate::support::{Reply, Upstream, token};

/// A JSON answer that says this of limits, and nothing else.
fn limits(status: u16, fields: &str) -> Reply {
    Reply::with(status, fields, r#"{"telling":"limits"}"#)
}

/// That an answer with this status and these fields leaves so many requests for
/// so many seconds, and no more.
async fn must_leave(status: u16, fields: &str, left: usize, seconds: u64) {
    let upstream = Upstream::start();
    // They are reported once; answers without them loosen nothing.
    upstream.always(limits(200, ""));
    upstream.once(&token(0), limits(status, fields));
    let gateway = keyed(&upstream, "one");
    let first = gateway.get(&token(0)).await;
    let expected = if status == 500 { 502 } else { status };
    assert_eq!(first.status, expected, "{fields}");
    for more in 0..left {
        assert_eq!(key(&gateway, 0).await["budget_left"], left - more);
        assert_eq!(gateway.get(&token(more + 1)).await.status, 200);
    }
    must_wait(&gateway.get(&token(90)).await, seconds);
    gateway.advance(seconds * 1000 - 100);
    must_wait(&gateway.get(&token(90)).await, 1);
    assert_eq!(upstream.count(), left + 1, "{fields}");
    gateway.advance(100);
    assert_eq!(gateway.get(&token(90)).await.status, 200, "{fields}");
}

#[tokio::test]
async fn the_reported_remainder_holds_until_the_windows_end() {
    let fields = "ratelimit-remaining: 0\r\n";
    for status in [200, 404, 500] {
        must_leave(status, fields, 0, 1).await;
    }
    // Which fields say how much, is in `limit_report`.
    for (fields, left, seconds) in [
        ("ratelimit-remaining: 2\r\nratelimit-reset: 30\r\n", 2, 30),
        (
            "ratelimit: \"hour\";r=1;t=3600, \"second\";r=5;t=1\r\n",
            1,
            3600,
        ),
    ] {
        must_leave(200, fields, left, seconds).await;
    }
}

#[tokio::test]
async fn reported_limits_bind_without_a_configured_budget() {
    let upstream = Upstream::start();
    upstream.always(limits(200, ""));
    upstream.once(
        &token(599),
        limits(200, "ratelimit-remaining: 1\r\nratelimit-reset: 30\r\n"),
    );
    let gateway = keyed(&upstream, "one");
    let unlimited = "upstream.requests_per_minute = \"unlimited\"\n\
                     upstream.requests_per_second = \"unlimited\"";
    assert_eq!(gateway.reload(unlimited).await.status, 200);
    for number in 0..600 {
        // The clock stands still: it is all in one second.
        assert_eq!(gateway.get(&token(number)).await.status, 200);
    }
    let state = key(&gateway, 0).await;
    assert_eq!(state["budget"], Value::Null);
    assert_eq!(state["budget_left"], 1);
    let metrics = gateway.admin("/metrics").await;
    assert!(!metrics.text().contains("ordgate_upstream_budget{"));
    assert!(!metrics.text().contains("ordgate_upstream_budget_left{"));
    assert_eq!(gateway.get(&token(600)).await.status, 200);
    must_wait(&gateway.get(&token(601)).await, 30);
    gateway.advance(30_000);
    assert_eq!(gateway.get(&token(601)).await.status, 200);
    assert_eq!(key(&gateway, 0).await["budget_left"], Value::Null);
    // A limit that is set waits until what was sent without one does not count any more.
    let limited = "upstream.requests_per_minute = 700\nupstream.requests_per_second = 700";
    assert_eq!(gateway.reload(limited).await.status, 200);
    assert_eq!(key(&gateway, 0).await["budget_left"], 0);
    gateway.advance(60_050);
    assert_eq!(key(&gateway, 0).await["budget_left"], 700);
}

/// A self-hosted server gets no key.
#[tokio::test]
async fn the_key_is_sent_in_the_configured_field() {
    let upstream = Upstream::start();
    let gateway = keyed(&upstream, "one-key");
    let limited = "upstream.requests_per_minute = 50\nupstream.send_api_key = ";
    for (number, sends, name, left) in [
        (0, true, "key-1", Some(49)),
        (1, false, "none", None),
        (2, true, "key-1", Some(48)),
        (3, false, "none", None),
    ] {
        let answer = gateway.reload(&format!("{limited}{sends}")).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(gateway.get(&token(number)).await.status, 200);
        let sent = upstream.seen().pop().unwrap().field("x-api-key");
        assert_eq!(sent.as_deref(), sends.then_some("one-key"));
        let state = key(&gateway, 0).await;
        assert_eq!(
            (&state["name"], &state["budget_left"]),
            (&name.into(), &left.into())
        );
    }
}

#[tokio::test]
async fn limits_in_a_relayed_answer_apply_to_the_key_of_the_request() {
    for (keys, goes_on) in [("one", false), ("", true)] {
        let upstream = Upstream::start();
        let setup = respect::plain(&upstream).manual();
        let setup = setup.config("upstream.queue_timeout = \"20ms\"");
        let gateway = match keys {
            "" => setup.start(),
            keys => setup.keys(keys).start(),
        };
        let fields = "ratelimit-remaining: 0\r\nratelimit-reset: 30\r\n";
        upstream.always(limits(200, fields));
        assert_eq!(gateway.get("/a").await.status, 200);
        let next = gateway.get("/b").await;
        match goes_on {
            true => assert_eq!(next.status, 200, "the limit may be the client's own"),
            false => must_wait(&next, 30),
        }
    }
}
