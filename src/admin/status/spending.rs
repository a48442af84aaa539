//! How upstream requests have failed, in `/status`.

use serde_json::{Value, json};

use super::since;
use crate::clock::Clock;
use crate::upstream::endpoint::LastFailure;
use crate::wire::request_id::RequestId;

/// The last failure of an endpoint, and how many there were since it answered.
pub(super) fn last_failure(last: &LastFailure, clock: &Clock) -> Value {
    let (at, ago) = since(last.at, clock);
    json!({
        "reason": last.reason.name(),
        "cause": last.cause,
        "at": at,
        "ago_seconds": ago,
        "in_a_row": last.in_a_row,
        "route": last.route.as_deref(),
        "request_id": last.request_id.as_ref().map(RequestId::as_str),
    })
}
