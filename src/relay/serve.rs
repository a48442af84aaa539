//! Responses from a stored response: whole, a range, or 304.

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use http::header::{AGE, CONTENT_ENCODING, CONTENT_LENGTH, DATE, ETAG, HeaderName, HeaderValue};
use http::{HeaderMap, Method, Response, StatusCode};

use super::shared::InProgress;
use super::{ClientRequest, Relay};
use crate::cache::coding::Coding;
use crate::cache::encodings::EncodedBody;
use crate::cache::etag::encoded_etag;
use crate::cache::freshen::not_modified_fields;
use crate::cache::key::Key;
use crate::cache::outcome::Outcome;
use crate::cache::range::{Multipart, Selection};
use crate::cache::status::CACHE_STATUS;
use crate::cache::validator::{Representation, evaluate};
use crate::cache::variant::Variant;
use crate::cache::{range, validator};
use crate::compress::EncodingRequest;
use crate::identify::Client;
use crate::route::{HeaderMode, Route};
use crate::wire::Body;

/// A response from a complete stored response: whole, a range, or 304.
#[expect(
    clippy::too_many_arguments,
    reason = "each is a different noun of the request"
)]
pub(super) fn serve(
    relay: &Relay,
    route: &Route,
    variant: &Variant,
    method: &Method,
    fields: &HeaderMap,
    client: Client,
    key: &Key,
    outcome: Outcome,
    now: SystemTime,
) -> Response<Body> {
    let representation = Representation {
        status: variant.status,
        headers: &variant.fields,
        received: variant.received,
        is_encoded: variant.encodings.are_allowed(),
    };
    let request = EncodingRequest {
        fields,
        key,
        client,
    };
    let encoded = encoded(relay, variant, &request);
    let length = variant.body.len() as u64;
    let whole = || match &encoded {
        None => (
            variant.status,
            variant.fields.clone(),
            Body::new(variant.body.clone()),
        ),
        Some((coding, body)) => {
            let mut fields = variant.fields.clone();
            fields.insert(CONTENT_ENCODING, coding.field());
            fields.insert(CONTENT_LENGTH, body.len().into());
            (variant.status, fields, Body::lent(body.clone()))
        }
    };
    let (status, mut answer, body) = match evaluate(method, fields, &representation) {
        validator::PreconditionResult::NotModified => (
            StatusCode::NOT_MODIFIED,
            not_modified_fields(&variant.fields),
            Body::default(),
        ),
        validator::PreconditionResult::Full | validator::PreconditionResult::Forward => {
            match range::select(method, fields, &representation, length) {
                Selection::Whole => whole(),
                Selection::One(span) => (
                    StatusCode::PARTIAL_CONTENT,
                    range::single_fields(&variant.fields, span, length),
                    Body::new(slice(&variant.body, span)),
                ),
                Selection::Many(spans) => many(relay, variant, &spans),
                Selection::Unsatisfiable => {
                    let mut unsatisfied = HeaderMap::new();
                    let range = range::unsatisfied_range(length);
                    unsatisfied.insert(http::header::CONTENT_RANGE, range);
                    (
                        StatusCode::RANGE_NOT_SATISFIABLE,
                        unsatisfied,
                        Body::default(),
                    )
                }
            }
        }
    };
    if let (Some((coding, _)), Some(etag)) = (&encoded, variant.fields.get(ETAG)) {
        answer.insert(ETAG, encoded_etag(etag, *coding));
    }
    answer.insert(AGE, variant.reuse.aging().field(now));
    finish(relay, route, &mut answer, key, outcome);
    response(status, answer, body)
}

/// The body to send in place of the stored one, if there is one in a coding that the
/// request accepts.
fn encoded(
    relay: &Relay,
    variant: &Variant,
    request: &EncodingRequest<'_>,
) -> Option<(Coding, Arc<EncodedBody>)> {
    let (encodings, length) = (&variant.encodings, variant.body.len());
    match encodings.are_allowed() {
        true => relay.responder.encoded_variant(encodings, length, request),
        false => None,
    }
}

