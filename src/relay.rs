//! The walk of routes whose answers obey the origin's own fields: mode
//! `respect`, and `headers = "all"`.
//!
//! The gateway comes here once it knows the route and the key. `recall` says,
//! without waiting, what memory has; `Errand::run` goes forward: with others
//! for one answer where that may be stored (`shared`), alone otherwise. The
//! rules are in `cache`'s rooms, each under its RFC's sentence; what happens in
//! which order is here. Answers are sent while they are stored (`pump`).
//!
//! Invariant: what is stored was read whole. What is not stored passes through
//! in bounded memory.

mod keep;
mod pump;
mod read;
mod recall;
mod sent;
mod serve;
mod shared;
mod uncacheable;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, DATE, EXPECT, HOST, HeaderName,
    HeaderValue, IF_MODIFIED_SINCE, IF_NONE_MATCH, RANGE, TRANSFER_ENCODING, USER_AGENT,
};
use http::{HeaderMap, Method, Response, StatusCode, Version};
use http_body::Body as _;
use http_body_util::BodyExt;
use tokio::time::Instant;

use crate::cache::decision::stale_bounds;
use crate::cache::directives::RequestDirectives;
use crate::cache::key::Key;
use crate::cache::outcome::Outcome;
use crate::cache::policy::Mode;
use crate::cache::reuse::{Origin, Reuse, may_reuse};
use crate::cache::sequence::PurgeSequence;
use crate::cache::status::Forward;
use crate::cache::targeted::TargetList;
use crate::cache::validator::make_conditional;
use crate::cache::variant::Variant;
use crate::cache::{Cache, date, hop};
use crate::clock::Clock;
use crate::collapse::{Collapse, Lead};
use crate::identify::{Client, TrustedProxies};
use crate::refusal::Refusal;
use crate::respond::Responder;
use crate::route::{HeaderMode, Route, RouteTable};
use crate::upstream::answer::{check_head, check_json, is_no_such_route};
use crate::upstream::{
    Failure, MissingRoutes, Priority, RequestBody, RequestPriority, StreamedAnswer, Upstream,
    Upstreams,
};
use crate::wire::Body;
use crate::wire::stream::Stream;
use pump::{AHEAD, Keep, Lingering, Pump};
use read::one_length;
pub(crate) use recall::{Recall, decide_plain, recall};
use sent::{Sent, replace_forwarding};
use serve::{finish, serve, serve_streamed};
pub use shared::{Announced, Begun};
use uncacheable::Uncacheable;

/// What ordgate is called in `cache-status`, and in the `via` of answers. The
/// `via` of requests has a name of the process's own ([`Relay::pseudonym`]).
const NAME: &str = "ordgate";

/// What goes on across reloads.
#[derive(Clone)]
pub struct RelayState {
    /// The keys that are being fetched.
    pub fetching: Arc<Collapse<Announced>>,
    uncacheable: Arc<Uncacheable>,
    /// The bodies that go on without a slot, for each upstream by its name.
    lingering: Arc<Mutex<HashMap<Box<str>, Arc<Lingering>>>>,
}

impl RelayState {
    /// Nothing as yet, before these upstreams.
    pub fn new(upstreams: &Upstreams) -> Self {
        let new = Self {
            fetching: Collapse::new(),
            uncacheable: Arc::default(),
            lingering: Arc::default(),
        };
        new.bound(upstreams);
        new
    }

    /// These are the upstreams from now on.
    pub fn bound(&self, upstreams: &Upstreams) {
        self.lingering()
            .retain(|name, _| upstreams.named(name).is_some());
        for (_, upstream) in upstreams.iter() {
            let slots = upstream.settings().max_in_flight.get();
            self.lingering_at(upstream).bound(slots);
        }
    }

    fn lingering_at(&self, upstream: &Upstream) -> Arc<Lingering> {
        let slots = upstream.settings().max_in_flight.get();
        let mut lingering = self.lingering();
        let of_it = lingering.entry(upstream.name().into());
        of_it.or_insert_with(|| Lingering::beside(slots)).clone()
    }

