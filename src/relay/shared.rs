//! One answer for all who ask for a key at the same time, on routes that obey
//! the origin's fields (RFC 9111 §4, "collapsed requests").
//!
//! Only what may be stored and reused is shared. Who asks for something else
//! than the leader has asked for (another variant, say) leads a fetch of its
//! own; what is known not to be shareable is asked for by each client alone,
//! without waiting.

use std::sync::Arc;
use std::time::SystemTime;

use http::Method;
use http::header::{AUTHORIZATION, COOKIE, RANGE};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::recall::choose;
use super::sent::is_overridden;
use super::serve::{say_instead, serve_streamed};
use super::{Came, Fetch, Recall, Relay, Went, forwarded, has_conditions};
use crate::cache::decision::stale_bounds;
use crate::cache::directives::{RequestDirectives, Scope};
use crate::cache::policy::Mode;
use crate::cache::reuse::{Origin, StaleBounds, may_reuse};
use crate::cache::sequence::PurgeSequence;
use crate::cache::status::Forward;
use crate::cache::validator;
use crate::cache::variant::Variant;
use crate::cache::vary::Nominated;
use crate::collapse::{ClientLevel, FetchError, Lead, Wait};
use crate::route::{HeaderMode, Route};
use crate::upstream::Failure;
use crate::wire::stream::Stream;

/// What a leader tells those who wait for its key.
#[derive(Clone)]
pub enum Announced {
    /// It is stored: this, unless memory had it already.
    Stored(Option<Arc<Variant>>),
    /// It is being stored, and may be read meanwhile.
    Begun(Arc<Begun>),
    /// What came is not for others: each has to ask alone.
    Unshared,
    /// The upstream has failed: what is stored may stand in.
    Failed(Option<Failure>, Origin),
}

/// An answer whose head has come and whose body is on its way.
pub struct Begun {
    /// The answer as it will be stored, without its body.
    pub(super) variant: Variant,
    /// Its body.
    pub(super) stream: Arc<Stream>,
    /// The length that its body is said to have.
    pub(super) length: Option<u64>,
    /// Where the removals had come to when it was asked for.
    pub(super) mark: PurgeSequence,
}

/// How often one client joins others before it asks alone.
const ROUNDS: usize = 4;

impl Fetch {
    /// Goes forward with all who want the same, or alone where it may not.
    pub(super) async fn share(self: Arc<Self>, relay: &Arc<Relay>, deadline: Instant) -> Went {
        let Some(route) = relay.routes.get(self.ask.key.route()) else {
            let nothing = forwarded(self.why, None, false, false);
            return Err((Failure::Abandoned, nothing));
        };
        let arrived = relay.clock.wall(relay.clock.now());
        let mut nominated = None;
        let mut conditional = None;
        for _ in 0..ROUNDS {
            let Some(key) = self.shared_key(relay, route, nominated.as_ref()) else {
                break;
            };
            let (wait, fetching) = (Wait::until(deadline), &relay.ongoing.fetching);
            let leads = match self.may_lead() {
                true => Some(self.clone()),
                false => self.without_conditions(relay, &mut conditional),
            };
            let announced = if let Some(own) = leads {
                let (give, take) = oneshot::channel();
                let to = relay.clone();
                let lead = move |lead| own.lead(to, lead, Some(give));
                match fetching.fetch(&ClientLevel, &key, wait, lead).await {
                    Ok(fetched) if fetched.collapsed => Ok(fetched.value),
                    Ok(_own) => {
                        return match timeout_at(deadline, take).await {
                            Ok(Ok(went)) => went,
                            Ok(Err(_)) => self.gave_up(relay, route, FetchError::Abandoned),
                            Err(_elapsed) => self.gave_up(relay, route, FetchError::TooLate),
                        };
                    }
                    Err(unfetched) => Err(unfetched),
                }
            } else {
                match fetching.follow(&key, wait).await {
                    Some(announced) => announced,
                    None => break,
                }
            };
            match announced.map(|announced| self.follow(relay, route, &key, announced, arrived)) {
                Ok(Followed::Done(went)) => return *went,
                Ok(Followed::Again(by)) => nominated = by,
                Ok(Followed::Alone) => break,
                Err(FetchError::Abandoned) if conditional.is_some() => {}
                Err(unfetched) => return self.gave_up(relay, route, unfetched),
            }
        }
        // The deadline is the client's: who has waited for others has the rest.
        let mut nobody = None;
        let alone = self.forward(relay, route, None, false, &mut nobody);
        match timeout_at(deadline, alone).await {
            Ok(went) => went,
            Err(_elapsed) => self.gave_up(relay, route, FetchError::TooLate),
        }
    }

