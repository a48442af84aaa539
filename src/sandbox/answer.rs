//! Answers: a status, header fields in the reference's order, and a body.
//!
//! Made by `api` (the reference's answers) and by `provider` (a provider's). The server adds `date` and `connection`.

use bytes::Bytes;
use http::header::{
    ACCESS_CONTROL_ALLOW_ORIGIN, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, ETAG, IF_NONE_MATCH,
    VARY,
};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use serde_json::{Value, json};

/// An answer of the model.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// The header fields in the reference's order, without `date`.
    pub headers: HeaderMap,
    /// The body, of HEAD too; the server does not send it then.
    pub body: Bytes,
    /// How many rows the reference reads for this page: those of the whole block or transaction.
    pub items: usize,
}

impl Answer {
    /// An answer with JSON, or with an image where the body is a string, and with the entity tag of the tip if it comes from the database.
    pub(super) fn new(status: StatusCode, tag: Option<&str>, body: &Value) -> Self {
        let mut headers = HeaderMap::new();
        headers.insert(VARY, HeaderValue::from_static("Origin"));
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
        if let Some(tag) = tag.and_then(|tag| HeaderValue::try_from(format!("\"{tag}\"")).ok()) {
            let control = HeaderValue::from_static("public, no-cache, must-revalidate");
            headers.insert(CACHE_CONTROL, control);
            headers.insert(ETAG, tag);
        }
        let (media, body) = match body.as_str() {
            Some(image) => ("image/svg+xml", image.to_owned()),
            None => ("application/json; charset=utf-8", body.to_string()),
        };
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(media));
        headers.insert(CONTENT_LENGTH, body.len().into());
        Self {
            status,
            headers,
            body: body.into(),
            items: 0,
        }
    }

    /// 304, without `etag` and `content-type`.
    pub(super) fn not_modified(mut self) -> Self {
        for name in [ETAG, CONTENT_TYPE, CONTENT_LENGTH] {
            self.headers.remove(name);
        }
        Self {
            status: StatusCode::NOT_MODIFIED,
            body: Bytes::new(),
            ..self
        }
    }

    /// The validator's 400.
    pub(super) fn invalid(message: &str) -> Self {
        let body = json!({ "statusCode": 400, "error": "Bad Request", "message": message });
        Self::new(StatusCode::BAD_REQUEST, None, &body)
    }

    /// The router's 404, which repeats the path and query.
    pub(super) fn no_route(method: &Method, uri: &Uri) -> Self {
        let target = uri.path_and_query().map_or("/", |target| target.as_str());
        let message = format!("Route {method}:{target} not found");
        let body = json!({ "message": message, "error": "Not Found", "statusCode": 404 });
        Self::new(StatusCode::NOT_FOUND, None, &body)
    }

    /// A provider's error: a JSON object with the one member `error`.
    pub(super) fn provider(status: StatusCode, error: &str) -> Self {
        Self::new(status, None, &json!({ "error": error }))
    }
}

/// The body of the 500 for an error of the database.
pub(super) fn database_error(code: &str, message: &str) -> Value {
    let error = "Internal Server Error";
    json!({ "statusCode": 500, "code": code, "error": error, "message": message })
}

/// Whether `if-none-match` contains the tag. As in the reference, lists, weak tags and unquoted tags match; `*` does not.
pub(super) fn matches_tag(headers: &HeaderMap, tag: &str) -> bool {
    let lines = headers.get_all(IF_NONE_MATCH).iter();
    let values = lines.filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|part| {
        let part = part.trim();
        let part = part.strip_prefix("W/").unwrap_or(part);
        part.trim_matches('"') == tag
    })
}
