//! The span of one attempt.

use http::{Method, StatusCode};

use crate::trace::span::{SpanKind, method_attributes};
use crate::trace::{self, Span};
use crate::upstream::Failure;
use crate::upstream::counters::SendReason;
use crate::upstream::endpoint::Endpoint;

/// Begins the span of a request to an endpoint, with its method, why it is sent, and how
/// often it was sent before.
pub(super) fn trace_attempt(
    endpoint: &Endpoint,
    target: &str,
    (method, reason, resends): (&Method, SendReason, u32),
) -> Span {
    let mut span = trace::begin("upstream", SpanKind::Client);
    for (name, value) in method_attributes(method) {
        span.set(name, || value);
    }
    span.set("ordgate.attempt", || reason.name());
    if resends > 0 {
        span.set("http.request.resend_count", || resends);
    }
    span.set("server.address", || {
        let uri = endpoint.uri(target).ok();
        let host = uri.as_ref().and_then(|uri| uri.host());
        host.unwrap_or_default().to_owned()
    });
    span.set("server.port", || {
        let uri = endpoint.uri(target).unwrap_or_default();
        let usual = match uri.scheme_str() {
            Some("https") => 443,
            Some(_) | None => 80,
        };
        uri.port_u16().unwrap_or(usual)
    });
    span.set("url.full", || {
        let uri = endpoint.uri(target).unwrap_or_default();
        uri.to_string()
    });
    span
}

/// Notes the status of the answer, or how the attempt has failed.
pub(super) fn trace_result(span: &mut Span, result: Result<StatusCode, &Failure>) {
    let status = match &result {
        Ok(status) => Some(*status),
        Err(failure) => failure.upstream_status(),
    };
    if let Some(status) = status {
        span.set("http.response.status_code", || status.as_u16());
    }
    match result {
        Ok(status) if status.is_client_error() || status.is_server_error() => {
            span.fail_with_status(status.as_u16());
        }
        Ok(_) => {}
        Err(failure) => span.fail(failure.reason().name()),
    }
}
