//! A hostile client beside an honest one: whatever the one sends, or does not
//! read, the other's requests are answered within its own limits.
//!
//! Each test attacks a running gateway over loopback sockets, and asserts what
//! the honest client received as counts. Timings are never asserted.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "these are tests throughout, helpers included: a failure is a panic"
)]

#[allow(
    dead_code,
    unused_imports,
    reason = "tests/gateway shares it, and each target uses its part"
)]
#[path = "../gateway/support.rs"]
mod support;

/// One server has both APIs.
const SHAPE: support::Shape = support::Shape::Single;

/// One route before any origin: every method and field passes, and what is
/// stored obeys the origin's own fields.
pub(crate) const ALL: &str = r#"
    [[route]]
    name = "all"
    path = "/{rest:*}"
    methods = ["*"]
    query = "any"
    headers = "all"
    cache = { mode = "respect" }
"#;

mod connections;

mod uploads;

mod readers;

mod admission;

mod keys;

mod requests;

mod answers;
