//! A request's way, top-down: from a parsed request to an answer.
//!
//! ```text
//! listener -> identify -> limit -> route -> validate
//!          -> cache -> fill (collapse -> upstream -> chain) -> respond
//! ```
//!
//! [`Gateway::answer`] takes each step in turn; a step that cannot go on says
//! why ([`Refusal`]), and there is one exit. A hit is answered without waiting
//! for anything; all else goes on in `Gateway::go_on`.
//!
//! Invariants held here: what does not validate never reaches the upstream; a
//! client's disconnect cancels nobody's answer, since what is fetched belongs
//! to no connection; no wait is without a deadline.

use std::convert::Infallible;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use foldhash::quality::FixedState;
use http::header::{CONNECTION, HOST, ORIGIN};
use http::{HeaderMap, HeaderValue, Method, Request, Response, Uri};
use http_body_util::BodyExt;
use hyper::body::Body as _;
use tokio::time::Instant;

use crate::access_log::{AccessLog, LogEntry};
use crate::cache::StoredResponse;
use crate::cache::key::Key;
use crate::cache::outcome::Outcome;
use crate::cache::policy::Mode;
use crate::cache::status::Forward;
use crate::cache::{Cache, Lookup};
use crate::chain::{Freshness, TipSnapshot};
use crate::clock::{Clock, Moment};
use crate::collapse::Wait;
use crate::fill::{AnswerSource, Fill, FillAnswer, FillResult, LookupKey};
use crate::identify::{Client, TrustedProxies};
use crate::limit::{Limit, RequestPermit};
use crate::look_ahead;
use crate::meter::Meter;
use crate::refusal::Refusal;
use crate::relay::{self, ClientRequest, Recall, Relay};
use crate::respond::{RequestId, Responder, ResponseContext};
use crate::route::{HeaderMode, Methods, Route, RouteTable};
use crate::upstream::{Failure, Priority, RequestPriority, TimedOut, Upstreams};
use crate::wire::Body;
use crate::wire::activity::Activity;
use crate::wire::body::BodyError;
use crate::wire::head::REFUSED;

/// Everything that answering needs, made once at load.
pub struct Gateway {
    /// Which requests there are.
    pub routes: Arc<RouteTable>,
    /// Whose word is taken for who asks.
    pub trust: TrustedProxies,
    /// What each caller may ask; `None` without limit.
    pub limit: Option<Limit>,
    /// What is in memory.
    pub cache: Cache,
    /// The way to what memory does not have.
    pub fill: Arc<Fill>,
    /// The way of routes that obey the origin's fields.
    pub relay: Arc<Relay>,
    /// The upstreams that routes and tips ask.
    pub upstreams: Arc<Upstreams>,
    /// How answers are said.
    pub respond: Arc<Responder>,
    /// What is counted.
    pub meter: Meter,
    /// Who wants a line for each request.
    pub access_log: Option<AccessLog>,
    /// Documents of ordgate's own, on the public side.
    pub documents: Vec<Document>,
    /// How long a client waits for a fresh answer where a stale one may stand
    /// in.
    pub stale_wait: Duration,
    /// What time it is.
    pub clock: Clock,
    /// Whether the use of answers is counted, for what is fetched ahead.
    pub looks_ahead: bool,
    /// Makes request ids differ from those of another process.
    pub seed: u64,
}

/// A document of ordgate's own.
#[derive(Clone, Debug)]
pub struct Document {
    /// Where it is.
    pub path: &'static str,
    /// Its media type.
    pub media: &'static str,
    /// Its text.
    pub text: Bytes,
    /// Its ETag.
    pub etag: HeaderValue,
}

/// One client connection, as the walk sees it.
pub struct Session {
    /// The other end's address.
    pub peer: IpAddr,
    /// A number that no other connection has.
    pub connection: u64,
    /// Requests so far.
    pub requests: AtomicU64,
    /// Its signs of life.
    pub activity: Arc<Activity>,
}

/// What is known of a request on its way.
struct RequestContext {
    began: Moment,
    caller: Client,
    method: Method,
    request_id: RequestId,
    /// Its place in the table.
    route: Option<u16>,
    key: Option<u64>,
    permit: Option<RequestPermit>,
}

/// Where the walk has come to without waiting.
enum Step {
    Done(Response<Body>, Option<Outcome>),
    Forward(Miss),
    Relay(Box<relay::Fetch>),
}

