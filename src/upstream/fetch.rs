//! One request to the upstream, from the queue to its answer: permits, attempts one after
//! another, and what may be passed on.
//!
//! [`UpstreamClient::send`] sends one and returns the answer: one of the API, which is read whole
//! and checked, or whatever the origin sends.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, HOST, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, RANGE, USER_AGENT,
};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, response};
use http_body_util::{BodyExt, Full};
use tokio::time::{Instant, sleep, timeout_at};

use super::answer;
use super::body;
use super::endpoint::usual_port;
use super::exchange::Answered;
use super::failure::{Failure, Retry};
use super::permit::{Asked, Permit};
use super::queue::RequestPriority;
use super::queue::Slot;
use super::{RequestBody, ResponseBody, Upstream, UpstreamClient, no_body};
use crate::client_tokens::without_query;
use crate::pages::BodyIndex;
use crate::reason::Reason;
use crate::sync::lock;
use crate::trace::steps::{StepTimer, UpstreamStep};
use crate::trace::{self, Attempt, KeyValue};

/// The longest pause before a request is repeated.
const PAUSE: Duration = Duration::from_millis(100);
/// So many retries are allowed at first, and at most ten times as many later.
const RESERVE: f64 = 3.0;
/// One more for so many requests.
const REQUESTS: f64 = 5.0;

/// How many requests may still be repeated at the same endpoint: a server that fails under its
/// load gets only a little more of it, and a rare failure is nearly always retried (Google's
/// "Site Reliability Engineering", chapter 21).
#[derive(Debug)]
pub(super) struct RetryBudget(f64);

/// A request for the upstream.
pub struct UpstreamRequest<'a> {
    /// Its method.
    pub method: Method,
    /// Path and query.
    pub target: &'a str,
    /// Its fields, without a key.
    pub fields: HeaderMap,
    /// Its body.
    pub body: Option<Bytes>,
    /// Whether the answer must be one of the API ([`answer::check_head`]), or a 304 where the
    /// request has conditions. It is read whole then, unless it may have any content type.
    pub is_typed: bool,
    /// Whether the answer may have any content type.
    pub is_any_type: bool,
}

/// An answer. It contains no API key.
pub struct Answer {
    /// Status and fields.
    pub head: response::Parts,
    /// What comes after them.
    pub body: AnswerBody,
    /// From when the request was sent until now.
    pub took: Duration,
    /// The number of the endpoint that gave it, in the order of preference.
    pub endpoint: u16,
}

/// The body of an answer.
pub enum AnswerBody {
    /// All of it, and what it contains: it is JSON.
    Whole(Bytes, BodyIndex),
    /// It has not been read. It ends with [`Reason::AnswerWithheld`] if it contains an API key.
    /// The request's slot is to be kept until it has ended.
    Coming(ResponseBody, Option<Slot>),
}

impl Default for RetryBudget {
    fn default() -> Self {
        Self(RESERVE)
    }
}

impl RetryBudget {
    /// Counts the first attempt of a request.
    fn deposit(&mut self) {
        self.0 = (self.0 + 1.0 / REQUESTS).min(RESERVE * 10.0);
    }

    /// Takes a retry; `false` if none is left.
    fn withdraw(&mut self) -> bool {
        let is_left = self.0 >= 1.0;
        self.0 -= f64::from(u8::from(is_left));
        is_left
    }
}

impl<'a> UpstreamRequest<'a> {
    /// A request of ordgate's own for an answer of the API.
    pub fn typed(target: &'a str) -> Self {
        let agent = concat!("ordgate/", env!("CARGO_PKG_VERSION"));
        Self {
            method: Method::GET,
            target,
            fields: HeaderMap::from_iter([
                (ACCEPT, HeaderValue::from_static("application/json")),
                // ordgate undoes no content codings.
                (ACCEPT_ENCODING, HeaderValue::from_static("identity")),
                (USER_AGENT, HeaderValue::from_static(agent)),
            ]),
            body: None,
            is_typed: true,
            is_any_type: false,
        }
    }
}

impl UpstreamClient for Upstream {
    fn send<'a>(
        &'a self,
        mut request: UpstreamRequest<'a>,
        priority: RequestPriority,
    ) -> Pin<Box<dyn Future<Output = Result<Answer, Failure>> + Send + 'a>> {
        request.fields.remove(&self.settings.api_key_header);
        Box::pin(async move { self.request(&request, priority, None).await })
    }

    fn max_wait(&self) -> Duration {
        let connect = self.settings.connect_timeout();
        self.settings.queue_timeout + connect + self.settings.timeout
    }
}

