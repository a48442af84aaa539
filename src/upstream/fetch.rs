//! One request to the upstream, from the queue to its answer: permits, attempts one after
//! another, and what may be passed on.
//!
//! [`Upstream::fetch`] sends a canonical target, of which nothing else is the client's, and
//! returns an answer of the API. [`Upstream::forward`] sends a request as it is, for routes
//! that obey the origin, and returns what comes.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, ACCEPT_ENCODING, IF_RANGE, RANGE, USER_AGENT, VIA};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, response};
use http_body_util::{BodyExt, Full};
use tokio::time::{Instant, sleep, timeout_at};

use super::answer::{self, Answer};
use super::body;
use super::exchange::{Answered, Unanswered};
use super::failure::{Failure, Retry};
use super::permit::{Asked, Permit};
use super::queue::Slot;
use super::request::{Priority, RequestPriority};
use super::retry::{NextAttempt, Tried, pause};
use super::{Place, RequestBody, ResponseBody, Upstream, no_body};
use crate::client_tokens::without_query;
use crate::reason::Reason;
use crate::trace;
use crate::trace::Span;
use crate::trace::span::{SpanKind, method_attributes};
use crate::trace::steps::{StepTimer, UpstreamStep};

/// A response whose body has not been read. It contains no API key.
pub struct StreamedAnswer {
    /// Status and fields.
    pub head: response::Parts,
    /// The body; it ends with [`Reason::AnswerWithheld`] if it contains an API key.
    pub body: ResponseBody,
    /// The request's slot, to be kept until the body has ended.
    pub slot: Option<Slot>,
    /// The base URL of the endpoint that has answered.
    pub endpoint: Arc<str>,
}

/// What is sent.
struct Outgoing<'a> {
    method: Method,
    /// Path and query.
    target: &'a str,
    fields: HeaderMap,
    body: Option<Bytes>,
    wanted: Wanted,
}

/// What is wanted of an answer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    /// An answer of the API, whole.
    Typed,
    /// Anything; if the head is that of an answer of the API, a body of up to so many bytes
    /// is read whole, and is JSON.
    Whole(u64),
    /// Anything, as it comes.
    Stream,
}

/// What came.
enum Received {
    Typed(Answer),
    Streamed(StreamedAnswer),
}

impl Upstream {
    /// Fetches a canonical target and judges the answer.
    ///
    /// # Errors
    /// How it failed, within the sum of `queue_timeout` and `timeout`.
    pub async fn fetch(&self, target: &str, priority: RequestPriority) -> Result<Answer, Failure> {
        self.fetch_at(Tried::default(), target, priority).await
    }

    /// Fetches a status path from this standby alone.
    ///
    /// # Errors
    /// As [`fetch`](Self::fetch).
    pub async fn fetch_standby(&self, at: usize, target: &str) -> Result<Answer, Failure> {
        let priority = RequestPriority::own(Priority::Probe);
        self.fetch_at(Tried::only(at), target, priority).await
    }

    async fn fetch_at(
        &self,
        tried: Tried,
        target: &str,
        priority: RequestPriority,
    ) -> Result<Answer, Failure> {
        let outgoing = Outgoing {
            method: Method::GET,
            target,
            fields: self.own_fields(),
            body: None,
            wanted: Wanted::Typed,
        };
        match self.request(&outgoing, priority, tried).await? {
            Received::Typed(answer) => Ok(answer),
            Received::Streamed(_) => Err(Failure::new(Reason::Internal)),
        }
    }

    /// Forwards a request: any method, these fields, this body, which is received whole
    /// first. A safe request without a body is sent again where that is useful. With `whole`,
    /// the response's body is read first, up to this many bytes, unless its head is not that
    /// of an answer of the API ([`answer::check_head`]).
    ///
    /// # Errors
    /// How it failed before a response began, or was read whole. It does so within
    /// `queue_timeout` and `timeout`, and the time in which the body must be received.
    pub async fn forward(
        &self,
        method: Method,
        target: &str,
        mut fields: HeaderMap,
        body: Option<RequestBody>,
        priority: RequestPriority,
        whole: Option<u64>,
    ) -> Result<StreamedAnswer, Failure> {
        let body = match body {
            None => None,
            Some(body) => {
                let (most, client) = (self.settings.max_request_body, priority.client);
                let received = self.uploads.receive(body, &mut fields, client, most);
                Some(received.await?)
            }
        };
        fields.remove(&self.settings.keys.header);
        let outgoing = Outgoing {
            method,
            target,
            fields,
            body,
            wanted: whole.map_or(Wanted::Stream, Wanted::Whole),
        };
        match self.request(&outgoing, priority, Tried::default()).await? {
            Received::Streamed(answer) => Ok(answer),
            Received::Typed(_) => Err(Failure::new(Reason::Internal)),
        }
    }

