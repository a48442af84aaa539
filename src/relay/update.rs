//! How answers change responses that are already stored: a 304 freshens them
//! (RFC 9111 §4.3.4), an answer to HEAD freshens them or makes them stale
//! (§4.3.5), and an unsafe method invalidates them (§4.4).

use std::borrow::Cow;
use std::sync::Arc;
use std::time::SystemTime;

use http::header::{AUTHORIZATION, SET_COOKIE};
use http::{HeaderMap, Method, StatusCode, response};

use super::sent::is_overridden;
use super::shared::Announced;
use super::storing::{compact, for_requester, withheld};
use super::{ExchangeRecord, Fetch, Relay, RelayAnswer, forwarded};
use crate::cache::directives::RequestDirectives;
use crate::cache::freshen::{HeadEffect, Identified, freshen, head_effect, identify, replaces};
use crate::cache::invalidate;
use crate::cache::key::Key;
use crate::cache::policy::Mode;
use crate::cache::sequence::PurgeSequence;
use crate::cache::storable::is_for_everyone;
use crate::cache::variant::Variant;
use crate::route::{HeaderMode, Route};

impl Fetch {
    /// Applies a 304 to ordgate's own validation: freshens the stored responses
    /// that it identifies, and answers from one of them. `None` where it
    /// identifies none.
    pub(super) fn apply_not_modified(
        &self,
        relay: &Relay,
        route: &Route,
        head: &response::Parts,
        times: ExchangeRecord,
    ) -> Option<RelayAnswer> {
        let variants = self.variants_to_validate(relay, route);
        let fields: Vec<_> = variants.iter().map(|variant| &variant.fields).collect();
        let now = times.received;
        let validated = self.validated();
        let unchanged = |chosen: &Arc<Variant>| {
            let announced = self.announcement(relay, chosen);
            self.answer_validated(relay, route, (chosen, &head.headers), now, false, announced)
        };
        let identified = match identify(&head.headers, &fields) {
            Identified::Stored(identified) => identified,
            Identified::Unnamed => {
                let chosen = validated.or(variants.last())?;
                return Some(unchanged(chosen));
            }
            // A 304 that names another validator than the one in the request
            // still confirms the requested response (§4.3.3), but must not
            // update it (§4.3.4).
            Identified::Other if variants.len() == 1 => return validated.map(unchanged),
            Identified::Other => return None,
        };
        let update = &update(relay, &head.headers, now);
        let mut answer: Option<(Arc<Variant>, bool)> = None;
        for at in identified {
            let old = variants.get(at)?;
            let is_old = |chosen: &Arc<Variant>| Arc::ptr_eq(chosen, old);
            let answers = answer.is_none() || validated.is_some_and(is_old);
            let (new, stored) = self.freshen_variant(relay, route, (old, update), answers, times);
            if answers {
                answer = Some((new, stored));
            }
        }
        let (variant, stored) = answer?;
        let announced = match stored {
            true => self.announcement(relay, &variant),
            false => Announced::Unshared,
        };
        let validated = (&variant, &head.headers);
        Some(self.answer_validated(relay, route, validated, now, stored, announced))
    }

    /// An answer from a response that a 304 has validated, with the fields of the 304
    /// that are for this client alone: those that `private` or `no-cache` names, and
    /// cookies that are not stored.
    fn answer_validated(
        &self,
        relay: &Relay,
        route: &Route,
        (variant, not_modified): (&Arc<Variant>, &HeaderMap),
        now: SystemTime,
        stored: bool,
        announced: Announced,
    ) -> RelayAnswer {
        let named = withheld(variant, not_modified);
        // A 304 says nothing of the bytes that are sent here.
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
        let own = for_requester(variant, &own);
        let answered = own.as_ref().unwrap_or(variant);
        let status = Some(StatusCode::NOT_MODIFIED);
        let outcome = forwarded(self.why, status, stored, false);
        self.answer_from(relay, route, answered, outcome, now, announced)
    }

