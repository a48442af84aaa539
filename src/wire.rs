//! HTTP on client connections: the check of a request's head, the body type of answers,
//! origins, and the names of fields that the `http` crate does not define.

pub mod body;
pub mod head;
pub mod origin;
pub mod request_id;
pub mod stream;

pub use body::Body;
use http::{HeaderName, HeaderValue};

/// `ratelimit` (draft-ietf-httpapi-ratelimit-headers): what remains of the quota.
pub(crate) const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
/// `ratelimit-policy` (draft-ietf-httpapi-ratelimit-headers): the quota.
pub(crate) const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
/// `proxy-status` (RFC 9209): how the upstream failed.
pub(crate) const PROXY_STATUS: HeaderName = HeaderName::from_static("proxy-status");
/// `server-timing` (W3C Server Timing).
pub(crate) const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");
/// `x-forwarded-for`, the predecessor of `forwarded` (RFC 7239).
pub(crate) const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// `sec-fetch-site` (W3C Fetch Metadata): how the requesting page's site relates
/// to this one.
pub(crate) const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// `x-request-id`, which identifies an answer in the logs.
pub(crate) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Marks a value that hardly ever recurs, so that HTTP/2 sends it as a literal that is
/// not indexed (RFC 7541 §6.2.3). h2 would otherwise add each one to the connection's
/// table of fields, evict useful ones for it, and compare it with all earlier ones.
pub(crate) fn unindexed(mut value: HeaderValue) -> HeaderValue {
    value.set_sensitive(true);
    value
}

/// The media type of errors (RFC 9457).
pub(crate) const PROBLEM_JSON: &str = "application/problem+json";