    /// This request without its client's conditions, so that it may lead others:
    /// where another with conditions is on its way alone. The first goes up as
    /// it is, since its client may have what the origin does not let be stored;
    /// if all did, each would cost the origin a request. Who is the first shows
    /// in `first`.
    fn without_conditions(
        &self,
        relay: &Relay,
        first: &mut Option<Lead<Announced>>,
    ) -> Option<Arc<Self>> {
        if first.is_none() {
            let mut key = self.ask.key.as_bytes().to_vec();
            // No target has this byte, and no key that is shared.
            key.push(1);
            *first = relay.ongoing.fetching.lead(&key);
        }
        first.is_none().then(|| {
            Arc::new(Self {
                unconditional: true,
                ..self.as_get(self.ask.fields.clone())
            })
        })
    }

    fn gave_up(&self, relay: &Relay, route: &Route, unfetched: FetchError) -> Went {
        self.failed(relay, route, unfetched.into(), Origin::Disconnected)
    }

    /// Validates what was served stale (RFC 5861 §3), unless another does so
    /// already.
    pub(crate) async fn refresh(mut self, relay: Arc<Relay>) {
        let Some(route) = relay.routes.get(self.ask.key.route()) else {
            return;
        };
        let chosen = choose(&relay, &self.ask.key, &self.ask.sent(&relay, route)).ok();
        self.chosen = chosen;
        self.ask.method = Method::GET;
        self.ask.fields.remove(http::header::CACHE_CONTROL);
        let key = self.key_of(&relay, route, None);
        if let Some(lead) = relay.ongoing.fetching.lead(&key) {
            Arc::new(self).lead(relay, lead, None).await;
        }
    }

    /// Fetches for all who wait. What is fetched belongs to no connection; what
    /// is not for others goes to the client that leads.
    async fn lead(
        self: Arc<Self>,
        relay: Arc<Relay>,
        lead: Lead<Announced>,
        give: Option<oneshot::Sender<Went>>,
    ) {
        let Some(route) = relay.routes.get(self.ask.key.route()) else {
            return;
        };
        let mut lead = Some(lead);
        let went = match self.recalled(&relay, route) {
            Some(came) => Ok(came),
            None => {
                let forward = self.forward(&relay, route, None, self.unconditional, &mut lead);
                forward.await
            }
        };
        let announced = match &went {
            Ok(came) => came.announced.clone(),
            Err((failure, _)) => Announced::Failed(Some(failure.clone()), Origin::Disconnected),
        };
        if let Some(give) = give {
            // Nobody takes it where the client has gone.
            let _ = give.send(went);
        }
        if let Some(lead) = lead {
            lead.finish(announced);
        }
    }

    /// What another leader may have stored between our looking and our leading.
    fn recalled(&self, relay: &Relay, route: &Route) -> Option<Came> {
        match self.ask.recall(relay, route) {
            Recall::Answer {
                response,
                outcome,
                refresh: false,
            } => Some(Came {
                response,
                outcome,
                announced: Announced::Stored(None),
            }),
            Recall::Answer { .. } | Recall::Forward { .. } | Recall::OnlyIfCached => None,
        }
    }

