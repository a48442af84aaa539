//! Forwarding a request as it is, for routes that obey the origin: any method,
//! header fields and body. The response is handed on before its body is read.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use tokio::time::{Instant, timeout_at};

use super::attempt::{Request as CountedRequest, Unanswered};
use super::attempts::Attempts;
use super::traced::{trace_attempt, trace_result};
use super::{RequestBody, ResponseBody, no_body, response_body};
use crate::client_tokens::without_query;
use crate::trace::steps::{StepTimer, UpstreamStep};
use crate::upstream::admission::limit_report;
use crate::upstream::admit::Admission;
use crate::upstream::answer::check_head;
use crate::upstream::charge::Charge;
use crate::upstream::counters::SendReason;
use crate::upstream::endpoint::breaker::BreakerState;
use crate::upstream::endpoint::{EndpointPermit, InFlightSlot};
use crate::upstream::{Failure, RequestPriority, SearchedBody, TimedOut, Upstream};

/// A response whose body has not been read. It contains no API key.
pub struct StreamedAnswer {
    /// Status and fields.
    pub head: response::Parts,
    /// The body; it ends with [`Failure::KeyEchoed`] if it
    /// contains an API key.
    pub body: ResponseBody,
    /// The request's permit, to be kept until the body has ended.
    pub permit: BodyPermit,
    /// The base URL of the endpoint that has answered.
    pub endpoint: Arc<str>,
}

struct Forwarded {
    method: Method,
    fields: HeaderMap,
    body: Option<Bytes>,
}

/// A response and its permit.
type Received = (Response<Incoming>, BodyPermit);

impl Upstream {
    /// Forwards a request: any method, these fields, this body. A safe request
    /// without a body is sent again where that is useful. A body is received whole
    /// first; its faults never count against the upstream. With
    /// `whole`, the response's body is read first, up to this many bytes, unless its
    /// head is not that of an answer of the API ([`check_head`]); a body that fails
    /// is a failure of the request.
    ///
    /// # Errors
    /// How it failed before a response began, or was read whole. It does so within
    /// `queue_timeout` and `timeout`, and the time in which the body must be
    /// received.
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
                let most = self.settings.max_request_body;
                let received = self
                    .uploads
                    .receive(body, &mut fields, priority.client, most);
                Some(received.await.map_err(Failure::RequestBody)?)
            }
        };
        let mut attempts = Attempts::default();
        let queued_until = self.queued_until();
        let mut admitted = self.admit(priority, &attempts, queued_until).await?;
        let deadline = Instant::now() + self.settings.timeouts.whole;
        self.retries().deposit(self.clock.now());
        let mut reason = SendReason::First(priority.priority);
        let mut resends = 0;
        let is_repeatable = body.is_none() && method.is_safe();
        let request = Forwarded {
            method,
            fields,
            body,
        };
        loop {
            let at = self.index_of(admitted.permit.endpoint());
            let sent = CountedRequest {
                target: without_query(target),
                reason,
                priority,
                resends,
                span: None,
            };
            let received = self.forward_attempt(admitted, sent, target, &request).await;
            let answered = match received {
                Ok(received) => self.answer(received, at, whole, deadline).await?,
                Err(Unanswered::NotWritten) => {
                    admitted = self.admit(priority, &attempts, queued_until).await?;
                    continue;
                }
                Err(Unanswered::Failed(failure)) => Err(failure),
            };
            let failure = match answered {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            let next = match is_repeatable {
                true => {
                    self.retry(&mut attempts, &failure, at, priority, deadline)
                        .await
                }
                false => None,
            };
            let Some(next) = next else {
                return Err(self.final_failure(failure));
            };
            (admitted, reason) = (next, SendReason::Retry);
            resends += 1;
        }
    }

    /// The failure of a request that is not sent again.
    fn final_failure(&self, failure: Failure) -> Failure {
        if !matches!(failure, Failure::RequestBody(_)) {
            self.counters.count_failed();
        }
        failure
    }

    /// The answer that a response is, its body read if it is wanted `whole`.
    ///
    /// # Errors
    /// If an API key is in the head, for which no retry follows; within, if the body
    /// fails.
    async fn answer(
        &self,
        (response, mut permit): Received,
        at: usize,
        whole: Option<u64>,
        deadline: Instant,
    ) -> Result<Result<StreamedAnswer, Failure>, Failure> {
        let searched = self.search_answer(response);
        let (head, body) = searched.inspect_err(|_echoed| self.counters.count_failed())?;
        match self.begin_body(&head, body, whole, deadline).await {
            Ok(body) => {
                permit.end_trial();
                self.counters.count_answered();
                Ok(Ok(StreamedAnswer {
                    head,
                    body,
                    permit,
                    endpoint: self.endpoints[at].name().into(),
                }))
            }
            Err(failure) => {
                permit.failed(&failure);
                Ok(Err(failure))
            }
        }
    }

    /// Reads a body that is wanted `whole`.
    async fn begin_body(
        &self,
        head: &response::Parts,
        body: SearchedBody,
        whole: Option<u64>,
        deadline: Instant,
    ) -> Result<ResponseBody, Failure> {
        let wall = self.clock.system_time();
        let is_answer = || check_head(head.status, &head.headers, wall).is_ok();
        let Some(most) = whole.filter(|_| is_answer()) else {
            return Ok(body.boxed_unsync());
        };
        let _step = StepTimer::begin(UpstreamStep::Upstream, &self.clock);
        let read = response_body::read(body, most, &self.settings.response_body);
        let read = timeout_at(deadline, read).await;
        let read = read.unwrap_or(Err(Failure::TimedOut(TimedOut::Whole)))?;
        Ok(Full::new(read)
            .map_err(|never| match never {})
            .boxed_unsync())
    }

    /// Makes one attempt, and reports its outcome to the endpoint as far as it is
    /// known when the response begins.
    async fn forward_attempt(
        &self,
        Admission {
            mut permit,
            sending,
        }: Admission,
        sent: CountedRequest<'_>,
        target: &str,
        forwarded: &Forwarded,
    ) -> Result<Received, Unanswered> {
        let sent_as = (&forwarded.method, sent.reason, sent.resends);
        let mut span = trace_attempt(permit.endpoint(), sent.target, sent_as);
        let mut request = Request::new(match &forwarded.body {
            Some(body) => Full::new(body.clone())
                .map_err(|never| match never {})
                .boxed(),
            None => no_body(),
        });
        *request.method_mut() = forwarded.method.clone();
        *request.uri_mut() = permit.endpoint().uri(target)?;
        *request.headers_mut() = forwarded.fields.clone();
        request.headers_mut().remove(&self.settings.keys.header);
        span.propagate(request.headers_mut());
        let step = StepTimer::begin(UpstreamStep::Upstream, &self.clock);
        let exchanged = self.exchange(sent, request, &mut permit, sending).await;
        drop(step);
        let response = match exchanged {
            // No upgrade was requested.
            Ok((response, _)) if response.status() == StatusCode::SWITCHING_PROTOCOLS => {
                Err(Failure::Protocol)
            }
            Ok((response, charge)) => {
                self.record_limits(&charge, response.status(), response.headers());
                Ok(response)
            }
            Err(Unanswered::Failed(failure)) => Err(failure),
            Err(Unanswered::NotWritten) => {
                drop(permit.end_without_outcome());
                return Err(Unanswered::NotWritten);
            }
        };
        trace_result(&mut span, response.as_ref().map(Response::status));
        match response {
            // The response is forwarded as it is: its meaning is the client's matter.
            Ok(response) if response.status().is_server_error() => {
                let slot = permit.end_without_outcome();
                Ok((response, BodyPermit::slot(slot)))
            }
            Ok(response) => Ok((response, BodyPermit::until_body_ends(permit))),
            Err(failure) => {
                // A server may close the connection to refuse an upload (RFC 9112 §9.6):
                // it works, and clients choose what they upload.
                drop(
                    match failure == Failure::Terminated && forwarded.body.is_some() {
                        true => permit.end_without_outcome(),
                        false => permit.end(Some(&failure)),
                    },
                );
                Err(failure.into())
            }
        }
    }

    /// Takes in the limits that a forwarded response reports. Without an API key
    /// of ordgate's the limits may be those of the client, and a status may be about
    /// anything.
    fn record_limits(&self, budget: &Charge, status: StatusCode, fields: &HeaderMap) {
        if budget.header().is_none() {
            return;
        }
        let wall = self.clock.system_time();
        let reported = limit_report::read(status, fields, wall);
        budget.apply_report(&reported);
        if status.is_success() {
            budget.mark_accepted();
        }
    }
}

