//! Storing an answer on a route in mode `respect`.

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, DATE, HeaderName, HeaderValue};
use http::{HeaderMap, Method, StatusCode};

use super::fields::is_overridden;
use super::serve::response;
use super::{Announced, Fetch, RelayAnswer};
use crate::cache::directives::{RequestDirectives, ResponseDirectives};
use crate::cache::encoded::BodyId;
use crate::cache::etag::etag;
use crate::cache::freshness::Heuristic;
use crate::cache::policy::Mode;
use crate::cache::storable::{Exchange, SetCookie, storable, stored_fields, withheld_fields};
use crate::cache::variant::Variant;
use crate::cache::vary::Nominated;
use crate::cache::{date, hop, reuse};
use crate::route::HeaderMode;
use crate::trace;
use crate::trace::span::SpanKind;
use crate::wire::Body;

/// When a request was sent and its answer received.
#[derive(Clone, Copy)]
pub(super) struct Times {
    /// The number of the last purge when it was sent.
    pub(super) purge: u64,
    pub(super) requested: SystemTime,
    pub(super) received: SystemTime,
}

impl Fetch {
    /// What is stored of an answer. `fields` are as received: a `date` that they lack is
    /// added. `None` if its `Vary` says that no other request matches.
    pub(super) fn prepare(
        &self,
        status: StatusCode,
        fields: &HeaderMap,
        body: Bytes,
        times: Times,
    ) -> Variant {
        let (targets, is_typed) = (&self.relay.targeted_fields, self.is_typed());
        let governing = targets.governing(fields);
        let nominated = match is_typed {
            true => Nominated::of(&HeaderMap::new()),
            false => Nominated::of(fields),
        };
        let Times {
            purge,
            requested,
            received,
        } = times;
        let heuristic = Heuristic::default();
        let reuse = reuse::StoredFacts::of(status, fields, targets, heuristic, requested, received);
        let is_encodable = is_typed
            && status == StatusCode::OK
            && !fields.contains_key(CONTENT_ENCODING)
            && !governing.directives.no_transform
            && !ResponseDirectives::of(fields).no_transform;
        let mut stored = compact(&stored_fields(fields, &governing.directives));
        if !fields.contains_key(DATE) {
            stored.insert(DATE, date::value(received));
        }
        Variant {
            status,
            fields: stored,
            body_id: match is_encodable {
                true => BodyId::of(&etag(&body), true),
                false => BodyId::FIXED,
            },
            body,
            secondary: nominated.key(&self.sent()).unwrap_or_default(),
            nominated,
            reuse,
            received,
            purge,
        }
    }

    /// Whether the answer to a request with this method and these fields may be stored.
    pub(super) fn may_store(
        &self,
        method: &Method,
        request: &HeaderMap,
        status: StatusCode,
        response: &HeaderMap,
        times: Times,
    ) -> bool {
        let (route, is_typed) = (self.route(), self.is_typed());
        let method = if is_typed { &Method::GET } else { method };
        let upstream = self.relay.upstreams.get(route.upstream.number);
        let Ok(target) = upstream.uri(self.request.key.target()) else {
            return false;
        };
        let exchange = Exchange {
            method,
            target: &target,
            request,
            directives: &RequestDirectives::of(request),
            status,
            response,
            governing: &self.relay.targeted_fields.governing(response),
            received: times.received,
            set_cookie: match (is_typed, route.cache.set_cookie) {
                (true, SetCookie::Explicit) => SetCookie::Dropped,
                (_, rule) => rule,
            },
        };
        *method == Method::GET
            && route.cache.mode == Mode::Respect
            && (is_typed
                || !is_overridden(request) && Nominated::of(response) != Nominated::Everything)
            && storable(&exchange).is_ok()
    }

    fn is_typed(&self) -> bool {
        self.route().headers == HeaderMode::Typed
    }

    /// Answers with a complete answer of the upstream, and stores it where it may
    /// be stored.
    pub(super) fn store_and_answer(
        &self,
        status: StatusCode,
        fields: &HeaderMap,
        body: Bytes,
        times: Times,
    ) -> RelayAnswer {
        let (method, request) = (&self.request.method, &self.request.fields);
        if self.may_store(method, request, status, fields, times) {
            let variant = Arc::new(self.prepare(status, fields, body, times));
            let announced = self.store(&variant);
            let own = withheld(&variant, fields);
            return self.answer_own(&variant, &own, status, true, announced);
        }
        let outcome = self.outcome(Some(status), false, false);
        let mut answer = fields.clone();
        pass_on(&mut answer, times.received);
        self.finish(&mut answer, outcome);
        RelayAnswer {
            response: response(status, answer, Body::new(body)),
            outcome,
            announced: self.not_shared(status),
        }
    }

    /// An answer from a response that was stored or validated for this request, with the
    /// fields that are for this client alone. `status` is what the upstream sent.
    pub(super) fn answer_own(
        &self,
        variant: &Variant,
        own: &HeaderMap,
        status: StatusCode,
        is_stored: bool,
        announced: Announced,
    ) -> RelayAnswer {
        let outcome = self.outcome(Some(status), is_stored, false);
        let with_own;
        let answered = match own.is_empty() {
            true => variant,
            false => {
                with_own = with_fields(variant, own);
                &with_own
            }
        };
        self.answer_from(answered, outcome, self.now(), announced)
    }

    /// Stores a response in place of the one that this request matched, unless
    /// that one was received later. Returns what other requests may do.
    pub(super) fn store(&self, variant: &Arc<Variant>) -> Announced {
        let _storing = trace::begin("store", SpanKind::Internal);
        let sent = &self.sent();
        let (key, store) = (&self.request.key, self.relay.cache.store());
        store.amend(key, |variants| {
            if store.variant_was_purged(key, variant) {
                return;
            }
            let mut same = variants.iter().filter(|stored| stored.answers(sent));
            if !same.any(|stored| stored.received > variant.received) {
                variants.retain(|stored| !stored.answers(sent));
                variants.push(variant.clone());
            }
        });
        self.shared(variant)
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

/// A stored response with further fields.
pub(super) fn with_fields(variant: &Variant, own: &HeaderMap) -> Variant {
    let mut variant = variant.clone();
    for (name, value) in own {
        variant.fields.append(name, value.clone());
    }
    variant
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