    fn lingering(&self) -> MutexGuard<'_, HashMap<Box<str>, Arc<Lingering>>> {
        self.lingering
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// What relaying needs of the house.
pub struct Relay {
    /// Which requests there are.
    pub routes: Arc<RouteTable>,
    /// What is in memory.
    pub cache: Cache,
    /// What goes on across reloads.
    pub ongoing: RelayState,
    /// The upstreams that routes ask.
    pub upstreams: Arc<Upstreams>,
    /// The routes that their upstreams say they do not have.
    pub missing_routes: MissingRoutes,
    /// How long a stale answer waits for a fresh one.
    pub stale_wait: Duration,
    /// How answers are said.
    pub respond: Arc<Responder>,
    /// Whose reports of a client's address are believed.
    pub trust: TrustedProxies,
    /// Whose cache directives are obeyed.
    pub targets: TargetList,
    /// What time it is.
    pub clock: Clock,
    /// What this process is called in the `via` of requests, by which it knows
    /// those that have come through it already. No other process has it: two
    /// ordgates in a row are no loop.
    pub pseudonym: Arc<str>,
    /// Makes boundaries that nobody can guess.
    pub seed: u64,
}

impl Relay {
    /// Whether a request has come through this process already.
    pub(crate) fn is_loop(&self, fields: &HeaderMap) -> bool {
        hop::has_passed(fields, &self.pseudonym)
    }
}

/// What a request asks, as the rules see it.
pub(crate) struct ClientRequest {
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
    pub(crate) caller: Client,
    /// The address of the client's connection.
    pub(crate) peer: IpAddr,
}

impl ClientRequest {
    /// Its fields as the origin receives them.
    fn sent<'a>(&'a self, relay: &'a Relay, route: &Route) -> Sent<'a> {
        Sent::of(relay, route, &self.fields, self.peer)
    }

    /// What memory has for it by now.
    fn recall(&self, relay: &Relay, route: &Route) -> Recall {
        let now = relay.clock.now();
        let (method, fields, key) = (&self.method, &self.fields, &self.key);
        recall(relay, route, method, fields, self.peer, key, now)
    }
}

/// A way forward: what is asked, why, and what is stored that might do.
pub(crate) struct Fetch {
    /// What is asked.
    pub(crate) ask: ClientRequest,
    /// Why memory does not answer.
    pub(crate) why: Forward,
    /// What would do if it were validated.
    pub(crate) chosen: Option<Arc<Variant>>,
    /// Whether it goes up without the client's conditions, which are judged on
    /// what comes.
    pub(crate) unconditional: bool,
}

/// What came of going forward.
struct Came {
    response: Response<Body>,
    outcome: Outcome,
    /// What those are told who wait for the same key.
    announced: Announced,
}

/// What came of going forward, or how that failed.
type Went = Result<Came, (Failure, Outcome)>;

impl Fetch {
    /// Whether another has asked for it already, and this would wait for that.
    pub(crate) fn joins(&self, relay: &Relay) -> bool {
        let route = relay.routes.get(self.ask.key.route());
        let key = route.and_then(|route| self.shared_key(relay, route, None));
        key.is_some_and(|key| relay.ongoing.fetching.has(&key))
    }

    /// The stored response that may be served though it is stale, where the
    /// upstream cannot be asked.
    pub(crate) fn stale(&self, relay: &Relay) -> Option<(Response<Body>, Outcome)> {
        let route = relay.routes.get(self.ask.key.route())?;
        let came = self.stand_in(relay, route, Origin::Disconnected)?;
        Some((came.response, came.outcome))
    }

    /// Goes forward: with others where they may have one answer, alone
    /// otherwise.
    ///
    /// # Errors
    /// How the upstream failed, and nothing stored may stand in.
    pub(crate) async fn run(
        mut self,
        relay: &Arc<Relay>,
    ) -> Result<(Response<Body>, Outcome), (Refusal, Outcome)> {
        let deadline = Instant::now() + relay.patience(&self.ask.key);
        let body = self.ask.body.take();
        let went = match body {
            None => Arc::new(self).share(relay, deadline).await,
            Some(_) => match relay.routes.get(self.ask.key.route()) {
                Some(route) => self.forward(relay, route, body, false, &mut None).await,
                None => Err((Failure::Abandoned, forwarded(self.why, None, false, false))),
            },
        };
        match went {
            Ok(came) => Ok((came.response, came.outcome)),
            Err((failure, outcome)) => Err((Refusal::Upstream(failure), outcome)),
        }
    }

