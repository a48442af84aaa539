//! The outage drill: a gateway under load, as shipped, whose upstream goes down
//! for nearly as long as stale answers may stand in, and comes back.
//!
//! Clients of what is warm must not notice, a dead upstream must not be
//! stormed, one that has come back must not get more than its budget, and soon
//! all must be fresh again. Sockets and times are real, so bounds are generous,
//! and what depends on the machine is printed rather than demanded:
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

mod front;

#[allow(dead_code, reason = "several targets share it, and each uses its part")]
#[path = "../support/figures.rs"]
mod figures;

#[allow(dead_code, reason = "several targets share it, and each uses its part")]
#[path = "../support/arrivals.rs"]
mod arrivals;

mod load;

#[allow(
    dead_code,
    unused_imports,
    reason = "five targets share the harness; tests/structure finds what none uses"
)]
#[path = "../support/harness.rs"]
mod support;

/// One server has both APIs.
const SHAPE: support::Shape = support::Shape::Single;

use front::Mood;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upstream_that_is_gone_for_a_while() {
    drill::play(Mood::Refuses).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upstream_that_says_nothing_for_a_while() {
    drill::play(Mood::Mute).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upstream_that_is_gone_for_longer_than_stale_may_stand_in() {
    drill::outlast(Mood::Refuses).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upstream_that_says_nothing_for_longer_than_stale_may_stand_in() {
    drill::outlast(Mood::Mute).await;
}
