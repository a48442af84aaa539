//! The gateway from outside: over loopback sockets, before an upstream that
//! does as it is told.
//!
//! The modules stand in the order of the walk, from basic to complex, so that
//! the first failure means the most. No test needs another, none has a fixed
//! port, and none sleeps to let something happen.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "these are tests throughout, helpers included: a failure is a panic"
)]

#[allow(
    dead_code,
    reason = "five targets share the harness; tests/structure finds what none uses"
)]
#[path = "../support/harness.rs"]
mod support;

/// One server has both APIs; `tests/split` is the same with two.
const SHAPE: support::Shape = support::Shape::Single;

mod listener;

mod validate;

mod limit;

mod cache;

mod collapse;

mod upstream;

mod named;

mod upstreams;

mod wrong_upstream;

mod respect;

mod relay;

mod key_leak;

mod admin;

mod deploy;

mod purge;

mod explain;

mod sandbox;

mod chain;

mod reload;

mod operations;

mod supervisor;
