//! The walk of routes whose answers obey the origin's own fields: mode
//! `respect`, and `headers = "all"`.
//!
//! The gateway comes here once it knows the route and the key. `recall` says,
//! without waiting, what memory has; `Errand::run` goes forward. The rules are
//! in `cache`'s rooms, each under its RFC's sentence; what happens in which
//! order is here.
//!
//! Invariant: what is stored was read whole. What is not stored passes through
//! in constant memory.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{
    ACCEPT, AGE, CONTENT_LENGTH, DATE, EXPECT, HOST, HeaderName, HeaderValue, IF_MODIFIED_SINCE,
    IF_NONE_MATCH, RANGE, TRANSFER_ENCODING, USER_AGENT,
};
use http::{HeaderMap, Method, Response, StatusCode, Version, response};
use http_body_util::BodyExt;
use tokio::sync::oneshot;

use crate::cache::directives::RequestDirectives;
use crate::cache::freshen::{
    HeadEffect, Identified, freshen, head_effect, identify, not_modified_fields,
};
use crate::cache::freshness::Heuristic;
use crate::cache::key::Key;
use crate::cache::outcome::Outcome;
use crate::cache::policy::{Mode, Policy};
use crate::cache::range::{self, Multipart, Selection};
use crate::cache::reuse::{self, Bounds, Decision, Origin, decide};
use crate::cache::status::{CACHE_STATUS, Forward};
use crate::cache::storable::{Exchange as Stores, storable, stored_fields};
use crate::cache::store::{Variant, Variants};
use crate::cache::targeted::TargetList;
use crate::cache::validator::{self, Representation, evaluate, make_conditional};
use crate::cache::vary::Nominated;
use crate::cache::{Cache, date, hop, invalidate};
use crate::clock::{Clock, Moment};
use crate::collapse::{Collapse, Turn};
use crate::refusal::Refusal;
use crate::respond::Respond;
use crate::route::{Headers, Route, RouteTable};
use crate::upstream::answer::{judge_body, judge_head};
use crate::upstream::{Exchange, Failure, RequestBody, TimedOut, Upstream};
use crate::wire::Body;
use crate::wire::body::Passing;

/// What ordgate is called in `via` and `cache-status`.
const NAME: &str = "ordgate";

/// The keys that are being fetched: `true` once what came was stored.
pub type Fetching = Collapse<Result<bool, Failure>>;

/// What relaying needs of the house.
pub struct Relay {
    /// Which requests there are.
    pub routes: Arc<RouteTable>,
    /// What is in memory.
    pub cache: Cache,
    /// The keys that are being fetched.
    pub fetching: Arc<Fetching>,
    /// Who knows what we do not.
    pub upstream: Arc<Upstream>,
    /// How answers are said.
    pub respond: Arc<Respond>,
    /// Whose cache directives are obeyed.
    pub targets: TargetList,
    /// What time it is.
    pub clock: Clock,
    /// Makes boundaries that nobody can guess.
    pub seed: u64,
}

/// What a request asks, as the rules see it.
pub(crate) struct Ask {
    /// Its method.
    pub(crate) method: Method,
    /// Its fields, as they came.
    pub(crate) fields: HeaderMap,
    /// The version it came in.
    pub(crate) version: Version,
    /// What it asks for.
    pub(crate) key: Key,
    /// Its body, where it has one.
    pub(crate) body: Option<RequestBody>,
}

/// What memory says of a request.
pub(crate) enum Recall {
    /// The answer.
    Answer {
        /// It.
        response: Response<Body>,
        /// How it came about.
        outcome: Outcome,
        /// Whether it is to be validated meanwhile (RFC 5861 §3).
        refresh: bool,
    },
    /// Go forward.
    Forward {
        /// Why.
        why: Forward,
        /// What is stored and would do if it were validated.
        chosen: Option<Arc<Variant>>,
    },
    /// The client wants no forwarding (RFC 9111 §5.2.1.7).
    OnlyIfCached,
}

/// The fields that a rule sees of a client's request. On a typed route nothing
/// of the client's goes up, so nothing of it can have changed the answer.
fn sent<'a>(route: &Route, fields: &'a HeaderMap, none: &'a HeaderMap) -> &'a HeaderMap {
    match route.headers {
        Headers::All => fields,
        Headers::Typed => none,
    }
}

