//! Responses of the admin listener.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, Response, StatusCode};
use serde_json::{Value, json};

use crate::validate::Invalid;
use crate::wire::{Body, PROBLEM_JSON};

/// An error, in the form that the public listener uses (RFC 9457).
pub(super) fn problem(status: StatusCode, detail: &str) -> Response<Body> {
    problem_with(status, detail, &[])
}

/// An error with members of its own.
pub(super) fn problem_with(
    status: StatusCode,
    detail: &str,
    members: &[(&str, Value)],
) -> Response<Body> {
    let mut body = json!({
        "type": "about:blank",
        "title": status.canonical_reason().unwrap_or("Error"),
        "status": status.as_u16(),
        "detail": detail,
        "error": detail,
    });
    for (name, value) in members {
        body[*name] = value.clone();
    }
    let mut response = typed(PROBLEM_JSON, body.to_string().into());
    *response.status_mut() = status;
    response
}

/// 400, for a parameter.
pub(super) fn invalid(wrong: &Invalid) -> Response<Body> {
    let members = [
        ("parameter", json!(wrong.parameter)),
        ("received", json!(wrong.received)),
        ("allowed", json!(wrong.allowed)),
    ];
    problem_with(StatusCode::BAD_REQUEST, &wrong.to_string(), &members)
}

/// Plain text.
pub(super) fn text(status: StatusCode, text: impl Into<Bytes>) -> Response<Body> {
    let mut response = typed("text/plain; charset=utf-8", text.into());
    *response.status_mut() = status;
    response
}

/// 200 with a body of a media type.
pub(super) fn typed(media: &'static str, body: Bytes) -> Response<Body> {
    let mut response = Response::new(Body::new(body));
    let fields = response.headers_mut();
    fields.insert(CONTENT_TYPE, HeaderValue::from_static(media));
    fields.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // A browser must not take a client's text for a page.
    fields.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// 200 with JSON.
pub(super) fn json_body(text: String) -> Response<Body> {
    typed("application/json", text.into())
}
