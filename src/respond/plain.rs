//! Responses with the origin's own fields, on plain routes: a stored response whole, a range
//! of it, or 304; and answers that pass.

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AGE, CACHE_STATUS, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, ETAG};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use http_body::Body as _;

use super::{EMPTY, Responder, ResponseContext, response};
use crate::cache::directives::make_private;
use crate::cache::freshen::not_modified_fields;
use crate::cache::hop;
use crate::cache::key::Key;
use crate::cache::outcome::{Outcome, age};
use crate::cache::range::{Selection, select};
use crate::cache::validator::{encoded_etag, is_not_modified};
use crate::cache::{OriginFields, StoredResponse};
use crate::route::HeaderMode;
use crate::wire::Body;

impl Responder {
    /// A response from a stored one. One whose body is still coming has no ranges.
    pub(super) fn origin(
        &self,
        (stored, origin): (&StoredResponse, &OriginFields),
        coming: Option<Body>,
        (key, outcome): (&Key, Outcome),
        context: &ResponseContext<'_>,
        current_age: Duration,
    ) -> Response<Body> {
        let (own, request) = (&origin.map, context.fields);
        let is_encodable = stored.is_encodable;
        let is_ok = stored.status == StatusCode::OK;
        let is_unchanged = is_ok && is_not_modified(request, own, is_encodable);
        let length = stored.body.len() as u64;
        let selection = match is_ok && *context.method == Method::GET && coming.is_none() {
            true => select(request, own, length),
            false => Selection::Whole,
        };
        let encoded = match coming {
            Some(_) => None,
            None => self.encoded(stored, key, outcome, context),
        };
        let mut fields = own.clone();
        if let (Some((coding, _)), Some(etag)) = (&encoded, own.get(ETAG)) {
            fields.insert(ETAG, encoded_etag(etag, *coding));
        }
        let (status, body) = match selection {
            _ if is_unchanged => {
                fields = not_modified_fields(&fields);
                (StatusCode::NOT_MODIFIED, Body::default())
            }
            // RFC 9110 §15.3.7.1.
            Selection::Part(part) => {
                let range = format!("{}-{}", part.start, part.end - 1);
                // Those are of the whole (RFC 9530 §2).
                for name in ["content-digest", "content-md5"] {
                    fields.remove(name);
                }
                fields.insert(CONTENT_RANGE, content_range(&range, length));
                fields.insert(CONTENT_LENGTH, (part.end - part.start).into());
                let body = Body::new(slice(&stored.body, &part));
                (StatusCode::PARTIAL_CONTENT, body)
            }
            // §15.5.17.
            Selection::Unsatisfiable => {
                fields = HeaderMap::from_iter([(CONTENT_RANGE, content_range("*", length))]);
                (StatusCode::RANGE_NOT_SATISFIABLE, Body::default())
            }
            Selection::Whole => {
                let (length, body) = match (coming, encoded) {
                    (Some(body), _) => (body.size_hint().exact(), body),
                    (None, Some((coding, body))) => {
                        fields.insert(CONTENT_ENCODING, coding.field());
                        (Some(body.len() as u64), Body::new(body))
                    }
                    (None, None) => (None, Body::new(stored.body.clone())),
                };
                if let Some(length) = length {
                    fields.insert(CONTENT_LENGTH, length.into());
                }
                (stored.status, body)
            }
        };
        fields.insert(AGE, age(current_age));
        self.complete(&mut fields, outcome, context);
        response(status, fields, body)
    }

    /// The beginning of a response that is being stored.
    pub(crate) fn coming(
        &self,
        stored: &StoredResponse,
        body: Body,
        what: (&Key, Outcome),
        context: &ResponseContext<'_>,
        current_age: Duration,
    ) -> Response<Body> {
        match stored.origin() {
            Some(origin) => self.origin((stored, origin), Some(body), what, context, current_age),
            None => {
                let (key, outcome) = what;
                let mut response = self.stored(stored, key, outcome, context, current_age);
                // It is not known before the body is.
                response.headers_mut().remove(ETAG);
                *response.body_mut() = body;
                response
            }
        }
    }

    /// An answer of the origin that is not stored.
    pub(crate) fn passed(
        &self,
        (status, mut fields, body): (StatusCode, HeaderMap, Body),
        outcome: Outcome,
        context: &ResponseContext<'_>,
    ) -> Response<Body> {
        self.complete(&mut fields, outcome, context);
        response(status, fields, body)
    }

    /// Completes the origin's fields: `cache-status`, and on a route with typed fields
    /// ordgate's own in place of those that do not pass.
    fn complete(&self, fields: &mut HeaderMap, outcome: Outcome, context: &ResponseContext<'_>) {
        let is_typed = context.headers == HeaderMode::Typed;
        if is_typed {
            hop::keep(fields, |name| TYPED.contains(&name.as_str()));
        }
        fields.append(CACHE_STATUS, outcome.field(None));
        if is_typed {
            if self.is_private {
                make_private(fields);
            }
            self.add_own(fields, self.compression.is_some(), Some(outcome), context);
        }
    }
}

/// The upstream's fields that a route with typed fields passes on.
const TYPED: [&str; 14] = [
    "age",
    "cache-control",
    "cache-status",
    "content-encoding",
    "content-language",
    "content-length",
    "content-range",
    "content-type",
    "date",
    "etag",
    "expires",
    "last-modified",
    "vary",
    "via",
];

fn content_range(range: &str, length: u64) -> HeaderValue {
    HeaderValue::try_from(format!("bytes {range}/{length}")).unwrap_or(EMPTY)
}

/// A range of a stored body. A small range is copied: a shared one would keep the
/// whole body in memory, even after eviction, while only the range counts as
/// unsent.
fn slice(body: &Bytes, part: &Range<u64>) -> Bytes {
    let at = |offset: u64| usize::try_from(offset).unwrap_or(usize::MAX);
    let part = &body[at(part.start)..at(part.end)];
    match part.len() < body.len() / 2 {
        true => Bytes::copy_from_slice(part),
        false => body.slice_ref(part),
    }
}
