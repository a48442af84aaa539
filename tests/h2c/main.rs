//! The request path of `tests/gateway` for clients that use HTTP/2 in cleartext, by prior knowledge.
//!
//! The tests are those of `tests/gateway`; `TRANSPORT` makes their support connect
//! so. `tests/gateway/request_path.rs` says which they are.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "these are tests throughout, helpers included: a failure is a panic"
)]

#[allow(
    dead_code,
    unused_imports,
    reason = "several targets share the harness; tests/structure finds what none uses"
)]
#[path = "../support/harness.rs"]
mod support;

const SHAPE: support::Shape = support::Shape::Single;

const TRANSPORT: support::Transport = support::Transport::H2c;

#[path = "../gateway/request_path.rs"]
mod gateway;

use gateway::{chain, respect};
