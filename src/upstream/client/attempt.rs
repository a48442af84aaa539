//! One attempt of a canonical request: it is sent, and its answer read and
//! judged.

use http::header::{ACCEPT, ACCEPT_ENCODING, IF_RANGE, RANGE, USER_AGENT, VIA};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::{Instant, timeout_at};

use super::cause;
use super::traced::{trace_attempt, trace_result};
use super::{RequestBody, no_body, response_body};
use crate::clock::Moment;
use crate::trace::Span;
use crate::trace::steps::{StepTimer, UpstreamStep};
use crate::upstream::admission::limit_report;
use crate::upstream::admit::{Admission, Sending};
use crate::upstream::answer::{self, Answer, is_no_such_route};
use crate::upstream::charge::Charge;
use crate::upstream::client::pool::SendError;
use crate::upstream::counters::SendReason;
use crate::upstream::endpoint::{Endpoint, EndpointPermit, MadeFor};
use crate::upstream::exchange::exchange;
use crate::upstream::failure::{Cause, Failure, TimedOut};
use crate::upstream::{RequestPriority, Upstream};

/// A canonical request that is sent.
#[derive(Clone, Copy)]
pub(in crate::upstream) struct Request<'a> {
    pub(in crate::upstream) target: &'a str,
    pub(in crate::upstream) reason: SendReason,
    pub(in crate::upstream) priority: RequestPriority,
    /// How often it was sent before.
    pub(in crate::upstream) resends: u32,
    /// The span of the attempt, if it is made for a client.
    pub(in crate::upstream) span: Option<&'a Span>,
}

/// Why an attempt has no answer.
#[derive(Debug)]
pub(in crate::upstream) enum Unanswered {
    /// No byte was written, and the charge is cancelled: the request is admitted again.
    NotWritten,
    Failed(Failure),
}

impl From<Failure> for Unanswered {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// The budget permit of a request whose target was refused, and the status.
pub(in crate::upstream) type RefusedTarget = Option<(Charge, StatusCode)>;

impl Upstream {
    /// Makes one attempt, and reports its outcome to the endpoint.
    pub(super) async fn attempt(
        &self,
        request: Request<'_>,
        Admission {
            mut permit,
            sending,
        }: Admission,
        deadline: Instant,
    ) -> Result<Answer, Unanswered> {
        let mut refused = None;
        let endpoint = permit.endpoint().clone();
        let sent_as = (&Method::GET, request.reason, request.resends);
        let mut span = trace_attempt(&endpoint, request.target, sent_as);
        let traced = Request {
            span: Some(&span),
            ..request
        };
        let sent = self.send(traced, &mut permit, sending, &mut refused);
        let sent = timeout_at(deadline, sent).await;
        let answer = sent.unwrap_or(Err(Failure::TimedOut(TimedOut::Whole).into()));
        let failure = match &answer {
            Ok(answer) => {
                trace_result(&mut span, Ok(answer.status));
                None
            }
            Err(Unanswered::Failed(failure)) => {
                trace_result(&mut span, Err(failure));
                Some(failure)
            }
            Err(Unanswered::NotWritten) => {
                drop(permit.end_without_outcome());
                return answer;
            }
        };
        drop(span);
        if failure == Some(&Failure::Retired) && endpoint.retire() {
            tracing::error!(
                endpoint = endpoint.name(),
                "the upstream answers 410 Gone: it has been retired, and another is needed; final answers in the cache are still served"
            );
        }
        drop(permit.end(failure));
        let Some((budget, status)) = refused else {
            return answer;
        };
        // The slot is free by now.
        let resolved = self.resolve_refusal(request, &endpoint, budget, status);
        let resolved = timeout_at(deadline, resolved).await;
        Err(resolved.unwrap_or(Failure::TargetRefused(status)).into())
    }

    /// Sends a request and reads its answer. If the status refuses the target or
    /// the key, and it is not known which, `refused` gets the budget permit.
    pub(in crate::upstream) async fn send(
        &self,
        request: Request<'_>,
        permit: &mut EndpointPermit,
        sending: Sending,
        refused: &mut RefusedTarget,
    ) -> Result<Answer, Unanswered> {
        let began = self.clock.now();
        let target = request.target;
        // Ends with the answer.
        let _step = StepTimer::begin(UpstreamStep::Upstream, &self.clock);
        let sent = self.send_head(request, permit, sending);
        let (head, body, budget) = sent.await?;
        let wall = self.clock.system_time();
        let checked = answer::check_head(head.status, &head.headers, wall);
        let reported = limit_report::read(head.status, &head.headers, wall);
        budget.apply_report(&reported);
        match &checked {
            // This is no status path: the answer means nothing for the key.
            Ok(()) if request.reason == SendReason::KeyCheck && head.status != StatusCode::OK => {}
            Ok(()) => budget.mark_accepted(),
            Err(Failure::Throttled { retry_after }) => {
                budget.mark_accepted();
                budget.start_cooldown(*retry_after);
            }
            Err(Failure::KeyRefused(status)) if self.is_status_path(target) => {
                budget.mark_refused(*status);
            }
            Err(Failure::KeyRefused(status)) => {
                *refused = Some((budget, *status));
                return Err(Failure::KeyRefused(*status).into());
            }
            Err(_) => {}
        }
        // The upstream has counted the request by now: its time in the budget begins.
        drop(budget);
        if checked == Err(Failure::NotJson) {
            return Err(cause::not_json(permit, head.status, body).await.into());
        }
        checked?;
        let answer = self.read_answer(target, permit, &head, body, began).await?;
        Ok(answer)
    }

