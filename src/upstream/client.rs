//! The exchange with the server: connections, attempts, request and response
//! bodies.
//!
//! [`Upstream::fetch`](super::Upstream::fetch) sends canonical requests
//! (`send`), [`Upstream::exchange`](super::Upstream::exchange) relays others
//! (`streamed`).
//!
//! Deliberately absent: which endpoint a request goes to and whether it may go
//! (`upstream::endpoint`).

pub(crate) mod attempts;
pub(crate) mod cause;
pub mod chance;
pub(crate) mod connection;
mod connector;
pub(crate) mod key_search;
pub(crate) mod min_rate;
pub(crate) mod pools;
pub mod resolver;
pub mod response_body;
pub mod retry_budget;
pub(crate) mod send;
pub(crate) mod streamed;
pub(crate) mod tls;
pub mod upload;