    /// Sends the request up and makes of the answer what the rules say. Who
    /// leads others announces an answer to them as soon as its head has come,
    /// if it is sent while it is stored.
    async fn forward(
        &self,
        relay: &Arc<Relay>,
        route: &Route,
        body: Option<RequestBody>,
        unconditional: bool,
        lead: &mut Option<Lead<Announced>>,
    ) -> Went {
        let had_body = body.is_some();
        let (fields, conditional) = self.fields_up(relay, route, unconditional, had_body);
        let method = match route.headers {
            // A typed route asks GET: HEAD costs the upstream as much.
            HeaderMode::Typed => Method::GET,
            HeaderMode::All => self.ask.method.clone(),
        };
        let priority = match self.chosen {
            Some(_) => Priority::Revalidation,
            None => Priority::Miss,
        };
        let wish = RequestPriority::of(self.ask.caller, priority);
        // It is to be JSON, and whether it is shows only at its end.
        let whole = (route.headers == HeaderMode::Typed).then(|| most_stored(relay, route));
        let mark = relay.cache.store().sequence();
        let requested = relay.clock.wall(relay.clock.now());
        let exchanged = relay
            .upstreams
            .asked(route.upstream)
            .exchange(method, self.ask.key.target(), fields, body, wish, whole)
            .await;
        let received = relay.clock.wall(relay.clock.now());
        let exchange = match exchanged {
            Ok(exchange) => exchange,
            Err(failure) => return self.failed(relay, route, failure, Origin::Disconnected),
        };
        let times = ExchangeTimes {
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
            return self.came(relay, route, exchange, times, lead).await;
        }
        match self.validated(relay, route, &exchange.head, times) {
            Some(came) => {
                relay.missing_routes.answered(route.number);
                Ok(came)
            }
            // It speaks of something that is not stored (any more).
            None if !unconditional && !had_body => {
                Box::pin(self.forward(relay, route, None, true, lead)).await
            }
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
            HeaderMode::All => self.ask.fields.clone(),
            HeaderMode::Typed => {
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
        if route.headers == HeaderMode::All {
            replace_forwarding(relay, route, &self.ask, &mut fields);
        }
        hop::add_via(&mut fields, self.ask.version, &relay.pseudonym);
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
        let others = self.of_one_coding(relay, route);
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

    /// The stored responses whose validators may go up: those that were chosen
    /// by the same `accept-encoding`, if by any. An origin that gives all codings
    /// one tag (nginx) would call the plain response current, and nobody would
    /// get a compressed one any more.
    fn of_one_coding(&self, relay: &Relay, route: &Route) -> Vec<Arc<Variant>> {
        let sent = self.ask.sent(relay, route);
        let variants = relay.cache.variants(&self.ask.key).unwrap_or_default();
        let agrees = |variant: &Variant| {
            let Variant {
                nominated,
                secondary,
                ..
            } = variant;
            nominated.agrees_on(&ACCEPT_ENCODING, secondary, &sent)
        };
        let variants = variants.iter().filter(|variant| agrees(variant));
        variants.cloned().collect()
    }

    /// A stored response in place of an answer, where the rules and the bounds
    /// allow that (RFC 5861 §4, RFC 9111 §4.2.4).
    fn stand_in(&self, relay: &Relay, route: &Route, origin: Origin) -> Option<Came> {
        let chosen = self.chosen.as_ref()?;
        let now = relay.clock.wall(relay.clock.now());
        let directives = RequestDirectives::of(&self.ask.fields);
        let bounds = stale_bounds(&route.cache);
        let reuse = may_reuse(&directives, &chosen.reuse, now, origin, &bounds);
        if reuse != Ok(Reuse::IfError) {
            return None;
        }
        let outcome = Outcome::StaleIfError {
            ttl: chosen.reuse.ttl(now),
        };
        let announced = Announced::Failed(None, origin);
        Some(self.with(relay, route, chosen, outcome, now, announced))
    }

    fn with(
        &self,
        relay: &Relay,
        route: &Route,
        variant: &Variant,
        outcome: Outcome,
        now: SystemTime,
        announced: Announced,
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
            announced,
        }
    }

    fn failed(&self, relay: &Relay, route: &Route, failure: Failure, origin: Origin) -> Went {
        failure.report(self.ask.key.target());
        let outcome = forwarded(self.why, failure.upstream_status(), false, false);
        self.stand_in(relay, route, origin)
            .ok_or((failure, outcome))
    }

    /// An answer of the upstream's own: stored where it may be, and sent
    /// meanwhile; passed on otherwise.
    async fn came(
        &self,
        relay: &Arc<Relay>,
        route: &Route,
        exchange: StreamedAnswer,
        times: ExchangeTimes,
        lead: &mut Option<Lead<Announced>>,
    ) -> Went {
        let StreamedAnswer {
            head,
            body,
            mut permit,
            endpoint,
        } = exchange;
        let status = head.status;
        let mut fields = head.headers;
        let fails = |failure| self.failed(relay, route, failure, Origin::Disconnected);
        let typed = route.headers == HeaderMode::Typed;
        if typed && let Err(failure) = check_head(status, &fields, times.received) {
            return fails(failure);
        }
        let length = match one_length(head.version, &mut fields) {
            Ok(length) => length,
            Err(failure) => return fails(failure),
        };
        self.invalidate(relay, route, status, &fields, times.mark);
        // RFC 9110 §6.6.1: a response without a date gets that of its receipt.
        fields
            .entry(DATE)
            .or_insert_with(|| date::value(times.received));
        hop::add_via(&mut fields, head.version, NAME);
        if typed {
            let body = match body.collect().await {
                Ok(read) => read.to_bytes(),
                Err(error) => return fails(Failure::of_body(&error)),
            };
            drop(permit);
            if let Err(failure) = check_json(&body) {
                return fails(failure);
            }
            if is_no_such_route(status, &body) {
                let target = self.ask.key.target();
                let now = relay.clock.now();
                relay.missing_routes.report(route, target, &endpoint, now);
                return fails(Failure::NoSuchRoute { endpoint });
            }
            relay.missing_routes.answered(route.number);
            return Ok(self.whole(relay, route, status, &fields, body, times));
        }
        let most = most_stored(relay, route);
        let is_events = is_event_stream(&fields);
        let (variant, kept) = self.variant(relay, route, status, &fields, Bytes::new(), times);
        let kept = kept && !is_events && length.is_none_or(|length| length <= most);
        let stream = match kept {
            true => Stream::kept(),
            false => Stream::passing(AHEAD),
        };
        let is_empty = body.is_end_stream();
        let upstream = relay.upstreams.get(route.upstream).clone();
        // What may be a stream without an end may pause.
        let is_bounded = length.is_some() || kept && self.is_for_others(&variant);
        let limits = &upstream.settings().response_body;
        let min_rate = (is_bounded && !is_events).then(|| limits.min_rate());
        if min_rate.is_none() {
            permit.answered();
        }
        let mut pump = Pump::new(stream, body, length, min_rate, permit, upstream);
        if !kept {
            return Ok(self.pass(relay, route, (status, fields), pump, length, is_events));
        }
        // A small answer is there whole already. While there is a stale one to
        // fall back on, it is worth waiting a little for the end.
        let fallback = self.stand_in(relay, route, Origin::Disconnected).is_some();
        let whole = match fallback {
            true => pump.begin_for(relay.stale_wait, most).await,
            false => pump.begin(most).await,
        };
        match whole {
            Err(failure) => fails(failure),
            Ok(true) => {
                let body = pump.stream.whole().unwrap_or_default();
                Ok(self.whole(relay, route, status, &fields, body, times))
            }
            Ok(false) => {
                let length = length.filter(|_| !is_empty);
                let begun = Begun {
                    variant,
                    stream: pump.stream.clone(),
                    length,
                    mark: times.mark,
                };
                Ok(self.stream(relay, route, (fields, begun), pump, times, lead))
            }
        }
    }

    /// Sends an answer while it is being stored, to this client and to those
    /// who wait for the same.
    fn stream(
        &self,
        relay: &Arc<Relay>,
        route: &Route,
        (fields, begun): (HeaderMap, Begun),
        pump: Pump,
        times: ExchangeTimes,
        lead: &mut Option<Lead<Announced>>,
    ) -> Came {
        let begun = Arc::new(begun);
        let outcome = forwarded(self.why, Some(begun.variant.status), true, false);
        let announced = match self.is_for_others(&begun.variant) {
            true => Announced::Begun(begun.clone()),
            false => self.is_not_for_others(relay),
        };
        let lead = lead.take();
        if let Some(lead) = &lead {
            lead.announce(announced.clone());
        }
        let response = serve_streamed(relay, route, &begun, &self.ask, outcome, times.received);
        let settings = relay.upstreams.get(route.upstream).settings();
        let (own, at) = (self.as_get(self.ask.fields.clone()), relay.clone());
        let (gone, kept) = (relay.clone(), self.as_get(self.ask.fields.clone()));
        let keep = Keep {
            most: most_stored(relay, route),
            deadline: Instant::now() + settings.timeout,
            store: Box::new(move |body| {
                if let Some(route) = at.routes.get(own.ask.key.route()) {
                    own.whole(&at, route, begun.variant.status, &fields, body, times);
                }
                // From here on those who ask find it stored.
                drop(lead);
            }),
            give_up: Box::new(move || kept.remember_uncacheable(&gone)),
        };
        let upstream = relay.upstreams.get(route.upstream);
        let lingering = relay.ongoing.lingering_at(upstream);
        tokio::spawn(pump.run(Some(keep), self.ask.caller, lingering, false));
        Came {
            response: response.unwrap_or_default(),
            outcome,
            announced,
        }
    }

    /// Passes an answer on that is not stored.
    fn pass(
        &self,
        relay: &Arc<Relay>,
        route: &Route,
        (status, mut fields): (StatusCode, HeaderMap),
        pump: Pump,
        length: Option<u64>,
        is_endless: bool,
    ) -> Came {
        hop::strip(&mut fields);
        let outcome = forwarded(self.why, Some(status), false, false);
        finish(relay, route, &mut fields, &self.ask.key, outcome);
        // Nothing has been read of it yet, so its beginning is there.
        let reader = pump.stream.reader(length);
        let body = reader.map_or_else(Body::default, |reader| Body::Streamed(Box::new(reader)));
        let upstream = relay.upstreams.get(route.upstream);
        let lingering = relay.ongoing.lingering_at(upstream);
        tokio::spawn(pump.run(None, self.ask.caller, lingering, is_endless));
        let mut response = Response::new(body);
        *response.status_mut() = status;
        *response.headers_mut() = fields;
        let announced = match status.is_server_error() {
            // That may pass at once, and says nothing of the key.
            true => Announced::Unshared,
            false => self.is_not_for_others(relay),
        };
        Came {
            response,
            outcome,
            announced,
        }
    }
}

/// Whether an answer is a stream of events, which has no end to wait for.
fn is_event_stream(fields: &HeaderMap) -> bool {
    let media = fields.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let media = media.and_then(|media| media.split(|byte| *byte == b';').next());
    media.is_some_and(|media| {
        media
            .trim_ascii()
            .eq_ignore_ascii_case(b"text/event-stream")
    })
}

impl Relay {
    /// The longest that a client waits for its answer to begin.
    fn patience(&self, key: &Key) -> Duration {
        let number = self
            .routes
            .get(key.route())
            .map_or(0, |route| route.upstream);
        self.upstreams.asked(number).patience() + Duration::from_secs(1)
    }
}

/// When a request was sent and its answer received.
#[derive(Clone, Copy)]
struct ExchangeTimes {
    /// Where the removals had come to when it was sent.
    mark: PurgeSequence,
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

const CONDITIONS: [HeaderName; 2] = [IF_NONE_MATCH, IF_MODIFIED_SINCE];

/// Bytes of an answer's body that are stored at the most.
fn most_stored(relay: &Relay, route: &Route) -> u64 {
    let settings = relay.upstreams.get(route.upstream).settings();
    settings.max_body_bytes.min(relay.cache.store().max_body())
}

fn has_conditions(fields: &HeaderMap) -> bool {
    CONDITIONS.iter().any(|name| fields.contains_key(name)) || fields.contains_key(RANGE)
}

fn without_conditions(mut fields: HeaderMap) -> HeaderMap {
    for name in CONDITIONS {
        fields.remove(name);
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::config::Config;
    use crate::upstream::ProviderKeys;
    use crate::upstream::client::resolver::Names;

    #[test]
    fn bodies_without_a_slot_are_bounded_for_each_upstream_alone() {
        let text = "upstream.url = \"http://127.0.0.1:1\"\nupstreams.runes.max_in_flight = 1\n";
        let config = Config::parse("p", text).unwrap();
        let (keys, names) = (ProviderKeys::default(), Names::default());
        let upstreams = |config: &Config| {
            Upstreams::new(&config.upstreams, &keys, &names, &Clock::manual(), None).unwrap()
        };
        let before = upstreams(&config);
        let ongoing = RelayState::new(&before);
        let enter = |ongoing: &RelayState, upstreams: &Upstreams, name: &str| {
            let lingering = ongoing.lingering_at(upstreams.named(name).unwrap());
            let clients = (0..1000).map(|n| Client::from(IpAddr::from([127, 0, n as u8, 1])));
            clients
                .map_while(|client| lingering.enter(client))
                .collect::<Vec<_>>()
        };
        let held = enter(&ongoing, &before, "runes");
        assert!(!held.is_empty());
        assert_eq!(enter(&ongoing, &before, "runes").len(), 0, "all are taken");
        assert!(enter(&ongoing, &before, "default").len() > held.len());
        // A reload that leaves them as they are counts on.
        let after = upstreams(&config);
        ongoing.bound(&after);
        assert_eq!(enter(&ongoing, &after, "runes").len(), 0);
        drop(held);
        assert!(!enter(&ongoing, &after, "runes").is_empty());
    }
}
