//! Storing answers on plain routes, in mode `respect`, and how they change what is stored: a 304
//! freshens it (RFC 9111 §4.3.4), and an unsafe method invalidates it (§4.4).

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, DATE, HeaderName, HeaderValue, SET_COOKIE};
use http::{HeaderMap, Method, StatusCode};

use super::exchange::{Fetched, Head};
use super::fields::is_overridden;
use super::{Announced, Answer, AnswerSource, Fetch, FillAnswer};
use crate::cache::directives::Directives;
use crate::cache::freshen::{freshen, names};
use crate::cache::key::Key;
use crate::cache::policy::Mode;
use crate::cache::purge::CheckedPurge;
use crate::cache::storable::{SetCookie, is_for_everyone, storable, stored_fields};
use crate::cache::vary::{nominated, secondary_key};
use crate::cache::{OriginFields, StoredFields, StoredResponse, date, hop, invalidate, reuse};
use crate::sync::lock;
use crate::wire::Body;

impl Fetch {
    /// What is stored of an answer. Its fields are as received: a `date` that they lack is added.
    pub(super) fn prepare(&self, head: &Head, body: Bytes) -> StoredResponse {
        let (is_typed, fields) = (self.is_typed(), &head.fields);
        // No field of a client reaches the origin of a typed route.
        let nominated = nominated(fields).filter(|_| !is_typed);
        let nominated = nominated.unwrap_or_default();
        let [sent, received] = [head.sent, head.received].map(|at| self.fill.clock.wall(at));
        let is_encodable = is_typed
            && head.status == StatusCode::OK
            && !fields.contains_key(CONTENT_ENCODING)
            && !Directives::governing(fields).no_transform
            && !Directives::of(fields).no_transform;
        let mut map = compact(&stored_fields(fields));
        if !fields.contains_key(DATE) {
            map.insert(DATE, date::value(received));
        }
        let request = self.sent();
        let origin = OriginFields {
            map,
            secondary: secondary_key(&nominated, || &request),
            nominated,
            reuse: reuse::StoredFacts::of(head.status, fields, sent, received),
        };
        StoredResponse {
            is_encodable,
            received: head.received,
            took: head.took,
            checked: CheckedPurge::at(head.purge),
            ..StoredResponse::new(head.status, StoredFields::Origin(Box::new(origin)), body)
        }
    }

    /// Whether the answer to a request with this method and these fields may be stored.
    pub(super) fn may_store(&self, method: &Method, request: &HeaderMap, head: &Head) -> bool {
        let (policy, is_typed) = (&self.route().cache, self.is_typed());
        let received = self.fill.clock.wall(head.received);
        let set_cookie = match (is_typed, policy.set_cookie) {
            (true, SetCookie::Explicit) => SetCookie::Dropped,
            (_, rule) => rule,
        };
        (is_typed || *method == Method::GET && !is_overridden(request))
            && policy.mode == Mode::Respect
            && storable(request, (head.status, &head.fields), received, set_cookie)
    }

    /// What is stored of an answer when its body has come, if it may be stored.
    pub(super) fn begin_plain(&self, head: &Head) -> Option<FillAnswer> {
        let may_store = self.may_store(&self.request.method, &self.request.fields, head);
        let stored = may_store.then(|| self.prepare(head, Bytes::new()))?;
        Some(FillAnswer::of_upstream(stored, true))
    }

    /// Answers with a complete answer of the upstream, and stores it where it may
    /// be stored.
    pub(super) fn store_and_answer(&self, head: Head, body: Bytes) -> Fetched {
        match self.begin_plain(&head) {
            Some(begun) => self.complete(&begun, body),
            None => self.pass_on(head, Body::new(body)),
        }
    }

    /// Answers with an answer that is not stored.
    pub(super) fn pass_on(&self, head: Head, body: Body) -> Fetched {
        let (status, mut fields) = (head.status, head.fields);
        hop::strip(&mut fields);
        // RFC 9110 §6.6.1: a response without a date gets that of its receipt.
        let received = || date::value(self.fill.clock.wall(head.received));
        fields.entry(DATE).or_insert_with(received);
        let answer = Answer::Passed(status, fields, body);
        Fetched::new(Ok(answer), self.not_shared(status))
    }

