//! What an answer of the upstream changes of what is stored: a new response,
//! one that a 304 or a HEAD freshens, those that an unsafe method invalidates.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use http::header::{AUTHORIZATION, HeaderName, HeaderValue, SET_COOKIE};
use http::{HeaderMap, Method, Response, StatusCode, response};

use super::sent::is_overridden;
use super::serve::finish;
use super::shared::Announced;
use super::{Came, ClientRequest, ExchangeTimes, Fetch, Relay, forwarded};
use crate::cache::directives::RequestDirectives;
use crate::cache::freshen::{HeadEffect, Identified, freshen, head_effect, identify};
use crate::cache::freshness::Heuristic;
use crate::cache::key::Key;
use crate::cache::policy::Mode;
use crate::cache::sequence::PurgeSequence;
use crate::cache::storable::{
    Exchange as Stores, SetCookie, is_for_everyone, storable, stored_fields,
};
use crate::cache::variant::Variant;
use crate::cache::vary::Nominated;
use crate::cache::{hop, invalidate, reuse};
use crate::route::{HeaderMode, Route};
use crate::wire::Body;

impl Fetch {
    /// A 304 to a question of ours: freshens what it names, and answers from
    /// there. `None` where it names nothing that is stored.
    pub(super) fn validated(
        &self,
        relay: &Relay,
        route: &Route,
        head: &response::Parts,
        times: ExchangeTimes,
    ) -> Option<Came> {
        let key = &self.ask.key;
        let variants = self.of_one_coding(relay, route);
        let initial: Vec<_> = variants.iter().map(|variant| &variant.fields).collect();
        let status = Some(StatusCode::NOT_MODIFIED);
        let outcome = |stored| forwarded(self.why, status, stored, false);
        let now = times.received;
        let places = match identify(&head.headers, &initial) {
            Identified::Stored(places) => places,
            Identified::Unnamed => {
                let chosen = self.chosen.as_ref().or(variants.last())?;
                let announced = self.announces(relay, chosen);
                return Some(self.with(relay, route, chosen, outcome(false), now, announced));
            }
            // A 304 that names another validator than the one that was asked
            // about still says that what was asked about will do (RFC 9111
            // §4.3.3); it must not update it (§4.3.4).
            Identified::Other if self.chosen.is_some() && variants.len() == 1 => {
                let chosen = self.chosen.as_ref()?;
                let announced = self.announces(relay, chosen);
                return Some(self.with(relay, route, chosen, outcome(false), now, announced));
            }
            Identified::Other => return None,
        };
        let none = HeaderMap::new();
        let sent = &self.ask.sent(relay, route);
        let update = &update(relay, &head.headers, now);
        let mut answer: Option<(Arc<Variant>, bool)> = None;
        for place in places {
            let old = variants.get(place)?;
            let mut fields = old.fields.clone();
            freshen(&mut fields, update, now);
            let freshened = |request: &HeaderMap| {
                let as_get = self.as_get(request.clone());
                as_get.variant(relay, route, old.status, &fields, old.body.clone(), times)
            };
            let (mut new, kept) = freshened(&self.ask.fields);
            let own = new.secondary.clone();
            if new.nominated == old.nominated {
                // It goes on answering those whom it has answered.
                new.secondary = old.secondary.clone();
            }
            let new = Arc::new(new);
            // What only this request forbids leaves what is stored as it is.
            let stays = !kept && freshened(&none).1;
            let is_chosen = self
                .chosen
                .as_ref()
                .is_some_and(|chosen| Arc::ptr_eq(chosen, old));
            let answers = is_chosen || answer.is_none();
            relay.cache.store().amend(key, times.mark, |variants| {
                if stays {
                    return;
                }
                variants.retain(|variant| !Arc::ptr_eq(variant, old));
                if !kept {
                    return;
                }
                variants.push(new.clone());
                if answers && new.secondary != own {
                    // The origin has chosen it for this request too.
                    variants.retain(|v| !v.nominated.matches(&v.secondary, sent));
                    let also = (*new).clone();
                    variants.push(Arc::new(Variant {
                        secondary: own,
                        ..also
                    }));
                }
            });
            if answers {
                answer = Some((new, kept));
            }
        }
        let (variant, kept) = answer?;
        let announced = match kept {
            true => self.announces(relay, &variant),
            false => Announced::Unshared,
        };
        let mut came = self.with(relay, route, &variant, outcome(kept), now, announced);
        if route.headers == HeaderMode::All && !update.contains_key(SET_COOKIE) {
            let cookies = head.headers.get_all(SET_COOKIE).iter().cloned();
            let fields = came.response.headers_mut();
            fields.extend(cookies.map(|cookie| (SET_COOKIE, cookie)));
        }
        Some(came)
    }

