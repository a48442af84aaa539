//! The last errors that clients were answered with, in `/status`.

use http::Method;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use super::since;
use crate::gateway::Gateway;
use crate::meter::errors::AnsweredError;

/// What stays as it is in a value of a query.
const QUERY_VALUE: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'/')
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// The last answers with a 5xx status, the newest first.
pub(super) fn errors(gateway: &Gateway) -> Value {
    let last = gateway.meter().totals.errors.last();
    let row = |error: &AnsweredError| {
        let (at, ago) = since(error.at, &gateway.clock);
        let method = error.method.as_ref().map(Method::as_str);
        let line = Some(&*error.target).filter(|line| method.is_none() && !line.is_empty());
        let url = method.is_some() && !error.is_cut;
        json!({
            "at": at,
            "ago_seconds": ago,
            "method": method,
            "path": method.map(|_| &*error.target),
            "request_line": line,
            "status": error.status.as_u16(),
            "reason": error.reason.name(),
            "cause": &*error.cause,
            "request_id": error.request_id.as_str(),
            "url": url.then(|| explain_url(&error.target)),
        })
    };
    Value::Array(last.iter().map(row).collect())
}

/// The path on the admin listener that explains a target.
fn explain_url(target: &str) -> String {
    format!("/explain?url={}", utf8_percent_encode(target, QUERY_VALUE))
}