/// What is to be fetched, and what there is meanwhile.
struct Miss {
    asking: LookupKey,
    why: Forward,
    stale: Option<Stale>,
}

/// A stored answer that may be served where no other can be had, and how long
/// ago it ceased to be fresh.
type Stale = (Arc<StoredResponse>, Duration);

impl Gateway {
    /// Answers a request. There is always an answer.
    pub fn answer<B>(
        self: &Arc<Self>,
        session: &Arc<Session>,
        mut request: Request<B>,
    ) -> ResponseFuture
    where
        B: hyper::body::Body<Data = Bytes> + Send + Sync + 'static,
        B::Error: Into<BodyError>,
    {
        let now = session.activity.last();
        if request.uri().authority().is_some() {
            origin_form(&mut request);
        }
        // They come one after another, so that a count which is locked would
        // be dear for nothing.
        let nth = session.requests.load(Relaxed);
        session.requests.store(nth + 1, Relaxed);
        let mut way = RequestContext {
            began: now,
            caller: self.trust.client(session.peer, request.headers()),
            method: request.method().clone(),
            request_id: RequestId::new(self.seed ^ (session.connection << 24).wrapping_add(nth)),
            route: None,
            key: None,
            permit: None,
        };
        match self.answer_from_memory(session, &request, &mut way, now) {
            Ok(Step::Done(response, outcome)) => ResponseFuture::Done(Some(
                self.finish(session, &way, outcome, None, response, now),
            )),
            Ok(Step::Forward(_) | Step::Relay(_)) if self.relay.is_loop(request.headers()) => {
                self.refuse(session, &request, &way, &Refusal::Loop, now)
            }
            Ok(Step::Forward(errand)) => {
                let (gateway, session) = (self.clone(), session.clone());
                let fields = request.into_parts().0.headers;
                ResponseFuture::Under(Box::pin(async move {
                    let _working = session.activity.begin_request();
                    gateway.answer_miss(&session, way, errand, fields).await
                }))
            }
            Ok(Step::Relay(mut errand)) => {
                let (gateway, session) = (self.clone(), session.clone());
                let (head, body) = request.into_parts();
                errand.ask.fields = head.headers;
                errand.ask.body = (!body.is_end_stream()).then(|| body.map_err(Into::into).boxed());
                ResponseFuture::Under(Box::pin(async move {
                    let _working = session.activity.begin_request();
                    gateway.relay(&session, way, *errand).await
                }))
            }
            Err(refusal) => self.refuse(session, &request, &way, &refusal, now),
        }
    }

    /// Answers with a refusal, of a request whose body is not read.
    fn refuse<B: hyper::body::Body>(
        &self,
        session: &Session,
        request: &Request<B>,
        way: &RequestContext,
        refusal: &Refusal,
        now: Moment,
    ) -> ResponseFuture {
        let said = way.said(request.headers());
        let mut response = self.respond.refusal(refusal, None, &said);
        if !request.body().is_end_stream() {
            // Its body is not read, so nothing can follow it.
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(CONNECTION, close);
        }
        ResponseFuture::Done(Some(self.finish(session, way, None, None, response, now)))
    }

