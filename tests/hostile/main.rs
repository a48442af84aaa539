//! A hostile client next to an honest one: whatever the hostile client sends or
//! does not read, the honest client is answered within its own limits.
//!
//! Each test attacks a running gateway over loopback sockets and asserts counts of
//! what the honest client received. Timings are never asserted.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "these are tests throughout, helpers included: a failure is a panic"
)]

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

pub(crate) use support::respect::ALL;

mod connections;

mod http2;

mod uploads;

mod readers;

mod admission;

mod keys;

mod requests;

mod answers;
