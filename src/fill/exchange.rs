//! One request to the upstream and its answer, on routes of all modes: read whole on typed
//! routes, collected while it is sent where a plain route may store it, passed through otherwise.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderMap, Method, StatusCode, Version};
use http_body::Body as _;
use http_body_util::BodyExt;
use tokio::time::Instant;

use super::body::{Collecting, PacedBody, Read, content_length, is_event_stream};
use super::store::{Times, pass_on};
use super::{Announced, Answer, Fetch, FillResult, MOST_ATTEMPTS};
use crate::cache::hop;
use crate::cache::policy::Mode;
use crate::cache::reuse::is_failure;
use crate::reason::Reason;
use crate::upstream::{
    AnswerBody, Failure, RequestBody, RequestPriority, ResponseBody, Slot, UpstreamRequest,
};
use crate::wire::Body;
use crate::wire::stream::{BodyReader, collect};

/// ordgate's name in the `via` of responses. In that of requests it has a name of its own
/// for each process ([`PlainSettings::pseudonym`](super::PlainSettings::pseudonym)).
const NAME: &str = "ordgate";

/// What came of a fetch.
pub(super) struct Fetched {
    /// The answer to the client that leads.
    pub(super) own: Result<Answer, Failure>,
    /// The answer to all others that wait for it.
    pub(super) all: Announced,
    /// What stores the body that is still coming, if one is: then it has the answer to the
    /// others.
    pub(super) rest: Option<Box<Collecting>>,
}

impl Fetched {
    /// One answer to all.
    pub(super) fn by_all(found: FillResult) -> Self {
        Self::new(found.clone().map(Answer::Stored), Some(found))
    }

    pub(super) fn new(own: Result<Answer, Failure>, all: Announced) -> Self {
        let rest = None;
        Self { own, all, rest }
    }
}

impl Fetch {
    /// Sends the request and applies the rules to the answer; again if it was purged meanwhile.
    /// `unconditional` leaves out all conditions, which are then applied to the answer.
    pub(super) async fn exchange(
        self: &Arc<Self>,
        mut body: Option<RequestBody>,
        mut unconditional: bool,
    ) -> Fetched {
        for _ in 0..MOST_ATTEMPTS {
            match self.exchange_once(body.take(), unconditional).await {
                Ok(Some(fetched)) => return fetched,
                Ok(None) => unconditional = true,
                Err(failure) => return Fetched::by_all(Err(failure)),
            }
        }
        let outdated = Failure::until(Reason::Outdated, Duration::from_secs(1));
        Fetched::by_all(Err(outdated))
    }

    /// `None` if it is to be sent again.
    async fn exchange_once(
        self: &Arc<Self>,
        body: Option<RequestBody>,
        unconditional: bool,
    ) -> Result<Option<Fetched>, Failure> {
        let (fill, route) = (&self.fill, self.route());
        let (is_typed, tip) = (self.is_typed(), route.cache.tip);
        let (mut fields, validates) = self.request_fields(unconditional, body.is_some());
        let (number, client) = (route.upstream.number, self.priority.client);
        let body = match body {
            None => None,
            Some(body) => {
                let upstream = fill.upstreams.get(number);
                let most = upstream.settings.max_request_body;
                let received = upstream.uploads.receive(body, &mut fields, client, most);
                Some(received.await?)
            }
        };
        let mut times = Times {
            start: fill.chain.tip(tip).read(|ledger| ledger.start()),
            purge: fill.cache.store().purges(),
            sent: fill.clock.now(),
            ..Times::default()
        };
        let request = UpstreamRequest {
            method: match is_typed {
                // A HEAD costs the upstream as much as a GET.
                true => Method::GET,
                false => self.request.method.clone(),
            },
            target: self.key().target(),
            fields,
            body,
            is_typed,
        };
        let priority = RequestPriority {
            route: Some(route.number),
            ..self.priority
        };
        let client = fill.upstreams.client(number);
        let answer = client.send(request, priority).await?;
        (times.received, times.took) = (fill.clock.now(), answer.took);
        let (status, version, mut fields) =
            (answer.head.status, answer.head.version, answer.head.headers);
        if validates && status == StatusCode::NOT_MODIFIED {
            // It may be about a response that is not stored (any more).
            return Ok(self.apply_not_modified(&fields, times));
        }
        if is_failure(status) && self.stale().is_some() {
            // The stale response takes its place.
            return Err(Failure::status(Reason::ServerError, status));
        }
        let (body, slot) = match answer.body {
            AnswerBody::Whole(body, index) => match route.cache.mode {
                Mode::Respect => {
                    self.take_head(status, version, &mut fields)?;
                    return Ok(Some(self.store_and_answer(status, &fields, body, times)));
                }
                Mode::Chain => return Ok(self.ingest((status, fields), body, index, times).await),
                Mode::Override | Mode::Off => {
                    let stored = self.store_by_status((status, fields), body, index.empty, times);
                    return Ok(Some(Fetched::by_all(Ok(stored))));
                }
            },
            AnswerBody::Coming(body, slot) => (body, slot),
        };
        let length = self.take_head(status, version, &mut fields)?;
        let streamed = self.stream((body, slot), (status, fields), length, times);
        Ok(Some(streamed.await))
    }

