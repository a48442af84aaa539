//! The gateway's suite again, before an upstream that is two servers: one has
//! the runes API, the other one all else, as with the open-source indexer.
//!
//! The tests are those of `tests/gateway`; `SHAPE` makes their support start two
//! servers and name both in the configuration, and a request that goes to the
//! wrong one fails its test. Left out is what has nothing to do with the upstream
//! (`listener`) or one server by its nature: plain routes (`respect`, `relay`),
//! connections to a single server and its endpoints (`upstream`; of `steward`
//! `adaptive`, `breaker`, `caps`, `failover`, `hedge`, `names`, `tls`), and what starts
//! servers of its own (`supervisor`, `deploy`, `upstreams`, `named`).

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

const SHAPE: support::Shape = support::Shape::Split;

#[path = "../gateway/validate.rs"]
mod validate;

#[path = "../gateway/limit.rs"]
mod limit;

#[path = "../gateway/cache.rs"]
mod cache;

#[path = "../gateway/collapse.rs"]
mod collapse;

mod steward;

#[path = "../gateway/key_leak.rs"]
mod key_leak;

#[path = "../gateway/admin.rs"]
mod admin;

#[path = "../gateway/purge.rs"]
mod purge;

#[path = "../gateway/explain.rs"]
mod explain;

#[path = "../gateway/sandbox.rs"]
mod sandbox;

#[path = "../gateway/chain.rs"]
mod chain;

#[path = "../gateway/reload.rs"]
mod reload;

#[path = "../gateway/operations.rs"]
mod operations;