    /// The walk as far as memory goes.
    fn answer_from_memory<B: hyper::body::Body>(
        self: &Arc<Self>,
        session: &Session,
        request: &Request<B>,
        way: &mut RequestContext,
        now: Moment,
    ) -> Result<Step, Refusal> {
        // What is refused counts as well: otherwise it would cost its client
        // nothing.
        if let Some(limit) = &self.limit {
            way.permit = Some(limit.admit(way.caller, now).map_err(Refusal::TooMany)?);
        }
        let method = request.method();
        if method.as_str() == REFUSED
            && let Some(fault) = session.activity.fault()
        {
            return Err(Refusal::Head(fault));
        }
        let uri = request.uri();
        if uri.authority().is_some() || !uri.path().starts_with('/') {
            return Err(Refusal::TargetForm);
        }
        let Some(found) = self.routes.find(uri.path()) else {
            return self.document(request, way);
        };
        way.route = Some(found.index);
        let takes = match *method {
            Method::OPTIONS if found.route.methods != Methods::Any => {
                let response = self
                    .respond
                    .preflight(&found.route.allow(), &way.said(request.headers()));
                return Ok(Step::Done(response, None));
            }
            _ => found.route.methods.contains(method),
        };
        if !takes {
            return Err(Refusal::Method {
                allow: found.route.allow(),
            });
        }
        if !request.body().is_end_stream() && found.route.headers == HeaderMode::Typed {
            return Err(Refusal::Body);
        }
        let key = found
            .route
            .canonical(&found.captures, uri.query())
            .map_err(Refusal::Invalid)?;
        if self.access_log.is_some() {
            use std::hash::BuildHasher;
            way.key = Some(FixedState::default().hash_one(key.as_bytes()));
        }
        let route = found.route;
        if route.headers == HeaderMode::All || route.cache.mode == Mode::Respect {
            return self.recall(session, route, request, key, way, now);
        }
        let asking = match route.cache.mode {
            Mode::Chain => self.fill.lookup_key(route, key),
            Mode::Off | Mode::Override | Mode::Respect => LookupKey { key, by_hash: None },
        };
        let key = &asking.key;
        let (stored, judged) = match self.cache.look_up(key, &route.cache, now) {
            Lookup::Fresh { stored, ttl } => (stored, Freshness::Fresh { ttl }),
            Lookup::Revalidated { stored, ttl } => {
                let stored = self.fill.mark_revalidated(key, &stored);
                (stored, Freshness::Revalidated { ttl })
            }
            Lookup::Stale {
                stored,
                by,
                while_revalidate: true,
                ..
            } => {
                let wish = RequestPriority::of(way.caller, Priority::Revalidation);
                self.fill.refresh(key, wish);
                (stored, Freshness::Stale { by })
            }
            Lookup::Stale {
                stored,
                by,
                if_error,
                ..
            } => {
                let may_stand_in = if_error && self.fill.is_answer(&asking, &stored);
                return Ok(Step::Forward(Miss {
                    asking,
                    why: Forward::Stale,
                    stale: may_stand_in.then_some((stored, by)),
                }));
            }
            Lookup::Absent => {
                return Ok(Step::Forward(Miss {
                    asking,
                    why: Forward::UriMiss,
                    stale: None,
                }));
            }
            Lookup::Bypass => {
                return Ok(Step::Forward(Miss {
                    asking,
                    why: Forward::Bypass,
                    stale: None,
                }));
            }
        };
        if asking.by_hash.is_some() && !self.fill.is_answer(&asking, &stored) {
            return Ok(Step::Forward(Miss {
                asking,
                why: Forward::UriMiss,
                stale: None,
            }));
        }
        if self.looks_ahead
            && way.request_id.is_one_in(look_ahead::SAMPLE)
            && let Some(standing) = stored.stamp()
        {
            standing.warm(1);
        }
        let said = way.said(request.headers());
        let (outcome, age) = (hit(judged), self.cache.age(&stored, judged, now));
        let response = self.respond.stored(stored, key, outcome, &said, age);
        Ok(Step::Done(response, Some(outcome)))
    }

    /// What memory has on a route that obeys the origin's fields.
    fn recall<B>(
        self: &Arc<Self>,
        session: &Session,
        route: &Route,
        request: &Request<B>,
        key: Key,
        way: &RequestContext,
        now: Moment,
    ) -> Result<Step, Refusal> {
        let (method, fields) = (request.method(), request.headers());
        let errand = |key, why, chosen| relay::Fetch {
            ask: ClientRequest {
                method: method.clone(),
                // The walk hands the request's own over where it goes on.
                fields: HeaderMap::new(),
                version: request.version(),
                key,
                body: None,
                caller: way.caller,
                peer: session.peer,
            },
            why,
            chosen,
            unconditional: false,
        };
        match relay::recall(&self.relay, route, method, fields, session.peer, &key, now) {
            Recall::Answer {
                mut response,
                outcome,
                refresh,
            } => {
                if refresh {
                    let mut errand = errand(key, Forward::Stale, None);
                    errand.ask.fields = fields.clone();
                    tokio::spawn(errand.refresh(self.relay.clone()));
                }
                self.dress(route, &mut response, &way.said(fields));
                Ok(Step::Done(response, Some(outcome)))
            }
            Recall::Forward { why, chosen } => Ok(Step::Relay(Box::new(errand(key, why, chosen)))),
            Recall::OnlyIfCached => Err(Refusal::OnlyIfCached),
        }
    }

