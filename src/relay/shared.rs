//! Collapsed requests: one answer for all that request a key at the same time, on
//! routes that follow the origin's fields (RFC 9111 §4).
//!
//! Only an answer that may be stored and reused is shared. A request for
//! something else than the leader's (such as another variant) leads a fetch of
//! its own. A request for a key that is known not to be shareable goes to the
//! upstream at once, without waiting.

use std::sync::Arc;

use http::Method;
use http::header::{ACCEPT_ENCODING, AUTHORIZATION, CACHE_CONTROL, COOKIE, RANGE};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::follow::Followed;
use super::recall::choose;
use super::request_fields::has_conditions;
use super::sent::is_overridden;
use super::{Fetch, Recall, Relay, RelayAnswer, RelayResult, forwarded};
use crate::cache::directives::{RequestDirectives, Scope};
use crate::cache::policy::Mode;
use crate::cache::reuse::Origin;
use crate::cache::sequence::PurgeSequence;
use crate::cache::status::Forward;
use crate::cache::validator;
use crate::cache::variant::Variant;
use crate::cache::vary::Nominated;
use crate::collapse::{ClientLevel, FetchError, Lead, Wait};
use crate::reason::Reason;
use crate::route::{HeaderMode, Route};
use crate::upstream::Failure;
use crate::wire::stream::BodyStream;

/// What a leader announces to the requests that wait for its key.
#[derive(Clone)]
pub enum Announced {
    /// The answer is stored: this one, or one that memory had already.
    Stored(Option<Arc<Variant>>),
    /// The answer is being stored, and may be read meanwhile.
    InProgress(Arc<InProgress>),
    /// The answer is for the leader alone.
    Unshared,
    /// The upstream has failed, for this reason. A stored response may be used instead;
    /// only where none could be is the failure there.
    Failed(Option<Failure>, Origin, Reason),
}

/// An answer whose head has come and whose body is still coming.
pub struct InProgress {
    /// The response as it will be stored, without its body.
    pub(super) variant: Variant,
    pub(super) stream: Arc<BodyStream>,
    /// The announced length of the body.
    pub(super) length: Option<u64>,
    /// The position among purges and removals when its request was sent.
    pub(super) sequence: PurgeSequence,
}

/// How often one request joins others before it goes alone.
const ROUNDS: usize = 4;

impl Fetch {
    /// Gets the response together with all requests for the same, or alone where
    /// it may not be shared.
    pub(super) async fn share(
        self: Arc<Self>,
        relay: &Arc<Relay>,
        deadline: Instant,
    ) -> RelayResult {
        let Some(route) = relay.routes.get(self.request.key.route()) else {
            let outcome = forwarded(self.why, None, false, false);
            return Err((Failure::new(Reason::Internal), outcome));
        };
        let arrived = relay.clock.wall(relay.clock.now());
        let mut nominated = None;
        let mut conditional = None;
        for _ in 0..ROUNDS {
            let Some(key) = self.shared_key(relay, route, nominated.as_ref()) else {
                break;
            };
            let (wait, fetching) = (Wait::until(deadline), &relay.state.fetching);
            let leader = match self.may_lead() {
                true => Some(self.clone()),
                false => self.without_conditions(relay, &mut conditional),
            };
            let announced = if let Some(leader) = leader {
                let (give, take) = oneshot::channel();
                let relay_of_lead = relay.clone();
                let lead = move |lead| leader.lead(relay_of_lead, lead, Some(give));
                match fetching.fetch(&ClientLevel, &key, wait, lead).await {
                    Ok(fetched) if fetched.collapsed => Ok(fetched.value),
                    Ok(_own) => {
                        return match timeout_at(deadline, take).await {
                            Ok(Ok(result)) => result,
                            Ok(Err(_)) => self.not_fetched(relay, route, FetchError::Abandoned),
                            Err(_elapsed) => self.not_fetched(relay, route, FetchError::TooLate),
                        };
                    }
                    Err(error) => Err(error),
                }
            } else {
                match fetching.follow(&key, wait).await {
                    Some(announced) => announced,
                    None => break,
                }
            };
            match announced.map(|announced| self.follow(relay, route, &key, announced, arrived)) {
                Ok(Followed::Done(result)) => return *result,
                Ok(Followed::Again(by)) => nominated = by,
                Ok(Followed::Alone) => break,
                Err(FetchError::Abandoned) if conditional.is_some() => {}
                Err(error) => return self.not_fetched(relay, route, error),
            }
        }
        // The deadline is the client's. The time spent waiting is part of it.
        let mut no_lead = None;
        let alone = self.forward(relay, route, None, false, &mut no_lead);
        match timeout_at(deadline, alone).await {
            Ok(result) => result,
            Err(_elapsed) => self.not_fetched(relay, route, FetchError::TooLate),
        }
    }