/// A response from one that is still being stored: whole, or 304. `None` if its
/// beginning has been dropped.
pub(super) fn serve_in_progress(
    relay: &Relay,
    route: &Route,
    begun: &InProgress,
    request: &ClientRequest,
    outcome: Outcome,
    now: SystemTime,
) -> Option<Response<Body>> {
    let variant = &begun.variant;
    let representation = Representation {
        status: variant.status,
        headers: &variant.fields,
        received: variant.received,
        is_encoded: variant.encodings.are_allowed(),
    };
    let (status, mut answer, body) =
        match evaluate(&request.method, &request.fields, &representation) {
            validator::PreconditionResult::NotModified => (
                StatusCode::NOT_MODIFIED,
                not_modified_fields(&variant.fields),
                Body::default(),
            ),
            validator::PreconditionResult::Full | validator::PreconditionResult::Forward => {
                let reader = begun.stream.reader(begun.length)?;
                let mut fields = variant.fields.clone();
                if let Some(length) = begun.length {
                    fields.insert(CONTENT_LENGTH, length.into());
                }
                (variant.status, fields, Body::Streamed(Box::new(reader)))
            }
        };
    answer.insert(AGE, variant.reuse.aging().field(now));
    finish(relay, route, &mut answer, &request.key, outcome);
    Some(response(status, answer, body))
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
    let part = part(body, span);
    match part.len() < body.len() / 2 {
        true => Bytes::copy_from_slice(part),
        false => body.slice_ref(part),
    }
}

fn part(body: &[u8], span: range::ByteRange) -> &[u8] {
    let at = |offset: u64| usize::try_from(offset).unwrap_or(usize::MAX);
    &body[at(span.first)..at(span.last + 1)]
}

/// The content of a 206 with several ranges.
fn many(
    relay: &Relay,
    variant: &Variant,
    spans: &[range::ByteRange],
) -> (StatusCode, HeaderMap, Body) {
    let content_type = variant.fields.get(http::header::CONTENT_TYPE);
    // Unpredictable, so that no body can be made to contain it.
    let boundary = format!("{:016x}{:016x}", relay.seed, relay.clock.now().nanos());
    let parts = Multipart::new(spans, variant.body.len() as u64, content_type, &boundary);
    let fields = parts.fields(&variant.fields);
    // Copied into one buffer, for the reason given at `slice`.
    let length = usize::try_from(parts.length).unwrap_or(0);
    let mut whole = Vec::with_capacity(length);
    for (text, span) in parts.parts {
        whole.extend_from_slice(&text);
        whole.extend_from_slice(part(&variant.body, span));
    }
    whole.extend_from_slice(&parts.tail);
    (StatusCode::PARTIAL_CONTENT, fields, Body::new(whole.into()))
}

/// Completes the fields of a response: adds `cache-status`.
pub(super) fn finish(
    relay: &Relay,
    route: &Route,
    fields: &mut HeaderMap,
    key: &Key,
    outcome: Outcome,
) {
    if route.headers == HeaderMode::Typed {
        keep_typed(fields);
    }
    let value = relay.responder.cache_status(outcome, key);
    fields.append(CACHE_STATUS, value);
}

/// Replaces ordgate's own `cache-status`, which is the last value. The values of
/// other caches stay.
pub(super) fn replace_cache_status(fields: &mut HeaderMap, value: HeaderValue) {
    if let http::header::Entry::Occupied(entry) = fields.entry(CACHE_STATUS) {
        let (name, all) = entry.remove_entry_mult();
        let mut all: Vec<_> = all.collect();
        all.pop();
        for other in all {
            fields.append(&name, other);
        }
    }
    fields.append(CACHE_STATUS, value);
}

/// Removes the upstream's fields that a typed route does not pass on.
fn keep_typed(fields: &mut HeaderMap) {
    const KEPT: [HeaderName; 14] = [
        AGE,
        http::header::CACHE_CONTROL,
        CONTENT_ENCODING,
        http::header::CONTENT_LANGUAGE,
        CONTENT_LENGTH,
        http::header::CONTENT_RANGE,
        http::header::CONTENT_TYPE,
        DATE,
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
    fn only_the_own_cache_status_is_replaced() {
        let mut fields = HeaderMap::new();
        for value in ["far; hit", "ordgate; hit"] {
            fields.append(CACHE_STATUS, HeaderValue::from_static(value));
        }
        replace_cache_status(&mut fields, HeaderValue::from_static("ordgate; fwd=stale"));
        let all: Vec<_> = fields.get_all(CACHE_STATUS).iter().collect();
        assert_eq!(all, ["far; hit", "ordgate; fwd=stale"]);
    }

    #[test]
    fn a_typed_route_passes_on_only_known_fields() {
        let value = HeaderValue::from_static("1");
        let names = ["etag", "set-cookie", "x-other", "vary"];
        let names = names.map(|name| (HeaderName::from_static(name), value.clone()));
        let mut fields = HeaderMap::from_iter(names);
        keep_typed(&mut fields);
        let mut kept: Vec<_> = fields.keys().map(HeaderName::as_str).collect();
        kept.sort_unstable();
        assert_eq!(kept, ["etag", "vary"]);
    }
}