    /// The walk beyond memory on those routes.
    async fn relay(
        self: &Arc<Self>,
        session: &Session,
        way: RequestContext,
        errand: relay::Fetch,
    ) -> Response<Body> {
        // Only what browsers are told depends on the fields from here on.
        let fields = match errand.ask.fields.get(ORIGIN) {
            Some(origin) => HeaderMap::from_iter([(ORIGIN, origin.clone())]),
            None => HeaderMap::new(),
        };
        let route = self.route(&errand.ask.key).map(|route| route.headers);
        let joins = errand.joins(&self.relay);
        let went = match self.admit_miss(way.caller, joins) {
            Ok(()) => {
                let went = errand.run(&self.relay).await;
                self.count_by_outcome(way.caller, joins, &went);
                went
            }
            Err(refusal) => {
                let stale = errand.stale(&self.relay);
                self.count_limited(stale.is_some());
                let Some(stale) = stale else {
                    let said = way.said(&fields);
                    let response = self.respond.refusal(&refusal, None, &said);
                    return self.finish(session, &way, None, None, response, self.clock.now());
                };
                Ok(stale)
            }
        };
        let now = self.clock.now();
        session.activity.record(now);
        let said = way.said(&fields);
        let (response, outcome) = match went {
            Ok((mut response, outcome)) => {
                if let Body::Streamed(reader) = response.body_mut() {
                    // As long as it lasts the connection is neither idle nor
                    // done.
                    reader.serve(&session.activity);
                }
                if route == Some(HeaderMode::Typed) {
                    self.respond.add_own_fields(response.headers_mut(), &said);
                }
                (response, outcome)
            }
            Err((refusal, outcome)) => (
                self.respond.refusal(&refusal, Some(outcome), &said),
                outcome,
            ),
        };
        self.finish(session, &way, Some(outcome), None, response, now)
    }

    /// Adds ordgate's own fields where the route has them.
    fn dress(&self, route: &Route, response: &mut Response<Body>, said: &ResponseContext<'_>) {
        if route.headers == HeaderMode::Typed {
            self.respond.add_own_fields(response.headers_mut(), said);
        }
    }

    /// What is no route: a document of our own, or nothing.
    fn document<B: hyper::body::Body>(
        &self,
        request: &Request<B>,
        way: &RequestContext,
    ) -> Result<Step, Refusal> {
        let path = request.uri().path();
        let document = self.documents.iter().find(|document| document.path == path);
        let document = document.ok_or(Refusal::NoRoute)?;
        let allow = HeaderValue::from_static("GET, HEAD, OPTIONS");
        let takes = matches!(*request.method(), Method::GET | Method::HEAD);
        if takes && !request.body().is_end_stream() {
            return Err(Refusal::Body);
        }
        let said = way.said(request.headers());
        let response = match *request.method() {
            Method::GET | Method::HEAD => {
                self.respond
                    .document(document.media, &document.text, &document.etag, &said)
            }
            Method::OPTIONS => self.respond.preflight(&allow, &said),
            _ => return Err(Refusal::Method { allow }),
        };
        Ok(Step::Done(response, None))
    }