impl Upstream {
    /// Sends a request, to the endpoint in use or to this standby alone; and once more where
    /// that is safe and useful.
    pub async fn request(
        &self,
        outgoing: &UpstreamRequest<'_>,
        mut request: RequestPriority,
        standby: Option<usize>,
    ) -> Result<Answer, Failure> {
        let queued_until = Instant::now() + self.settings.queue_timeout;
        let is_repeatable =
            standby.is_none() && outgoing.body.is_none() && outgoing.method.is_safe();
        let (mut at, mut deadline, mut first_failure) = (standby, None, None);
        lock(&self.retries).deposit();
        loop {
            let step = StepTimer::begin(UpstreamStep::Queue, &self.clock);
            let permit = match self.acquire(request, at, queued_until).await {
                Ok(permit) => permit,
                Err(denied) => {
                    self.counters.results.count(denied.reason.name());
                    return Err(first_failure.unwrap_or(denied));
                }
            };
            drop(step);
            let whole = self.settings.timeout;
            let deadline = *deadline.get_or_insert_with(|| Instant::now() + whole);
            let asked = permit.asked.clone();
            let upstream = &asked.upstream;
            let is_again = first_failure.is_some();
            let span = attempt_span(outgoing, &asked, request.purpose);
            let attempt = upstream.attempt(outgoing, permit, &span);
            let mut failure = match timeout_at(deadline, attempt).await {
                Ok(Ok(Some(received))) => {
                    upstream.counters.results.count("answered");
                    return Ok(received);
                }
                Ok(Ok(None)) => continue,
                Ok(Err(failure)) => failure,
                Err(_elapsed) => Failure::new(Reason::UpstreamTimeout)
                    .because(&format!("no whole answer came in {whole:?}")),
            };
            span.fail(failure.reason.name());
            drop(span);
            let route = upstream.counters.route_name(request.route);
            asked.endpoint.failed(&failure, route, request.request_id);
            failure.endpoint = Some(asked.endpoint.name.clone());
            let next = match is_repeatable && !is_again {
                true => upstream.next_attempt(&failure, asked.at, deadline).await,
                false => None,
            };
            let Some(next) = next else {
                upstream.counters.results.count("failed");
                return Err(failure);
            };
            at = next;
            first_failure = Some(failure);
            request.purpose = "retry";
        }
    }

    /// Where a request that has failed is sent again, if it is: another endpoint, or `None` for
    /// the one in use. GET is safe to repeat (RFC 9110 §9.2.2), but that is useful only if the
    /// cause may have gone: a connection that ended, a server that is being restarted. A server
    /// that is slow, or has failed with this request, is not sent it again.
    async fn next_attempt(
        &self,
        failure: &Failure,
        at: usize,
        deadline: Instant,
    ) -> Option<Option<usize>> {
        let (retry, host) = (failure.retry(), &self.endpoints[at].host);
        // A host refuses a key at all its base URLs.
        let has_failed = |other: usize| {
            other == at || retry == Retry::OtherKey && self.endpoints[other].host == *host
        };
        match (retry, self.other_endpoint(has_failed)) {
            (Retry::Never, _) => None,
            (Retry::OtherKey, _) if self.keys.keys.len() > 1 => Some(None),
            (_, Some(other)) => Some(Some(other)),
            (Retry::OtherKey | Retry::Elsewhere, None) => None,
            (Retry::Anywhere, None) => {
                // Requests that failed together do not return together.
                let pause = PAUSE.mul_f64(fastrand::f64());
                if !self.settings.retry || Instant::now() + pause >= deadline {
                    return None;
                }
                if !lock(&self.retries).withdraw() {
                    self.counters.results.count("unretried");
                    return None;
                }
                sleep(pause).await;
                Some(None)
            }
        }
    }

    /// Makes one attempt; `None` if nothing was sent.
    pub(super) async fn attempt(
        self: &Arc<Self>,
        outgoing: &UpstreamRequest<'_>,
        permit: Permit,
        span: &Attempt,
    ) -> Result<Option<Answer>, Failure> {
        let step = StepTimer::begin(UpstreamStep::Upstream, &self.clock);
        let request = self.outgoing(outgoing, &permit, span)?;
        let (asked, priority) = (permit.asked.clone(), permit.request);
        let is_typed = outgoing.is_typed;
        let patience = self.patience(&priority);
        let exchanged = self.exchange(permit, request, is_typed, patience);
        let Some(answered) = exchanged.await? else {
            return Ok(None);
        };
        let status = answered.response.status();
        span.answered(status.as_u16());
        let received = self.read(answered, outgoing).await;
        drop(step);
        let mut failure = match received {
            Ok(received) => return Ok(Some(received)),
            Err(failure) => failure,
        };
        let target = outgoing.target;
        if is_typed && failure.reason == Reason::KeyRefused {
            failure = self
                .resolve_refusal(&asked, priority, target, failure)
                .await;
        }
        // Clients choose other targets.
        if self.is_status_path(target)
            && (failure.is_of_endpoint() || failure.reason == Reason::WrongUpstream)
        {
            self.record_status(asked.at, target, None);
        }
        Err(failure)
    }