    /// What a leader's answer is to this client, which arrived at a time.
    fn follow(
        &self,
        relay: &Relay,
        route: &Route,
        shared: &[u8],
        announced: Announced,
        arrived: SystemTime,
    ) -> Followed {
        let ask = &self.ask;
        match announced {
            Announced::Stored(variant) => match ask.recall(relay, route) {
                Recall::Answer { mut response, .. } => {
                    let status = Some(response.status());
                    let outcome = forwarded(self.why, status, false, true);
                    let said = relay.respond.cache_status(outcome, &ask.key);
                    say_instead(response.headers_mut(), said);
                    Followed::done(response, outcome)
                }
                // It is of another variant.
                Recall::Forward {
                    why: Forward::VaryMiss | Forward::UriMiss,
                    ..
                } => Followed::Again(None),
                // It has taken longer to come than it is fresh: those who waited
                // for it may have it all the same.
                Recall::Forward {
                    chosen: Some(chosen),
                    ..
                } if variant.is_some_and(|variant| Arc::ptr_eq(&variant, &chosen))
                    && self.waited_for(&chosen, arrived) =>
                {
                    let wall = relay.clock.wall(relay.clock.now());
                    let outcome = forwarded(self.why, Some(chosen.status), false, true);
                    let announced = Announced::Unshared;
                    let came = self.with(relay, route, &chosen, outcome, wall, announced);
                    Followed::Done(Box::new(Ok(came)))
                }
                Recall::Forward { .. } | Recall::OnlyIfCached => Followed::Alone,
            },
            Announced::Begun(begun) => {
                let variant = &begun.variant;
                let sent = ask.sent(relay, route);
                if !variant.nominated.matches(&variant.secondary, &sent) {
                    return Followed::Again(Some(variant.nominated.clone()));
                }
                let wall = relay.clock.wall(relay.clock.now());
                let overtaken = relay.cache.store().is_overtaken(&ask.key, begun.mark);
                let waited = self.waited_for(variant, arrived);
                if overtaken || !waited && !is_fresh(variant, wall) {
                    // Nor is it an answer to whoever comes next.
                    let is_it = |announced: &Announced| matches!(announced, Announced::Begun(now) if Arc::ptr_eq(now, &begun));
                    relay.ongoing.fetching.retire(shared, is_it);
                    return Followed::Again(None);
                }
                if !waited && !self.accepts(route, variant, wall) {
                    return Followed::Alone;
                }
                let outcome = forwarded(self.why, Some(variant.status), false, true);
                match serve_streamed(relay, route, &begun, ask, outcome, wall) {
                    Some(response) => Followed::done(response, outcome),
                    None => Followed::Alone,
                }
            }
            // It was this leader's own; or it is nobody's, which is known by now.
            Announced::Unshared => Followed::Again(None),
            // The leader's client was let ask for no more; this one may.
            Announced::Failed(Some(failure), _) if failure.is_of_client() => Followed::Again(None),
            Announced::Failed(failure, origin) => {
                let went = match (self.stand_in(relay, route, origin), failure) {
                    (Some(came), _) => Ok(came),
                    (None, Some(failure)) => {
                        let status = failure.upstream_status();
                        Err((failure, forwarded(self.why, status, false, true)))
                    }
                    (None, None) => return Followed::Alone,
                };
                Followed::Done(Box::new(went))
            }
        }
    }

    /// What is shared under a key, where this request may share at all: a GET
    /// for what nobody has, or for what has become stale.
    pub(super) fn shared_key(
        &self,
        relay: &Relay,
        route: &Route,
        nominated: Option<&Nominated>,
    ) -> Option<Vec<u8>> {
        let is_get = match route.headers {
            HeaderMode::All => self.ask.method == Method::GET,
            HeaderMode::Typed => true,
        };
        let may = is_get && self.waits() && route.cache.mode == Mode::Respect && self.may_follow();
        (may && !self.is_uncacheable(relay)).then(|| self.key_of(relay, route, nominated))
    }

    /// Whether the last answer to such a request was not for others.
    fn is_uncacheable(&self, relay: &Relay) -> bool {
        let now = relay.clock.now();
        relay.ongoing.uncacheable.has(&self.kind(), now)
    }

    /// The key, and whether its client says who it is: an origin that answers
    /// `private` to those who do may have one answer for all others.
    fn kind(&self) -> Vec<u8> {
        let mut kind = self.ask.key.as_bytes().to_vec();
        let says_who = |name| self.ask.fields.contains_key(name);
        if says_who(AUTHORIZATION) || says_who(COOKIE) {
            // No target has this byte.
            kind.push(0);
        }
        kind
    }

    /// Whether it goes forward for want of an answer that is fresh, and not since
    /// this client wants another than that.
    fn waits(&self) -> bool {
        matches!(
            self.why,
            Forward::UriMiss | Forward::VaryMiss | Forward::Stale
        )
    }

    /// Whether this client is content with an answer that is on its way, as old
    /// as it is.
    fn accepts(&self, route: &Route, variant: &Variant, now: SystemTime) -> bool {
        let directives = RequestDirectives::of(&self.ask.fields);
        let bounds = stale_bounds(&route.cache);
        may_reuse(&directives, &variant.reuse, now, Origin::Reachable, &bounds).is_ok()
    }