    /// Sends a request, and again where that is safe and useful.
    async fn request(
        &self,
        outgoing: &Outgoing<'_>,
        priority: RequestPriority,
        mut tried: Tried,
    ) -> Result<Received, Failure> {
        let queued_until = Instant::now() + self.settings.admission.queue_timeout;
        let (mut until, mut deadline) = (queued_until, None);
        let (mut reason, mut failed) = (priority.reason(), None);
        let mut resends = 0_u32;
        self.retries().deposit();
        loop {
            let permit = match self.wait_for_permit(priority, &tried, until).await {
                Ok(permit) => permit,
                // The failure of the attempt before is reported.
                Err(denied) => {
                    let of_before = failed.map(|failed| self.with_retry_after(failed, priority));
                    return Err(of_before.unwrap_or(denied));
                }
            };
            let deadline =
                *deadline.get_or_insert_with(|| Instant::now() + self.settings.timeouts.whole);
            let (upstream, at) = (permit.asked.upstream.clone(), permit.asked.at);
            let attempt = upstream.attempt(outgoing, permit, (reason, resends));
            let mut failure = match timeout_at(deadline, attempt).await {
                Ok(Ok(received)) => {
                    upstream.counters.count_outcome(true);
                    return Ok(received);
                }
                Ok(Err(Unanswered::NotSent)) => continue,
                Ok(Err(Unanswered::Failed(failure))) => failure,
                Err(_elapsed) => {
                    let failure = Failure::new(Reason::UpstreamTimeout);
                    let cause =
                        format!("no whole answer came in {:?}", self.settings.timeouts.whole);
                    let made_for = upstream.made_for(&priority);
                    upstream.endpoints[at].failed(&failure, Some(cause), made_for);
                    failure
                }
            };
            failure.endpoint = Some(upstream.endpoints[at].name.clone());
            let is_repeatable = outgoing.body.is_none() && outgoing.method.is_safe();
            let next = match is_repeatable {
                true => {
                    upstream
                        .next_attempt(&mut tried, &failure, at, deadline)
                        .await
                }
                false => false,
            };
            if !next {
                upstream.counters.count_outcome(false);
                return Err(upstream.with_retry_after(failure, priority));
            }
            until = deadline.min(Instant::now() + self.settings.admission.queue_timeout);
            (reason, failed) = ("retry", Some(failure));
            resends += 1;
        }
    }

    async fn wait_for_permit(
        &self,
        priority: RequestPriority,
        tried: &Tried,
        until: Instant,
    ) -> Result<Permit, Failure> {
        let mut span = trace::begin("queue", SpanKind::Internal);
        span.set("ordgate.upstream", || self.name().to_owned());
        span.set("ordgate.priority", || priority.priority.name());
        let _step = StepTimer::begin(UpstreamStep::Queue, &self.clock);
        let permitted = self.acquire(priority, tried, until).await;
        permitted.map_err(|mut failure| {
            if failure.reason == Reason::OverBudget && self.keys.unknown_because().is_some() {
                failure.reason = Reason::BudgetUnknown;
            }
            span.fail(failure.reason.name());
            self.counters.count_denied(&failure);
            failure
        })
    }

