//! The path of a request, from its head to its response:
//!
//! ```text
//! listener -> answer -> answer_from_memory: limit, token, route, key
//!   from memory:  -> serve_stored: decide, render -> finish
//!   a miss:       -> answer_miss: limit of misses, fetch, or a stale response -> finish
//! ```
//!
//! The listener calls [`Gateway::answer`] for each request. [`Decision`] says whether a stored
//! response answers it; then the response is ready at once. Otherwise it is a future, because it
//! must be fetched (`miss`) by [`fill`]. A step that cannot continue returns a [`Refusal`]. Every
//! response leaves through `Gateway::finish`.
//!
//! Invariants: a request that does not validate never reaches the upstream;
//! a collapsed fetch is a task of its own, so no client's disconnect cancels it
//! (a fetch that is not shared, in mode `off` or with a body, ends with its
//! client); every wait has a deadline.
//!
//! [`fill`]: crate::fill

mod clients;
mod miss;
mod records;
mod request;
mod snapshot;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
pub(crate) use clients::ClientPolicy;
use http::header::CONNECTION;
use http::{HeaderMap, HeaderValue, Method, Request, Response, Uri, Version};
use http_body_util::BodyExt;
use records::in_trace;
use request::{RequestContext, RequestRef, check_target};
pub use request::{ResponseFuture, Session};

use crate::access_log::AccessLog;
use crate::cache::hop;
use crate::cache::key::Key;
use crate::cache::outcome::{Forward, Outcome};
use crate::cache::reuse::Reuse;
use crate::cache::{Cache, Decision, JudgedResponse};
use crate::chain::Freshness;
use crate::clock::Clock;
use crate::compress::Compressor;
use crate::events;
use crate::fill::{ClientRequest, Fetch, Fill, LookupKey};
use crate::limit::Limit;
use crate::meter::{Meter, RequestKind};
use crate::reason::Reason;
use crate::refusal::Refusal;
use crate::respond::{Document, Responder};
use crate::route::{HeaderMode, Methods, Route, RouteTable, value_of};
use crate::state::State;
use crate::upstream::{Priority, RequestBody, Upstreams};
use crate::validate::{Invalid, decode};
use crate::wire::Body;
use crate::wire::body::BodyError;
use crate::wire::head;
use crate::wire::request_id::RequestId;

/// Everything that answering needs. It is made at start and at each reload.
pub struct Gateway {
    /// The routes that requests are matched with.
    pub(crate) routes: Arc<RouteTable>,
    /// The stored responses.
    pub cache: Cache,
    /// Fetches what memory does not have.
    pub fill: Arc<Fill>,
    /// How long a request waits for a fresh response when it could be answered
    /// with a stale one.
    pub(crate) stale_wait: Duration,
    /// The upstreams of all routes and tips.
    pub(crate) upstreams: Arc<Upstreams>,
    /// The time.
    pub clock: Clock,
    /// Whose limits a request counts against.
    pub(crate) clients: ClientPolicy,
    /// Renders responses.
    pub(crate) responder: Arc<Responder>,
    /// Compresses stored bodies.
    pub(crate) compressor: Arc<Compressor>,
    /// What outlives the process.
    pub(crate) state: State,
    /// What is recorded of each request.
    pub(crate) records: Records,
    /// ordgate's own documents on the public listener.
    pub(crate) documents: Vec<Document>,
    /// Makes request ids differ from those of other processes.
    pub(crate) seed: u64,
}

/// What is recorded of each request.
pub(crate) struct Records {
    /// Counts requests by route, outcome and status.
    pub(crate) meter: Meter,
    /// Writes a line for each request, where it is enabled.
    pub(crate) access_log: Option<AccessLog>,
    /// The share of requests that are traced; `None` if traces are not exported.
    pub(crate) traced_share: Option<f64>,
}

