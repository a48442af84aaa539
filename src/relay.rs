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

mod keep;
mod read;
mod recall;
mod serve;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use http::header::{
    ACCEPT, ACCEPT_ENCODING, CONTENT_LENGTH, DATE, EXPECT, HOST, HeaderName, HeaderValue,
    IF_MODIFIED_SINCE, IF_NONE_MATCH, RANGE, TRANSFER_ENCODING, USER_AGENT,
};
use http::{HeaderMap, Method, Response, StatusCode, Version};
use tokio::sync::oneshot;

use crate::cache::directives::RequestDirectives;
use crate::cache::key::Key;
use crate::cache::outcome::Outcome;
use crate::cache::policy::{Mode, Policy};
use crate::cache::reuse::{Bounds, Decision, Origin, decide};
use crate::cache::status::Forward;
use crate::cache::store::{Mark, Variant};
use crate::cache::targeted::TargetList;
use crate::cache::validator::make_conditional;
use crate::cache::{Cache, date, hop, validator};
use crate::clock::Clock;
use crate::collapse::{Collapse, Turn};
use crate::identify::Caller;
use crate::refusal::Refusal;
use crate::respond::Respond;
use crate::route::{Headers, Route, RouteTable};
use crate::upstream::answer::{judge_body, judge_head};
use crate::upstream::{Exchange, Failure, Priority, RequestBody, TimedOut, Upstream, Wish};
use crate::wire::Body;
use crate::wire::body::Passing;
use read::{Read, one_length, read};
use recall::choose;
pub(crate) use recall::{Recall, recall};
use serve::{finish, say_instead, serve};

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
    /// Who asks.
    pub(crate) caller: Caller,
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
    /// Whether another has asked for it already, and this would wait for that.
    pub(crate) fn joins(&self, relay: &Relay) -> bool {
        self.collapses() && relay.fetching.has(&self.ask.key)
    }

    /// The stored response that may be served though it is stale, where the
    /// upstream cannot be asked.
    pub(crate) fn stale(&self, relay: &Relay) -> Option<(Response<Body>, Outcome)> {
        let route = relay.routes.get(self.ask.key.route())?;
        let came = self.stand_in(relay, route, Origin::Disconnected)?;
        Some((came.response, came.outcome))
    }

    /// Goes forward: with others for one cold key, alone otherwise.
    ///
    /// # Errors
    /// How the upstream failed, and nothing stored may stand in.
    pub(crate) async fn run(
        self,
        relay: &Arc<Relay>,
    ) -> Result<(Response<Body>, Outcome), (Refusal, Outcome)> {
        let route = self.ask.key.route();
        let Some(route) = relay.routes.get(route) else {
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
                    let Some(route) = relay.routes.get(key.route()) else {
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
                                let said = relay.respond.cache_status(outcome, &ask.key);
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
        let Some(route) = relay.routes.get(self.ask.key.route()) else {
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
        let priority = match self.chosen {
            Some(_) => Priority::Revalidation,
            None => Priority::Miss,
        };
        let wish = Wish::of(self.ask.caller, priority);
        let mark = relay.cache.store().mark();
        let requested = relay.clock.wall(relay.clock.now());
        let exchanged = relay
            .upstream
            .exchange(method, self.ask.key.target(), fields, body, wish)
            .await;
        let received = relay.clock.wall(relay.clock.now());
        let exchange = match exchanged {
            Ok(exchange) => exchange,
            Err(failure) => return self.failed(relay, route, failure, Origin::Disconnected),
        };
        let times = Times {
            mark,
            requested,
            received,
        };
        if !conditional || exchange.head.status != StatusCode::NOT_MODIFIED {
            if Origin::after(exchange.head.status) == Origin::Failed
                && let Some(came) = self.stand_in(relay, route, Origin::Failed)
            {
                return Ok(came);
            }
            return self.came(relay, route, exchange, times).await;
        }
        match self.validated(relay, route, &exchange.head, times) {
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
                fields.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
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
        self.invalidate(relay, route, status, &fields, times.mark);
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
}

/// When a request was sent and its answer received.
#[derive(Clone, Copy)]
struct Times {
    /// Where the removals had come to when it was sent.
    mark: Mark,
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
