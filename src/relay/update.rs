//! How answers change responses that are already stored: a 304 freshens them
//! (RFC 9111 §4.3.4), an answer to HEAD freshens them or makes them stale
//! (§4.3.5), and an unsafe method invalidates them (§4.4).

use std::borrow::Cow;
use std::sync::Arc;
use std::time::SystemTime;

use http::header::{AUTHORIZATION, SET_COOKIE};
use http::{HeaderMap, Method, StatusCode};

use super::fields::is_overridden;
use super::store::{Times, withheld};
use super::{Announced, Fetch, Relay, RelayAnswer};
use crate::cache::directives::RequestDirectives;
use crate::cache::freshen::{HeadEffect, freshen, head_effect, names, replaces};
use crate::cache::invalidate;
use crate::cache::key::Key;
use crate::cache::policy::Mode;
use crate::cache::storable::is_for_everyone;
use crate::cache::variant::Variant;
use crate::route::HeaderMode;

impl Fetch {
    /// Applies a 304 to ordgate's own validation: freshens the stored response if the 304
    /// names it, and answers from it. `None` where it was purged meanwhile.
    pub(super) fn apply_not_modified(&self, head: &HeaderMap, times: Times) -> Option<RelayAnswer> {
        let (chosen, store) = (self.validated()?, self.relay.cache.store());
        if store.variant_was_purged(&self.request.key, chosen) {
            return None;
        }
        if !names(head, &chosen.fields) {
            return Some(self.answer_validated(chosen, head, false, self.shared(chosen)));
        }
        let update = &update(&self.relay, head, times.received);
        let (variant, is_stored) = self.freshen_variant(chosen, update, times);
        let announced = match is_stored {
            true => self.shared(&variant),
            false => Announced::Again,
        };
        Some(self.answer_validated(&variant, head, is_stored, announced))
    }

    /// An answer from a response that a 304 has validated, with the fields of the 304
    /// that are for this client alone: those that `private` or `no-cache` names, and
    /// cookies that are not stored.
    fn answer_validated(
        &self,
        variant: &Variant,
        not_modified: &HeaderMap,
        stored: bool,
        announced: Announced,
    ) -> RelayAnswer {
        // A 304 says nothing of the bytes that are sent here.
        let named = withheld(variant, not_modified);
        let named = named
            .iter()
            .filter(|(name, _)| replaces(name, not_modified));
        let named = named.map(|(name, value)| (name.clone(), value.clone()));
        let mut own: HeaderMap = named.collect();
        if !own.contains_key(SET_COOKIE) {
            let stored: Vec<_> = variant.fields.get_all(SET_COOKIE).iter().collect();
            let cookies = not_modified.get_all(SET_COOKIE).iter();
            let new = cookies.filter(|cookie| !stored.contains(cookie)).cloned();
            own.extend(new.map(|cookie| (SET_COOKIE, cookie)));
        }
        self.answer_own(variant, &own, StatusCode::NOT_MODIFIED, stored, announced)
    }

    /// Replaces a stored response by a freshened one. Returns that, and whether it may be
    /// stored.
    fn freshen_variant(
        &self,
        old: &Arc<Variant>,
        update: &HeaderMap,
        times: Times,
    ) -> (Arc<Variant>, bool) {
        let (new, fields) = self.freshened(old, update, times);
        let may_store =
            |request: &HeaderMap| self.may_store(&Method::GET, request, old.status, &fields, times);
        let is_stored = may_store(&self.request.fields);
        // If only this request forbids storing, the stored response stays.
        let stays = !is_stored && may_store(&HeaderMap::new());
        let new = Arc::new(new);
        self.relay
            .cache
            .store()
            .amend(&self.request.key, |variants| {
                if stays {
                    return;
                }
                variants.retain(|variant| !Arc::ptr_eq(variant, old));
                if is_stored {
                    variants.push(new.clone());
                }
            });
        (new, is_stored)
    }

    /// A stored response with the fields of an update, and those fields.
    fn freshened(&self, old: &Variant, update: &HeaderMap, times: Times) -> (Variant, HeaderMap) {
        let mut fields = old.fields.clone();
        freshen(&mut fields, update);
        let body = old.body.clone();
        (self.prepare(old.status, &fields, body, times), fields)
    }

    /// Applies an answer to stored responses of other requests.
    pub(super) fn update_others(&self, status: StatusCode, fields: &HeaderMap, times: Times) {
        self.invalidate(status, fields);
        let is_head = self.request.method == Method::HEAD && status == StatusCode::OK;
        if is_head && self.route().cache.mode == Mode::Respect {
            self.apply_head(fields, times);
        }
    }

    /// Removes what an unsafe method invalidates (§4.4), on all routes to the
    /// same origin that obey its fields.
    fn invalidate(&self, status: StatusCode, fields: &HeaderMap) {
        let relay = &self.relay;
        let origin = relay.upstreams.get(self.route().upstream.number);
        let Ok(target) = origin.uri(self.request.key.target()) else {
            return;
        };
        for target in invalidate::targets(&self.request.method, &target, status, fields) {
            for other in relay.routes.routes() {
                let upstream = relay.upstreams.get(other.upstream.number);
                let own = upstream.target_of(&target);
                if upstream.shares_origin_with(origin) && other.may_have_stored(own) {
                    relay.cache.store().invalidate(&Key::of(other.number, own));
                }
            }
        }
    }

    /// Applies the answer to a HEAD to the stored responses that match it
    /// (§4.3.5): they are freshened, or stale.
    fn apply_head(&self, fields: &HeaderMap, times: Times) {
        let request = &self.request.fields;
        // An answer for this client alone does not concern the responses of others.
        let is_private = RequestDirectives::of(request).no_store
            || request.contains_key(AUTHORIZATION)
            || is_overridden(request);
        if is_private && self.route().headers == HeaderMode::All {
            return;
        }
        let (sent, update) = (&self.sent(), &update(&self.relay, fields, times.received));
        let after = |stored: &Variant| {
            let length = stored.body.len() as u64;
            let effect = head_effect(stored.status, &stored.fields, length, fields);
            let (new, fields) = self.freshened(stored, update, times);
            let may_store = self.may_store(&Method::GET, request, stored.status, &fields, times);
            if effect == HeadEffect::Freshen && may_store {
                return new;
            }
            let mut stale = stored.clone();
            stale.reuse.make_stale();
            stale
        };
        self.relay
            .cache
            .store()
            .amend(&self.request.key, |variants| {
                for variant in variants.iter_mut().filter(|stored| stored.answers(sent)) {
                    *variant = Arc::new(after(variant));
                }
            });
    }
}

/// The fields by which a 304, or the answer to a HEAD, updates stored responses.
/// Its cookies are for the one client whose request it answers, unless it says
/// itself that it is for everyone. The freshness of the stored response says
/// nothing about them.
fn update<'h>(relay: &Relay, fields: &'h HeaderMap, received: SystemTime) -> Cow<'h, HeaderMap> {
    let governing = relay.targeted_fields.governing(fields);
    if !fields.contains_key(SET_COOKIE)
        || is_for_everyone(StatusCode::OK, fields, &governing, received)
    {
        return Cow::Borrowed(fields);
    }
    let mut without = fields.clone();
    without.remove(SET_COOKIE);
    Cow::Owned(without)
}
