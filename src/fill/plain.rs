//! Plain routes, whose responses follow the origin's own fields: those with mode `respect`
//! or `headers = "all"`. What memory has for a request, and which requests one answer may
//! serve. The rules are in [`crate::cache`], each quoted beside its code.

use std::cell::LazyCell;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use http::header::{ACCEPT_ENCODING, AUTHORIZATION, CACHE_CONTROL, COOKIE, RANGE};
use http::{HeaderMap, Method, StatusCode};

use super::fields::{has_conditions, is_overridden};
use super::{Announced, AnswerSource, Fetch, Fill, FillAnswer, LookupKey};
use crate::cache::decision::{Decision, by_fields};
use crate::cache::directives::Directives;
use crate::cache::outcome::Forward;
use crate::cache::policy::Mode;
use crate::cache::reuse::{Reuse, applies, may_reuse};
use crate::cache::vary::secondary_key;
use crate::cache::{JudgedResponse, StoredResponse, validator};
use crate::clock::Moment;
use crate::route::{HeaderMode, Route};

impl Fill {
    /// The same as [`decide`](Self::decide), on a plain route.
    pub(super) fn decide_plain(
        &self,
        route: &Route,
        lookup: &LookupKey,
        (method, fields, peer): (&Method, &HeaderMap, IpAddr),
        now: Moment,
    ) -> Decision<JudgedResponse> {
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
        let (directives, wall) = (Directives::of_request(fields), self.clock.wall(now));
        let reuse = |judged: &JudgedResponse| match judged.stored.origin() {
            Some(origin) => may_reuse(&directives, &origin.reuse, wall, None),
            None => Err(Forward::Stale),
        };
        by_fields(selected, reuse, directives.only_if_cached)
    }
}

impl Fetch {
    /// Its fields as the origin receives them.
    pub(super) fn sent(&self) -> HeaderMap {
        let request = &self.request;
        (self.fill).sent_fields(self.route(), &request.fields, request.peer)
    }

    /// What memory has for it now.
    fn decide(&self) -> Decision<JudgedResponse> {
        let request = &self.request;
        let request = (&request.method, &request.fields, request.peer);
        let now = self.fill.clock.now();
        self.fill.decide(self.route(), &self.lookup, request, now)
    }

    /// A fresh response that another has stored since this request looked.
    pub(super) fn stored_meanwhile(&self) -> Option<Arc<StoredResponse>> {
        match (self.is_plain(), self.anew) {
            (false, true) => None,
            (false, false) => self.fill.fresh(self.key()),
            (true, _) => match self.decide() {
                Decision::Serve {
                    stored,
                    reuse: Reuse::Fresh,
                } => Some(stored.stored),
                Decision::Serve { .. } | Decision::Fetch { .. } | Decision::OnlyIfCached => None,
            },
        }
    }

    /// Whether a stored response may answer this request now, as far as its age matters.
    /// `failed` is the route's `stale_if_error` where the origin has failed.
    fn reuse(&self, stored: &StoredResponse, failed: Option<Duration>) -> Option<Reuse> {
        let directives = Directives::of_request(&self.request.fields);
        let now = self.fill.clock.wall(self.fill.clock.now());
        may_reuse(&directives, &stored.origin()?.reuse, now, failed).ok()
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
            && !store.response_was_purged(self.key().as_bytes(), stored)
            && (waited || self.reuse(stored, None).is_some())
    }

    /// Whether the selected stored response may be served stale if the origin has failed (RFC
    /// 5861 §4, RFC 9111 §4.2.4), on a plain route.
    pub(super) fn may_be_stale(&self) -> bool {
        let failed = Some(self.route().cache.stale_if_error);
        self.stored.as_ref().is_some_and(|chosen| {
            self.reuse(&chosen.stored, failed) == Some(Reuse::IfError)
                && !(self.fill.cache.store())
                    .response_was_purged(self.key().as_bytes(), &chosen.stored)
        })
    }

