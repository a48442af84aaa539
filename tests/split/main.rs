//! The tests of `tests/gateway` with an upstream of two servers: one has the runes
//! API, the other one the rest, as with the open-source indexer.
//!
//! The tests are those of `tests/gateway`; `SHAPE` makes their support start two
//! servers and name both in the configuration, and a request that goes to the
//! wrong one fails its test. Left out is what has nothing to do with the upstream
//! (`listener`) or one server by its nature: plain routes (`respect`, `relay`),
//! connections to a single server and its endpoints (most of `upstream`), and what
//! starts servers of its own (`supervisor`, `deploy`, `upstreams`, `named`).

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

const SHAPE: support::Shape = support::Shape::Split;

const TRANSPORT: support::Transport = support::Transport::Http1;

#[path = "../gateway"]
mod gateway {
    pub(crate) mod admin;
    pub(crate) mod cache;
    pub(crate) mod chain;
    pub(crate) mod collapse;
    pub(crate) mod explain;
    pub(crate) mod key_leak;
    pub(crate) mod limit;
    pub(crate) mod operations;
    pub(crate) mod purge;
    pub(crate) mod reload;
    pub(crate) mod sandbox;
    /// The parts that are about keys, budgets, clients and failures, and not
    /// about one server.
    pub(crate) mod upstream {
        pub(crate) mod budget;
        pub(crate) mod failure_backoff;
        pub(crate) mod fairness;
        pub(crate) mod faults;
        pub(crate) mod key_quarantine;
        #[allow(dead_code, reason = "the modules that are left out use the rest")]
        pub(crate) mod operator_view;
        pub(crate) mod reported_limits;

        use operator_view::{key, keyed, metric, must_wait, until_idle};
    }
    pub(crate) mod validate;
}

use gateway::chain;
