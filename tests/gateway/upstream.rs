//! The upstream: what is forwarded, how failures appear to clients, and the
//! policies that protect the upstream: budgets, fair shares, breakers, failover.

mod breaker;
mod budget;
mod failover;
mod failure_backoff;
mod faults;
mod forwarding;
mod keys;
mod reasons;
mod tls;

use serde_json::Value;

use crate::support::{Answer, Gateway, Setup, Upstream, until};

/// With these keys, a clock that the test moves, and a short queue time-out.
fn keyed(upstream: &Upstream, keys: &str) -> Setup {
    let setup = Setup::before(upstream).keys(keys).manual();
    setup.config("upstream.queue_timeout = \"20ms\"")
}

/// A key in `/status`.
fn key(gateway: &Gateway, at: usize) -> Value {
    gateway.status()["upstream"]["keys"][at].clone()
}

/// An endpoint in `/status`.
fn endpoint(gateway: &Gateway, at: usize) -> Value {
    gateway.status()["upstream"]["endpoints"][at].clone()
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

/// Waits until nothing is under way: no request to the upstream, none in the
/// queue, and no key that is being fetched.
async fn until_idle(gateway: &Gateway, what: &str) {
    until(&format!("nothing is under way after: {what}"), || {
        gateway.in_flight() == 0 && gateway.queued() == 0 && gateway.fetching() == 0
    })
    .await;
}