/// What a request needs after memory was consulted.
enum NextStep {
    /// It is answered.
    Done(Response<Body>, RequestKind),
    /// Its answer is to be fetched: by this key, and why. A stored response may be validated, or
    /// answer where the fetch fails.
    Fetch(LookupKey, Forward, Option<JudgedResponse>),
}

impl Gateway {
    /// Answers a request. There is always a response.
    pub fn answer<B>(
        self: &Arc<Self>,
        session: &Arc<Session>,
        mut request: Request<B>,
    ) -> ResponseFuture
    where
        B: hyper::body::Body<Data = Bytes> + Send + Sync + 'static,
        B::Error: Into<BodyError>,
    {
        let checked = head::check(&request);
        if request.uri().authority().is_some() || session.activity.is_http2() {
            head::normalize(&mut request);
        }
        let mut context = RequestContext::new(self, session, &mut request);
        let next = self.answer_from_memory(session, &request, checked, &mut context);
        let asked = context.with(session, request.uri(), request.headers());
        match next {
            Ok(NextStep::Done(response, kind)) => {
                ResponseFuture::Done(Some(self.finish(asked, kind, None, response)))
            }
            Ok(NextStep::Fetch(..)) if hop::has_passed(request.headers(), &self.fill.pseudonym) => {
                self.refuse(asked, request.body(), &Reason::Loop.into())
            }
            Ok(NextStep::Fetch(lookup, why, stored)) => {
                // With a stale response to fall back on, it can wait.
                let priority = context.priority(match stored.is_some() {
                    true => Priority::Revalidation,
                    false => Priority::Miss,
                });
                let own = ClientRequest::of(&request, session.peer, &session.activity);
                let fetch = self.fill.fetch_for(own, (lookup, why, stored), priority);
                self.answer_later(session, request, context, fetch)
            }
            Err(refusal) => self.refuse(asked, request.body(), &refusal),
        }
    }

    /// Everything that needs no waiting: limit, route, validation, stored response.
    fn answer_from_memory<B: hyper::body::Body>(
        &self,
        session: &Session,
        request: &Request<B>,
        checked: Result<(), Reason>,
        context: &mut RequestContext,
    ) -> Result<NextStep, Refusal> {
        // Refused requests count too: otherwise they would be free.
        context.permit = self.clients.admit(&context.from, context.began)?;
        checked.map_err(|reason| Refusal::from(reason).closing())?;
        check_target(request.uri())?;
        self.clients.check_token(&context.from)?;
        let uri = request.uri();
        let Some(found) = self.routes.find(uri.path()) else {
            return self.document(session, request, context);
        };
        context.route = Some(found.index);
        let route = found.route;
        if request.method() == Method::OPTIONS && route.request.methods != Methods::Any {
            let fields = context.for_response(&self.clients, request.headers());
            let allow = route.request.methods.allow();
            let response = self.responder.preflight(&allow, &fields);
            return Ok(NextStep::Done(response, RequestKind::Preflight));
        }
        // After the preflight: browsers send no credentials with one.
        self.clients.require_token(&context.from)?;
        if !route.request.methods.contains(request.method()) {
            return Err(Refusal::method(route.request.methods.allow()));
        }
        if !request.body().is_end_stream() && route.headers == HeaderMode::Typed {
            return Err(Reason::Body.into());
        }
        let key = route.canonical(&found.captures, uri.query())?;
        self.serve_stored(session, route, request, key, context)
    }

