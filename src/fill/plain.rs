//! Plain routes, whose responses follow the origin's own fields: those with mode `respect`
//! or `headers = "all"`. What memory has for a request, and which requests one answer may
//! serve; the key by which requests are collapsed, on all routes. The rules are in
//! [`crate::cache`], each quoted beside its code.

use std::cell::LazyCell;
use std::collections::HashMap;
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use foldhash::quality::RandomState;
use http::header::{ACCEPT_ENCODING, AUTHORIZATION, CACHE_CONTROL, COOKIE, RANGE};
use http::{HeaderMap, Method, StatusCode};

use super::fields::{has_conditions, is_overridden};
use super::{Announced, AnswerSource, Fetch, Fill, FillAnswer, LookupKey};
use crate::cache::directives::Directives;
use crate::cache::outcome::Forward;
use crate::cache::policy::Mode;
use crate::cache::reuse::{Reuse, applies, may_reuse};
use crate::cache::vary::secondary_key;
use crate::cache::{Decision, JudgedResponse, StoredResponse, validator};
use crate::clock::Moment;
use crate::route::{HeaderMode, Route};
use crate::sync::lock;

/// How long no request waits for another's answer after one that could not be shared: as long
/// as its directives are likely to stay the same.
const UNSHARED: Duration = Duration::from_secs(60);
/// How many such keys are remembered. If there are more, all are forgotten: each costs one wait
/// then.
const MOST_UNSHARED: usize = 4096;

/// The keys, by their hashes, of plain routes whose last answer could not be shared, and until
/// when no request for them waits for another's answer. (Varnish calls this hit-for-miss.)
pub(super) type Unshared = HashMap<u64, Moment, RandomState>;

impl Fill {
    /// The same as [`decide`](Self::decide), on a plain route.
    pub(super) fn decide_plain(
        &self,
        route: &Route,
        lookup: &LookupKey,
        (method, fields, peer): (&Method, &HeaderMap, IpAddr),
        now: Moment,
    ) -> Decision {
        if route.cache.mode == Mode::Off {
            return Decision::fetch(Forward::Bypass);
        }
        if route.headers == HeaderMode::All && is_overridden(fields) {
            return Decision::fetch(Forward::Method);
        }
        if let Err(why) = applies(method, fields) {
            return Decision::fetch(why);
        }
        // The stored response that `Vary` selects, the most recent of several.
        let sent = LazyCell::new(|| self.sent_fields(route, fields, peer));
        let selected = match self.cache.store().variants(&lookup.key) {
            None => Err(Forward::UriMiss),
            Some(variants) => {
                let mut newest = variants.iter().rev();
                let matching = newest.find(|stored| stored.answers(|| &sent));
                matching.cloned().ok_or(Forward::VaryMiss)
            }
        };
        // A typed route forwards no field.
        let is_for_origin = route.headers == HeaderMode::All && validator::for_the_origin(fields);
        let selected = match selected {
            Ok(_) if is_for_origin => Err(Forward::Request),
            selected => selected.map(|stored| self.cache.judged(stored, now)),
        };
        let directives = Directives::of_request(fields);
        let reuse = |judged: &JudgedResponse| match judged.stored.origin() {
            Some(origin) => {
                let resident_time = now.since(judged.stored.received);
                may_reuse(&directives, &origin.reuse, resident_time, None)
            }
            None => Err(Forward::Stale),
        };
        let (why, stored) = match selected.map(|stored| (reuse(&stored), stored)) {
            Ok((Ok(reuse), stored)) => return Decision::Serve { stored, reuse },
            Ok((Err(why), stored)) => (why, Some(stored)),
            Err(why) => (why, None),
        };
        match directives.only_if_cached {
            true => Decision::OnlyIfCached,
            false => Decision::Fetch { why, stored },
        }
    }
}

impl Fetch {
    /// Its fields as the origin receives them.
    pub(super) fn sent(&self) -> HeaderMap {
        let request = &self.request;
        (self.fill).sent_fields(self.route(), &request.fields, request.peer)
    }

    /// A fresh response that another has stored since this request looked.
    pub(super) fn stored_meanwhile(&self) -> Option<Arc<StoredResponse>> {
        if self.why == Forward::Request {
            return None;
        }
        let request = (
            &self.request.method,
            &self.request.fields,
            self.request.peer,
        );
        let now = self.fill.clock.now();
        match self.fill.decide(self.route(), &self.lookup, request, now) {
            Decision::Serve {
                stored,
                reuse: Reuse::Fresh,
            } => Some(stored.stored),
            Decision::Serve { .. } | Decision::Fetch { .. } | Decision::OnlyIfCached => None,
        }
    }

    /// Whether a stored response may answer this request now, as far as its age matters.
    /// `failed` is the route's `stale_if_error` where the origin has failed.
    pub(super) fn reuse(&self, stored: &StoredResponse, failed: Option<Duration>) -> Option<Reuse> {
        let directives = Directives::of_request(&self.request.fields);
        let resident_time = self.fill.clock.now().since(stored.received);
        may_reuse(&directives, &stored.origin()?.reuse, resident_time, failed).ok()
    }

