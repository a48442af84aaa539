//! Responses from a stored response: whole, a range, or 304.

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use http::header::{
    AGE, CACHE_STATUS, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderName,
};
use http::{HeaderMap, Method, Response, StatusCode};

use super::store::{with_fields, withheld};
use super::{Announced, Fetch, Relay, RelayAnswer};
use crate::cache::coding::Coding;
use crate::cache::encoded::EncodedBody;
use crate::cache::etag::encoded_etag;
use crate::cache::freshen::not_modified_fields;
use crate::cache::key::Key;
use crate::cache::outcome::Outcome;
use crate::cache::range;
use crate::cache::range::Selection;
use crate::cache::validator::{PreconditionResult, Representation, evaluate};
use crate::cache::variant::Variant;
use crate::compress::{Effort, Wanted};
use crate::route::{HeaderMode, Route};
use crate::wire::Body;

/// A request as far as its response depends on it.
pub(crate) struct Request<'a> {
    pub(crate) relay: &'a Relay,
    pub(crate) route: &'a Route,
    pub(crate) method: &'a Method,
    pub(crate) fields: &'a HeaderMap,
    pub(crate) key: &'a Key,
}

impl Request<'_> {
    /// A response from a complete stored response: whole, a range, or 304.
    pub(crate) fn serve(
        &self,
        variant: &Variant,
        outcome: Outcome,
        now: SystemTime,
    ) -> Response<Body> {
        let is_hit = matches!(outcome, Outcome::Hit { .. });
        let encoded = self.encoded(variant, is_hit);
        let length = variant.body.len() as u64;
        let representation = representation(variant);
        let selection = match evaluate(self.method, self.fields, &representation) {
            PreconditionResult::NotModified => None,
            PreconditionResult::Full | PreconditionResult::Forward => {
                let selected = range::select(self.method, self.fields, &representation, length);
                Some(selected)
            }
        };
        let (status, mut fields, body) = match (selection, &encoded) {
            (None, _) => (
                StatusCode::NOT_MODIFIED,
                not_modified_fields(&variant.fields),
                Body::default(),
            ),
            (Some(Selection::Whole), None) => (
                variant.status,
                variant.fields.clone(),
                Body::new(variant.body.clone()),
            ),
            (Some(Selection::Whole), Some((coding, body))) => {
                let mut fields = variant.fields.clone();
                fields.insert(CONTENT_ENCODING, coding.field());
                fields.insert(CONTENT_LENGTH, (**body).as_ref().len().into());
                (variant.status, fields, Body::lent(body.clone()))
            }
            (Some(Selection::One(span)), _) => (
                StatusCode::PARTIAL_CONTENT,
                range::single_fields(&variant.fields, span, length),
                Body::new(slice(&variant.body, span)),
            ),
            (Some(Selection::Unsatisfiable), _) => {
                let range = range::unsatisfied_range(length);
                let fields = HeaderMap::from_iter([(CONTENT_RANGE, range)]);
                (StatusCode::RANGE_NOT_SATISFIABLE, fields, Body::default())
            }
        };
        if let (Some((coding, _)), Some(etag)) = (&encoded, variant.fields.get(ETAG)) {
            fields.insert(ETAG, encoded_etag(etag, *coding));
        }
        fields.insert(AGE, variant.reuse.aging().field(now));
        self.finish(&mut fields, outcome);
        response(status, fields, body)
    }

    /// The body to send in place of the stored one, if there is one in a coding that the
    /// request accepts.
    fn encoded(&self, variant: &Variant, is_hit: bool) -> Option<(Coding, Arc<EncodedBody>)> {
        let wanted = Wanted {
            fields: self.fields,
            key: self.key,
            body_id: variant.body_id,
            length: variant.body.len(),
            is_hit,
        };
        self.relay.responder.encoded(&wanted, || Effort::Usual)
    }

    /// Completes the fields of a response: adds `cache-status`.
    fn finish(&self, fields: &mut HeaderMap, outcome: Outcome) {
        if self.route.headers == HeaderMode::Typed {
            keep_typed(fields);
        }
        let value = self.relay.responder.cache_status(outcome, self.key);
        fields.append(CACHE_STATUS, value);
    }
}

