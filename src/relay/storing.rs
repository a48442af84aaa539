//! Storing an answer on a route in mode `respect`.

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, DATE, HeaderName, HeaderValue};
use http::{HeaderMap, Method, StatusCode};

use super::sent::is_overridden;
use super::serve::{finish, response};
use super::{ClientRequest, ExchangeRecord, Fetch, Relay, RelayAnswer, forwarded};
use crate::cache::directives::{RequestDirectives, ResponseDirectives};
use crate::cache::encodings::Encodings;
use crate::cache::freshness::Heuristic;
use crate::cache::policy::Mode;
use crate::cache::storable::{Exchange, SetCookie, storable, stored_fields, withheld_fields};
use crate::cache::variant::Variant;
use crate::cache::vary::Nominated;
use crate::cache::{date, hop, reuse};
use crate::route::{HeaderMode, Route};
use crate::trace;
use crate::trace::span::SpanKind;
use crate::wire::Body;

impl Fetch {
    /// What would be stored of an answer, and whether it may be stored. `fields` are
    /// as received: a `date` that they lack is added to what is stored.
    pub(super) fn prepare_variant(
        &self,
        relay: &Relay,
        route: &Route,
        status: StatusCode,
        fields: &HeaderMap,
        body: Bytes,
        times: ExchangeRecord,
    ) -> (Variant, bool) {
        let targets = &relay.targeted_fields;
        let governing = targets.governing(fields);
        let may_store = self.may_store(relay, route, status, fields, times.received);
        let sent = &self.request.forwarded_fields(relay, route);
        let nominated = match route.headers {
            HeaderMode::All => Nominated::of(fields),
            HeaderMode::Typed => Nominated::of(&HeaderMap::new()),
        };
        let reuse = reuse::StoredFacts::of(
            status,
            fields,
            targets,
            Heuristic::default(),
            times.requested,
            times.received,
        );
        let secondary = nominated.key(sent);
        let may_store = may_store && secondary.is_some();
        let is_encodable = route.headers == HeaderMode::Typed
            && status == StatusCode::OK
            && !fields.contains_key(CONTENT_ENCODING)
            && !governing.directives.no_transform
            && !ResponseDirectives::of(fields).no_transform;
        let mut stored = compact(&stored_fields(fields, &governing.directives));
        if !fields.contains_key(DATE) {
            stored.insert(DATE, date::value(times.received));
        }
        let variant = Variant {
            status,
            fields: stored,
            body,
            encodings: Encodings::allowed(is_encodable),
            secondary: secondary.unwrap_or_default(),
            nominated,
            reuse,
            received: times.received,
        };
        (variant, may_store)
    }

    fn may_store(
        &self,
        relay: &Relay,
        route: &Route,
        status: StatusCode,
        response: &HeaderMap,
        received: SystemTime,
    ) -> bool {
        let request = &self.request;
        let upstream = relay.upstreams.get(route.upstream.number);
        let Ok(target) = upstream.uri(request.key.target()) else {
            return false;
        };
        let method = match route.headers {
            HeaderMode::Typed => &Method::GET,
            HeaderMode::All => &request.method,
        };
        let exchange = Exchange {
            method,
            target: &target,
            request: &request.fields,
            directives: &RequestDirectives::of(&request.fields),
            status,
            response,
            governing: &relay.targeted_fields.governing(response),
            received,
            set_cookie: match (route.headers, route.cache.set_cookie) {
                (HeaderMode::Typed, SetCookie::Explicit) => SetCookie::Dropped,
                (HeaderMode::Typed | HeaderMode::All, rule) => rule,
            },
        };
        *method == Method::GET
            && route.cache.mode == Mode::Respect
            && (route.headers == HeaderMode::Typed || !is_overridden(&request.fields))
            && storable(&exchange).is_ok()
    }

