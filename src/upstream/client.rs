//! The exchange with the server: connections, attempts, request and response
//! bodies.
//!
//! `fetch` sends canonical requests, `forward` sends others as they are.
//! Either makes attempts (`attempt`), and after a failure `retry`
//! decides whether and where another follows.
//!
//! Deliberately absent: which endpoint and which key a request gets
//! (`upstream::endpoint`, `upstream::keys`).

pub(super) mod attempt;
pub(super) mod attempts;
pub(super) mod cause;
mod fetch;
pub(super) mod forward;
pub(super) mod min_rate;
pub(super) mod pool;
pub mod resolver;
pub mod response_body;
mod retry;
pub(super) mod retry_budget;
pub(super) mod tls;
mod traced;
pub mod upload;

use bytes::Bytes;
use http_body_util::combinators::{BoxBody, UnsyncBoxBody};
use http_body_util::{BodyExt, Empty};

use crate::wire::body::BodyError;

/// The body of a request to the upstream.
pub type RequestBody = BoxBody<Bytes, BodyError>;

/// The body of a response, as it is received.
pub type ResponseBody = UnsyncBoxBody<Bytes, BodyError>;

/// An empty request body.
pub fn no_body() -> RequestBody {
    Empty::new().map_err(|never| match never {}).boxed()
}
