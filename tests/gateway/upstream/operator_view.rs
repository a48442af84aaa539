//! Set-ups and parts of `/status` that these modules share.

use serde_json::Value;

use crate::support::{Answer, Gateway, Setup, Upstream, until};

/// With these keys, a clock that the test moves, and a short queue time-out.
pub(super) fn keyed(upstream: &Upstream, keys: &str) -> Gateway {
    Setup::before(upstream)
        .keys(keys)
        .manual()
        .config("upstream.queue_timeout = \"20ms\"")
        .start()
}

/// A key in `/status`.
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

/// Waits until nothing is under way: no request to the upstream, none in the
/// queue, and no key that is being fetched.
pub(super) async fn until_idle(gateway: &Gateway, what: &str) {
    until(&format!("nothing is under way after: {what}"), || {
        gateway.in_flight() == 0 && gateway.queued() == 0 && gateway.fetching() == 0
    })
    .await;
}
