//! The request path of plain routes, whose responses follow the origin's own
//! fields: those with mode `respect` or `headers = "all"`.
//!
//! The gateway comes here once it knows the route and the key. [`Fetch::recall`]
//! decides from memory, without waiting. [`Fetch::run`] goes to the upstream
//! (`exchange`): together with other requests for the key where one stored response
//! may answer all of them, alone otherwise. The rules are in `cache`, each quoted
//! beside its code; this module applies them in order.
//!
//! Invariant: only complete responses are stored. A response that is not stored
//! passes through in bounded memory.

mod body;
mod exchange;
mod fields;
mod serve;
mod store;
mod uncacheable;
mod update;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use http::header::{ACCEPT_ENCODING, AUTHORIZATION, CACHE_CONTROL, COOKIE, RANGE};
use http::{HeaderMap, Method, Response, StatusCode, Version};
use tokio::sync::oneshot;
use tokio::time::timeout_at;

use crate::cache::Cache;
use crate::cache::decision::{Basis, Decision, RequestFacts, decide, stale_bounds};
use crate::cache::directives::{RequestDirectives, Scope};
use crate::cache::key::Key;
use crate::cache::outcome::{Forward, Outcome};
use crate::cache::policy::Mode;
use crate::cache::reuse::{Origin, Reuse, applies, may_reuse};
use crate::cache::targeted::TargetList;
use crate::cache::validator;
use crate::cache::variant::Variant;
use crate::clock::{Clock, Moment};
use crate::collapse::{Collapse, FetchError, Lead, Mark, Role, Wait};
use crate::failure_backoff::FailureBackoff;
use crate::identify::{Client, TrustedProxies};
use crate::reason::Reason;
use crate::respond::Responder;
use crate::route::{HeaderMode, Route, RouteTable};
use crate::trace;
use crate::upstream::{Failure, Priority, RequestBody, RequestPriority, Upstreams};
use crate::wire::Body;
use crate::wire::request_id::RequestId;
use exchange::Exchanged;
use fields::{ForwardedFields, has_conditions, is_overridden};
pub(crate) use serve::Request;
use uncacheable::Uncacheable;

/// ordgate's name in `cache-status`, and in the `via` of responses. In the `via`
/// of requests it has a name of its own for each process ([`Relay::pseudonym`]).
const NAME: &str = "ordgate";

/// How often one request joins others before it goes alone.
const ROUNDS: usize = 4;

/// What relaying needs.
pub struct Relay {
    /// The routes.
    pub(crate) routes: Arc<RouteTable>,
    /// The cache.
    pub(crate) cache: Cache,
    /// What survives reloads.
    pub state: RelayState,
    /// The upstreams of the routes.
    pub(crate) upstreams: Arc<Upstreams>,
    /// The keys that failed recently.
    pub(crate) failures: Arc<FailureBackoff>,
    /// Renders responses.
    pub(crate) responder: Arc<Responder>,
    /// The proxies whose forwarding fields are believed.
    pub(crate) trust: TrustedProxies,
    /// The caches whose targeted cache-control fields apply here (RFC 9213).
    pub(crate) targeted_fields: TargetList,
    /// The clock.
    pub(crate) clock: Clock,
    /// The name of this process in the `via` of requests, by which it recognises
    /// requests that have already passed it. No other process has it, so two
    /// ordgates in a row are no loop.
    pub(crate) pseudonym: Arc<str>,
}

/// The state of relaying that survives reloads.
#[derive(Clone)]
pub struct RelayState {
    /// The keys that are being fetched.
    pub fetching: Arc<Collapse<Announced>>,
    uncacheable: Arc<Uncacheable>,
}

impl Default for RelayState {
    fn default() -> Self {
        Self {
            fetching: Collapse::new(),
            uncacheable: Arc::default(),
        }
    }
}