    /// Applies the head of an origin's answer to what is stored, and makes its fields ordgate's.
    /// Returns the length of the body, if it is announced.
    fn take_head(
        &self,
        status: StatusCode,
        version: Version,
        fields: &mut HeaderMap,
    ) -> Result<Option<u64>, Failure> {
        let length = content_length(version, fields)?;
        self.update_others(status, fields);
        hop::add_via(fields, version, NAME);
        Ok(length)
    }

    /// Sends an answer while its body is still coming.
    async fn stream(
        self: &Arc<Self>,
        (body, slot): (ResponseBody, Option<Slot>),
        (status, mut fields): (StatusCode, HeaderMap),
        length: Option<u64>,
        times: Times,
    ) -> Fetched {
        let upstream = self.fill.upstreams.get(self.route().upstream.number);
        let (settings, is_events) = (&upstream.settings, is_event_stream(&fields));
        let max = (settings.max_body_bytes).min(self.fill.cache.store().max_body());
        let (method, request) = (&self.request.method, &self.request.fields);
        let may_store = self.may_store(method, request, status, &fields, times);
        let is_stored = may_store && !is_events && length.is_none_or(|length| length <= max);
        let silence = match length.is_some() && !is_events {
            true => settings.silence_timeout,
            // A body that may have no end may also pause.
            false => settings.first_byte_timeout,
        };
        let left = if body.is_end_stream() {
            Some(0)
        } else {
            length
        };
        let slot = slot.filter(|_| !is_events);
        let body = PacedBody::new(body, silence, slot).boxed_unsync();
        if !is_stored {
            pass_on(&mut fields, self.fill.clock.wall(times.received));
            let body = Body::Streamed(Box::new(BodyReader::of(body, left)));
            let answer = Answer::Passed(status, fields, body);
            return Fetched::new(Ok(answer), self.not_shared(status));
        }
        let (collector, reader) = collect(left);
        let mut collecting = Box::new(Collecting {
            fetch: self.clone(),
            head: (status, fields),
            times,
            body,
            collector,
            length: left,
            received: 0,
            max,
            deadline: Instant::now() + settings.timeout,
        });
        // A small body is already there. Where a stale response could be sent if this one
        // breaks off, its end is waited for; the client's wait is bounded by `stale_wait`.
        let read = match self.stale().is_some() {
            true => Some(collecting.read().await),
            false => collecting.read().now_or_never(),
        };
        match read {
            Some(Ok(Read::Whole(body))) => {
                let (status, fields) = &collecting.head;
                self.store_and_answer(*status, fields, body, times)
            }
            Some(Err(failure)) => Fetched::by_all(Err(failure)),
            Some(Ok(Read::TooMuch | Read::Closed)) | None => {
                let (status, fields) = &collecting.head;
                let stored = Box::new(self.prepare(*status, fields, Bytes::new(), times));
                let body = Body::Streamed(Box::new(reader));
                let answer = Answer::Coming(stored, body, left);
                Fetched {
                    rest: Some(collecting),
                    ..Fetched::new(Ok(answer), None)
                }
            }
        }
    }
}