fn bounds(policy: &Policy) -> Bounds {
    Bounds {
        failed: policy.stale_if_error,
        disconnected: policy.stale_if_error,
    }
}

/// What memory has for a request, without waiting for anything.
pub(crate) fn recall(
    relay: &Relay,
    route: &Route,
    method: &Method,
    fields: &HeaderMap,
    key: &Key,
    now: Moment,
) -> Recall {
    let forward = |why, chosen| Recall::Forward { why, chosen };
    if route.cache.mode != Mode::Respect {
        return forward(Forward::Bypass, None);
    }
    if let Err(why) = reuse::applies(method, fields) {
        return forward(why, None);
    }
    let directives = RequestDirectives::of(fields);
    let none = HeaderMap::new();
    let (why, chosen) = match choose(relay, key, sent(route, fields, &none)) {
        Err(why) => (why, None),
        Ok(chosen) => (Forward::Request, Some(chosen)),
    };
    let Some(chosen) = chosen.filter(|_| !validator::for_the_origin(fields)) else {
        return match directives.only_if_cached {
            true => Recall::OnlyIfCached,
            false => forward(why, None),
        };
    };
    let wall = relay.clock.wall(now);
    let decision = decide(
        &directives,
        &chosen.reuse,
        wall,
        Origin::Reachable,
        &bounds(&route.cache),
    );
    match decision {
        Decision::Fresh
        | Decision::MaxStale
        | Decision::StaleWhileRevalidate
        | Decision::StaleIfError => {
            let outcome = Outcome::Hit {
                ttl: chosen.reuse.ttl(wall),
            };
            Recall::Answer {
                response: serve(relay, route, &chosen, method, fields, key, outcome, wall),
                outcome,
                refresh: decision == Decision::StaleWhileRevalidate,
            }
        }
        Decision::Validate(why) => forward(why, Some(chosen)),
        Decision::OnlyIfCached => Recall::OnlyIfCached,
    }
}

/// The stored response that `Vary` selects, the most recent of several.
fn choose(relay: &Relay, key: &Key, sent: &HeaderMap) -> Result<Arc<Variant>, Forward> {
    let variants = relay.cache.variants(key).ok_or(Forward::UriMiss)?;
    let matching = variants
        .iter()
        .rev()
        .find(|v| v.nominated.matches(&v.secondary, sent));
    matching.cloned().ok_or(Forward::VaryMiss)
}

/// Answers with a stored response: whole, in part, or as 304.
#[expect(
    clippy::too_many_arguments,
    reason = "each is a different noun of the request"
)]
fn serve(
    relay: &Relay,
    route: &Route,
    variant: &Variant,
    method: &Method,
    fields: &HeaderMap,
    key: &Key,
    outcome: Outcome,
    now: SystemTime,
) -> Response<Body> {
    let representation = Representation {
        status: variant.status,
        headers: &variant.fields,
        received: variant.received,
    };
    let length = variant.body.len() as u64;
    let whole = || Body::new(variant.body.clone());
    let (status, mut answer, body) = match evaluate(method, fields, &representation) {
        validator::Outcome::NotModified => (
            StatusCode::NOT_MODIFIED,
            not_modified_fields(&variant.fields),
            Body::default(),
        ),
        validator::Outcome::Full | validator::Outcome::Forward => {
            match range::select(method, fields, variant.status, &variant.fields, length) {
                Selection::Whole => (variant.status, variant.fields.clone(), whole()),
                Selection::One(span) => (
                    StatusCode::PARTIAL_CONTENT,
                    range::single_fields(&variant.fields, span, length),
                    Body::new(slice(&variant.body, span)),
                ),
                Selection::Many(spans) => many(relay, variant, &spans),
                Selection::Unsatisfiable => {
                    let mut unsatisfied = HeaderMap::new();
                    let range = range::unsatisfied_range(length);
                    unsatisfied.insert(http::header::CONTENT_RANGE, range);
                    (
                        StatusCode::RANGE_NOT_SATISFIABLE,
                        unsatisfied,
                        Body::default(),
                    )
                }
            }
        }
    };
    answer.insert(AGE, variant.reuse.aging().field(now));
    finish(relay, route, &mut answer, key, outcome);
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = answer;
    response
}

fn slice(body: &Bytes, span: range::Span) -> Bytes {
    let at = |offset: u64| usize::try_from(offset).unwrap_or(usize::MAX);
    body.slice(at(span.first)..at(span.last + 1))
}