    /// The request as it is sent.
    fn outgoing(
        &self,
        outgoing: &UpstreamRequest<'_>,
        permit: &Permit,
        span: &Attempt,
    ) -> Result<Request<RequestBody>, Failure> {
        let mut fields = outgoing.fields.clone();
        span.propagate(&mut fields);
        if let Some(key) = permit.header() {
            fields.insert(self.settings.api_key_header.clone(), key.clone());
            // The response is searched for the key: it must not be compressed, nor be a
            // range that contains a part of the key.
            fields.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
            fields.remove(RANGE);
            fields.remove(IF_RANGE);
        }
        let body = outgoing
            .body
            .clone()
            .map(|body| Full::new(body).map_err(|never| match never {}));
        let endpoint = &permit.asked.endpoint;
        if let Ok(host) = HeaderValue::from_str(endpoint.authority()) {
            fields.entry(HOST).or_insert(host);
        }
        let mut request = Request::new(body.map_or_else(no_body, BodyExt::boxed));
        *request.method_mut() = outgoing.method.clone();
        *request.uri_mut() = endpoint.uri(outgoing.target)?;
        *request.headers_mut() = fields;
        Ok(request)
    }

    /// Reads what is wanted of an answer, which is searched for API keys.
    async fn read(&self, answered: Answered, to: &UpstreamRequest<'_>) -> Result<Answer, Failure> {
        let Answered {
            response,
            asked,
            slot,
            sent,
        } = answered;
        let status = response.status();
        let is_validated = status == StatusCode::NOT_MODIFIED
            && [IF_NONE_MATCH, IF_MODIFIED_SINCE]
                .iter()
                .any(|condition| to.fields.contains_key(condition));
        let (is_checked, is_any_type) = (to.is_typed && !is_validated, to.is_any_type);
        if is_checked {
            let wall = self.clock.wall_now();
            answer::check_head(status, response.headers(), is_any_type, wall)?;
        }
        // No upgrade was requested.
        if status == StatusCode::SWITCHING_PROTOCOLS {
            return Err(Failure::new(Reason::NotHttp));
        }
        let (head, body) = self.search_answer(response)?;
        let body = match is_checked && !is_any_type {
            true => {
                let (most, silence) = (self.settings.max_body_bytes, self.settings.silence_timeout);
                let body = body::read(body, most, silence).await?;
                let index = answer::check_body(status, &body)?;
                AnswerBody::Whole(body, index)
            }
            false => AnswerBody::Coming(body.boxed_unsync(), slot),
        };
        Ok(Answer {
            head,
            body,
            took: self.clock.now().since(sent),
            endpoint: asked.at as u16,
        })
    }
}

/// Begins the span of an attempt: its method, why it is sent, and where.
fn attempt_span(outgoing: &UpstreamRequest<'_>, asked: &Asked, reason: &'static str) -> Attempt {
    Attempt::begin(|| {
        let url = &asked.endpoint.url;
        let usual = usual_port(url.scheme_str() == Some("https"));
        let target = match outgoing.is_typed {
            true => outgoing.target,
            // What a query means is the origin's matter: it may be secret.
            false => without_query(outgoing.target),
        };
        let full = asked.endpoint.uri(target).unwrap_or_default().to_string();
        let host = url.host().unwrap_or_default().to_owned();
        let port = i64::from(url.port_u16().unwrap_or(usual));
        let method = trace::method_name(&outgoing.method);
        vec![
            KeyValue::new("http.request.method", method),
            KeyValue::new("ordgate.attempt", reason),
            KeyValue::new("server.address", host),
            KeyValue::new("server.port", port),
            trace::redacted("url.full", &full),
        ]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_are_a_fifth_of_the_requests_and_a_reserve() {
        let mut budget = RetryBudget::default();
        let mut retries = |requests: u32| {
            (0..requests).for_each(|_| budget.deposit());
            (0..1000).take_while(|_| budget.withdraw()).count()
        };
        assert_eq!(retries(0), 3);
        assert_eq!(retries(0), 0);
        assert_eq!(retries(51), 10);
        assert_eq!(retries(100_000), 30);
    }
}