/// What a leader announces to the requests that wait for its key.
#[derive(Clone)]
pub enum Announced {
    /// This is stored now.
    Stored(Arc<Variant>),
    /// Something is stored, or the answer was for the leader alone: look again.
    Again,
    /// The upstream has failed.
    Failed(Failure),
}

/// A client's request.
pub(crate) struct ClientRequest {
    pub(crate) method: Method,
    /// Its fields, as received.
    pub(crate) fields: HeaderMap,
    pub(crate) version: Version,
    pub(crate) key: Key,
    pub(crate) client: Client,
    /// The address of the client's connection.
    pub(crate) peer: IpAddr,
    /// Its id.
    pub(crate) request_id: RequestId,
}

/// A request that goes to the upstream.
pub(crate) struct Fetch {
    pub(crate) relay: Arc<Relay>,
    pub(crate) request: ClientRequest,
    /// Why it is not answered from memory.
    pub(crate) why: Forward,
    /// The selected stored response: it may be used once it is validated, or where
    /// the upstream fails.
    pub(crate) to_validate: Option<Arc<Variant>>,
}

/// The response to one client, and what other requests for the key may do.
struct RelayAnswer {
    response: Response<Body>,
    outcome: Outcome,
    announced: Announced,
}

/// The response, or why there is none.
type RelayResult = Result<RelayAnswer, Failure>;

/// What memory has for a request on a plain route. `/explain` asks it too.
pub(crate) fn decide_plain(
    relay: &Relay,
    route: &Route,
    method: &Method,
    fields: &HeaderMap,
    peer: IpAddr,
    key: &Key,
    now: Moment,
) -> Decision<Arc<Variant>> {
    let directives = RequestDirectives::of(fields);
    let request = RequestFacts {
        not_reusable: applies(method, fields).err(),
        directives: &directives,
        // A typed route forwards no field.
        for_the_origin: route.headers == HeaderMode::All && validator::for_the_origin(fields),
        origin: Origin::Reachable,
    };
    let now = relay.clock.wall(now);
    // The stored response that `Vary` selects, the most recent of several.
    let select = || {
        let sent = ForwardedFields::of(relay, route, fields, peer);
        let variants = relay.cache.variants(key).ok_or(Forward::UriMiss)?;
        let mut newest = variants.iter().rev();
        let matching = newest.find(|variant| variant.answers(&sent));
        matching.cloned().ok_or(Forward::VaryMiss)
    };
    decide(&route.cache, &request, select, |variant| Basis::Origin {
        facts: &variant.reuse,
        now,
    })
}

impl Fetch {
    fn route(&self) -> &Route {
        let route = self.relay.routes.get(self.request.key.route());
        route.expect("a request is routed by the table of its relay")
    }