fn many(relay: &Relay, variant: &Variant, spans: &[range::Span]) -> (StatusCode, HeaderMap, Body) {
    let content_type = variant.fields.get(http::header::CONTENT_TYPE);
    // Unlike anything in the body but by chance; nobody can choose it.
    let boundary = format!("{:016x}{:016x}", relay.seed, relay.clock.now().nanos());
    let parts = Multipart::new(spans, variant.body.len() as u64, content_type, &boundary);
    let fields = parts.fields(&variant.fields);
    let mut pieces = std::collections::VecDeque::new();
    for (text, span) in parts.parts {
        pieces.push_back(text);
        pieces.push_back(slice(&variant.body, span));
    }
    pieces.push_back(parts.tail);
    (StatusCode::PARTIAL_CONTENT, fields, Body::Pieces(pieces))
}

/// What every answer of these routes says last: how it came about.
fn finish(relay: &Relay, route: &Route, fields: &mut HeaderMap, key: &Key, outcome: Outcome) {
    if route.headers == Headers::Typed {
        keep_typed(fields);
    }
    let said = relay.respond.cache_status(outcome, key.target());
    fields.append(CACHE_STATUS, said);
}

/// Says something else than what was said last of how an answer came about;
/// what other caches have said before stays.
fn say_instead(fields: &mut HeaderMap, said: HeaderValue) {
    if let http::header::Entry::Occupied(entry) = fields.entry(CACHE_STATUS) {
        let (name, all) = entry.remove_entry_mult();
        let mut all: Vec<_> = all.collect();
        all.pop();
        for value in all {
            fields.append(&name, value);
        }
    }
    fields.append(CACHE_STATUS, said);
}

/// The fields of the upstream that a typed route hands on.
fn keep_typed(fields: &mut HeaderMap) {
    const KEPT: [HeaderName; 14] = [
        AGE,
        http::header::CACHE_CONTROL,
        http::header::CONTENT_ENCODING,
        http::header::CONTENT_LANGUAGE,
        CONTENT_LENGTH,
        http::header::CONTENT_RANGE,
        http::header::CONTENT_TYPE,
        DATE,
        http::header::ETAG,
        http::header::EXPIRES,
        http::header::LAST_MODIFIED,
        http::header::VARY,
        http::header::VIA,
        CACHE_STATUS,
    ];
    let names: Vec<_> = fields
        .keys()
        .filter(|name| !KEPT.contains(name))
        .cloned()
        .collect();
    for name in names {
        fields.remove(name);
    }
}

/// A way forward: what is asked, why, and what is stored that might do.
pub(crate) struct Errand {
    /// What is asked.
    pub(crate) ask: Ask,
    /// Why memory does not answer.
    pub(crate) why: Forward,
    /// What would do if it were validated.
    pub(crate) chosen: Option<Arc<Variant>>,
}

/// What came of going forward.
struct Came {
    response: Response<Body>,
    outcome: Outcome,
    stored: bool,
}