    /// Answers from memory, or says what is to be fetched.
    #[inline]
    fn serve_stored<B>(
        &self,
        session: &Session,
        route: &Route,
        request: &Request<B>,
        key: Key,
        context: &RequestContext,
    ) -> Result<NextStep, Refusal> {
        let now = context.began;
        let lookup = self.fill.lookup_key(route, key);
        let asked = (request.method(), request.headers(), session.peer);
        let (mut judged, reuse) = match self.fill.decide(route, &lookup, asked, now) {
            Decision::Serve { stored, reuse } => (stored, reuse),
            Decision::Fetch { why, stored } => {
                return Ok(NextStep::Fetch(lookup, why, stored));
            }
            Decision::OnlyIfCached => return Err(Reason::OnlyIfCached.into()),
        };
        if let Freshness::BecameFinal = judged.freshness {
            judged.stored = self.fill.store_as_final(&lookup.key, &judged.stored);
        }
        if reuse == Reuse::WhileRevalidate {
            let own = ClientRequest::of(request, session.peer, &session.activity);
            let what = (lookup.clone(), Forward::Stale, Some(judged.clone()));
            let priority = context.priority(Priority::Revalidation);
            self.fill.fetch_for(own, what, priority).refresh();
        }
        let outcome = Outcome::hit(judged.ttl());
        let mut fields = context.for_response(&self.clients, request.headers());
        fields.headers = route.headers;
        if context.version == Version::HTTP_2 {
            fields.date = Some(self.clock.wall(now));
        }
        let (stored, age) = (judged.stored, judged.age);
        let mut response = (self.responder).stored(&stored, &lookup.key, outcome, &fields, age);
        route.disarm(&mut response);
        Ok(NextStep::Done(response, RequestKind::Answer(outcome)))
    }

    /// Answers a request that memory does not answer.
    fn answer_later<B>(
        self: &Arc<Self>,
        session: &Arc<Session>,
        request: Request<B>,
        context: RequestContext,
        fetch: Arc<Fetch>,
    ) -> ResponseFuture
    where
        B: hyper::body::Body<Data = Bytes> + Send + Sync + 'static,
        B::Error: Into<BodyError>,
    {
        let (gateway, session) = (self.clone(), session.clone());
        let requested = fetch.lookup.requested();
        // What a query means on a plain route is the origin's matter: it may be secret.
        let query = requested.target().split_once('?');
        let query = query.filter(|_| !fetch.is_plain()).map(|(_, query)| query);
        let trace = self.begin_trace(&session, &request, &context, query);
        let (head, body) = request.into_parts();
        let body: Option<RequestBody> =
            (!body.is_end_stream()).then(|| body.map_err(Into::into).boxed());
        in_trace(trace, async move {
            let _working = session.activity.busy();
            let request = context.with(&session, &head.uri, &fetch.request.fields);
            gateway.answer_miss(request, &fetch, body).await
        })
    }

    /// Answers a request whose path is no route: with a document of ordgate's own, such as
    /// its OpenAPI description, with the stream of events, or not at all. A document needs no
    /// token: it says how to use one, and a browser that opens it sends none.
    fn document<B: hyper::body::Body>(
        &self,
        session: &Session,
        request: &Request<B>,
        context: &RequestContext,
    ) -> Result<NextStep, Refusal> {
        let path = request.uri().path();
        let document = self.documents.iter().find(|document| document.path == path);
        if document.is_none() && path != events::PATH {
            self.clients.require_token(&context.from)?;
            return Err(Reason::NoRoute.into());
        }
        let allow = HeaderValue::from_static("GET, HEAD, OPTIONS");
        let fields = context.for_response(&self.clients, request.headers());
        let (response, kind) = match *request.method() {
            Method::GET | Method::HEAD if !request.body().is_end_stream() => {
                return Err(Reason::Body.into());
            }
            Method::GET | Method::HEAD => {
                let response = match document {
                    Some(document) => self.responder.document(document, &fields),
                    None => {
                        self.clients.require_token(&context.from)?;
                        let stream = self.events(session, request.uri(), request.headers())?;
                        self.responder.events(stream, &fields)
                    }
                };
                (response, RequestKind::Document)
            }
            Method::OPTIONS => {
                let response = self.responder.preflight(&allow, &fields);
                (response, RequestKind::Preflight)
            }
            _ => return Err(Refusal::method(allow)),
        };
        Ok(NextStep::Done(response, kind))
    }