    /// The key under which it is collapsed with other requests; `None` where it may not be.
    /// On a plain route it must be a GET that lacks a fresh stored response.
    pub(super) fn shared_key(&self) -> Option<Vec<u8>> {
        let route = self.route();
        if !route.is_plain() {
            return (route.cache.mode != Mode::Off).then(|| self.key().as_bytes().to_vec());
        }
        let is_get = route.headers == HeaderMode::Typed || self.request.method == Method::GET;
        let now = self.fill.clock.now();
        let may_share = is_get
            && route.cache.mode == Mode::Respect
            && self.lacks_fresh()
            && self.may_follow()
            && !(self.fill.uncacheable).has(&self.uncacheable_key(), now);
        may_share.then(|| self.key_with_variant())
    }

    /// The key, and whether the client identifies itself: an origin that answers
    /// such clients with `private` may have one answer for all others.
    fn uncacheable_key(&self) -> Vec<u8> {
        let mut key = self.key().as_bytes().to_vec();
        let has = |name| self.request.fields.contains_key(name);
        if has(AUTHORIZATION) || has(COOKIE) {
            // No target holds this byte.
            key.push(0);
        }
        key
    }

    /// Whether the request goes to the upstream for lack of a fresh response, and
    /// not because its client rejects the stored one.
    fn lacks_fresh(&self) -> bool {
        matches!(
            self.why,
            Forward::UriMiss | Forward::VaryMiss | Forward::Stale
        )
    }

    /// Whether the answer to another request may answer this one.
    fn may_follow(&self) -> bool {
        let fields = &self.request.fields;
        let directives = Directives::of_request(fields);
        // A range of a response that is not complete cannot be cut, and an answer
        // to an authorized request may be for that client alone.
        let is_own = [RANGE, AUTHORIZATION]
            .iter()
            .any(|name| fields.contains_key(name));
        !directives.no_store
            && !directives.no_cache
            && (self.route().headers == HeaderMode::Typed || !validator::for_the_origin(fields))
            && (self.stored.is_some() || !is_own)
    }

    /// The key, with the values of the request fields by which its responses
    /// vary, as far as those are known.
    fn key_with_variant(&self) -> Vec<u8> {
        let mut key = self.key().as_bytes().to_vec();
        let stored = self.fill.cache.store().variants(self.key());
        let newest = stored.as_ref().and_then(|stored| stored.last()?.origin());
        let sent = self.sent();
        let secondary = newest.map(|newest| secondary_key(&newest.nominated, || &sent));
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
        let is_ordinary = self.request.method == Method::GET && self.lacks_fresh();
        let leads = self.stored.is_some() || !has_conditions(&self.request.fields);
        if !status.is_server_error() && is_ordinary && self.may_follow() && leads {
            let now = self.fill.clock.now();
            (self.fill.uncacheable).remember(&self.uncacheable_key(), now);
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
        (self.fill.uncacheable).forget(&self.uncacheable_key());
        Some(Ok(FillAnswer {
            stored: stored.clone(),
            from: AnswerSource::Upstream { stored: true },
        }))
    }

    /// The request by which a response that was served stale is validated (RFC 5861 §3): a
    /// GET for nobody in particular. Also returns the key under which it is collapsed.
    pub(super) fn revalidation(&self) -> (Arc<Self>, Vec<u8>) {
        let mut request = self.request.clone();
        request.method = Method::GET;
        request.fields.remove(CACHE_CONTROL);
        if self.route().headers == HeaderMode::Typed {
            // Its answer goes to no client, so it is no request for a coding.
            request.fields.remove(ACCEPT_ENCODING);
        }
        let mut own = Self {
            fill: self.fill.clone(),
            lookup: self.lookup.clone(),
            request,
            stored: None,
            ..*self
        };
        own.stored = match own.decide() {
            Decision::Serve { stored, .. } => Some(stored),
            Decision::Fetch { stored, .. } => stored,
            Decision::OnlyIfCached => None,
        };
        let key = own.key_with_variant();
        (Arc::new(own), key)
    }
}