    /// Replaces a stored response by a freshened one. Returns that, and whether
    /// it may be stored. `answers` says whether it answers this request.
    fn freshen_variant(
        &self,
        relay: &Relay,
        route: &Route,
        (old, update): (&Arc<Variant>, &HeaderMap),
        answers: bool,
        times: ExchangeRecord,
    ) -> (Arc<Variant>, bool) {
        let mut fields = old.fields.clone();
        freshen(&mut fields, update);
        let freshened = |request: &HeaderMap| {
            let as_get = self.as_get(request.clone());
            let body = old.body.clone();
            as_get.prepare_variant(relay, route, old.status, &fields, body, times)
        };
        let (mut new, may_store) = freshened(&self.request.fields);
        let own = new.secondary.clone();
        if new.nominated == old.nominated {
            // It continues to match the requests that it matched.
            new.secondary = old.secondary.clone();
        }
        new.encodings.adopt(&old.encodings);
        let new = Arc::new(new);
        // If only this request forbids storing, the stored response stays.
        let stays = !may_store && freshened(&HeaderMap::new()).1;
        let sent = &self.request.forwarded_fields(relay, route);
        relay
            .cache
            .store()
            .amend(&self.request.key, times.sequence, |variants| {
                if stays {
                    return;
                }
                variants.retain(|variant| !Arc::ptr_eq(variant, old));
                if !may_store {
                    return;
                }
                variants.push(new.clone());
                if answers && new.secondary != own {
                    // The origin has selected it for this request too.
                    variants.retain(|v| !v.nominated.matches(&v.secondary, sent));
                    let also = (*new).clone();
                    variants.push(Arc::new(Variant {
                        secondary: own,
                        ..also
                    }));
                }
            });
        (new, may_store)
    }

    /// Applies an answer to stored responses of other requests.
    pub(super) fn update_others(
        &self,
        relay: &Relay,
        route: &Route,
        status: StatusCode,
        fields: &HeaderMap,
        sequence: PurgeSequence,
    ) {
        self.invalidate(relay, route, status, fields);
        let is_head = self.request.method == Method::HEAD && status == StatusCode::OK;
        if is_head && route.cache.mode == Mode::Respect {
            self.apply_head(relay, route, fields, sequence);
        }
    }

    /// Removes what an unsafe method invalidates (§4.4), on all routes to the
    /// same origin.
    fn invalidate(&self, relay: &Relay, route: &Route, status: StatusCode, fields: &HeaderMap) {
        let origin = relay.upstreams.get(route.upstream.number);
        let Ok(target) = origin.uri(self.request.key.target()) else {
            return;
        };
        for target in invalidate::targets(&self.request.method, &target, status, fields) {
            for other in relay.routes.routes() {
                let upstream = relay.upstreams.get(other.upstream.number);
                if !upstream.shares_origin_with(origin) {
                    continue;
                }
                let own = upstream.target_of(&target);
                if !other.may_have_stored(own) {
                    continue;
                }
                let key = Key::of(other.number, own);
                relay.cache.store().remove(&key);
            }
        }
    }

    /// Applies the answer to a HEAD to the stored responses that match it
    /// (§4.3.5).
    fn apply_head(
        &self,
        relay: &Relay,
        route: &Route,
        fields: &HeaderMap,
        sequence: PurgeSequence,
    ) {
        let request = &self.request;
        // An answer for this client alone does not concern the responses of
        // others.
        let is_private = RequestDirectives::of(&request.fields).no_store
            || request.fields.contains_key(AUTHORIZATION)
            || is_overridden(&request.fields);
        if is_private && route.headers == HeaderMode::All {
            return;
        }
        let sent = &request.forwarded_fields(relay, route);
        relay
            .cache
            .store()
            .amend(&request.key, sequence, |variants| {
                for variant in variants.iter_mut() {
                    if variant.nominated.matches(&variant.secondary, sent) {
                        *variant =
                            Arc::new(self.after_head(relay, route, variant, fields, sequence));
                    }
                }
            });
    }

    /// A stored response after the answer to a HEAD: freshened, or stale.
    fn after_head(
        &self,
        relay: &Relay,
        route: &Route,
        variant: &Variant,
        fields: &HeaderMap,
        sequence: PurgeSequence,
    ) -> Variant {
        let length = variant.body.len() as u64;
        let effect = head_effect(variant.status, &variant.fields, length, fields);
        if effect == HeadEffect::Freshen {
            let now = relay.clock.wall(relay.clock.now());
            let times = ExchangeRecord {
                sequence,
                requested: now,
                received: now,
            };
            let mut new_fields = variant.fields.clone();
            freshen(&mut new_fields, &update(relay, fields, now));
            let as_get = self.as_get(self.request.fields.clone());
            let (status, body) = (variant.status, variant.body.clone());
            let new = as_get.prepare_variant(relay, route, status, &new_fields, body, times);
            if let (new, true) = new {
                new.encodings.adopt(&variant.encodings);
                return new;
            }
        }
        let mut stale = Variant {
            fields: compact(&variant.fields),
            ..variant.clone()
        };
        stale.reuse.make_stale();
        stale
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
