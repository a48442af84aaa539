//! Words of the wire that every room shares: the body type of answers and the
//! names of fields that the `http` crate does not know.
//!
//! Deliberately absent: meaning. This room knows how things are spelt.

pub mod activity;
pub mod body;
pub mod head;
pub mod stream;

pub use body::Body;
use http::HeaderName;

/// `ratelimit` (draft-ietf-httpapi-ratelimit-headers): what is left now.
pub const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
/// `ratelimit-policy` (draft-ietf-httpapi-ratelimit-headers): what is granted.
pub const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
/// `proxy-status` (RFC 9209): what went wrong with the upstream.
pub const PROXY_STATUS: HeaderName = HeaderName::from_static("proxy-status");
/// `server-timing` (W3C Server Timing).
pub const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");
/// `x-forwarded-for`, the custom that RFC 7239 wanted to replace.
pub const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// `sec-fetch-site` (W3C Fetch Metadata): whose page a browser asks for.
pub const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// `x-request-id`, by which an answer is found in the logs.
pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The media type of errors (RFC 9457).
pub const PROBLEM_JSON: &str = "application/problem+json";
