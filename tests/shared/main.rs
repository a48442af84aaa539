//! What replicas share, with real servers of the engine: `redis-server` on free loopback
//! ports, single, with copies, and as a cluster. Each is stopped by its process id.
//!
//! Without `redis-server`, each test says that it is skipped; with `ORDGATE_CI=1` it
//! fails then.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "these are tests throughout, helpers included: a failure is a panic"
)]

mod client;

mod cooldowns;

mod entry_scripts;

mod journal;

mod replicas;

mod scripts;

mod servers;

mod storm;

mod tier;

mod tips;

mod tls;

#[allow(
    dead_code,
    unused_imports,
    reason = "six targets share the harness; tests/structure finds what none uses"
)]
#[path = "../support/harness.rs"]
mod support;

/// One server has both APIs.
const SHAPE: support::Shape = support::Shape::Single;

const TRANSPORT: support::Transport = support::Transport::Http1;