impl Errand {
    /// Goes forward: with others for one cold key, alone otherwise.
    ///
    /// # Errors
    /// How the upstream failed, and nothing stored may stand in.
    pub(crate) async fn run(
        self,
        relay: &Arc<Relay>,
    ) -> Result<(Response<Body>, Outcome), (Refusal, Outcome)> {
        let route = self.ask.key.route();
        let Some(route) = relay.routes.routes().get(usize::from(route)) else {
            let nothing = forwarded(self.why, None, false, false);
            return Err((Refusal::NoRoute, nothing));
        };
        if !self.collapses() {
            return self.alone(relay, route, false).await;
        }
        match relay.fetching.join(&self.ask.key) {
            Turn::Lead(lead) => {
                // Between our looking and our leading, another leader may have
                // come and gone.
                let (ask, now) = (&self.ask, relay.clock.now());
                if let Recall::Answer {
                    response, outcome, ..
                } = recall(relay, route, &ask.method, &ask.fields, &ask.key, now)
                {
                    lead.finish(Ok(true));
                    return Ok((response, outcome));
                }
                // What is fetched belongs to no connection; what passes through
                // goes to this one alone.
                let (give, take) = oneshot::channel();
                let (relay, why) = (relay.clone(), self.why);
                tokio::spawn(async move {
                    let key = self.ask.key.clone();
                    let Some(route) = relay.routes.routes().get(usize::from(key.route())) else {
                        return;
                    };
                    let came = self.forward(&relay, route, false).await;
                    lead.finish(match &came {
                        Ok(came) => Ok(came.stored),
                        Err((failure, _)) => Err(failure.clone()),
                    });
                    // Nobody takes it where the client has gone.
                    let _ = give.send(came);
                });
                match take.await {
                    Ok(came) => told(came),
                    Err(_gone) => {
                        let refusal = Refusal::Upstream(Failure::Abandoned);
                        Err((refusal, forwarded(why, None, false, false)))
                    }
                }
            }
            Turn::Follow(follow) => {
                let patience = relay.upstream.patience() + Duration::from_secs(1);
                let fetched = match tokio::time::timeout(patience, follow.wait()).await {
                    Ok(Ok(fetched)) => fetched,
                    Ok(Err(_abandoned)) => Err(Failure::Abandoned),
                    Err(_elapsed) => Err(Failure::TimedOut(TimedOut::Whole)),
                };
                match fetched {
                    Ok(true) => {
                        let now = relay.clock.now();
                        let ask = &self.ask;
                        let recalled =
                            recall(relay, route, &ask.method, &ask.fields, &ask.key, now);
                        match recalled {
                            Recall::Answer { mut response, .. } => {
                                let outcome =
                                    forwarded(self.why, Some(response.status()), false, true);
                                let said = relay.respond.cache_status(outcome, ask.key.target());
                                say_instead(response.headers_mut(), said);
                                Ok((response, outcome))
                            }
                            // Not for this request, or not without validation.
                            Recall::Forward { .. } | Recall::OnlyIfCached => {
                                self.alone(relay, route, false).await
                            }
                        }
                    }
                    Ok(false) => self.alone(relay, route, false).await,
                    Err(failure) => {
                        let outcome = forwarded(self.why, failure.upstream_status(), false, true);
                        Err((Refusal::Upstream(failure), outcome))
                    }
                }
            }
        }
    }

    /// Validates what was served stale (RFC 5861 §3), unless another does so
    /// already.
    pub(crate) async fn refresh(mut self, relay: Arc<Relay>) {
        let Turn::Lead(lead) = relay.fetching.join(&self.ask.key) else {
            return;
        };
        let Some(route) = relay.routes.routes().get(usize::from(self.ask.key.route())) else {
            return;
        };
        let none = HeaderMap::new();
        self.chosen = choose(&relay, &self.ask.key, sent(route, &self.ask.fields, &none)).ok();
        self.ask.method = Method::GET;
        self.ask.fields.remove(http::header::CACHE_CONTROL);
        // Another may have validated it since it was served.
        let (ask, now) = (&self.ask, relay.clock.now());
        if let Recall::Answer { refresh: false, .. } =
            recall(&relay, route, &ask.method, &ask.fields, &ask.key, now)
        {
            lead.finish(Ok(true));
            return;
        }
        let came = self.forward(&relay, route, false).await;
        lead.finish(match came {
            Ok(came) => Ok(came.stored),
            Err((failure, _)) => Err(failure),
        });
    }

    /// Whether others may wait for this request's answer: a plain GET for what
    /// nobody has.
    fn collapses(&self) -> bool {
        let fields = &self.ask.fields;
        let directives = RequestDirectives::of(fields);
        let own = [
            RANGE,
            IF_NONE_MATCH,
            IF_MODIFIED_SINCE,
            http::header::AUTHORIZATION,
        ];
        self.why == Forward::UriMiss
            && self.ask.method == Method::GET
            && !directives.no_store
            && !directives.no_cache
            && !validator::for_the_origin(fields)
            && !own.iter().any(|name| fields.contains_key(name))
    }

    async fn alone(
        self,
        relay: &Arc<Relay>,
        route: &Route,
        again: bool,
    ) -> Result<(Response<Body>, Outcome), (Refusal, Outcome)> {
        told(Box::pin(self.forward(relay, route, again)).await)
    }