/// The permit of a request while the body of its response is received: it holds
/// the request's slot, and reports to the endpoint how the body ends. A dropped
/// permit reports success, as far as the body was read. The default permit has no
/// slot and reports nothing.
#[derive(Default)]
pub struct BodyPermit {
    /// `None` once the endpoint knows the outcome of the request.
    permit: Option<EndpointPermit>,
    slot: Option<Arc<InFlightSlot>>,
}

impl BodyPermit {
    /// The permit of a request whose outcome depends on the body.
    fn until_body_ends(permit: EndpointPermit) -> Self {
        Self {
            permit: Some(permit),
            slot: None,
        }
    }

    /// The slot of a request whose outcome is known.
    fn slot(slot: Option<Arc<InFlightSlot>>) -> Self {
        Self { permit: None, slot }
    }

    /// Reports that the request has succeeded, however the body ends.
    pub fn answered(&mut self) {
        self.end(None);
    }

    /// Reports how the body has failed.
    pub fn failed(&mut self, failure: &Failure) {
        self.end(Some(failure));
    }

    /// Ends a half-open trial of the endpoint: the response has begun, and other
    /// requests wait for the result.
    fn end_trial(&mut self) {
        let permit = self.permit.as_ref();
        if permit.is_some_and(|permit| permit.endpoint().breaker_state() != BreakerState::Closed) {
            self.answered();
        }
    }

    fn end(&mut self, failure: Option<&Failure>) {
        if let Some(permit) = self.permit.take() {
            self.slot = permit.end(failure);
        }
    }
}

impl Drop for BodyPermit {
    fn drop(&mut self) {
        self.answered();
    }
}