    /// The walk beyond memory: fetches, and answers with what came, or with
    /// what there was.
    async fn answer_miss(
        self: &Arc<Self>,
        session: &Session,
        way: RequestContext,
        errand: Miss,
        fields: HeaderMap,
    ) -> Response<Body> {
        let arrived = Instant::now();
        let asking = errand.asking;
        let asked = asking.by_hash.as_ref().unwrap_or(&asking.key);
        let wish = RequestPriority::of(
            way.caller,
            match errand.stale {
                // What may not stand in for much longer is as urgent as what
                // is not there.
                Some((_, by)) if by < self.stale_bound(&asking.key) / 2 => Priority::Revalidation,
                Some(_) | None => Priority::Miss,
            },
        );
        let passes = errand.why == Forward::Bypass;
        let joins = !passes && self.fill.collapse.has(asking.key.as_bytes());
        let admitted = self.admit_miss(way.caller, joins);
        let counts = admitted.is_ok() && !joins;
        if let Err(too_many) = admitted
            && (passes || self.fill.plan(&asking.key).asks())
        {
            self.count_limited(errand.stale.is_some());
            let said = way.said(&fields);
            let (response, outcome) = match errand.stale {
                Some((stored, by)) => {
                    let outcome = Outcome::StaleIfError { ttl: past(by) };
                    let age = self
                        .cache
                        .age(&stored, Freshness::Stale { by }, self.clock.now());
                    let response = self.respond.stored(stored, asked, outcome, &said, age);
                    (response, Some(outcome))
                }
                None => (self.respond.refusal(&too_many, None, &said), None),
            };
            return self.finish(session, &way, outcome, None, response, self.clock.now());
        }
        let (fetched, collapsed, stale) = match (errand.why, errand.stale) {
            (Forward::Bypass, _) => (self.fill.pass(&asking.key, wish).await, false, None),
            (_, None) => {
                let wait = Wait::until(arrived + self.fill.patience(&asking.key));
                let (fetched, collapsed) = self.find(&asking, wait, wish).await;
                (fetched, collapsed, None)
            }
            (_, Some(stale)) => self.find_or(&asking, stale, arrived, wish).await,
        };
        let is_from_memory = matches!(
            &fetched,
            Ok(FillAnswer {
                from: AnswerSource::Memory,
                ..
            })
        );
        if counts && (collapsed || is_from_memory) {
            self.give_back_miss(way.caller);
        }
        if let Ok(found) = &fetched {
            look_ahead::next_window(&self.fill, &asking.key, &found.stored);
        }
        let now = self.clock.now();
        session.activity.record(now);
        let said = way.said(&fields);
        let forwarded = |status, stored| Outcome::Forwarded {
            why: errand.why,
            status,
            stored,
            collapsed,
        };
        let (response, outcome, took) = match (fetched, stale) {
            (Ok(FillAnswer { stored, from }), _) => {
                let judged = self.cache.judge(&stored, now);
                let outcome = match from {
                    AnswerSource::Upstream { stored: kept } => forwarded(Some(stored.status), kept),
                    // Put together from what was stored already.
                    AnswerSource::Memory => hit(judged),
                };
                let (age, took) = (self.cache.age(&stored, judged, now), stored.took);
                let response = self.respond.stored(stored, asked, outcome, &said, age);
                (response, outcome, Some(took))
            }
            // RFC 5861 §4: better what was true a while ago than an error.
            (Err(_failure), Some((stored, by))) => {
                let outcome = Outcome::StaleIfError { ttl: past(by) };
                let age = self.cache.age(&stored, Freshness::Stale { by }, now);
                let response = self.respond.stored(stored, asked, outcome, &said, age);
                (response, outcome, None)
            }
            (Err(failure), None) => {
                let outcome = forwarded(failure.upstream_status(), false);
                let refusal = Refusal::Upstream(failure);
                (
                    self.respond.refusal(&refusal, Some(outcome), &said),
                    outcome,
                    None,
                )
            }
        };
        self.finish(session, &way, Some(outcome), took, response, now)
    }

    /// Counts a request that is to go to the upstream against its client's limit
    /// on misses, unless it joins another's. What is over the limit is answered
    /// with what is stale, where there is such.
    fn admit_miss(&self, caller: Client, joins: bool) -> Result<(), Refusal> {
        match &self.limit {
            Some(limit) if !joins => limit
                .admit_miss(caller, self.clock.now())
                .map_err(Refusal::TooManyMisses),
            Some(_) | None => Ok(()),
        }
    }

    /// Counts a request as a miss after all that has not had another's answer,
    /// though it joined one; and the other way round.
    fn count_by_outcome<T, E>(
        &self,
        caller: Client,
        joined: bool,
        went: &Result<(T, Outcome), (E, Outcome)>,
    ) {
        let asked = match went {
            Ok((_, Outcome::Forwarded { collapsed, .. })) => !collapsed,
            Ok((_, Outcome::Hit { .. })) => false,
            // It is not known who has asked.
            Ok((_, Outcome::StaleIfError { .. })) | Err(_) => !joined,
        };
        match (joined, asked) {
            // It has asked already: what is over the limit shows with the next.
            (true, true) => {
                let _counted = self.admit_miss(caller, false);
            }
            (false, false) => self.give_back_miss(caller),
            (true, false) | (false, true) => {}
        }
    }

    /// Gives back what was counted for a request that memory, or another's, has
    /// answered after all.
    fn give_back_miss(&self, caller: Client) {
        if let Some(limit) = &self.limit {
            limit.refund_miss(caller);
        }
    }

    /// Counts one that was over that limit, by what became of it.
    fn count_limited(&self, is_stale: bool) {
        if let Some(limit) = &self.limit {
            limit.refused().count(is_stale);
        }
    }