impl Fetch {
    pub(super) fn as_request(&self) -> Request<'_> {
        Request {
            relay: &self.relay,
            route: self.route(),
            method: &self.request.method,
            fields: &self.request.fields,
            key: &self.request.key,
        }
    }

    /// A response to this request from a stored one.
    pub(super) fn answer_from(
        &self,
        variant: &Variant,
        outcome: Outcome,
        now: SystemTime,
        announced: Announced,
    ) -> RelayAnswer {
        RelayAnswer {
            response: self.as_request().serve(variant, outcome, now),
            outcome,
            announced,
        }
    }

    /// A response from one that is being stored, whose body is still coming: whole, or
    /// 304. `received` are the fields that have come, some of which are not stored.
    pub(super) fn serve_begun(
        &self,
        variant: &Variant,
        received: &HeaderMap,
        (body, length): (Body, Option<u64>),
        outcome: Outcome,
    ) -> Response<Body> {
        let variant = &with_fields(variant, &withheld(variant, received));
        let request = &self.request;
        let evaluated = evaluate(&request.method, &request.fields, &representation(variant));
        let (status, mut fields, body) = match evaluated {
            PreconditionResult::NotModified => (
                StatusCode::NOT_MODIFIED,
                not_modified_fields(&variant.fields),
                Body::default(),
            ),
            PreconditionResult::Full | PreconditionResult::Forward => {
                let mut fields = variant.fields.clone();
                if let Some(length) = length {
                    fields.insert(CONTENT_LENGTH, length.into());
                }
                (variant.status, fields, body)
            }
        };
        fields.insert(AGE, variant.reuse.aging().field(self.now()));
        self.finish(&mut fields, outcome);
        response(status, fields, body)
    }

    /// Completes the fields of a response.
    pub(super) fn finish(&self, fields: &mut HeaderMap, outcome: Outcome) {
        self.as_request().finish(fields, outcome);
    }
}

fn representation(variant: &Variant) -> Representation<'_> {
    Representation {
        status: variant.status,
        headers: &variant.fields,
        received: variant.received,
        is_encoded: variant.body_id.is_encodable(),
    }
}

/// A response of these parts.
pub(super) fn response(status: StatusCode, fields: HeaderMap, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = fields;
    response
}

/// A range of a stored body. A small range is copied: a shared one would keep the
/// whole body in memory, even after eviction, while only the range counts as
/// unsent.
fn slice(body: &Bytes, span: range::ByteRange) -> Bytes {
    let at = |offset: u64| usize::try_from(offset).unwrap_or(usize::MAX);
    let part = &body[at(span.first)..at(span.last + 1)];
    match part.len() < body.len() / 2 {
        true => Bytes::copy_from_slice(part),
        false => body.slice_ref(part),
    }
}

/// Removes the upstream's fields that a typed route does not pass on.
fn keep_typed(fields: &mut HeaderMap) {
    const KEPT: [HeaderName; 14] = [
        AGE,
        http::header::CACHE_CONTROL,
        CONTENT_ENCODING,
        http::header::CONTENT_LANGUAGE,
        CONTENT_LENGTH,
        CONTENT_RANGE,
        http::header::CONTENT_TYPE,
        http::header::DATE,
        ETAG,
        http::header::EXPIRES,
        http::header::LAST_MODIFIED,
        http::header::VARY,
        http::header::VIA,
        CACHE_STATUS,
    ];
    let names: Vec<_> = fields
        .keys()
        .filter(|name| !KEPT.contains(name))
        .cloned()
        .collect();
    for name in names {
        fields.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_range_does_not_keep_the_whole_body() {
        let body = Bytes::from(vec![b'x'; 1000]);
        let shares = |part: &Bytes| body.as_ptr_range().contains(&part.as_ptr());
        for (first, last, expected) in [(0, 498, false), (700, 999, false), (1, 999, true)] {
            let part = slice(&body, range::ByteRange { first, last });
            assert_eq!(part.len() as u64, last - first + 1);
            assert_eq!(shares(&part), expected, "{first}-{last}");
        }
    }

    #[test]
    fn a_typed_route_passes_on_only_known_fields() {
        let value = http::HeaderValue::from_static("1");
        let names = ["etag", "set-cookie", "x-other", "vary"];
        let names = names.map(|name| (HeaderName::from_static(name), value.clone()));
        let mut fields = HeaderMap::from_iter(names);
        keep_typed(&mut fields);
        let mut kept: Vec<_> = fields.keys().map(HeaderName::as_str).collect();
        kept.sort_unstable();
        assert_eq!(kept, ["etag", "vary"]);
    }
}