    /// Makes what would be stored of a response; and whether it may be.
    pub(super) fn variant(
        &self,
        relay: &Relay,
        route: &Route,
        status: StatusCode,
        fields: &HeaderMap,
        body: Bytes,
        times: ExchangeTimes,
    ) -> (Variant, bool) {
        let targets = &relay.targets;
        let governing = targets.governing(fields);
        let kept = self.may_store(relay, route, status, fields, times.received);
        let none = HeaderMap::new();
        let sent = &self.ask.sent(relay, route);
        let nominated = match route.headers {
            HeaderMode::All => Nominated::of(fields),
            HeaderMode::Typed => Nominated::of(&none),
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
        let kept = kept && secondary.is_some();
        let variant = Variant {
            status,
            fields: compact(&stored_fields(fields, &governing.directives)),
            body,
            secondary: secondary.unwrap_or_default(),
            nominated,
            reuse,
            received: times.received,
        };
        (variant, kept)
    }

    pub(super) fn may_store(
        &self,
        relay: &Relay,
        route: &Route,
        status: StatusCode,
        response: &HeaderMap,
        received: SystemTime,
    ) -> bool {
        let Ok(target) = relay
            .upstreams
            .get(route.upstream)
            .uri(self.ask.key.target())
        else {
            return false;
        };
        let method = match route.headers {
            HeaderMode::Typed => &Method::GET,
            HeaderMode::All => &self.ask.method,
        };
        let exchange = Stores {
            method,
            target: &target,
            request: &self.ask.fields,
            directives: &RequestDirectives::of(&self.ask.fields),
            status,
            response,
            governing: &relay.targets.governing(response),
            received,
            set_cookie: match (route.headers, route.cache.set_cookie) {
                (HeaderMode::Typed, SetCookie::Explicit) => SetCookie::Dropped,
                (HeaderMode::Typed | HeaderMode::All, rule) => rule,
            },
        };
        *method == Method::GET
            && route.cache.mode == Mode::Respect
            && (route.headers == HeaderMode::Typed || !is_overridden(&self.ask.fields))
            && storable(&exchange).is_ok()
    }

    /// An answer that was read whole: stored where it may be.
    pub(super) fn whole(
        &self,
        relay: &Relay,
        route: &Route,
        status: StatusCode,
        fields: &HeaderMap,
        body: Bytes,
        times: ExchangeTimes,
    ) -> Came {
        let (variant, kept) = self.variant(relay, route, status, fields, body, times);
        let variant = Arc::new(variant);
        if kept {
            let sent = &self.ask.sent(relay, route);
            relay
                .cache
                .store()
                .amend(&self.ask.key, times.mark, |variants| {
                    // It takes the place of what would have been chosen before,
                    // unless that came while this one was on its way.
                    let same = |v: &Arc<Variant>| v.nominated.matches(&v.secondary, sent);
                    if variants
                        .iter()
                        .any(|v| same(v) && v.received > times.received)
                    {
                        return;
                    }
                    variants.retain(|v| !same(v));
                    variants.push(variant.clone());
                });
        }
        let outcome = forwarded(self.why, Some(status), kept, false);
        let now = times.received;
        if kept {
            let announced = self.announces(relay, &variant);
            return self.with(relay, route, &variant, outcome, now, announced);
        }
        let mut answer = fields.clone();
        hop::strip(&mut answer);
        finish(relay, route, &mut answer, &self.ask.key, outcome);
        let mut response = Response::new(Body::new(variant.body.clone()));
        *response.status_mut() = status;
        *response.headers_mut() = answer;
        let announced = match status.is_server_error() {
            true => Announced::Unshared,
            false => self.is_not_for_others(relay),
        };
        Came {
            response,
            outcome,
            announced,
        }
    }

    /// What an answer changes of what is stored beside itself: an unsafe method
    /// invalidates (RFC 9111 §4.4), a HEAD freshens or makes stale (§4.3.5).
    pub(super) fn invalidate(
        &self,
        relay: &Relay,
        route: &Route,
        status: StatusCode,
        fields: &HeaderMap,
        mark: PurgeSequence,
    ) {
        let Ok(target) = relay
            .upstreams
            .get(route.upstream)
            .uri(self.ask.key.target())
        else {
            return;
        };
        for target in invalidate::targets(&self.ask.method, &target, status, fields) {
            let origin = relay.upstreams.get(route.upstream);
            for other in relay.routes.routes() {
                let upstream = relay.upstreams.get(other.upstream);
                // What other origins have at that path is something else.
                if !upstream.has_origin_of(origin) {
                    continue;
                }
                let mut key = Key::begin(other.number);
                let own = upstream.target_of(&target);
                key.buffer().extend_from_slice(own.as_bytes());
                relay.cache.store().remove(&key);
            }
        }
        if self.ask.method != Method::HEAD
            || status != StatusCode::OK
            || route.cache.mode != Mode::Respect
        {
            return;
        }
        // What the origin answers to this client alone says nothing of what it
        // answers to others.
        let directives = RequestDirectives::of(&self.ask.fields);
        let is_its_own = directives.no_store
            || self.ask.fields.contains_key(AUTHORIZATION)
            || is_overridden(&self.ask.fields);
        if is_its_own && route.headers == HeaderMode::All {
            return;
        }
        let now = relay.clock.wall(relay.clock.now());
        let sent = &self.ask.sent(relay, route);
        relay.cache.store().amend(&self.ask.key, mark, |variants| {
            for variant in variants.iter_mut() {
                if !variant.nominated.matches(&variant.secondary, sent) {
                    continue;
                }
                let mut reuse = variant.reuse.clone();
                let mut new_fields = variant.fields.clone();
                match head_effect(&variant.fields, variant.body.len() as u64, fields) {
                    HeadEffect::Stale => reuse.make_stale(),
                    HeadEffect::Freshen => {
                        freshen(&mut new_fields, &update(relay, fields, now), now);
                        let times = ExchangeTimes {
                            mark,
                            requested: now,
                            received: now,
                        };
                        let body = variant.body.clone();
                        let as_get = self.as_get(self.ask.fields.clone());
                        let (new, kept) =
                            as_get.variant(relay, route, variant.status, &new_fields, body, times);
                        if kept {
                            *variant = Arc::new(new);
                            continue;
                        }
                        reuse.make_stale();
                    }
                }
                *variant = Arc::new(Variant {
                    status: variant.status,
                    fields: compact(&variant.fields),
                    body: variant.body.clone(),
                    nominated: variant.nominated.clone(),
                    secondary: variant.secondary.clone(),
                    reuse,
                    received: variant.received,
                });
            }
        });
    }

    /// This request as the GET that would have brought what is stored, with
    /// these fields.
    pub(super) fn as_get(&self, fields: HeaderMap) -> Self {
        Self {
            ask: ClientRequest {
                method: Method::GET,
                fields,
                version: self.ask.version,
                key: self.ask.key.clone(),
                body: None,
                caller: self.ask.caller,
                peer: self.ask.peer,
            },
            why: self.why,
            chosen: None,
            unconditional: self.unconditional,
        }
    }
}

/// The fields with which a 304, or the answer to a HEAD, updates what is stored.
/// Its cookies are for the one client whose request it answers, unless it says
/// itself that it is for everyone: the freshness of what is stored says nothing
/// of them.
fn update<'h>(relay: &Relay, fields: &'h HeaderMap, received: SystemTime) -> Cow<'h, HeaderMap> {
    let governing = relay.targets.governing(fields);
    if !fields.contains_key(SET_COOKIE)
        || is_for_everyone(StatusCode::OK, fields, &governing, received)
    {
        return Cow::Borrowed(fields);
    }
    let mut without = fields.clone();
    without.remove(SET_COOKIE);
    Cow::Owned(without)
}

/// A copy that shares nothing with the connection's read buffer.
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
