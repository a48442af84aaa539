//! What ordgate does for its upstream's sake: it holds to what the upstream
//! says of its limits, keeps to its budget and shares it fairly, and leaves it
//! alone where it refuses or fails.

mod adaptive;
mod breaker;
mod budget;
mod common;
mod failover;
mod fairness;
mod faults;
mod freeze;
mod hedge;
mod http2;
mod lapses;
mod limits;
mod names;
mod quarantine;
mod reasons;
mod tls;

use common::{key, keyed, metric, must_wait, rested};