    /// This request without its conditions, so that it may lead others; `None`
    /// for the first request with conditions for a key, which goes to the
    /// upstream as it is: its client may have a response that the origin does not
    /// let caches store. If all did so, each would be a request to the origin.
    /// `first` is set for the first one.
    fn without_conditions(
        &self,
        relay: &Relay,
        first: &mut Option<Lead<Announced>>,
    ) -> Option<Arc<Self>> {
        if first.is_none() {
            let mut key = self.request.key.as_bytes().to_vec();
            // No target and no shared key holds this byte.
            key.push(1);
            *first = relay.state.fetching.lead(&key);
        }
        first.is_none().then(|| {
            Arc::new(Self {
                unconditional: true,
                ..self.as_get(self.request.fields.clone())
            })
        })
    }

    fn not_fetched(&self, relay: &Relay, route: &Route, error: FetchError) -> RelayResult {
        self.failed(relay, route, error.into(), Origin::Disconnected)
    }

    /// Validates a response that was served stale (RFC 5861 §3), unless another
    /// request does so already.
    pub(crate) async fn refresh(mut self, relay: Arc<Relay>) {
        let Some(route) = relay.routes.get(self.request.key.route()) else {
            return;
        };
        let sent = self.request.forwarded_fields(&relay, route);
        self.to_validate = choose(&relay, &self.request.key, &sent).ok();
        self.request.method = Method::GET;
        self.request.fields.remove(CACHE_CONTROL);
        if route.headers == HeaderMode::Typed {
            // Its answer goes to no client, so it is no request for a coding.
            self.request.fields.remove(ACCEPT_ENCODING);
        }
        let key = self.key_with_variant(&relay, route, None);
        if let Some(lead) = relay.state.fetching.lead(&key) {
            Arc::new(self).lead(relay, lead, None).await;
        }
    }

    /// Fetches for all that wait. The fetch belongs to no connection; an answer
    /// that is not shareable goes to the leader's own client through `give`.
    async fn lead(
        self: Arc<Self>,
        relay: Arc<Relay>,
        lead: Lead<Announced>,
        give: Option<oneshot::Sender<RelayResult>>,
    ) {
        let Some(route) = relay.routes.get(self.request.key.route()) else {
            return;
        };
        let mut lead = Some(lead);
        let result = match self.stored_meanwhile(&relay, route) {
            Some(answer) => Ok(answer),
            None => {
                let forward = self.forward(&relay, route, None, self.unconditional, &mut lead);
                forward.await
            }
        };
        let announced = match &result {
            Ok(answer) => answer.announced.clone(),
            Err((failure, _)) => {
                let (reason, failure) = (failure.reason, Some(failure.clone()));
                Announced::Failed(failure, Origin::Disconnected, reason)
            }
        };
        if let Some(give) = give {
            // Fails if the client has disconnected.
            let _ = give.send(result);
        }
        if let Some(lead) = lead {
            lead.finish(announced);
        }
    }

    /// A response that another leader has stored since this request looked.
    fn stored_meanwhile(&self, relay: &Relay, route: &Route) -> Option<RelayAnswer> {
        match self.request.recall(relay, route) {
            Recall::Answer {
                response,
                outcome,
                refresh: false,
            } => Some(RelayAnswer {
                response,
                outcome,
                announced: Announced::Stored(None),
            }),
            Recall::Answer { .. } | Recall::Forward { .. } | Recall::OnlyIfCached => None,
        }
    }