    /// Whether another attempt follows a failure; its pause is over then.
    async fn next_attempt(
        &self,
        tried: &mut Tried,
        failure: &Failure,
        at: usize,
        deadline: Instant,
    ) -> bool {
        let other = |tried: &[usize]| {
            let mut tried = tried.to_vec();
            if failure.retry() == Retry::OtherKey {
                // The host refuses the keys at all its base URLs.
                let host = &self.endpoints[at].host;
                let all = 0..self.endpoints.len();
                tried.extend(all.filter(|other| self.endpoints[*other].host == *host));
            }
            self.other_endpoint(&tried)
        };
        match tried.fail(failure, at, other, self.keys.count()) {
            None => false,
            Some(NextAttempt::Now) => true,
            Some(NextAttempt::Repeat) => {
                let pause = pause();
                let is_in_time = self.settings.retry && Instant::now() + pause < deadline;
                if is_in_time && !self.retries().withdraw(self.clock.now()) {
                    self.counters.unretried.fetch_add(1, Relaxed);
                    return false;
                }
                sleep(pause).await;
                is_in_time
            }
        }
    }

    /// The failure with the `retry-after` of all keys together: another key may be usable
    /// sooner, or the budget of this one be spent for longer.
    fn with_retry_after(&self, mut failure: Failure, priority: RequestPriority) -> Failure {
        if failure.reason == Reason::Throttled {
            let host = &self.endpoints[self.place(Place::Selected)].host;
            let denied = self.keys.denied(host, priority.is_probe());
            let wait = denied.and_then(|denied| denied.failure.retry_after);
            // One may be usable by now.
            failure.retry_after = Some(wait.unwrap_or(Duration::from_secs(1)));
        }
        failure
    }

