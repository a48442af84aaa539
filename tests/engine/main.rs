//! The gateway with real servers of the engine that replicas share, and in the chaos run.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "these are tests throughout, helpers included: a failure is a panic"
)]

#[path = "../chaos/main.rs"]
mod chaos;
#[allow(dead_code, reason = "two targets share it, and each uses its part")]
#[path = "../simulation/dice.rs"]
mod dice;
#[path = "../shared/main.rs"]
mod shared;
#[allow(
    dead_code,
    unused_imports,
    reason = "the gateway's tests share the harness, and use all of it"
)]
#[path = "../support/harness.rs"]
mod support;