    /// Finds out what is asked, within a time.
    async fn find(
        &self,
        asking: &LookupKey,
        wait: Wait,
        wish: RequestPriority,
    ) -> (FillResult, bool) {
        let (fetched, collapsed) = self.fill.find(&asking.key, wait, wish).await;
        match (&fetched, &asking.by_hash) {
            // The height belongs to another block by now: the hash itself is
            // asked for.
            (Ok(found), Some(by_hash)) if !self.fill.is_answer(asking, &found.stored) => {
                self.fill.find(by_hash, wait, wish).await
            }
            (Ok(_) | Err(_), _) => (fetched, collapsed),
        }
    }

    /// The same where a stale answer may stand in, and so sooner given up. Says
    /// whether it still may: a reorg may have undone its block meanwhile, or
    /// parted height and hash.
    async fn find_or(
        &self,
        asking: &LookupKey,
        stale: Stale,
        arrived: Instant,
        wish: RequestPriority,
    ) -> (FillResult, bool, Option<Stale>) {
        // Where the upstream has been asked for a while already, it is slow:
        // the stale answer need not wait for it again.
        let wait = Wait {
            deadline: arrived + self.stale_wait,
            since_began: Some(self.stale_wait),
        };
        let (fetched, collapsed) = self.find(asking, wait, wish).await;
        let (stored, _) = &stale;
        if self.fill.is_answer(asking, stored)
            && !self.cache.store().has_purged(&asking.key, stored)
        {
            return (fetched, collapsed, Some(stale));
        }
        let (fetched, collapsed) = match fetched {
            // It was given up for what is no more.
            Err(Failure::TimedOut(TimedOut::Whole)) => {
                self.find(
                    asking,
                    Wait::until(arrived + self.fill.patience(&asking.key)),
                    RequestPriority {
                        priority: Priority::Miss,
                        ..wish
                    },
                )
                .await
            }
            Ok(_) | Err(_) => (fetched, collapsed),
        };
        (fetched, collapsed, None)
    }

    /// How stale an answer may be where the upstream fails.
    fn stale_bound(&self, key: &Key) -> Duration {
        let route = self.route(key);
        route.map_or(Duration::ZERO, |route| route.cache.stale_if_error)
    }

    fn route(&self, key: &Key) -> Option<&Route> {
        self.routes.get(key.route())
    }

    /// The one exit: counts, and writes the access log where there is one.
    fn finish(
        &self,
        session: &Session,
        way: &RequestContext,
        outcome: Option<Outcome>,
        upstream: Option<Duration>,
        mut response: Response<Body>,
        now: Moment,
    ) -> Response<Body> {
        if session.activity.is_draining() {
            response
                .headers_mut()
                .insert(CONNECTION, HeaderValue::from_static("close"));
        }
        self.meter
            .count(session.connection, way.route, outcome, response.status());
        if let Some(log) = &self.access_log {
            let route = way
                .route
                .and_then(|route| self.routes.routes().get(usize::from(route)));
            log.write(&LogEntry {
                caller: way.caller,
                method: &way.method,
                route: route.map(|route| &*route.name),
                key: way.key,
                status: response.status().as_u16(),
                bytes: response.body().size_hint().exact().unwrap_or(0),
                duration: now.since(way.began),
                outcome,
                upstream,
                request_id: way.request_id,
            });
        }
        response
    }

    /// The tips that some route goes by and that can be asked for.
    pub fn tips(&self) -> Vec<u16> {
        let routes = self.routes.routes().iter();
        let chained = routes.filter(|route| route.cache.mode == Mode::Chain);
        let mut tips: Vec<_> = chained.map(|route| route.cache.tip).collect();
        tips.sort_unstable();
        tips.dedup();
        let chain = &self.fill.chain;
        tips.retain(|tip| {
            chain
                .source(*tip)
                .is_some_and(|source| source.path.is_some())
        });
        tips
    }

    /// The tips of [`tips`](Self::tips) that an upstream is asked for.
    pub fn tips_of(&self, upstream: u16) -> Vec<u16> {
        let mut tips = self.tips();
        let chain = &self.fill.chain;
        tips.retain(|tip| {
            let source = chain.source(*tip);
            source.is_some_and(|source| source.upstream == upstream)
        });
        tips
    }

