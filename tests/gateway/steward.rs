//! What ordgate does for its upstream's sake: it holds to what the upstream
//! says of its limits, keeps to its budget and shares it fairly, and leaves it
//! alone where it refuses or fails.

mod breaker;
mod budget;
mod fairness;
mod limits;
mod quarantine;

use serde_json::Value;

use crate::support::{Answer, Gateway, Setup, Upstream};

/// With these keys, a clock that stands still, and little patience.
fn keyed(upstream: &Upstream, keys: &str) -> Gateway {
    Setup::before(upstream)
        .keys(keys)
        .manual()
        .config("upstream.queue_timeout = \"20ms\"")
        .start()
}

/// How a key stands, as the operator is told.
async fn key(gateway: &Gateway, at: usize) -> Value {
    gateway.admin("/status").await.json()["upstream"]["keys"][at].clone()
}

/// A metric's value, by its name and labels.
async fn metric(gateway: &Gateway, name: &str) -> String {
    let metrics = gateway.admin("/metrics").await;
    let mut lines = metrics.text().lines();
    let found = lines.find_map(|line| line.strip_prefix(name));
    let found = found.unwrap_or_else(|| panic!("no {name}: {}", metrics.text()));
    found.trim().to_owned()
}

/// That an answer is a refusal which says when to come back.
fn must_wait(answer: &Answer, seconds: u64) {
    assert_eq!(answer.status, 503, "{answer:?}");
    assert_eq!(answer.number("retry-after"), seconds, "{answer:?}");
    answer.problem();
}