    /// Whether the answer to another's request may do for this one.
    fn may_follow(&self) -> bool {
        let fields = &self.ask.fields;
        let directives = RequestDirectives::of(fields);
        // A part of what is not there yet cannot be cut, and what is given to
        // who is authorized may not be for others.
        let is_own = [RANGE, AUTHORIZATION]
            .iter()
            .any(|name| fields.contains_key(name));
        !directives.no_store
            && !directives.no_cache
            && !validator::for_the_origin(fields)
            && !is_overridden(fields)
            && (self.chosen.is_some() || !is_own)
    }

    /// Whether the answer to this request may do for others: not where it
    /// depends on conditions of this client's own.
    fn may_lead(&self) -> bool {
        self.chosen.is_some() || self.unconditional || !has_conditions(&self.ask.fields)
    }

    /// The key with what this request says in the fields that its answers vary
    /// by, as far as those are known.
    fn key_of(&self, relay: &Relay, route: &Route, nominated: Option<&Nominated>) -> Vec<u8> {
        let mut key = self.ask.key.as_bytes().to_vec();
        let sent = self.ask.sent(relay, route);
        let stored = relay.cache.variants(&self.ask.key).unwrap_or_default();
        let newest = stored.last().map(|variant| &variant.nominated);
        let secondary = nominated.or(newest).and_then(|fields| fields.key(&sent));
        // Of what does not vary there is one, known or not.
        if let Some(secondary) = secondary.filter(|secondary| !secondary.as_bytes().is_empty()) {
            // No target has this byte.
            key.push(0);
            key.extend_from_slice(secondary.as_bytes());
        }
        key
    }

    /// Whether others may have an answer that has just been stored, without
    /// asking themselves: not where each has to have it validated.
    pub(super) fn is_for_others(&self, variant: &Variant) -> bool {
        let Variant { reuse, .. } = variant;
        !reuse.lifetime().duration.is_zero() && reuse.directives().no_cache != Scope::Whole
    }

    /// Whether this client waited for an answer when it came, and has no wish of
    /// its own as to its age: then it may have it, however long it was on its way.
    fn waited_for(&self, variant: &Variant, arrived: SystemTime) -> bool {
        let directives = RequestDirectives::of(&self.ask.fields);
        let wants_age = directives.max_age.is_some() || directives.min_fresh.is_some();
        arrived <= variant.received && !wants_age && self.is_for_others(variant)
    }

    /// Remembers that nobody need wait for this key.
    pub(super) fn is_not_for_others(&self, relay: &Relay) -> Announced {
        // The answer to a question of its own says nothing of the key.
        if self.ask.method == Method::GET && self.waits() && self.may_follow() && self.may_lead() {
            self.remember_uncacheable(relay);
        }
        Announced::Unshared
    }

    pub(super) fn remember_uncacheable(&self, relay: &Relay) {
        let now = relay.clock.now();
        relay.ongoing.uncacheable.remember(&self.kind(), now);
    }

    /// What others are told of an answer that has just been stored.
    pub(super) fn announces(&self, relay: &Relay, variant: &Arc<Variant>) -> Announced {
        if !self.is_for_others(variant) {
            return self.is_not_for_others(relay);
        }
        relay.ongoing.uncacheable.forget(&self.kind());
        Announced::Stored(Some(variant.clone()))
    }
}

/// Whether an answer could be reused from memory now, by a client without wishes
/// of its own.
fn is_fresh(variant: &Variant, now: SystemTime) -> bool {
    let none = RequestDirectives::default();
    let never = StaleBounds::default();
    may_reuse(&none, &variant.reuse, now, Origin::Reachable, &never).is_ok()
}

/// What following a leader has come to.
enum Followed {
    Done(Box<Went>),
    /// To join others, or to lead, for what varies by these fields.
    Again(Option<Nominated>),
    Alone,
}

impl Followed {
    fn done(
        response: http::Response<crate::wire::Body>,
        outcome: crate::cache::outcome::Outcome,
    ) -> Self {
        Self::Done(Box::new(Ok(Came {
            response,
            outcome,
            announced: Announced::Unshared,
        })))
    }
}
