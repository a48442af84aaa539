//! Storing an answer on a plain route, in mode `respect`.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, DATE, HeaderName, HeaderValue};
use http::{HeaderMap, Method, StatusCode};

use super::exchange::Fetched;
use super::fields::is_overridden;
use super::{Announced, Answer, AnswerSource, Fetch, FillAnswer};
use crate::cache::directives::Directives;
use crate::cache::policy::Mode;
use crate::cache::purge::CheckedPurge;
use crate::cache::storable::{SetCookie, storable, stored_fields};
use crate::cache::vary::{nominated, secondary_key};
use crate::cache::{Encodings, OriginFields, StoredFields, StoredResponse, date, hop, reuse};
use crate::chain::ledger::RequestStart;
use crate::clock::Moment;
use crate::route::HeaderMode;
use crate::wire::Body;

/// When a request was sent and its answer received.
#[derive(Clone, Copy, Default)]
pub(super) struct Times {
    /// Where the chain's ledger was when it was sent.
    pub(super) start: RequestStart,
    /// The number of the last purge when it was sent.
    pub(super) purge: u64,
    pub(super) sent: Moment,
    pub(super) received: Moment,
    /// How long the upstream took.
    pub(super) took: Duration,
}

impl Fetch {
    /// What is stored of an answer. `fields` are as received: a `date` that they lack is
    /// added.
    pub(super) fn prepare(
        &self,
        status: StatusCode,
        fields: &HeaderMap,
        body: Bytes,
        times: Times,
    ) -> StoredResponse {
        let is_typed = self.is_typed();
        // No field of a client reaches the origin of a typed route.
        let nominated = nominated(fields).filter(|_| !is_typed);
        let nominated = nominated.unwrap_or_default();
        let [sent, received] = [times.sent, times.received].map(|at| self.fill.clock.wall(at));
        let reuse = reuse::StoredFacts::of(status, fields, sent, received);
        let is_encodable = is_typed
            && status == StatusCode::OK
            && !fields.contains_key(CONTENT_ENCODING)
            && !Directives::governing(fields).no_transform
            && !Directives::of(fields).no_transform;
        let mut map = compact(&stored_fields(fields));
        if !fields.contains_key(DATE) {
            map.insert(DATE, date::value(received));
        }
        let request = self.sent();
        StoredResponse {
            status,
            is_encodable,
            encodings: Encodings::default(),
            body,
            etag: HeaderValue::from_static(""),
            fields: StoredFields::Origin(Box::new(OriginFields {
                map,
                secondary: secondary_key(&nominated, || &request),
                nominated,
                reuse,
            })),
            received: times.received,
            lifetime: Duration::ZERO,
            took: times.took,
            checked: CheckedPurge::at(times.purge),
            stamp: None,
            page: None,
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
        let received = self.fill.clock.wall(times.received);
        let set_cookie = match (is_typed, route.cache.set_cookie) {
            (true, SetCookie::Explicit) => SetCookie::Dropped,
            (_, rule) => rule,
        };
        (is_typed || *method == Method::GET && !is_overridden(request))
            && route.cache.mode == Mode::Respect
            && storable(request, (status, response), received, set_cookie)
    }

    pub(super) fn is_typed(&self) -> bool {
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
    ) -> Fetched {
        let (method, request) = (&self.request.method, &self.request.fields);
        if self.may_store(method, request, status, fields, times) {
            let stored = Arc::new(self.prepare(status, fields, body, times));
            let all = self.store(&stored);
            let from = AnswerSource::Upstream { stored: true };
            return Fetched::new(Ok(Answer::Stored(FillAnswer { stored, from })), all);
        }
        let mut answer = fields.clone();
        pass_on(&mut answer, self.fill.clock.wall(times.received));
        let answer = Answer::Passed(status, answer, Body::new(body));
        Fetched::new(Ok(answer), self.not_shared(status))
    }

    /// Stores a response in place of the one that this request matched, unless
    /// that one was received later. Returns what other requests may do.
    pub(super) fn store(&self, stored: &Arc<StoredResponse>) -> Announced {
        let (sent, store) = (self.sent(), self.fill.cache.store());
        let is_same = |other: &Arc<StoredResponse>| other.answers(|| &sent);
        // One that was purged while it came takes no other's place.
        let is_purged = store.response_was_purged(self.key().as_bytes(), stored);
        store.amend(self.key(), |variants| {
            let mut same = variants.iter().filter(|other| is_same(other));
            if !is_purged && !same.any(|other| other.received > stored.received) {
                variants.retain(|other| !is_same(other));
                variants.push(stored.clone());
            }
        });
        self.shared(stored)
    }
}

/// Makes the fields of an answer those of a response that is not stored.
pub(super) fn pass_on(fields: &mut HeaderMap, received: SystemTime) {
    hop::strip(fields);
    // RFC 9110 §6.6.1: a response without a date gets that of its receipt.
    fields.entry(DATE).or_insert_with(|| date::value(received));
}

/// A copy that does not keep the connection's read buffer alive.
fn compact(fields: &HeaderMap) -> HeaderMap {
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