    /// Stores a response in place of the one that this request matched, unless
    /// that one was received later. Returns what other requests may do.
    pub(super) fn store(&self, stored: &Arc<StoredResponse>) -> Announced {
        let (sent, store) = (self.sent(), self.fill.cache.store());
        let is_same = |other: &Arc<StoredResponse>| other.answers(|| &sent);
        // One that was purged while it came takes no other's place.
        let is_purged = store.response_was_purged(self.key(), stored);
        store.amend(self.key(), |variants| {
            let mut same = variants.iter().filter(|other| is_same(other));
            if !is_purged && !same.any(|other| other.received > stored.received) {
                variants.retain(|other| !is_same(other));
                variants.push(stored.clone());
            }
        });
        self.shared(stored)
    }

    /// Applies a 304 to ordgate's own validation: freshens the stored response if the 304
    /// names it, and answers from it. `None` where it was purged meanwhile.
    pub(super) fn apply_not_modified(&self, head: Head) -> Option<Fetched> {
        let (chosen, store) = (self.validated()?, self.fill.cache.store());
        let origin = chosen.origin()?;
        if store.response_was_purged(self.key(), chosen) {
            return None;
        }
        let (mut stored, mut is_stored) = (chosen.clone(), false);
        let is_named = names(&head.fields, &origin.map);
        if is_named {
            (stored, is_stored) = self.replace(chosen, origin, head);
        }
        let all = match is_stored || !is_named {
            true => self.shared(&stored),
            false => None,
        };
        let from = AnswerSource::Validated { stored: is_stored };
        let own = Answer::Stored(FillAnswer { stored, from });
        Some(Fetched::new(Ok(own), all))
    }

    /// Replaces a stored response by one that a 304 has freshened. Returns that, and whether it
    /// may be stored.
    fn replace(
        &self,
        old: &Arc<StoredResponse>,
        origin: &OriginFields,
        mut head: Head,
    ) -> (Arc<StoredResponse>, bool) {
        // Its cookies are for the one client whose request it answers, unless it says itself that
        // it is for everyone. The freshness of the stored response says nothing about them.
        let received = self.fill.clock.wall(head.received);
        if !is_for_everyone(&head.fields, &Directives::governing(&head.fields), received) {
            head.fields.remove(SET_COOKIE);
        }
        let mut fields = origin.map.clone();
        freshen(&mut fields, &head.fields);
        let head = Head {
            status: old.status,
            fields,
            ..head
        };
        let new = Arc::new(StoredResponse {
            encodings: old.encodings.clone(),
            ..self.prepare(&head, old.body.clone())
        });
        let may_store = |request: &HeaderMap| self.may_store(&Method::GET, request, &head);
        let is_stored = may_store(&self.request.fields);
        // If only this request forbids storing, the stored response stays.
        if is_stored || !may_store(&HeaderMap::new()) {
            self.fill.cache.store().amend(self.key(), |variants| {
                variants.retain(|stored| !Arc::ptr_eq(stored, old));
                variants.extend(is_stored.then(|| new.clone()));
            });
        }
        (new, is_stored)
    }

    /// Removes what an unsafe method invalidates (§4.4), on all routes to the
    /// same origin that obey its fields.
    pub(super) fn invalidate(&self, head: &Head) {
        let (fill, method) = (&self.fill, &self.request.method);
        let store = fill.cache.store();
        let origin = fill.upstreams.get(self.route().upstream.number);
        let Ok(target) = origin.uri(self.key().target()) else {
            return;
        };
        for target in invalidate::targets(method, &target, head.status, &head.fields) {
            for other in fill.routes.routes() {
                let upstream = fill.upstreams.get(other.upstream.number);
                let key = Key::of(other.number, upstream.target_of(&target));
                // Nothing else: of all purges the last are remembered, and a client could make
                // any number.
                let is_known = || {
                    store.variants(&key).is_some()
                        || fill.collapse.has(key.as_bytes())
                        || lock(&fill.alone).contains(&key)
                };
                let obeys = other.cache.mode == Mode::Respect;
                if obeys && upstream.shares_origin_with(origin) && is_known() {
                    store.invalidate(&key);
                }
            }
        }
    }
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
