//! What ordgate does for the sake of two upstreams that have a key in common: the
//! parts of `tests/gateway/steward.rs` that are about keys, budgets, clients and
//! failures, and not about one server.

#[path = "../gateway/steward/budget.rs"]
mod budget;
#[allow(dead_code, reason = "the other modules use it as well")]
#[path = "../gateway/steward/common.rs"]
mod common;
#[path = "../gateway/steward/fairness.rs"]
mod fairness;
#[path = "../gateway/steward/faults.rs"]
mod faults;
#[path = "../gateway/steward/lapses.rs"]
mod lapses;
#[path = "../gateway/steward/limits.rs"]
mod limits;
#[path = "../gateway/steward/quarantine.rs"]
mod quarantine;

use common::{key, keyed, metric, must_wait, rested};