    /// Answers with a complete answer of the upstream, and stores it where it may
    /// be stored.
    pub(super) fn store_and_answer(
        &self,
        relay: &Relay,
        route: &Route,
        status: StatusCode,
        fields: &HeaderMap,
        body: Bytes,
        times: ExchangeRecord,
    ) -> RelayAnswer {
        let (variant, may_store) = self.prepare_variant(relay, route, status, fields, body, times);
        let variant = Arc::new(variant);
        let outcome = forwarded(self.why, Some(status), may_store, false);
        if may_store {
            self.store(relay, route, &variant, times);
            let announced = self.announcement(relay, &variant);
            let now = times.received;
            let own = for_requester(&variant, &withheld(&variant, fields));
            let answered = own.as_ref().unwrap_or(&variant);
            return self.answer_from(relay, route, answered, outcome, now, announced);
        }
        let mut answer = fields.clone();
        pass_on(&mut answer, times.received);
        finish(relay, route, &mut answer, &self.request.key, outcome);
        RelayAnswer {
            response: response(status, answer, Body::new(variant.body.clone())),
            outcome,
            announced: self.unstored(relay, status),
        }
    }

    /// Stores a response in place of the one that this request matched, unless
    /// that one was received later.
    fn store(&self, relay: &Relay, route: &Route, variant: &Arc<Variant>, times: ExchangeRecord) {
        let _storing = trace::begin("store", SpanKind::Internal);
        let key = &self.request.key;
        let sent = &self.request.forwarded_fields(relay, route);
        let same = |v: &Arc<Variant>| v.nominated.matches(&v.secondary, sent);
        relay.cache.store().amend(key, times.sequence, |variants| {
            let is_later = |v: &Arc<Variant>| same(v) && v.received > times.received;
            if !variants.iter().any(is_later) {
                for old in variants
                    .iter()
                    .filter(|v| same(v) && v.body == variant.body)
                {
                    variant.encodings.adopt(&old.encodings);
                }
                variants.retain(|v| !same(v));
                variants.push(variant.clone());
            }
        });
    }

    /// This request as a GET with the given fields, whose answer may be stored.
    pub(super) fn as_get(&self, fields: HeaderMap) -> Self {
        Self {
            request: ClientRequest {
                method: Method::GET,
                fields,
                version: self.request.version,
                key: self.request.key.clone(),
                body: None,
                client: self.request.client,
                peer: self.request.peer,
                request_id: self.request.request_id,
            },
            why: self.why,
            to_validate: None,
            unconditional: self.unconditional,
        }
    }
}

/// Makes the fields of an answer those of a response that is not stored.
pub(super) fn pass_on(fields: &mut HeaderMap, received: SystemTime) {
    hop::strip(fields);
    // RFC 9110 §6.6.1: a response without a date gets that of its receipt.
    fields.entry(DATE).or_insert_with(|| date::value(received));
}

/// The fields of an answer that its stored response lacks because `private` or
/// `no-cache` names them.
pub(super) fn withheld(variant: &Variant, received: &HeaderMap) -> HeaderMap {
    withheld_fields(received, variant.reuse.directives())
}

/// A stored response with the fields that only the client receives whose request
/// the upstream has answered; `None` where there are none.
pub(super) fn for_requester(variant: &Variant, own: &HeaderMap) -> Option<Variant> {
    if own.is_empty() {
        return None;
    }
    let mut variant = variant.clone();
    for (name, value) in own {
        variant.fields.append(name, value.clone());
    }
    Some(variant)
}

/// A copy that does not keep the connection's read buffer alive.
pub(super) fn compact(fields: &HeaderMap) -> HeaderMap {
    let mut copy = HeaderMap::with_capacity(fields.len());
    for (name, value) in fields {
        let own = (
            HeaderName::from_bytes(name.as_str().as_bytes()),
            HeaderValue::from_bytes(value.as_bytes()),
        );
        if let (Ok(name), Ok(value)) = own {
            copy.append(name, value);
        }
    }
    copy
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compact_copy_shares_no_memory() {
        let buffer = Bytes::from_static(b"one, two");
        let value = HeaderValue::from_maybe_shared(buffer.clone()).unwrap();
        let name = HeaderName::from_static("x-list");
        let mut fields = HeaderMap::new();
        fields.append(&name, value.clone());
        fields.append(&name, value);
        let copy = compact(&fields);
        assert_eq!(copy, fields);
        let shares = |value: &HeaderValue| value.as_bytes().as_ptr() == buffer.as_ptr();
        assert!(!copy.get_all(&name).iter().any(shares));
    }
}