    /// Sends the request up and makes of the answer what the rules say.
    async fn forward(
        mut self,
        relay: &Arc<Relay>,
        route: &Route,
        unconditional: bool,
    ) -> Result<Came, (Failure, Outcome)> {
        let body = self.ask.body.take();
        let had_body = body.is_some();
        let (fields, conditional) = self.fields_up(relay, route, unconditional, had_body);
        let method = match route.headers {
            // A typed route asks GET: HEAD costs the upstream as much.
            Headers::Typed => Method::GET,
            Headers::All => self.ask.method.clone(),
        };
        let requested = relay.clock.wall(relay.clock.now());
        let exchanged = relay
            .upstream
            .exchange(method, self.ask.key.target(), fields, body)
            .await;
        let received = relay.clock.wall(relay.clock.now());
        let exchange = match exchanged {
            Ok(exchange) => exchange,
            Err(failure) => return self.failed(relay, route, failure, Origin::Disconnected),
        };
        if !conditional || exchange.head.status != StatusCode::NOT_MODIFIED {
            if Origin::after(exchange.head.status) == Origin::Failed
                && let Some(came) = self.stand_in(relay, route, Origin::Failed)
            {
                return Ok(came);
            }
            let times = Times {
                requested,
                received,
            };
            return self.came(relay, route, exchange, times).await;
        }
        match self.validated(
            relay,
            route,
            &exchange.head,
            Times {
                requested,
                received,
            },
        ) {
            Some(came) => Ok(came),
            // It speaks of something that is not stored (any more).
            None if !unconditional && !had_body => Box::pin(self.forward(relay, route, true)).await,
            None => self.failed(relay, route, Failure::Protocol, Origin::Failed),
        }
    }

    /// The fields that go up, and whether they ask for a validation.
    fn fields_up(
        &self,
        relay: &Relay,
        route: &Route,
        unconditional: bool,
        has_body: bool,
    ) -> (HeaderMap, bool) {
        let mut fields = match route.headers {
            Headers::All => self.ask.fields.clone(),
            Headers::Typed => {
                let mut fields = HeaderMap::new();
                fields.insert(ACCEPT, HeaderValue::from_static("application/json"));
                let agent =
                    HeaderValue::from_static(concat!("ordgate/", env!("CARGO_PKG_VERSION")));
                fields.insert(USER_AGENT, agent);
                fields
            }
        };
        hop::strip(&mut fields);
        // The upstream's own host is asked; hyper says 100 to a client itself.
        fields.remove(HOST);
        fields.remove(EXPECT);
        if route.headers == Headers::All {
            hop::add_via(&mut fields, self.ask.version, NAME);
        }
        if has_body && !fields.contains_key(CONTENT_LENGTH) {
            // hyper would send a GET without it, and drop the body.
            let chunked = HeaderValue::from_static("chunked");
            fields.insert(TRANSFER_ENCODING, chunked);
        }
        let safe = matches!(self.ask.method, Method::GET | Method::HEAD);
        if route.cache.mode != Mode::Respect || !safe || has_body {
            return (fields, false);
        }
        if unconditional {
            return (without_conditions(fields), false);
        }
        let variants = relay.cache.variants(&self.ask.key);
        let others = variants.as_deref().unwrap_or_default();
        if self.chosen.is_none() && (others.is_empty() || self.why != Forward::VaryMiss) {
            // Nothing of ours to validate: the client's own conditions go up.
            return (fields, false);
        }
        if self.chosen.is_none() && has_conditions(&fields) {
            return (fields, false);
        }
        let chosen = self.chosen.as_ref().map(|chosen| &chosen.fields);
        let conditional = make_conditional(&mut fields, chosen, others.iter().map(|v| &v.fields));
        (fields, conditional)
    }

    /// A stored response in place of an answer, where the rules and the bounds
    /// allow that (RFC 5861 §4, RFC 9111 §4.2.4).
    fn stand_in(&self, relay: &Relay, route: &Route, origin: Origin) -> Option<Came> {
        let chosen = self.chosen.as_ref()?;
        let now = relay.clock.wall(relay.clock.now());
        let directives = RequestDirectives::of(&self.ask.fields);
        let decision = decide(
            &directives,
            &chosen.reuse,
            now,
            origin,
            &bounds(&route.cache),
        );
        if decision != Decision::StaleIfError {
            return None;
        }
        let outcome = Outcome::StaleIfError {
            ttl: chosen.reuse.ttl(now),
        };
        Some(self.with(relay, route, chosen, outcome, now, true))
    }

    fn with(
        &self,
        relay: &Relay,
        route: &Route,
        variant: &Variant,
        outcome: Outcome,
        now: SystemTime,
        stored: bool,
    ) -> Came {
        let ask = &self.ask;
        let response = serve(
            relay,
            route,
            variant,
            &ask.method,
            &ask.fields,
            &ask.key,
            outcome,
            now,
        );
        Came {
            response,
            outcome,
            stored,
        }
    }

