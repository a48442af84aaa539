//! Answers: a status, header fields in the reference's order, and a body.
//!
//! Made by `api` (the reference's answers), `gate` (a provider's answers) and `faults`. Invariants: every answer with a
//! body has its `content-length`; fields are in the reference's order; an answer to HEAD has the fields of the answer to
//! GET and no body. The server adds `date` and `connection`.

use bytes::Bytes;
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, ETAG, VARY,
};
use http::{HeaderMap, HeaderValue, Method, StatusCode};

pub(super) const JSON: &str = "application/json; charset=utf-8";

/// The database's error code and message for a statement timeout.
pub(super) const STATEMENT_TIMEOUT: (&str, &str) =
    ("57014", "canceling statement due to statement timeout");

/// An answer of the model.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// The header fields in the reference's order, without `date`.
    pub headers: HeaderMap,
    /// The body; empty for HEAD, where `content-length` is that of the answer to GET.
    pub body: Bytes,
    /// How many rows the reference reads for this page: those of the whole block or transaction.
    pub items: usize,
    /// Whether the reference queries its database for this answer. Invalid requests do not reach the database.
    pub database: bool,
}

impl Answer {
    /// An answer with the fields shared by all answers of the router.
    fn routed(status: StatusCode) -> Self {
        let mut headers = HeaderMap::with_capacity(10);
        headers.insert(VARY, HeaderValue::from_static("Origin"));
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
        Self {
            status,
            headers,
            body: Bytes::new(),
            items: 0,
            database: false,
        }
    }

    /// An answer from the database with the tip's entity tag; an empty index has none.
    pub(super) fn tagged(status: StatusCode, tag: Option<&str>, body: String) -> Self {
        let mut answer = Self::routed(status);
        answer.database = true;
        if let Some(tag) = tag {
            answer.add_cache_control();
            if let Ok(value) = HeaderValue::try_from(format!("\"{tag}\"")) {
                answer.headers.insert(ETAG, value);
            }
        }
        answer.with_body(JSON, body)
    }

    /// 304, without `etag` and `content-type`.
    pub(super) fn not_modified(method: &Method) -> Self {
        let mut answer = Self::routed(StatusCode::NOT_MODIFIED);
        answer.database = true;
        answer.add_cache_control();
        if *method == Method::HEAD {
            answer.headers.insert(CONTENT_LENGTH, HeaderValue::from(0));
        }
        answer
    }

    fn add_cache_control(&mut self) {
        self.headers.insert(
            CACHE_CONTROL,
            HeaderValue::from_static("public, no-cache, must-revalidate"),
        );
    }

    /// The validator's 400.
    pub(super) fn invalid(message: &str) -> Self {
        let message = serde_json::Value::from(message);
        let body =
            format!("{{\"statusCode\":400,\"error\":\"Bad Request\",\"message\":{message}}}");
        Self::routed(StatusCode::BAD_REQUEST).with_body(JSON, body)
    }

    /// The router's 404, which repeats the raw target.
    pub(super) fn no_route(method: &Method, target: &str) -> Self {
        let message = serde_json::Value::from(format!("Route {method}:{target} not found"));
        let body = format!("{{\"message\":{message},\"error\":\"Not Found\",\"statusCode\":404}}");
        Self::routed(StatusCode::NOT_FOUND).with_body(JSON, body)
    }

    /// The router's 400 for a path that cannot be decoded. It has none of the shared fields.
    pub(super) fn undecodable(target: &str) -> Self {
        let message = serde_json::Value::from(format!("'{target}' is not a valid url component"));
        Self::bare(format!(
            "{{\"error\":\"Bad Request\",\"message\":{message},\"statusCode\":400}}"
        ))
    }

    /// The HTTP parser's 400.
    pub(super) fn unreadable() -> Self {
        Self::bare(
            "{\"error\":\"Bad Request\",\"message\":\"Client Error\",\"statusCode\":400}"
                .to_owned(),
        )
    }

    fn bare(body: String) -> Self {
        let mut answer = Self::routed(StatusCode::BAD_REQUEST);
        answer.headers.clear();
        answer.with_body("application/json", body)
    }

    /// The 500 for a database error.
    pub(super) fn database_error(tag: Option<&str>, (code, message): (&str, &str)) -> Self {
        let message = serde_json::Value::from(message);
        let body = format!(
            "{{\"statusCode\":500,\"code\":\"{code}\",\"error\":\"Internal Server Error\",\"message\":{message}}}"
        );
        Self::tagged(StatusCode::INTERNAL_SERVER_ERROR, tag, body)
    }

    /// The answer to OPTIONS on any path: 204 to a CORS preflight, otherwise 400.
    pub(super) fn preflight(request: &HeaderMap) -> Self {
        if !request.contains_key("origin") || !request.contains_key("access-control-request-method")
        {
            let answer = Self::routed(StatusCode::BAD_REQUEST);
            return answer.with_body("text/plain", "Invalid Preflight Request".to_owned());
        }
        let mut answer = Self::routed(StatusCode::NO_CONTENT);
        answer.headers.insert(
            VARY,
            HeaderValue::from_static("Origin, Access-Control-Request-Headers"),
        );
        let methods = HeaderValue::from_static("GET,HEAD,PUT,PATCH,POST,DELETE");
        answer.headers.insert(ACCESS_CONTROL_ALLOW_METHODS, methods);
        if let Some(wanted) = request.get("access-control-request-headers") {
            answer
                .headers
                .insert(ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
        }
        answer.headers.insert(CONTENT_LENGTH, HeaderValue::from(0));
        answer
    }

    /// A provider's error: a JSON object with the one member `error`.
    pub(super) fn provider(status: StatusCode, error: &str) -> Self {
        let body = format!("{{\"error\":{}}}", serde_json::Value::from(error));
        Self::routed(status).with_body(JSON, body)
    }

    /// Replaces the body, its type and its length.
    pub(super) fn with_body(mut self, content_type: &'static str, body: String) -> Self {
        self.headers
            .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        self.headers
            .insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
        self.body = Bytes::from(body);
        self
    }

    /// Removes the body if the method is HEAD.
    pub(super) fn for_method(mut self, method: &Method) -> Self {
        if *method == Method::HEAD {
            self.body = Bytes::new();
        }
        self
    }
}

/// Whether `if-none-match` contains the tag. As in the reference, lists, weak tags and unquoted tags match; `*` does not.
pub(super) fn matches_tag(headers: &HeaderMap, tag: &str) -> bool {
    let fields = headers
        .get_all("if-none-match")
        .iter()
        .filter_map(|value| value.to_str().ok());
    fields.flat_map(|value| value.split(',')).any(|part| {
        let part = part.trim();
        let opaque = part
            .strip_prefix("W/")
            .or_else(|| part.strip_prefix("w/"))
            .unwrap_or(part);
        let opaque = opaque.strip_prefix('"').unwrap_or(opaque);
        opaque.strip_suffix('"').unwrap_or(opaque) == tag
    })
}
