//! `GET /history`: the last ten minutes, for the dashboard.

use http::header::{CONTENT_ENCODING, VARY};
use http::{HeaderValue, Request, Response};

use super::response::{invalid, json_body};
use crate::cache::coding::{Coding, preferred};
use crate::compress::{Effort, encode};
use crate::history::ProcessHistory;
use crate::validate::Invalid;
use crate::wire::Body;

/// Shorter answers are not compressed.
const LEAST: usize = 1024;

/// The series, or their points since a former answer: `since` is its `until`.
pub(super) fn answer<B>(history: &ProcessHistory, request: &Request<B>) -> Response<Body> {
    let since = match request.uri().query().filter(|query| !query.is_empty()) {
        None => None,
        Some(query) => match query.strip_prefix("since=").map(str::parse) {
            Some(Ok(since)) => Some(since),
            _ => {
                let allowed = "since=MILLISECONDS alone, the value of until in an earlier answer";
                return invalid(&Invalid::new("the query", query, allowed));
            }
        },
    };
    let text = history.json(since);
    let coding = preferred(request.headers(), &[Coding::Gzip]);
    if coding.is_some()
        && text.len() >= LEAST
        && let Ok(encoded) = encode(text.as_bytes(), Coding::Gzip, Effort::Usual)
    {
        let mut response = super::response::typed("application/json", encoded.into());
        let fields = response.headers_mut();
        fields.insert(CONTENT_ENCODING, Coding::Gzip.field());
        fields.insert(VARY, HeaderValue::from_static("accept-encoding"));
        return response;
    }
    json_body(text)
}
