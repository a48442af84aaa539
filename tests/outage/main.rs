//! The outage drill: a gateway with the shipped configuration is under load while
//! its upstream is down for nearly as long as stale answers may be served.
//!
//! Requests for cached keys must succeed throughout. A dead upstream must get few
//! requests, and one that is back no more than its budget. Soon after, all answers
//! must be fresh. And the same load where the engine that replicas share is what fails.
//! Sockets and times are real, so bounds are generous; figures that
//! depend on the machine are printed and not asserted:
//!
//! ```text
//! cargo test --test outage -- --nocapture
//! ```

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "these are tests throughout, helpers included: a failure is a panic"
)]

mod drill;

mod engine;

mod front;

#[allow(dead_code, reason = "several targets share it, and each uses its part")]
#[path = "../support/figures.rs"]
mod figures;

#[allow(dead_code, reason = "several targets share it, and each uses its part")]
#[path = "../support/arrivals.rs"]
mod arrivals;

mod load;

#[allow(dead_code, reason = "two targets share it, and each uses its part")]
#[path = "../shared/servers.rs"]
mod servers;

#[allow(
    dead_code,
    unused_imports,
    reason = "five targets share the harness; tests/structure finds what none uses"
)]
#[path = "../support/harness.rs"]
mod support;

/// One server has both APIs.
const SHAPE: support::Shape = support::Shape::Single;

const TRANSPORT: support::Transport = support::Transport::Http1;

use front::Mood;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_upstream_causes_no_errors_for_cached_keys() {
    drill::play(Mood::Refuses).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mute_upstream_causes_no_errors_for_cached_keys() {
    drill::play(Mood::Mute).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_upstream_is_reported_after_the_stale_bound() {
    drill::outlast(Mood::Refuses).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mute_upstream_is_reported_after_the_stale_bound() {
    drill::outlast(Mood::Mute).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_is_gone_causes_no_errors() {
    engine::play(Mood::Refuses).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mute_engine_causes_no_errors() {
    engine::play(Mood::Mute).await;
}