    /// Sends a request and waits for the head of its response.
    async fn send_head(
        &self,
        sent: Request<'_>,
        permit: &mut EndpointPermit,
        sending: Sending,
    ) -> Result<(response::Parts, Incoming, Charge), Unanswered> {
        let target = sent.target;
        let mut request = self.request(target, permit.endpoint())?;
        if let Some(span) = sent.span {
            span.propagate(request.headers_mut());
        }
        let (response, charge) = self.exchange(sent, request, permit, sending).await?;
        let (head, body) = response.into_parts();
        Ok((head, body, charge))
    }

    /// Sends a request with the key of its charge, and waits for the head of its response.
    pub(super) async fn exchange(
        &self,
        sent: Request<'_>,
        mut request: http::Request<RequestBody>,
        permit: &mut EndpointPermit,
        sending: Sending,
    ) -> Result<(Response<Incoming>, Charge), Unanswered> {
        let failed = |permit: &mut _, error| self.failure(permit, sent.target, &error).into();
        permit.send(self.count_sent(sent));
        let (connection, charge) = sending.map_err(|error| failed(permit, error))?;
        self.add_key(&charge, request.headers_mut());
        let patience = self.settings.timeouts.first_byte;
        let exchanged = exchange(connection, request, charge, permit.slot(), patience);
        let (response, charge) = match exchanged.await {
            Some(Ok(answered)) => answered,
            Some(Err(SendError::NotWritten)) => return Err(Unanswered::NotWritten),
            Some(Err(SendError::Failed(error))) => return Err(failed(permit, error)),
            None => return Err(Failure::TimedOut(TimedOut::FirstByte).into()),
        };
        permit.begin_response(response.status());
        Ok((response, charge))
    }

    /// Reads the body of a response whose head is that of an answer.
    async fn read_answer(
        &self,
        target: &str,
        permit: &mut EndpointPermit,
        head: &response::Parts,
        body: Incoming,
        began: Moment,
    ) -> Result<Answer, Failure> {
        let mut broken: Option<Cause> = None;
        let body = body.map_err(|error| {
            broken = Some(self.broken_body(target, &error));
            error
        });
        let (most, limits) = (self.settings.max_body_bytes, &self.settings.response_body);
        let read = response_body::read(body, most, limits).await;
        if let Some(cause) = broken {
            permit.failed_by(cause);
        }
        let body = read?;
        let took = self.clock.now().since(began);
        let answer = answer::read(head.status, &head.headers, body, took)?;
        if is_no_such_route(answer.status, &answer.body) {
            let endpoint = permit.endpoint().name().into();
            return Err(Failure::NoSuchRoute { endpoint });
        }
        // Nothing else of an answer is stored, served or told to other replicas. It is
        // searched once, however often it is served.
        let etag = answer.etag.as_deref().unwrap_or_default();
        self.search(&[&answer.body, answer.content_type.as_bytes(), etag])?;
        Ok(answer)
    }

    /// Counts a request that is sent. Returns what it is made for.
    pub(super) fn count_sent(&self, sent: Request<'_>) -> MadeFor {
        self.counters.send(sent.reason);
        let now = self.clock.now();
        MadeFor {
            route: self
                .usage
                .record(sent.reason, sent.priority, sent.target, now),
            request_id: sent.priority.origin.request_id,
        }
    }

    fn request(
        &self,
        target: &str,
        endpoint: &Endpoint,
    ) -> Result<http::Request<RequestBody>, Failure> {
        let mut request = http::Request::new(no_body());
        *request.uri_mut() = endpoint.uri(target)?;
        let fields = request.headers_mut();
        fields.insert(ACCEPT, HeaderValue::from_static("application/json"));
        // ordgate undoes no content codings.
        fields.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        fields.insert(
            USER_AGENT,
            HeaderValue::from_static(concat!("ordgate/", env!("CARGO_PKG_VERSION"))),
        );
        if let Some(via) = self.via.get() {
            fields.insert(VIA, via.clone());
        }
        Ok(request)
    }

    /// Adds the API key of a charge, if it has one.
    fn add_key(&self, budget: &Charge, fields: &mut HeaderMap) {
        if let Some(key) = budget.header() {
            fields.insert(self.settings.keys.header.clone(), key.clone());
            // The response is searched for the key: it must not be compressed, nor
            // be a range that contains a part of the key.
            fields.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
            fields.remove(RANGE);
            fields.remove(IF_RANGE);
        }
    }
}