    /// Makes one attempt.
    async fn attempt(
        self: &Arc<Self>,
        outgoing: &Outgoing<'_>,
        permit: Permit,
        (reason, resends): (&'static str, u32),
    ) -> Result<Received, Unanswered> {
        let mut span = attempt_span(outgoing, &permit.asked, reason, resends);
        let step = StepTimer::begin(UpstreamStep::Upstream, &self.clock);
        let request = self.outgoing(outgoing, &permit, &span)?;
        let (asked, priority) = (permit.asked.clone(), permit.request);
        let is_typed = outgoing.wanted == Wanted::Typed;
        let patience = self.patience(&priority);
        let exchanged = self.exchange(permit, request, (is_typed, reason), patience);
        let received = match exchanged.await {
            Err(unanswered) => {
                if let Unanswered::Failed(failure) = &unanswered {
                    span.fail(failure.reason.name());
                }
                return Err(unanswered);
            }
            Ok(answered) => {
                let status = answered.response.status();
                span.set("http.response.status_code", || status.as_u16());
                if status.is_client_error() || status.is_server_error() {
                    span.fail_with_status(status.as_u16());
                }
                match outgoing.wanted {
                    Wanted::Typed => self.read_answer(answered).await,
                    Wanted::Whole(most) => self.read_streamed(answered, Some(most)).await,
                    Wanted::Stream => self.read_streamed(answered, None).await,
                }
            }
        };
        drop(step);
        let mut failure = match received {
            Ok(received) => return Ok(received),
            Err(failure) => failure,
        };
        if is_typed && failure.reason == Reason::KeyRefused {
            let target = outgoing.target;
            failure = self
                .resolve_refusal(&asked, priority, target, failure)
                .await;
        }
        // Clients choose other targets.
        if self.is_status_path(outgoing.target) {
            if failure.reason == Reason::Retired {
                asked.endpoint.retire();
            } else if failure.is_of_endpoint() || failure.reason == Reason::WrongUpstream {
                asked.endpoint.record_status(false);
            }
        }
        span.fail(failure.reason.name());
        asked
            .endpoint
            .failed(&failure, None, self.made_for(&priority));
        Err(failure.into())
    }

    /// The request as it is sent.
    fn outgoing(
        &self,
        outgoing: &Outgoing<'_>,
        permit: &Permit,
        span: &Span,
    ) -> Result<Request<RequestBody>, Failure> {
        let mut request = Request::new(match &outgoing.body {
            Some(body) => Full::new(body.clone())
                .map_err(|never| match never {})
                .boxed(),
            None => no_body(),
        });
        *request.method_mut() = outgoing.method.clone();
        *request.uri_mut() = permit.asked.endpoint.uri(outgoing.target)?;
        let fields = request.headers_mut();
        fields.clone_from(&outgoing.fields);
        span.propagate(fields);
        if let Some(key) = permit.header() {
            fields.insert(self.settings.keys.header.clone(), key.clone());
            // The response is searched for the key: it must not be compressed, nor be a
            // range that contains a part of the key.
            fields.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
            fields.remove(RANGE);
            fields.remove(IF_RANGE);
        }
        Ok(request)
    }

    /// The fields of requests that ordgate makes itself.
    pub(super) fn own_fields(&self) -> HeaderMap {
        let agent = concat!("ordgate/", env!("CARGO_PKG_VERSION"));
        let mut fields = HeaderMap::from_iter([
            (ACCEPT, HeaderValue::from_static("application/json")),
            // ordgate undoes no content codings.
            (ACCEPT_ENCODING, HeaderValue::from_static("identity")),
            (USER_AGENT, HeaderValue::from_static(agent)),
        ]);
        if let Some(via) = self.via.get() {
            fields.insert(VIA, via.clone());
        }
        fields
    }

    /// Reads an answer of the API.
    async fn read_answer(&self, answered: Answered) -> Result<Received, Failure> {
        let Answered {
            response,
            asked,
            slot,
            sent,
        } = answered;
        let (head, body) = response.into_parts();
        answer::check_head(head.status, &head.headers, self.clock.system_time())?;
        let (most, limits) = (self.settings.max_body_bytes, &self.settings.response_body);
        let body = body::read(body, most, limits).await?;
        drop(slot);
        let took = self.clock.now().since(sent);
        let mut answer = answer::read(head.status, &head.headers, body, took)?;
        answer::check_route(answer.status, &answer.body)?;
        // Nothing else of an answer is stored, served or told to other replicas. It is
        // searched once, however often it is served.
        let tag = answer.etag.as_deref().unwrap_or_default();
        self.search(&[&answer.body, answer.content_type.as_bytes(), tag])?;
        answer.endpoint = asked.at as u16;
        Ok(Received::Typed(answer))
    }

    /// Takes a response as it is.
    async fn read_streamed(
        &self,
        answered: Answered,
        whole: Option<u64>,
    ) -> Result<Received, Failure> {
        let Answered {
            response,
            asked,
            slot,
            ..
        } = answered;
        // No upgrade was requested.
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            return Err(Failure::new(Reason::NotHttp));
        }
        let (head, body) = self.search_answer(response)?;
        let wall = self.clock.system_time();
        let is_answer = || answer::check_head(head.status, &head.headers, wall).is_ok();
        let body = match whole.filter(|_| is_answer()) {
            None => body.boxed_unsync(),
            Some(most) => {
                let read = body::read(body, most, &self.settings.response_body).await?;
                answer::check_json(&read)?;
                answer::check_route(head.status, &read)?;
                Full::new(read)
                    .map_err(|never| match never {})
                    .boxed_unsync()
            }
        };
        Ok(Received::Streamed(StreamedAnswer {
            head,
            body,
            slot,
            endpoint: asked.endpoint.name.clone(),
        }))
    }
}

/// Begins the span of an attempt: its method, why it is sent, how often it was before, and
/// where.
fn attempt_span(
    outgoing: &Outgoing<'_>,
    asked: &Asked,
    reason: &'static str,
    resends: u32,
) -> Span {
    let mut span = trace::begin("upstream", SpanKind::Client);
    for (name, value) in method_attributes(&outgoing.method) {
        span.set(name, || value);
    }
    span.set("ordgate.attempt", || reason);
    if resends > 0 {
        span.set("http.request.resend_count", || resends);
    }
    let url = &asked.endpoint.url;
    span.set("server.address", || {
        url.host().unwrap_or_default().to_owned()
    });
    span.set("server.port", || {
        let usual = if url.scheme_str() == Some("https") {
            443
        } else {
            80
        };
        url.port_u16().unwrap_or(usual)
    });
    span.set("url.full", || {
        let target = match outgoing.wanted == Wanted::Typed {
            true => outgoing.target,
            // What a query means is the origin's matter: it may be secret.
            false => without_query(outgoing.target),
        };
        asked.endpoint.uri(target).unwrap_or_default().to_string()
    });
    span
}
