//! Responses with the origin's own fields, on plain routes: a stored response whole, a range
//! of it, or 304; and answers that pass.

use std::time::Duration;

use bytes::Bytes;
use http::header::{
    AGE, CACHE_CONTROL, CACHE_STATUS, CONTENT_ENCODING, CONTENT_LANGUAGE, CONTENT_LENGTH,
    CONTENT_RANGE, CONTENT_TYPE, DATE, ETAG, EXPIRES, HeaderName, LAST_MODIFIED, VARY, VIA,
};
use http::{HeaderMap, Response, StatusCode};

use super::{Responder, ResponseContext, response};
use crate::cache::etag::encoded_etag;
use crate::cache::freshen::not_modified_fields;
use crate::cache::hop;
use crate::cache::key::Key;
use crate::cache::outcome::{Outcome, age};
use crate::cache::range::{self, ByteRange, Selection};
use crate::cache::validator::{PreconditionResult, Representation, evaluate};
use crate::cache::{OriginFields, StoredResponse};
use crate::route::HeaderMode;
use crate::wire::Body;

/// A body that is still coming, and its length.
pub(crate) type ComingBody = (Body, Option<u64>);

impl Responder {
    /// A response from a stored one. One whose body is still coming has no ranges.
    pub(super) fn origin(
        &self,
        (stored, origin): (&StoredResponse, &OriginFields),
        coming: Option<ComingBody>,
        (key, outcome): (&Key, Outcome),
        context: &ResponseContext<'_>,
        current_age: Duration,
    ) -> Response<Body> {
        let is_whole = coming.is_none();
        let encoded = self.encoded_stored(stored, key, outcome, context.fields);
        let encoded = encoded.filter(|_| is_whole);
        let length = stored.body.len() as u64;
        let representation = Representation {
            status: stored.status,
            headers: &origin.map,
            is_encoded: stored.body_id.is_encodable(),
        };
        let (method, request) = (context.method, context.fields);
        let selection = match evaluate(method, request, &representation) {
            PreconditionResult::NotModified => None,
            PreconditionResult::Full | PreconditionResult::Forward => Some(match is_whole {
                true => range::select(method, request, &representation, length),
                false => Selection::Whole,
            }),
        };
        let mut fields = match selection {
            None => not_modified_fields(&origin.map),
            Some(Selection::Whole) => origin.map.clone(),
            Some(Selection::One(span)) => range::single_fields(&origin.map, span, length),
            Some(Selection::Unsatisfiable) => {
                HeaderMap::from_iter([(CONTENT_RANGE, range::unsatisfied_range(length))])
            }
        };
        if let (Some((coding, _)), Some(etag)) = (&encoded, origin.map.get(ETAG)) {
            fields.insert(ETAG, encoded_etag(etag, *coding));
        }
        let (status, body) = match (selection, coming, encoded) {
            (None, ..) => (StatusCode::NOT_MODIFIED, Body::default()),
            (Some(Selection::One(span)), ..) => {
                let part = Body::new(slice(&stored.body, span));
                (StatusCode::PARTIAL_CONTENT, part)
            }
            (Some(Selection::Unsatisfiable), ..) => {
                (StatusCode::RANGE_NOT_SATISFIABLE, Body::default())
            }
            (Some(Selection::Whole), Some((body, length)), _) => {
                if let Some(length) = length {
                    fields.insert(CONTENT_LENGTH, length.into());
                }
                (stored.status, body)
            }
            (Some(Selection::Whole), None, Some((coding, body))) => {
                fields.insert(CONTENT_ENCODING, coding.field());
                fields.insert(CONTENT_LENGTH, AsRef::<[u8]>::as_ref(&*body).len().into());
                (stored.status, Body::lent(body))
            }
            (Some(Selection::Whole), None, None) => (stored.status, Body::new(stored.body.clone())),
        };
        fields.insert(AGE, age(current_age));
        self.complete(&mut fields, (key, outcome), context);
        response(status, fields, body)
    }

    /// The beginning of a response that is being stored.
    pub(crate) fn coming(
        &self,
        stored: &StoredResponse,
        body: ComingBody,
        what: (&Key, Outcome),
        context: &ResponseContext<'_>,
        current_age: Duration,
    ) -> Response<Body> {
        match stored.origin() {
            Some(origin) => self.origin((stored, origin), Some(body), what, context, current_age),
            None => response(stored.status, HeaderMap::new(), body.0),
        }
    }

    /// An answer of the origin that is not stored.
    pub(crate) fn passed(
        &self,
        (status, mut fields, body): (StatusCode, HeaderMap, Body),
        what: (&Key, Outcome),
        context: &ResponseContext<'_>,
    ) -> Response<Body> {
        self.complete(&mut fields, what, context);
        response(status, fields, body)
    }

    /// Completes the origin's fields: `cache-status`, and on a route with typed fields
    /// ordgate's own in place of those that do not pass.
    fn complete(
        &self,
        fields: &mut HeaderMap,
        (key, outcome): (&Key, Outcome),
        context: &ResponseContext<'_>,
    ) {
        let is_typed = context.headers == HeaderMode::Typed;
        if is_typed {
            keep_typed(fields);
        }
        fields.append(CACHE_STATUS, self.cache_status(outcome, key));
        if is_typed {
            self.add_own_fields(fields, outcome, context);
        }
    }
}

/// A range of a stored body. A small range is copied: a shared one would keep the
/// whole body in memory, even after eviction, while only the range counts as
/// unsent.
fn slice(body: &Bytes, span: ByteRange) -> Bytes {
    let at = |offset: u64| usize::try_from(offset).unwrap_or(usize::MAX);
    let part = &body[at(span.first)..at(span.last + 1)];
    match part.len() < body.len() / 2 {
        true => Bytes::copy_from_slice(part),
        false => body.slice_ref(part),
    }
}

/// Removes the upstream's fields that a route with typed fields does not pass on.
fn keep_typed(fields: &mut HeaderMap) {
    const KEPT: [HeaderName; 14] = [
        AGE,
        CACHE_CONTROL,
        CONTENT_ENCODING,
        CONTENT_LANGUAGE,
        CONTENT_LENGTH,
        CONTENT_RANGE,
        CONTENT_TYPE,
        DATE,
        ETAG,
        EXPIRES,
        LAST_MODIFIED,
        VARY,
        VIA,
        CACHE_STATUS,
    ];
    hop::keep(fields, |name| KEPT.contains(name));
}
