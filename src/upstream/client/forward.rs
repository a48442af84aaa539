//! Forwarding a request as it is, for routes that obey the origin: any method,
//! header fields and body. The response is handed on before its body is read.

use std::sync::Arc;

use http::header::CONTENT_LENGTH;
use http::{HeaderMap, Method, Request, Response, StatusCode, response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use tokio::time::{Instant, timeout_at};

use super::attempt::{Failed, Request as CountedRequest};
use super::attempts::Attempts;
use super::pools::{RelayConnection, RelayConnectionBody};
use super::traced::{trace_attempt, trace_result};
use super::upload::Upload;
use super::{RequestBody, ResponseBody, no_body, response_body};
use crate::client_tokens::without_query;
use crate::trace::steps::{StepTimer, UpstreamStep};
use crate::upstream::admission::limit_report;
use crate::upstream::answer::check_head;
use crate::upstream::charge::Charge;
use crate::upstream::connection::SendPath;
use crate::upstream::counters::SendReason;
use crate::upstream::endpoint::breaker::BreakerState;
use crate::upstream::endpoint::{EndpointPermit, InFlightSlot};
use crate::upstream::exchange::exchange;
use crate::upstream::{Failure, RequestPriority, SearchedBody, TimedOut, Upstream};

/// A response whose body has not been read. It contains no API key.
pub struct StreamedAnswer {
    /// Status and fields.
    pub head: response::Parts,
    /// The body; it ends with [`KeyEchoed`](crate::upstream::KeyEchoed) if it
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
    body: Option<Upload>,
}

/// A response, its permit, and the connection that it is received on.
type Received = (Response<Incoming>, BodyPermit, RelayConnection);

impl Upstream {
    /// Forwards a request: any method, these fields, this body. A safe request
    /// without a body is sent again where that is useful. A body is received first,
    /// as far as it is buffered; its faults never count against the upstream. With
    /// `whole`, the response's body is read first, up to this many bytes, unless its
    /// head is not that of an answer of the API ([`check_head`]); a body that fails
    /// is a failure of the request.
    ///
    /// # Errors
    /// How it failed before a response began, or was read whole. It does so within
    /// `queue_timeout` and `timeout`, and the time in which the body must be
    /// received; if the upstream reads a streamed body slowly, within
    /// `first_byte_timeout` after the last progress.
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
            Some(body) => Some(self.receive(body, &mut fields, priority).await?),
        };
        let mut attempts = Attempts::default();
        let max_wait = self.settings.admission.queue_timeout;
        let mut admitted = self.admit(priority, &attempts, max_wait).await?;
        let deadline = Instant::now() + self.settings.timeouts.whole;
        self.retries().deposit(self.clock.now());
        let mut reason = SendReason::First(priority.priority);
        let mut resends = 0;
        let is_repeatable = body.is_none() && method.is_safe();
        let mut request = Forwarded {
            method,
            fields,
            body,
        };
        loop {
            let at = self.index_of(admitted.0.endpoint());
            if attempts.is_last_resend() {
                admitted.0.set_last_resend();
            }
            let sent = CountedRequest {
                target,
                reason,
                priority,
                resends,
                span: None,
            };
            let copy = self.copy_for_retry(&request, is_repeatable);
            let received = self.forward_attempt(admitted, sent, request).await;
            let answered = match received {
                Ok(received) => self.answer(received, at, whole, deadline).await?,
                Err(failed) => Err(failed),
            };
            let failed = match answered {
                Ok(answer) => return Ok(answer),
                Err(failed) => failed,
            };
            let is_processed = failed.failure != Failure::NotProcessed;
            let next = match copy.filter(|_| is_repeatable || !is_processed) {
                Some(copy) => self
                    .retry(&mut attempts, &failed, at, priority, deadline)
                    .await
                    .map(|admitted| (admitted, copy)),
                None => None,
            };
            let Some(next) = next else {
                return Err(self.final_failure(failed.failure));
            };
            (admitted, request) = next;
            reason = SendReason::Retry;
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

    /// A copy of the request for another attempt, if one is possible: if the server
    /// does not process it, or, for a repeatable one, after any failure.
    fn copy_for_retry(&self, request: &Forwarded, is_repeatable: bool) -> Option<Forwarded> {
        // Over HTTP/1.1 no server reports that it has not processed a request.
        if !is_repeatable && !self.settings.connections.http2 {
            return None;
        }
        let body = match &request.body {
            None => None,
            Some(body) => Some(body.copy()?),
        };
        Some(Forwarded {
            method: request.method.clone(),
            fields: request.fields.clone(),
            body,
        })
    }

    /// The answer that a response is, its body read if it is wanted `whole`.
    ///
    /// # Errors
    /// If an API key is in the head, for which no retry follows; within, if the body
    /// fails.
    async fn answer(
        &self,
        (response, mut permit, connection): Received,
        at: usize,
        whole: Option<u64>,
        deadline: Instant,
    ) -> Result<Result<StreamedAnswer, Failed>, Failure> {
        let searched = self.search_answer(response);
        let (head, body) = searched.inspect_err(|_echoed| self.counters.count_failed())?;
        let body = connection.keep_for(body);
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
                Ok(Err(Failed {
                    failure,
                    lost: None,
                }))
            }
        }
    }

    /// Reads a body that is wanted `whole`.
    async fn begin_body(
        &self,
        head: &response::Parts,
        body: RelayConnectionBody<SearchedBody>,
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

    /// Receives a body before its request waits for a slot, and sets the framing
    /// fields of the request accordingly.
    async fn receive(
        &self,
        body: RequestBody,
        fields: &mut HeaderMap,
        priority: RequestPriority,
    ) -> Result<Upload, Failure> {
        let declared = fields.get(CONTENT_LENGTH);
        let declared = declared.and_then(|length| length.to_str().ok()?.parse().ok());
        let limits = &self.settings.request_body;
        let received = self
            .uploads
            .receive(body, declared, priority.client, limits);
        let upload = received.await.map_err(Failure::RequestBody)?;
        upload.frame(fields);
        Ok(upload)
    }

    /// Makes one attempt, and reports its outcome to the endpoint as far as it is
    /// known when the response begins.
    async fn forward_attempt(
        &self,
        (mut permit, budget): (EndpointPermit, Charge),
        sent: CountedRequest<'_>,
        mut request: Forwarded,
    ) -> Result<Received, Failed> {
        let shown = without_query(sent.target);
        let sent_as = (&request.method, sent.reason, sent.resends);
        let mut span = trace_attempt(permit.endpoint(), shown, sent_as);
        span.propagate(&mut request.fields);
        let progress = request
            .body
            .as_ref()
            .map(|upload| upload.progress().clone());
        let connection = self.pools.relay_connection();
        let response = self
            .forward_once(&mut permit, budget, &connection, sent, request)
            .await;
        let is_uploading = || progress.as_ref().is_some_and(|upload| !upload.has_ended());
        trace_result(&mut span, response.as_ref().map(Response::status));
        drop(span);
        permit.overdue(response.as_ref().err());
        let lost = permit.lost();
        let body_permit = match &response {
            // The response is forwarded as it is: its meaning is the client's matter.
            Ok(response) if response.status().is_server_error() => {
                BodyPermit::slot(permit.end_without_outcome())
            }
            Err(Failure::RequestBody(fault)) => {
                self.uploads.count(*fault);
                BodyPermit::slot(permit.end_without_outcome())
            }
            // A server may close the connection to refuse an upload (RFC 9112 §9.6):
            // it works, and clients choose what they upload.
            Err(Failure::Terminated) if is_uploading() => {
                BodyPermit::slot(permit.end_without_outcome())
            }
            // More of the response may wait for more of the upload, and so for the
            // client.
            Ok(_) if is_uploading() => BodyPermit::slot(permit.end(None)),
            Ok(_) => BodyPermit::until_body_ends(permit),
            Err(failure) => BodyPermit::slot(permit.end(Some(failure))),
        };
        match response {
            Ok(response) => Ok((response, body_permit, connection)),
            Err(failure) => Err(Failed { failure, lost }),
        }
    }

    /// Sends a request and waits for the head of its response.
    async fn forward_once(
        &self,
        permit: &mut EndpointPermit,
        budget: Charge,
        connection: &RelayConnection,
        sent: CountedRequest<'_>,
        Forwarded {
            method,
            fields,
            body,
        }: Forwarded,
    ) -> Result<Response<Incoming>, Failure> {
        let is_streamed = body.as_ref().is_some_and(Upload::is_streamed);
        let mut request = Request::new(body.map_or_else(no_body, Upload::into_body));
        *request.method_mut() = method;
        let target = sent.target;
        *request.uri_mut() = permit.endpoint().uri(target)?;
        *request.headers_mut() = fields;
        request.headers_mut().remove(&self.settings.keys.header);
        self.add_key(&budget, request.headers_mut());
        let path = SendPath::of(&mut request);
        let mut step = StepTimer::begin(UpstreamStep::Budget, &self.clock);
        step.change(UpstreamStep::Upstream);
        let counted = CountedRequest {
            target: without_query(target),
            ..sent
        };
        permit.send(path.clone(), self.count_sent(counted));
        if is_streamed {
            permit.untimed();
        }
        let (sent, patience) = (
            connection.request(request),
            self.settings.timeouts.first_byte,
        );
        let (response, budget) = match exchange(sent, budget, permit.slot(), patience).await {
            Some((Ok(response), budget)) => (response, budget),
            Some((Err(error), _ended)) => return Err(self.failure(permit, target, &error)),
            None => return Err(Failure::TimedOut(TimedOut::FirstByte)),
        };
        permit.begin_response(response.status());
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            // No upgrade was requested.
            return Err(Failure::Protocol);
        }
        self.record_limits(&budget, response.status(), response.headers());
        Ok(response)
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