    /// How the tips are known that can be asked for, or that some route goes by.
    pub fn tip_snapshots(&self) -> Vec<TipSnapshot> {
        let goes_by = |tip: u16| {
            let mut routes = self.routes.routes().iter();
            routes.any(|route| route.cache.mode == Mode::Chain && route.cache.tip == tip)
        };
        let standings = self.fill.chain.snapshots(self.clock.now());
        let numbered = (0_u16..).zip(standings);
        let used = numbered.filter(|(tip, standing)| standing.path.is_some() || goes_by(*tip));
        used.map(|(_, standing)| standing).collect()
    }

    /// How the tips are known that are asked for, since some route goes by them.
    pub fn asked_tips(&self) -> Vec<TipSnapshot> {
        let used = self.tips();
        let standings = self.fill.chain.snapshots(self.clock.now());
        let numbered = (0_u16..).zip(standings);
        let asked = numbered.filter(|(tip, _)| used.contains(tip));
        asked.map(|(_, standing)| standing).collect()
    }

    /// The tips that some route goes by and that have never been known.
    pub fn unknown_tips(&self) -> Vec<TipSnapshot> {
        let mut tips = self.asked_tips();
        tips.retain(|tip| !tip.known_once);
        tips
    }

    /// The routes that are paged, and whether their pages are cut from windows
    /// just now.
    pub fn paged(&self) -> impl Iterator<Item = (&Route, bool)> {
        let routes = self.routes.routes().iter();
        let paged = routes.filter(|route| route.pages.is_some());
        paged.map(|route| (route, self.fill.is_sliceable(route.number)))
    }

    /// What is owed now and then, off the walk: forgetting callers and answers
    /// that are past every use.
    pub fn maintain(&self) {
        if let Some(limit) = &self.limit {
            self.meter
                .totals
                .callers
                .store(limit.prune() as u64, Relaxed);
        }
        self.cache.store().sweep(self.clock.now(), |route| {
            self.routes.get(route).map_or(Duration::ZERO, |route| {
                let policy = &route.cache;
                policy.stale_while_revalidate.max(policy.stale_if_error)
            })
        });
    }
}

impl RequestContext {
    fn said<'a>(&self, fields: &'a HeaderMap) -> ResponseContext<'a> {
        ResponseContext {
            fields,
            request_id: self.request_id,
            permit: self.permit,
        }
    }
}

/// Takes a target in absolute form, as clients of a forward proxy send it, for
/// what it says in origin form. Its authority replaces Host (RFC 9112 §3.2.2).
/// One with userinfo, or of another scheme, is left as it is and refused.
#[cold]
fn origin_form<B>(request: &mut Request<B>) {
    let uri = request.uri();
    let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
    let (Some(authority), Some(path)) = (uri.authority(), uri.path_and_query()) else {
        return;
    };
    if !is_http || authority.as_str().contains('@') {
        return;
    }
    // A query may follow the authority at once.
    let path = match path.as_str().starts_with('/') {
        true => path.as_str().to_owned(),
        false => format!("/{path}"),
    };
    let (Ok(target), Ok(host)) = (
        Uri::try_from(path),
        HeaderValue::from_str(authority.as_str()),
    ) else {
        return;
    };
    *request.uri_mut() = target;
    request.headers_mut().insert(HOST, host);
}

/// A hit, with the whole seconds of freshness that are left.
fn hit(judged: Freshness) -> Outcome {
    let ttl = match judged {
        Freshness::Fresh { ttl } | Freshness::Revalidated { ttl } => {
            i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX)
        }
        Freshness::Stale { by } => past(by),
    };
    Outcome::Hit { ttl }
}

/// Seconds past freshness, as a `ttl` below zero.
fn past(by: Duration) -> i64 {
    -i64::try_from(by.as_secs()).unwrap_or(i64::MAX)
}

/// An answer, at once or later. It never fails: hyper would drop the
/// connection without a word.
pub enum ResponseFuture {
    /// Here it is.
    Done(Option<Response<Body>>),
    /// It will be.
    Under(Pin<Box<dyn Future<Output = Response<Body>> + Send>>),
}

impl Future for ResponseFuture {
    type Output = Result<Response<Body>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Self::Done(response) => match response.take() {
                Some(response) => Poll::Ready(Ok(response)),
                // A future is not polled again after it was ready.
                None => Poll::Pending,
            },
            Self::Under(walk) => walk.as_mut().poll(cx).map(Ok),
        }
    }
}