    /// The events of the tips that a query chooses, for a client that may have had some.
    fn events(&self, session: &Session, uri: &Uri, fields: &HeaderMap) -> Result<Body, Refusal> {
        let chain = &self.fill.chain;
        let all = self.tips();
        let all = all.iter().map(|tip| &*chain.tip(*tip).source.name);
        let mut tips: Vec<_> = all.collect();
        if let Some(sent) = value_of("tip", uri.query().unwrap_or_default())? {
            let wanted = decode(sent, true).unwrap_or_default();
            let allowed = format!("one of {}", tips.join(", "));
            tips.retain(|tip| *tip == wanted);
            if tips.is_empty() {
                return Err(Invalid::new("tip", sent, allowed).into());
            }
        }
        let last_id = fields.get("last-event-id");
        let last_id = last_id.and_then(|id| id.to_str().ok()).unwrap_or_default();
        Ok(chain.events.listen(&session.activity, &tips, last_id))
    }

    /// Answers with a refusal. The request's body is not read.
    fn refuse(
        &self,
        request: RequestRef<'_>,
        body: &impl hyper::body::Body,
        refusal: &Refusal,
    ) -> ResponseFuture {
        let mut response = self.render_refusal(request, refusal, None);
        if !body.is_end_stream() {
            // The next request would begin after the unread body.
            close_connection(&mut response);
        }
        let kind = RequestKind::Refusal(refusal.reason);
        ResponseFuture::Done(Some(self.finish(request, kind, None, response)))
    }

    /// Renders a refusal of a request.
    fn render_refusal(
        &self,
        request: RequestRef<'_>,
        refusal: &Refusal,
        outcome: Option<Outcome>,
    ) -> Response<Body> {
        let status = refusal.status;
        if status.is_server_error() {
            self.record_error(request, status, (refusal.reason, &*refusal.detail));
        }
        let fields = request.context.for_response(&self.clients, request.fields);
        self.responder.refusal(refusal, outcome, &fields)
    }

    /// The one exit: counts the request and the time that it took, and writes the access
    /// log where it is enabled.
    fn finish(
        &self,
        request: RequestRef<'_>,
        kind: RequestKind,
        upstream_took: Option<Duration>,
        mut response: Response<Body>,
    ) -> Response<Body> {
        let RequestRef {
            session, context, ..
        } = request;
        if session.activity.is_http2() {
            if !response.status().is_success() {
                // Refusals have it. It has no meaning there (RFC 9113 §8.2.2).
                response.headers_mut().remove(CONNECTION);
            }
        } else if session.activity.is_draining.load(Relaxed) {
            close_connection(&mut response);
        }
        let status = response.status();
        let took = self.clock.now().since(context.began);
        let meter = &self.records.meter;
        meter.count(session.connection, context.route, kind, status, took);
        if let Some(log) = &self.records.access_log
            && log.wants(kind, status, took)
        {
            self.write_line(log, request, kind, (took, upstream_took), &response);
        }
        response.body_mut().count(&session.activity);
        response
    }

    /// The id of the `nth` request of a connection.
    fn request_id(&self, connection: u64, nth: u64) -> RequestId {
        RequestId::new(self.seed ^ (connection << 24).wrapping_add(nth))
    }

    /// The limits of clients, where they are enabled.
    pub(crate) fn limit(&self) -> Option<&Limit> {
        self.clients.limit.as_ref()
    }

    /// The counts of requests and connections.
    pub(crate) fn meter(&self) -> &Meter {
        &self.records.meter
    }

    /// Maintenance, periodically and after a reload: removes stored responses that are purged,
    /// too stale to be served, or of routes that no longer exist.
    pub fn maintain(&self) {
        self.cache.store().sweep(self.clock.now(), |route| {
            let policy = &self.routes.get(route)?.cache;
            Some(policy.stale_while_revalidate.max(policy.stale_if_error))
        });
    }
}

fn close_connection(response: &mut Response<Body>) {
    let close = HeaderValue::from_static("close");
    response.headers_mut().insert(CONNECTION, close);
}

#[cfg(test)]
mod tests;
