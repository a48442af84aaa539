//! Answers: a status, header fields in the reference's order, and a body.
//!
//! Made by `api` (what the reference says), `gate` (what a provider in front of it says) and `faults`. Invariants: every
//! answer with a body tells its length; the order of fields is that of the reference; an answer to HEAD has the fields
//! of the one to GET and no body. Deliberately absent: `date` and `connection`, which the server adds.

use bytes::Bytes;
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, ETAG, VARY,
};
use http::{HeaderMap, HeaderValue, Method, StatusCode};

pub(super) const JSON: &str = "application/json; charset=utf-8";

/// The code and text of a statement that ran out of time.
pub(super) const STATEMENT_TIMEOUT: (&str, &str) =
    ("57014", "canceling statement due to statement timeout");

/// An answer of the model.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// The header fields, in the order of the reference; `date` is left to the server.
    pub headers: HeaderMap,
    /// The body: empty for HEAD, although `content-length` tells of the one that GET would get.
    pub body: Bytes,
    /// How many rows the reference had to read for this page: those of the whole block or transaction.
    pub items: usize,
    /// Whether the reference asks its database for this answer; what fails validation never gets so far.
    pub database: bool,
}

impl Answer {
    /// An answer with the fields that all routed ones share.
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

    /// An answer that the database had a part in, with the tag of the tip; an empty index has no tag.
    pub(super) fn tagged(status: StatusCode, tag: Option<&str>, body: String) -> Self {
        let mut answer = Self::routed(status);
        answer.database = true;
        if let Some(tag) = tag {
            answer.revalidated();
            if let Ok(value) = HeaderValue::try_from(format!("\"{tag}\"")) {
                answer.headers.insert(ETAG, value);
            }
        }
        answer.with_body(JSON, body)
    }

    /// 304: neither tag nor type.
    pub(super) fn not_modified(method: &Method) -> Self {
        let mut answer = Self::routed(StatusCode::NOT_MODIFIED);
        answer.database = true;
        answer.revalidated();
        if *method == Method::HEAD {
            answer.headers.insert(CONTENT_LENGTH, HeaderValue::from(0));
        }
        answer
    }

    fn revalidated(&mut self) {
        self.headers.insert(
            CACHE_CONTROL,
            HeaderValue::from_static("public, no-cache, must-revalidate"),
        );
    }

    /// 400 of the validator.
    pub(super) fn invalid(message: &str) -> Self {
        let message = serde_json::Value::from(message);
        let body =
            format!("{{\"statusCode\":400,\"error\":\"Bad Request\",\"message\":{message}}}");
        Self::routed(StatusCode::BAD_REQUEST).with_body(JSON, body)
    }

    /// 404 of the router, which names the raw target.
    pub(super) fn no_route(method: &Method, target: &str) -> Self {
        let message = serde_json::Value::from(format!("Route {method}:{target} not found"));
        let body = format!("{{\"message\":{message},\"error\":\"Not Found\",\"statusCode\":404}}");
        Self::routed(StatusCode::NOT_FOUND).with_body(JSON, body)
    }

    /// 400 of the router for a path that cannot be decoded; it never reaches the part that adds the shared fields.
    pub(super) fn undecodable(target: &str) -> Self {
        let message = serde_json::Value::from(format!("'{target}' is not a valid url component"));
        Self::bare(format!(
            "{{\"error\":\"Bad Request\",\"message\":{message},\"statusCode\":400}}"
        ))
    }

    /// 400 of the HTTP parser.
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

    /// 500 of the database.
    pub(super) fn database_error(tag: Option<&str>, (code, message): (&str, &str)) -> Self {
        let message = serde_json::Value::from(message);
        let body = format!(
            "{{\"statusCode\":500,\"code\":\"{code}\",\"error\":\"Internal Server Error\",\"message\":{message}}}"
        );
        Self::tagged(StatusCode::INTERNAL_SERVER_ERROR, tag, body)
    }

    /// The answer to OPTIONS on any path: 204 to a preflight, 400 to anything else.
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

    /// What a provider in front of the reference says: one member, as the API defines its errors.
    pub(super) fn provider(status: StatusCode, error: &str) -> Self {
        let body = format!("{{\"error\":{}}}", serde_json::Value::from(error));
        Self::routed(status).with_body(JSON, body)
    }

    /// Replaces body, type and length.
    pub(super) fn with_body(mut self, content_type: &'static str, body: String) -> Self {
        self.headers
            .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        self.headers
            .insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
        self.body = Bytes::from(body);
        self
    }

    /// Takes the body away where the method is HEAD.
    pub(super) fn for_method(mut self, method: &Method) -> Self {
        if *method == Method::HEAD {
            self.body = Bytes::new();
        }
        self
    }
}

/// Whether an If-None-Match field names the tag, by the reference's reading: lists, weak tags and tags without quotes
/// all match; a star matches nothing.
pub(super) fn names_tag(headers: &HeaderMap, tag: &str) -> bool {
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

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue};

    use super::names_tag;

    #[test]
    fn tags_match_as_recorded() {
        for (field, matches) in [
            ("\"abc\"", true),
            ("W/\"abc\"", true),
            ("abc", true),
            ("\"xyz\", W/\"abc\"", true),
            ("\"abc\",\"xyz\"", true),
            ("*", false),
            ("\"xyz\"", false),
            ("\"\"", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert("if-none-match", HeaderValue::from_static(field));
            assert_eq!(names_tag(&headers, "abc"), matches, "{field}");
        }
        assert!(!names_tag(&HeaderMap::new(), "abc"));
    }
}