    /// The key under which this request is collapsed with others; `None` where it
    /// may not be: it must be a GET that lacks a fresh stored response.
    pub(super) fn shared_key(
        &self,
        relay: &Relay,
        route: &Route,
        nominated: Option<&Nominated>,
    ) -> Option<Vec<u8>> {
        let is_get = match route.headers {
            HeaderMode::All => self.request.method == Method::GET,
            HeaderMode::Typed => true,
        };
        let may_share = is_get
            && self.lacks_fresh()
            && route.cache.mode == Mode::Respect
            && self.may_follow(relay)
            && !self.is_uncacheable(relay);
        may_share.then(|| self.key_with_variant(relay, route, nominated))
    }

    /// Whether the last answer to such a request could not be shared.
    fn is_uncacheable(&self, relay: &Relay) -> bool {
        let now = relay.clock.now();
        relay.state.uncacheable.has(&self.uncacheable_key(), now)
    }

    /// The key, and whether the client identifies itself: an origin that answers
    /// such clients with `private` may have one answer for all others.
    fn uncacheable_key(&self) -> Vec<u8> {
        let mut key = self.request.key.as_bytes().to_vec();
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
    fn may_follow(&self, relay: &Relay) -> bool {
        let fields = &self.request.fields;
        let route = relay.routes.get(self.request.key.route());
        let is_typed = route.is_some_and(|route| route.headers == HeaderMode::Typed);
        let directives = RequestDirectives::of(fields);
        // A range of a response that is not complete cannot be cut, and an answer
        // to an authorized request may be for that client alone.
        let is_own = [RANGE, AUTHORIZATION]
            .iter()
            .any(|name| fields.contains_key(name));
        !directives.no_store
            && !directives.no_cache
            && (is_typed || !validator::for_the_origin(fields))
            && !is_overridden(fields)
            && (self.to_validate.is_some() || !is_own)
    }

    /// Whether the answer to this request may answer others: not if it depends on
    /// this client's own conditions.
    fn may_lead(&self) -> bool {
        self.to_validate.is_some() || self.unconditional || !has_conditions(&self.request.fields)
    }

    /// The key, with the values of the request fields by which its responses
    /// vary, as far as those are known.
    fn key_with_variant(
        &self,
        relay: &Relay,
        route: &Route,
        nominated: Option<&Nominated>,
    ) -> Vec<u8> {
        let mut key = self.request.key.as_bytes().to_vec();
        let sent = self.request.forwarded_fields(relay, route);
        let stored = relay.cache.variants(&self.request.key).unwrap_or_default();
        let newest = stored.last().map(|variant| &variant.nominated);
        let secondary = nominated.or(newest).and_then(|fields| fields.key(&sent));
        // A response that does not vary has the same key before this is known.
        if let Some(secondary) = secondary.filter(|secondary| !secondary.as_bytes().is_empty()) {
            // No target holds this byte.
            key.push(0);
            key.extend_from_slice(secondary.as_bytes());
        }
        key
    }

    /// Whether waiting requests may use a response that was just stored without a
    /// validation of their own.
    pub(super) fn is_shareable(&self, variant: &Variant) -> bool {
        let reuse = &variant.reuse;
        !reuse.lifetime().duration.is_zero() && reuse.directives().no_cache != Scope::Whole
    }

    /// Announces an answer that is not shareable, and remembers the key so that
    /// no request waits for it.
    pub(super) fn not_shareable(&self, relay: &Relay) -> Announced {
        // The answer to a special request says nothing about the key.
        let is_plain = self.request.method == Method::GET && self.lacks_fresh();
        if is_plain && self.may_follow(relay) && self.may_lead() {
            self.remember_uncacheable(relay);
        }
        Announced::Unshared
    }

    pub(super) fn remember_uncacheable(&self, relay: &Relay) {
        let now = relay.clock.now();
        let uncacheable = &relay.state.uncacheable;
        uncacheable.remember(&self.uncacheable_key(), now);
    }

    /// Announces a response that was just stored.
    pub(super) fn announcement(&self, relay: &Relay, variant: &Arc<Variant>) -> Announced {
        if !self.is_shareable(variant) {
            return self.not_shareable(relay);
        }
        relay.state.uncacheable.forget(&self.uncacheable_key());
        Announced::Stored(Some(variant.clone()))
    }
}
