//! What these modules share.

use serde_json::Value;

use crate::support::{Answer, Gateway, Setup, Upstream, until};

/// With these keys, a clock that stands still, and little patience.
pub(super) fn keyed(upstream: &Upstream, keys: &str) -> Gateway {
    Setup::before(upstream)
        .keys(keys)
        .manual()
        .config("upstream.queue_timeout = \"20ms\"")
        .start()
}

/// How a key stands, as the operator is told.
pub(super) async fn key(gateway: &Gateway, at: usize) -> Value {
    gateway.admin("/status").await.json()["upstream"]["keys"][at].clone()
}

/// A metric's value, by its name and labels.
pub(super) async fn metric(gateway: &Gateway, name: &str) -> String {
    let metrics = gateway.admin("/metrics").await;
    let mut lines = metrics.text().lines();
    let found = lines.find_map(|line| line.strip_prefix(name));
    let found = found.unwrap_or_else(|| panic!("no {name}: {}", metrics.text()));
    found.trim().to_owned()
}

/// That an answer is a refusal which says when to come back.
pub(super) fn must_wait(answer: &Answer, seconds: u64) {
    assert_eq!(answer.status, 503, "{answer:?}");
    assert_eq!(answer.number("retry-after"), seconds, "{answer:?}");
    answer.problem();
}

/// Waits until nothing is under way: no request, nobody in the line, no key that
/// is being fetched; and sees to it that the operator is told so.
pub(super) async fn rested(gateway: &Gateway, what: &str) {
    let present = gateway.server().current_gateway();
    let waited = format!("all is at rest after: {what}");
    until(&waited, || {
        let upstream = present.upstreams.first();
        upstream.in_flight() == 0 && upstream.line().is_empty() && present.fill.collapse.is_empty()
    })
    .await;
    let status = gateway.admin("/status").await.json();
    assert_eq!(status["upstream"]["in_flight"], 0, "{what}");
    assert_eq!(status["upstream"]["queue"]["waiting"], 0, "{what}");
    assert_eq!(status["collapse"]["keys"], 0, "{what}");
}
