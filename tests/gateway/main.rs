//! The gateway from outside: over loopback sockets, in front of a scripted
//! upstream.
//!
//! The modules are in the order of the request path, from basic to complex: the
//! first failure is the most informative. Tests are independent, use free ports,
//! and do not sleep to let something happen.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "these are tests throughout, helpers included: a failure is a panic"
)]

#[path = "../support/harness.rs"]
mod support;

mod listener;

mod http2;

mod tls;

mod transports;

mod validate;

mod limit;

mod client_tokens;

mod cache;

mod compression;

mod collapse;

mod upstream;

mod named;

mod wrong_upstream;

mod respect;

mod relay;

mod key_leak;

mod admin;

mod dashboard;

mod docs;

mod deploy;

mod reasons;

mod access_log;

mod purge;

mod explain;

mod traces;

mod chain;

mod state;

mod reload;

mod operations;

mod questions;

mod timing;

mod supervisor;

#[path = "../hostile/main.rs"]
mod hostile;
