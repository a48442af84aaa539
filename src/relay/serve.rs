//! Answering with a stored response: whole, in part, or as 304; and what every
//! answer of these routes says last.

use std::time::SystemTime;

use bytes::Bytes;
use http::header::{AGE, CONTENT_LENGTH, DATE, HeaderName, HeaderValue};
use http::{HeaderMap, Method, Response, StatusCode};

use super::shared::Begun;
use super::{ClientRequest, Relay};
use crate::cache::freshen::not_modified_fields;
use crate::cache::key::Key;
use crate::cache::outcome::Outcome;
use crate::cache::range::{Multipart, Selection};
use crate::cache::status::CACHE_STATUS;
use crate::cache::validator::{Representation, evaluate};
use crate::cache::variant::Variant;
use crate::cache::{range, validator};
use crate::route::{HeaderMode, Route};
use crate::wire::Body;

/// Answers with a stored response: whole, in part, or as 304.
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
    key: &Key,
    outcome: Outcome,
    now: SystemTime,
) -> Response<Body> {
    let representation = Representation {
        status: variant.status,
        headers: &variant.fields,
        received: variant.received,
    };
    let length = variant.body.len() as u64;
    let whole = || Body::new(variant.body.clone());
    let (status, mut answer, body) = match evaluate(method, fields, &representation) {
        validator::PreconditionResult::NotModified => (
            StatusCode::NOT_MODIFIED,
            not_modified_fields(&variant.fields),
            Body::default(),
        ),
        validator::PreconditionResult::Full | validator::PreconditionResult::Forward => {
            match range::select(method, fields, variant.status, &variant.fields, length) {
                Selection::Whole => (variant.status, variant.fields.clone(), whole()),
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
    answer.insert(AGE, variant.reuse.aging().field(now));
    finish(relay, route, &mut answer, key, outcome);
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = answer;
    response
}

/// Answers with a response that is still being stored: whole, or as 304; `None`
/// where this request wants a part of it, or its beginning is not there.
pub(super) fn serve_streamed(
    relay: &Relay,
    route: &Route,
    begun: &Begun,
    ask: &ClientRequest,
    outcome: Outcome,
    now: SystemTime,
) -> Option<Response<Body>> {
    let variant = &begun.variant;
    let representation = Representation {
        status: variant.status,
        headers: &variant.fields,
        received: variant.received,
    };
    let (status, mut answer, body) = match evaluate(&ask.method, &ask.fields, &representation) {
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
    finish(relay, route, &mut answer, &ask.key, outcome);
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = answer;
    Some(response)
}

/// A part of a stored body. A small one is copied: one that shares the body keeps
/// all of it in memory, even once it is evicted, and only the part would count
/// as what the client has not taken.
pub(super) fn slice(body: &Bytes, span: range::Span) -> Bytes {
    let part = part(body, span);
    match part.len() < body.len() / 2 {
        true => Bytes::copy_from_slice(part),
        false => body.slice_ref(part),
    }
}

fn part(body: &[u8], span: range::Span) -> &[u8] {
    let at = |offset: u64| usize::try_from(offset).unwrap_or(usize::MAX);
    &body[at(span.first)..at(span.last + 1)]
}

pub(super) fn many(
    relay: &Relay,
    variant: &Variant,
    spans: &[range::Span],
) -> (StatusCode, HeaderMap, Body) {
    let content_type = variant.fields.get(http::header::CONTENT_TYPE);
    // Unlike anything in the body but by chance; nobody can choose it.
    let boundary = format!("{:016x}{:016x}", relay.seed, relay.clock.now().nanos());
    let parts = Multipart::new(spans, variant.body.len() as u64, content_type, &boundary);
    let fields = parts.fields(&variant.fields);
    // In one buffer of their own, for the same reason.
    let length = usize::try_from(parts.length).unwrap_or(0);
    let mut whole = Vec::with_capacity(length);
    for (text, span) in parts.parts {
        whole.extend_from_slice(&text);
        whole.extend_from_slice(part(&variant.body, span));
    }
    whole.extend_from_slice(&parts.tail);
    (StatusCode::PARTIAL_CONTENT, fields, Body::new(whole.into()))
}

/// What every answer of these routes says last: how it came about.
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
    let said = relay.respond.cache_status(outcome, key);
    fields.append(CACHE_STATUS, said);
}

/// Says something else than what was said last of how an answer came about;
/// what other caches have said before stays.
pub(super) fn say_instead(fields: &mut HeaderMap, said: HeaderValue) {
    if let http::header::Entry::Occupied(entry) = fields.entry(CACHE_STATUS) {
        let (name, all) = entry.remove_entry_mult();
        let mut all: Vec<_> = all.collect();
        all.pop();
        for value in all {
            fields.append(&name, value);
        }
    }
    fields.append(CACHE_STATUS, said);
}

/// The fields of the upstream that a typed route hands on.
pub(super) fn keep_typed(fields: &mut HeaderMap) {
    const KEPT: [HeaderName; 14] = [
        AGE,
        http::header::CACHE_CONTROL,
        http::header::CONTENT_ENCODING,
        http::header::CONTENT_LANGUAGE,
        CONTENT_LENGTH,
        http::header::CONTENT_RANGE,
        http::header::CONTENT_TYPE,
        DATE,
        http::header::ETAG,
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
    fn a_small_part_does_not_keep_the_whole_body() {
        let body = Bytes::from(vec![b'x'; 1000]);
        let shares = |part: &Bytes| body.as_ptr_range().contains(&part.as_ptr());
        for (first, last, expected) in [(0, 498, false), (700, 999, false), (1, 999, true)] {
            let part = slice(&body, range::Span { first, last });
            assert_eq!(part.len() as u64, last - first + 1);
            assert_eq!(shares(&part), expected, "{first}-{last}");
        }
    }
}