    /// Its fields as the origin receives them.
    fn sent(&self) -> ForwardedFields<'_> {
        let request = &self.request;
        ForwardedFields::of(&self.relay, self.route(), &request.fields, request.peer)
    }

    fn now(&self) -> SystemTime {
        self.relay.clock.wall(self.relay.clock.now())
    }

    /// How urgent it is.
    pub(crate) fn priority(&self) -> RequestPriority {
        let priority = match self.to_validate {
            Some(_) => Priority::Revalidation,
            None => Priority::Miss,
        };
        RequestPriority {
            client: Some(self.request.client),
            request_id: Some(self.request.request_id),
            route: Some(self.request.key.route()),
            ..RequestPriority::own(priority)
        }
    }

    fn decide(&self) -> Decision<Arc<Variant>> {
        let ClientRequest {
            method,
            fields,
            key,
            peer,
            ..
        } = &self.request;
        let now = self.relay.clock.now();
        decide_plain(&self.relay, self.route(), method, fields, *peer, key, now)
    }

    /// Whether another request for the same response is under way, which this
    /// one would wait for.
    pub(crate) fn joins(&self) -> bool {
        let key = self.shared_key();
        key.is_some_and(|key| self.relay.state.fetching.has(&key))
    }

    /// The response of the upstream: together with other requests where one response may
    /// answer all, alone otherwise. Also says whether another request led.
    ///
    /// # Errors
    /// Why the upstream failed. [`stale`](Self::stale) may answer then.
    pub(crate) async fn run(
        self: &Arc<Self>,
        body: Option<RequestBody>,
        wait: Wait,
    ) -> (Result<(Response<Body>, Outcome), Failure>, bool) {
        let (answer, collapsed) = match body {
            Some(_) => (self.alone(body).await, false),
            None => self.share(wait).await,
        };
        let answer = answer.map(|answer| (answer.response, answer.outcome));
        (answer, collapsed)
    }

    /// Gets the response together with all requests for the same, or alone where
    /// it may not be shared.
    async fn share(self: &Arc<Self>, wait: Wait) -> (RelayResult, bool) {
        let (state, key, arrived) = (&self.relay.state, &self.request.key, self.now());
        for round in 0..ROUNDS {
            let Some(shared) = self.shared_key() else {
                break;
            };
            if let Some(failure) = self.relay.failures.recent(key, self.relay.clock.now()) {
                return (Err(failure), false);
            }
            let follow = match state.fetching.join(&shared, self.mark()) {
                Role::Lead(lead) => {
                    let (give, take) = oneshot::channel();
                    // One request with conditions goes up as it is: its client may have a
                    // response that the origin does not let caches store.
                    let lead = self.clone().lead(lead, Some(give), round > 0);
                    tokio::spawn(trace::inherit(lead));
                    let result = match timeout_at(wait.deadline, take).await {
                        Ok(Ok(result)) => result,
                        Ok(Err(_dropped)) => Err(FetchError::Abandoned.into()),
                        Err(_elapsed) => Err(FetchError::TooLate.into()),
                    };
                    return (result, false);
                }
                Role::Follow(follow) => follow,
            };
            if self
                .relay
                .cache
                .store()
                .may_be_purged(key, follow.mark().purges)
            {
                // Its answer is not for those who come after the purge.
                state.fetching.retire(&shared, &follow);
                continue;
            }
            match follow.wait_beside(wait).await {
                Ok(announced) => {
                    if let Some(result) = self.follow(announced, arrived) {
                        return (result, true);
                    }
                }
                Err(FetchError::Abandoned) => {}
                Err(FetchError::NotSoon) => break,
                Err(FetchError::TooLate) => return (Err(FetchError::TooLate.into()), true),
            }
        }
        // The time spent waiting is part of the client's deadline.
        let result = timeout_at(wait.deadline, self.alone(None)).await;
        (result.unwrap_or(Err(FetchError::TooLate.into())), false)
    }

    fn outcome(&self, status: Option<StatusCode>, stored: bool, collapsed: bool) -> Outcome {
        Outcome::Forwarded {
            why: self.why,
            status,
            stored,
            collapsed,
        }
    }

    fn mark(&self) -> Mark {
        Mark {
            purges: self.purges(),
            epoch: 0,
        }
    }

    /// The number of the last purge.
    fn purges(&self) -> u64 {
        self.relay.cache.store().purges()
    }

    /// Fetches for this client alone.
    async fn alone(self: &Arc<Self>, body: Option<RequestBody>) -> RelayResult {
        match self.exchange(body, false).await {
            Exchanged::Done(result) => *result,
            Exchanged::Streaming(answer, collecting) => {
                tokio::spawn(trace::inherit(collecting.run()));
                Ok(*answer)
            }
        }
    }

    /// Validates a response that was served stale (RFC 5861 §3), unless another
    /// request does so already.
    pub(crate) async fn refresh(self: Arc<Self>) {
        let mut own = self.as_get();
        own.request.fields.remove(CACHE_CONTROL);
        if own.route().headers == HeaderMode::Typed {
            // Its answer goes to no client, so it is no request for a coding.
            own.request.fields.remove(ACCEPT_ENCODING);
        }
        own.to_validate = match own.decide() {
            Decision::Serve { stored, .. } => Some(stored),
            Decision::Fetch { stored, .. } => stored,
            Decision::OnlyIfCached => None,
        };
        let key = own.key_with_variant();
        if let Role::Lead(lead) = self.relay.state.fetching.join(&key, own.mark()) {
            Arc::new(own).lead(lead, None, false).await;
        }
    }

    /// Fetches for all that wait. The fetch belongs to no connection; the leader's own
    /// client has its response through `give` as soon as it begins.
    async fn lead(
        self: Arc<Self>,
        lead: Lead<Announced>,
        give: Option<oneshot::Sender<RelayResult>>,
        unconditional: bool,
    ) {
        let give = |result| {
            if let Some(give) = give {
                // Fails if the client has disconnected.
                let _given = give.send(result).is_ok();
            }
        };
        let exchanged = match self.stored_meanwhile() {
            Some(answer) => Exchanged::Done(Box::new(Ok(answer))),
            None => self.exchange(None, unconditional).await,
        };
        let announced = match exchanged {
            Exchanged::Done(result) => {
                let announced = match &*result {
                    Ok(answer) => answer.announced.clone(),
                    Err(failure) => Announced::Failed(failure.clone()),
                };
                give(*result);
                announced
            }
            Exchanged::Streaming(answer, collecting) => {
                give(Ok(*answer));
                lead.coming();
                collecting.run().await
            }
        };
        let (failures, key) = (&self.relay.failures, &self.request.key);
        match &announced {
            Announced::Failed(failure) => failures.fail(key, failure, self.relay.clock.now()),
            Announced::Stored(_) | Announced::Again => failures.forget(key),
        }
        lead.finish(announced);
    }

    /// A response that another leader has stored since this request looked.
    fn stored_meanwhile(&self) -> Option<RelayAnswer> {
        match self.decide() {
            Decision::Serve {
                stored,
                reuse: Reuse::Fresh,
            } => {
                let now = self.now();
                let outcome = Outcome::Hit {
                    ttl: stored.reuse.ttl(now),
                };
                Some(self.answer_from(&stored, outcome, now, Announced::Stored(stored.clone())))
            }
            Decision::Serve { .. } | Decision::Fetch { .. } | Decision::OnlyIfCached => None,
        }
    }

    /// What the leader's announcement means for this request, which arrived at a
    /// given time; `None` where it joins others again, or leads.
    fn follow(&self, announced: Announced, arrived: SystemTime) -> Option<RelayResult> {
        match announced {
            Announced::Stored(variant) if self.may_use(&variant, arrived) => {
                let outcome = self.outcome(Some(variant.status), false, true);
                let again = Announced::Again;
                Some(Ok(self.answer_from(&variant, outcome, self.now(), again)))
            }
            // Another variant is stored, or the client wants a newer one.
            Announced::Stored(_) | Announced::Again => None,
            // The leader's client has used up its share; this one may have not.
            Announced::Failed(failure) if failure.is_of_client() => None,
            Announced::Failed(failure) => Some(Err(failure)),
        }
    }

    /// Whether a response that was just stored answers this request. One that was
    /// waiting when it was received, and has no directives about its age, may use it
    /// however long it took to arrive.
    fn may_use(&self, variant: &Variant, arrived: SystemTime) -> bool {
        let directives = RequestDirectives::of(&self.request.fields);
        let wants_age = directives.max_age.is_some() || directives.min_fresh.is_some();
        let waited = arrived <= variant.received && !wants_age;
        let bounds = stale_bounds(&self.route().cache);
        let origin = Origin::Reachable;
        let store = self.relay.cache.store();
        variant.answers(&self.sent())
            && !store.variant_was_purged(&self.request.key, variant)
            && (waited
                || may_reuse(&directives, &variant.reuse, self.now(), origin, &bounds).is_ok())
    }

    /// Whether the selected stored response may be served stale (RFC 5861 §4, RFC
    /// 9111 §4.2.4).
    fn may_be_stale(&self, origin: Origin) -> bool {
        let directives = RequestDirectives::of(&self.request.fields);
        let bounds = stale_bounds(&self.route().cache);
        self.to_validate.as_ref().is_some_and(|chosen| {
            let reuse = may_reuse(&directives, &chosen.reuse, self.now(), origin, &bounds);
            reuse == Ok(Reuse::IfError)
                && !(self.relay.cache.store()).variant_was_purged(&self.request.key, chosen)
        })
    }

    /// The stale stored response in place of an answer, where that is allowed: the
    /// upstream has answered with an error, or there is no answer.
    pub(crate) fn stale(
        &self,
        received: Option<StatusCode>,
        reason: Reason,
    ) -> Option<(Response<Body>, Outcome)> {
        let origin = match received.map(Origin::after) {
            Some(Origin::Failed) => Origin::Failed,
            Some(Origin::Reachable | Origin::Disconnected) | None => Origin::Disconnected,
        };
        let chosen = self.to_validate.as_ref();
        let chosen = chosen.filter(|_| self.may_be_stale(origin))?;
        let now = self.now();
        let outcome = Outcome::StaleIfError {
            ttl: chosen.reuse.ttl(now),
            reason,
        };
        Some((self.as_request().serve(chosen, outcome, now), outcome))
    }

    /// The key under which this request is collapsed with others; `None` where it
    /// may not be: it must be a GET that lacks a fresh stored response.
    fn shared_key(&self) -> Option<Vec<u8>> {
        let route = self.route();
        let is_get = route.headers == HeaderMode::Typed || self.request.method == Method::GET;
        let now = self.relay.clock.now();
        let may_share = is_get
            && route.cache.mode == Mode::Respect
            && self.lacks_fresh()
            && self.may_follow()
            && !(self.relay.state.uncacheable).has(&self.uncacheable_key(), now);
        may_share.then(|| self.key_with_variant())
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
            && (self.to_validate.is_some() || !is_own)
    }

    /// The key, with the values of the request fields by which its responses
    /// vary, as far as those are known.
    fn key_with_variant(&self) -> Vec<u8> {
        let mut key = self.request.key.as_bytes().to_vec();
        let stored = self.relay.cache.variants(&self.request.key);
        let newest = stored.as_ref().and_then(|stored| stored.last());
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
    fn not_shared(&self, status: StatusCode) -> Announced {
        // An error may pass at once, and the answer to a special request says nothing
        // about the key.
        let is_plain = self.request.method == Method::GET && self.lacks_fresh();
        let leads = self.to_validate.is_some() || !has_conditions(&self.request.fields);
        if !status.is_server_error() && is_plain && self.may_follow() && leads {
            let now = self.relay.clock.now();
            (self.relay.state.uncacheable).remember(&self.uncacheable_key(), now);
        }
        Announced::Again
    }

    /// What other requests may do with a response that was just stored: use it
    /// without a validation of their own, if that is allowed.
    fn shared(&self, variant: &Arc<Variant>) -> Announced {
        let reuse = &variant.reuse;
        let is_shareable =
            !reuse.lifetime().duration.is_zero() && reuse.directives().no_cache != Scope::Whole;
        if !is_shareable {
            return self.not_shared(variant.status);
        }
        (self.relay.state.uncacheable).forget(&self.uncacheable_key());
        Announced::Stored(variant.clone())
    }

    /// This request as a GET, whose answer may be stored.
    fn as_get(&self) -> Self {
        let request = &self.request;
        Self {
            relay: self.relay.clone(),
            request: ClientRequest {
                method: Method::GET,
                fields: request.fields.clone(),
                key: request.key.clone(),
                ..*request
            },
            why: self.why,
            to_validate: None,
        }
    }
}