    /// Whether a response that was just stored answers this request. One that was
    /// waiting when it was received, and has no directives about its age, may use it
    /// however long it took to arrive.
    pub(super) fn may_use(&self, stored: &StoredResponse, arrived: Moment) -> bool {
        let directives = Directives::of_request(&self.request.fields);
        let wants_age = directives.max_age.is_some() || directives.min_fresh.is_some();
        let waited = arrived <= stored.received && !wants_age;
        let store = self.fill.cache.store();
        let sent = self.sent();
        stored.answers(|| &sent)
            && !store.response_was_purged(self.key(), stored)
            && (waited || self.reuse(stored, None).is_some())
    }

    /// The key under which it is collapsed with other requests; `None` where it may not be.
    /// On a plain route it must be a GET that lacks a fresh stored response.
    pub(super) fn shared_key(&self) -> Option<Vec<u8>> {
        let mode = self.route().cache.mode;
        let may_share = match self.is_plain() {
            true => mode == Mode::Respect && self.may_follow(),
            false => mode != Mode::Off,
        };
        if !may_share {
            return None;
        }
        let (key, now) = (self.key_with_variant(), self.fill.clock.now());
        let (keys, own) = self.unshared(&key);
        let is_shared = keys.get(&own).is_none_or(|until| *until <= now);
        is_shared.then_some(key)
    }

    /// The keys whose answers could not be shared, and the hash of this one: of the key with its
    /// variant, and whether the client identifies itself, since an origin that answers such
    /// clients with `private` may have one answer for all others.
    fn unshared(&self, key: &[u8]) -> (MutexGuard<'_, Unshared>, u64) {
        let has = |name| self.request.fields.contains_key(name);
        let keys = lock(&self.fill.unshared);
        let identified = has(AUTHORIZATION) || has(COOKIE);
        let own = keys.hasher().hash_one((key, identified));
        (keys, own)
    }

    /// Whether the answer to another request may answer this one: a GET that goes to the upstream
    /// for lack of a fresh response, and not because its client rejects the stored one.
    fn may_follow(&self) -> bool {
        let fields = &self.request.fields;
        let directives = Directives::of_request(fields);
        // A range of a response that is not complete cannot be cut, and an answer
        // to an authorized request may be for that client alone.
        let is_own = [RANGE, AUTHORIZATION]
            .iter()
            .any(|name| fields.contains_key(name));
        let is_typed = self.is_typed();
        (is_typed || self.request.method == Method::GET)
            && matches!(
                self.why,
                Forward::UriMiss | Forward::VaryMiss | Forward::Stale
            )
            && !directives.no_store
            && !directives.no_cache
            && (is_typed || !validator::for_the_origin(fields))
            && (self.stored.is_some() || !is_own)
    }

    /// The key, with the values of the request fields by which its responses
    /// vary, as far as those are known.
    fn key_with_variant(&self) -> Vec<u8> {
        let mut key = self.key().as_bytes().to_vec();
        let stored = self.fill.cache.store().variants(self.key());
        let newest = stored.as_ref().and_then(|stored| stored.last()?.origin());
        let secondary = newest.map(|newest| {
            let sent = self.sent();
            secondary_key(&newest.nominated, || &sent)
        });
        // A response that does not vary has the same key before this is known.
        if let Some(secondary) = secondary.filter(|secondary| !secondary.is_empty()) {
            // No target holds this byte.
            key.push(0);
            key.extend(secondary);
        }
        key
    }

    /// What other requests may do when the answer is not stored. A key whose answers
    /// cannot be shared is remembered, so that no request waits for it.
    pub(super) fn not_shared(&self, status: StatusCode) -> Announced {
        // An error may pass at once, and the answer to a special request says nothing
        // about the key.
        let leads = self.stored.is_some() || !has_conditions(&self.request.fields);
        let is_of_key = !self.is_plain() || self.may_follow() && leads;
        if !status.is_server_error() && is_of_key {
            let until = self.fill.clock.now() + UNSHARED;
            let (mut keys, own) = self.unshared(&self.key_with_variant());
            if keys.len() >= MOST_UNSHARED && !keys.contains_key(&own) {
                keys.clear();
            }
            keys.insert(own, until);
        }
        None
    }

    /// What other requests may do with a response that was just stored: use it
    /// without a validation of their own, if that is allowed.
    pub(super) fn shared(&self, stored: &Arc<StoredResponse>) -> Announced {
        let origin = stored.origin();
        if !origin.is_some_and(|origin| origin.reuse.is_shareable()) {
            return self.not_shared(stored.status);
        }
        let (mut keys, own) = self.unshared(&self.key_with_variant());
        keys.remove(&own);
        Some(Ok(FillAnswer {
            stored: stored.clone(),
            from: AnswerSource::Upstream { stored: true },
        }))
    }

    /// The request by which a response that was served stale is validated (RFC 5861 §3): a
    /// GET for nobody in particular.
    pub(super) fn revalidation(&self) -> Arc<Self> {
        let mut request = self.request.clone();
        request.method = Method::GET;
        request.fields.remove(CACHE_CONTROL);
        // It counts for no connection: a key has one at a time.
        request.activity = None;
        if self.is_typed() {
            // Its answer goes to no client, so it is no request for a coding.
            request.fields.remove(ACCEPT_ENCODING);
        }
        Arc::new(Self {
            fill: self.fill.clone(),
            lookup: self.lookup.clone(),
            request,
            why: Forward::Stale,
            stored: self.stored.clone(),
            has_led: AtomicBool::new(false),
            ..*self
        })
    }
}
