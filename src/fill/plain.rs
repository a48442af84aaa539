//! Plain routes, whose responses follow the origin's own fields: those with mode `respect`
//! or `headers = "all"`. What memory has for a request, and which requests one answer may
//! serve. The rules are in [`crate::cache`], each quoted beside its code.

use std::net::IpAddr;
use std::sync::Arc;

use http::header::{ACCEPT_ENCODING, AUTHORIZATION, CACHE_CONTROL, COOKIE, RANGE};
use http::{HeaderMap, Method, StatusCode};

use super::fields::{ForwardedFields, has_conditions, is_overridden};
use super::{Announced, AnswerSource, Fetch, Fill, FillAnswer, LookupKey};
use crate::cache::decision::{Basis, Decision, RequestFacts, decide, stale_bounds};
use crate::cache::directives::{RequestDirectives, Scope};
use crate::cache::outcome::Forward;
use crate::cache::policy::Mode;
use crate::cache::reuse::{Origin, Reuse, applies, may_reuse};
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
        let request = RequestFacts {
            not_reusable: applies(method, fields).err(),
            directives: &RequestDirectives::of(fields),
            // A typed route forwards no field.
            for_the_origin: route.headers == HeaderMode::All && validator::for_the_origin(fields),
            origin: Origin::Reachable,
        };
        // The stored response that `Vary` selects, the most recent of several.
        let select = || {
            let sent = ForwardedFields::of(self, route, fields, peer);
            let variants = self.cache.store().variants(&lookup.key);
            let variants = variants.ok_or(Forward::UriMiss)?;
            let mut newest = variants.iter().rev();
            let matching = newest.find(|stored| stored.answers(&sent));
            let matching = matching.ok_or(Forward::VaryMiss)?;
            Ok(self.cache.judged(matching.clone(), now))
        };
        let wall = self.clock.wall(now);
        decide(&route.cache, &request, select, |judged| {
            match judged.stored.origin() {
                Some(origin) => Basis::Origin {
                    facts: &origin.reuse,
                    now: wall,
                },
                None => Basis::Route {
                    freshness: judged.freshness,
                    is_answer: true,
                },
            }
        })
    }
}

impl Fetch {
    /// Its fields as the origin receives them.
    pub(super) fn sent(&self) -> ForwardedFields<'_> {
        let request = &self.request;
        ForwardedFields::of(&self.fill, self.route(), &request.fields, request.peer)
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
    fn reuse(&self, stored: &StoredResponse, origin: Origin) -> Option<Reuse> {
        let directives = RequestDirectives::of(&self.request.fields);
        let bounds = stale_bounds(&self.route().cache);
        let now = self.fill.clock.wall(self.fill.clock.now());
        may_reuse(&directives, &stored.origin()?.reuse, now, origin, &bounds).ok()
    }

    /// Whether a response that was just stored answers this request. One that was
    /// waiting when it was received, and has no directives about its age, may use it
    /// however long it took to arrive.
    pub(super) fn may_use(&self, stored: &StoredResponse, arrived: Moment) -> bool {
        let directives = RequestDirectives::of(&self.request.fields);
        let wants_age = directives.max_age.is_some() || directives.min_fresh.is_some();
        let waited = arrived <= stored.received && !wants_age;
        let store = self.fill.cache.store();
        stored.answers(&self.sent())
            && !store.response_was_purged(self.key(), stored)
            && (waited || self.reuse(stored, Origin::Reachable).is_some())
    }

    /// Whether the selected stored response may be served stale (RFC 5861 §4, RFC
    /// 9111 §4.2.4), on a plain route.
    pub(super) fn may_be_stale(&self, origin: Origin) -> bool {
        let chosen = self.stored.as_ref();
        chosen.is_some_and(|chosen| {
            self.reuse(&chosen.stored, origin) == Some(Reuse::IfError)
                && !(self.fill.cache.store()).response_was_purged(self.key(), &chosen.stored)
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
        let directives = RequestDirectives::of(fields);
        // A range of a response that is not complete cannot be cut, and an answer
        // to an authorized request may be for that client alone.
        let is_own = [RANGE, AUTHORIZATION]
            .iter()
            .any(|name| fields.contains_key(name));
        !directives.no_store
            && !directives.no_cache
            && (self.route().headers == HeaderMode::Typed || !validator::for_the_origin(fields))
            && !is_overridden(fields)
            && (self.stored.is_some() || !is_own)
    }

    /// The key, with the values of the request fields by which its responses
    /// vary, as far as those are known.
    fn key_with_variant(&self) -> Vec<u8> {
        let mut key = self.key().as_bytes().to_vec();
        let stored = self.fill.cache.store().variants(self.key());
        let newest = stored.as_ref().and_then(|stored| stored.last()?.origin());
        let secondary = newest.and_then(|newest| newest.nominated.key(&self.sent()));
        // A response that does not vary has the same key before this is known.
        if let Some(secondary) = secondary.filter(|secondary| !secondary.as_bytes().is_empty()) {
            // No target holds this byte.
            key.push(0);
            key.extend_from_slice(secondary.as_bytes());
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
        let is_shareable = stored.origin().is_some_and(|origin| {
            let reuse = &origin.reuse;
            !reuse.lifetime().is_zero() && reuse.directives().no_cache != Scope::Whole
        });
        if !is_shareable {
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
