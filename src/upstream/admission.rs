//! Admission of requests to an upstream: the queue in which requests wait, and
//! the budget of requests that each key may send.
//!
//! Deliberately absent: which key a request carries (`upstream::keys`), and which
//! endpoint it goes to (`upstream::endpoint_selection`).

pub mod budget;
pub mod fair_order;
pub mod limit_report;
pub mod queue;
mod rates;
pub mod reported_limits;
mod request_priority;
pub mod shared_budget;
mod unreadable;

pub use fair_order::{ClientUsage, LEAST_SHARED};
pub use rates::{Rate, Rates};
pub use request_priority::{Priority, RequestPriority};
pub(super) use unreadable::UnreadableFields;
