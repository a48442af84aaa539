//! The upstream: what is forwarded, how failures appear to clients, and the
//! policies that protect the upstream: budgets, fair shares, breakers, failover.

mod breaker;
mod budget;
mod failover;
mod failure_backoff;
mod faults;
mod forwarding;
mod freeze;
mod key_quarantine;
mod name_resolution;
mod operator_view;
mod reasons;
mod reported_limits;
mod throttling;
mod tls;

use operator_view::{key, keyed, metric, must_wait, until_idle};
