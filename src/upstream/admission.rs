//! Admission of requests to an upstream: the queue in which requests wait, and the
//! budget of requests that each key may send.
//!
//! Deliberately absent: which key a request carries (`upstream::keys`), and which
//! endpoint it goes to (`upstream::endpoint`).

mod denied;
pub(crate) mod fair_order;
pub(crate) mod limit_report;
pub(crate) mod queue;
mod rates;
mod request_priority;

pub(crate) use denied::Denied;
pub(crate) use fair_order::{ClientUsage, MIN_SHARED_SLOTS};
pub use rates::{Rate, Rates};
pub(crate) use request_priority::Check;
pub use request_priority::{Priority, RequestOrigin, RequestPriority};

#[cfg(test)]
mod crowd_tests;