    fn failed(
        &self,
        relay: &Relay,
        route: &Route,
        failure: Failure,
        origin: Origin,
    ) -> Result<Came, (Failure, Outcome)> {
        failure.report(self.ask.key.target());
        let outcome = forwarded(self.why, failure.upstream_status(), false, false);
        self.stand_in(relay, route, origin)
            .ok_or((failure, outcome))
    }

    /// A 304 to a question of ours: freshens what it names, and answers from
    /// there. `None` where it names nothing that is stored.
    fn validated(
        &self,
        relay: &Relay,
        route: &Route,
        head: &response::Parts,
        times: Times,
    ) -> Option<Came> {
        let key = &self.ask.key;
        let variants: Variants = relay.cache.variants(key).unwrap_or_default();
        let initial: Vec<_> = variants.iter().map(|variant| &variant.fields).collect();
        let status = Some(StatusCode::NOT_MODIFIED);
        let outcome = |stored| forwarded(self.why, status, stored, false);
        let now = times.received;
        let places = match identify(&head.headers, &initial) {
            Identified::Stored(places) => places,
            Identified::Unnamed => {
                let chosen = self.chosen.as_ref().or(variants.last())?;
                return Some(self.with(relay, route, chosen, outcome(false), now, true));
            }
            // A 304 that names another validator than the one that was asked
            // about still says that what was asked about will do (RFC 9111
            // §4.3.3); it must not update it (§4.3.4).
            Identified::Other if self.chosen.is_some() && variants.len() == 1 => {
                let chosen = self.chosen.as_ref()?;
                return Some(self.with(relay, route, chosen, outcome(false), now, true));
            }
            Identified::Other => return None,
        };
        let none = HeaderMap::new();
        let sent = sent(route, &self.ask.fields, &none);
        let mut answer: Option<(Arc<Variant>, bool)> = None;
        for place in places {
            let old = variants.get(place)?;
            let mut fields = old.fields.clone();
            freshen(&mut fields, &head.headers, times.received);
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
            relay.cache.store().amend(key, |variants| {
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
        Some(self.with(relay, route, &variant, outcome(kept), now, kept))
    }

    /// Makes what would be stored of a response; and whether it may be.
    fn variant(
        &self,
        relay: &Relay,
        route: &Route,
        status: StatusCode,
        fields: &HeaderMap,
        body: Bytes,
        times: Times,
    ) -> (Variant, bool) {
        let targets = &relay.targets;
        let governing = targets.governing(fields);
        let kept = self.may_store(relay, route, status, fields, targets);
        let none = HeaderMap::new();
        let sent = sent(route, &self.ask.fields, &none);
        let nominated = match route.headers {
            Headers::All => Nominated::of(fields),
            Headers::Typed => Nominated::of(&none),
        };
        let reuse = reuse::Stored::of(
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

    fn may_store(
        &self,
        relay: &Relay,
        route: &Route,
        status: StatusCode,
        response: &HeaderMap,
        targets: &TargetList,
    ) -> bool {
        let Ok(target) = relay.upstream.uri(self.ask.key.target()) else {
            return false;
        };
        let method = match route.headers {
            Headers::Typed => &Method::GET,
            Headers::All => &self.ask.method,
        };
        let exchange = Stores {
            method,
            target: &target,
            request: &self.ask.fields,
            directives: &RequestDirectives::of(&self.ask.fields),
            status,
            response,
            governing: &targets.governing(response),
        };
        *method == Method::GET && route.cache.mode == Mode::Respect && storable(&exchange).is_ok()
    }

    /// An answer of the upstream's own: stored where it may be, passed on
    /// otherwise.
    async fn came(
        &self,
        relay: &Arc<Relay>,
        route: &Route,
        exchange: Exchange,
        times: Times,
    ) -> Result<Came, (Failure, Outcome)> {
        let Exchange { head, body, place } = exchange;
        let status = head.status;
        let mut fields = head.headers;
        if route.headers == Headers::Typed
            && let Err(failure) = judge_head(status, &fields, times.received)
        {
            return self.failed(relay, route, failure, Origin::Disconnected);
        }
        let values = fields.values().map(HeaderValue::as_bytes);
        if let Err(failure) = relay.upstream.search(values) {
            return self.failed(relay, route, failure, Origin::Disconnected);
        }
        let length = match one_length(head.version, &mut fields) {
            Ok(length) => length,
            Err(failure) => return self.failed(relay, route, failure, Origin::Disconnected),
        };
        self.invalidate(relay, route, status, &fields);
        let kept = self.may_store(relay, route, status, &fields, &relay.targets);
        // RFC 9110 §6.6.1: a response without a date gets that of its receipt.
        fields
            .entry(DATE)
            .or_insert_with(|| date::value(times.received));
        hop::add_via(&mut fields, head.version, NAME);
        let settings = relay.upstream.settings();
        let most = settings.max_body_bytes.min(relay.cache.store().most_body());
        let typed = route.headers == Headers::Typed;
        let body = match kept || typed {
            true if length.is_none_or(|length| length <= most) => {
                let read = tokio::time::timeout(settings.timeout, read(body, most)).await;
                match read {
                    Ok(Ok(read)) => read,
                    Ok(Err(failure)) => {
                        return self.failed(relay, route, failure, Origin::Disconnected);
                    }
                    Err(_elapsed) => {
                        let failure = Failure::TimedOut(TimedOut::Whole);
                        return self.failed(relay, route, failure, Origin::Disconnected);
                    }
                }
            }
            _ => Read::Beyond(std::collections::VecDeque::new(), body),
        };
        let (begun, rest) = match body {
            Read::Whole(body) => {
                if let Err(failure) = relay.upstream.search([&*body]) {
                    return self.failed(relay, route, failure, Origin::Disconnected);
                }
                if typed && let Err(failure) = judge_body(&body) {
                    return self.failed(relay, route, failure, Origin::Disconnected);
                }
                return Ok(self.whole(relay, route, status, &fields, body, times));
            }
            Read::Beyond(..) if typed => {
                return self.failed(relay, route, Failure::TooLarge, Origin::Disconnected);
            }
            Read::Beyond(begun, rest) => (begun, rest),
        };
        hop::strip(&mut fields);
        let outcome = forwarded(self.why, Some(status), false, false);
        finish(relay, route, &mut fields, &self.ask.key, outcome);
        let mut response = Response::new(Body::Passing(Box::new(Passing {
            begun,
            rest,
            patience: settings.first_byte_timeout,
            place,
            silence: None,
        })));
        *response.status_mut() = status;
        *response.headers_mut() = fields;
        Ok(Came {
            response,
            outcome,
            stored: false,
        })
    }

    /// An answer that was read whole: stored where it may be.
    fn whole(
        &self,
        relay: &Relay,
        route: &Route,
        status: StatusCode,
        fields: &HeaderMap,
        body: Bytes,
        times: Times,
    ) -> Came {
        let (variant, kept) = self.variant(relay, route, status, fields, body, times);
        let variant = Arc::new(variant);
        if kept {
            let none = HeaderMap::new();
            let sent = sent(route, &self.ask.fields, &none);
            relay.cache.store().amend(&self.ask.key, |variants| {
                // It takes the place of what would have been chosen before.
                variants.retain(|v| !v.nominated.matches(&v.secondary, sent));
                variants.push(variant.clone());
            });
        }
        let outcome = forwarded(self.why, Some(status), kept, false);
        let now = times.received;
        if kept {
            return self.with(relay, route, &variant, outcome, now, true);
        }
        let mut answer = fields.clone();
        hop::strip(&mut answer);
        finish(relay, route, &mut answer, &self.ask.key, outcome);
        let mut response = Response::new(Body::new(variant.body.clone()));
        *response.status_mut() = status;
        *response.headers_mut() = answer;
        Came {
            response,
            outcome,
            stored: false,
        }
    }

    /// What an answer changes of what is stored beside itself: an unsafe method
    /// invalidates (RFC 9111 §4.4), a HEAD freshens or makes stale (§4.3.5).
    fn invalidate(&self, relay: &Relay, route: &Route, status: StatusCode, fields: &HeaderMap) {
        let Ok(target) = relay.upstream.uri(self.ask.key.target()) else {
            return;
        };
        for target in invalidate::targets(&self.ask.method, &target, status, fields) {
            for (index, _) in relay.routes.routes().iter().enumerate() {
                let Ok(index) = u16::try_from(index) else {
                    continue;
                };
                let mut key = Key::begin(index);
                let own = relay.upstream.target_of(&target);
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
        let now = relay.clock.wall(relay.clock.now());
        let none = HeaderMap::new();
        let sent = sent(route, &self.ask.fields, &none);
        relay.cache.store().amend(&self.ask.key, |variants| {
            for variant in variants.iter_mut() {
                if !variant.nominated.matches(&variant.secondary, sent) {
                    continue;
                }
                let mut reuse = variant.reuse.clone();
                let mut new_fields = variant.fields.clone();
                match head_effect(&variant.fields, variant.body.len() as u64, fields) {
                    HeadEffect::Stale => reuse.make_stale(),
                    HeadEffect::Freshen => {
                        freshen(&mut new_fields, fields, now);
                        let times = Times {
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
    fn as_get(&self, fields: HeaderMap) -> Self {
        Self {
            ask: Ask {
                method: Method::GET,
                fields,
                version: self.ask.version,
                key: self.ask.key.clone(),
                body: None,
            },
            why: self.why,
            chosen: None,
        }
    }
}

/// When a request was sent and its answer received.
#[derive(Clone, Copy)]
struct Times {
    requested: SystemTime,
    received: SystemTime,
}

fn forwarded(why: Forward, status: Option<StatusCode>, stored: bool, collapsed: bool) -> Outcome {
    Outcome::Forwarded {
        why,
        status,
        stored,
        collapsed,
    }
}

fn told(
    came: Result<Came, (Failure, Outcome)>,
) -> Result<(Response<Body>, Outcome), (Refusal, Outcome)> {
    match came {
        Ok(came) => Ok((came.response, came.outcome)),
        Err((failure, outcome)) => Err((Refusal::Upstream(failure), outcome)),
    }
}

/// The length that an answer says, and leaves it saying it once: who reads it
/// after us must not read another (RFC 9112 §6.3).
fn one_length(version: Version, fields: &mut HeaderMap) -> Result<Option<u64>, Failure> {
    let mut codings = fields.get_all(TRANSFER_ENCODING).iter();
    if let Some(coding) = codings.next() {
        // Nothing else was asked for, nor does HTTP/1.0 have any (§6.1).
        let chunked = coding.as_bytes().eq_ignore_ascii_case(b"chunked");
        if !chunked || codings.next().is_some() || version == Version::HTTP_10 {
            return Err(Failure::Protocol);
        }
        fields.remove(CONTENT_LENGTH);
        return Ok(None);
    }
    let mut length = None;
    let lines = fields.get_all(CONTENT_LENGTH).iter();
    for line in lines {
        for member in line.as_bytes().split(|&byte| byte == b',') {
            let member = member.trim_ascii();
            let digits = !member.is_empty() && member.iter().all(u8::is_ascii_digit);
            let text = std::str::from_utf8(member).ok().filter(|_| digits);
            let said: u64 = text
                .and_then(|text| text.parse().ok())
                .ok_or(Failure::Protocol)?;
            if length.is_some_and(|length| length != said) {
                return Err(Failure::Protocol);
            }
            length = Some(said);
        }
    }
    if let Some(length) = length {
        fields.insert(CONTENT_LENGTH, length.into());
    }
    Ok(length)
}

const CONDITIONS: [HeaderName; 2] = [IF_NONE_MATCH, IF_MODIFIED_SINCE];

fn has_conditions(fields: &HeaderMap) -> bool {
    CONDITIONS.iter().any(|name| fields.contains_key(name)) || fields.contains_key(RANGE)
}

fn without_conditions(mut fields: HeaderMap) -> HeaderMap {
    for name in CONDITIONS {
        fields.remove(name);
    }
    fields
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

/// How far a body has been read.
enum Read {
    Whole(Bytes),
    /// There is more than is kept: what was read, and the rest.
    Beyond(std::collections::VecDeque<Bytes>, hyper::body::Incoming),
}

async fn read(mut body: hyper::body::Incoming, most: u64) -> Result<Read, Failure> {
    let mut pieces = std::collections::VecDeque::new();
    let mut length = 0;
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else {
            return Err(Failure::Incomplete);
        };
        // Trailers are for those who are there, not for the store.
        let Ok(data) = frame.into_data() else {
            continue;
        };
        length += data.len() as u64;
        pieces.push_back(data);
        if length > most {
            return Ok(Read::Beyond(pieces, body));
        }
    }
    let mut whole = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
    for piece in pieces {
        whole.extend_from_slice(&piece);
    }
    Ok(Read::Whole(whole.into()))
}
