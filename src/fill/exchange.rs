//! One request to the upstream and its answer, on routes of all modes: JSON is read whole on typed
//! routes; what a plain route may store, and what may have any content type, is collected while it
//! is sent; the rest is passed through.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use http::{HeaderMap, Method, StatusCode, Version};
use http_body::Body as _;
use http_body_util::BodyExt;
use tokio::time::Instant;

use super::body::{Collecting, PacedBody, Read, content_length, is_event_stream};
use super::fetch::outdated;
use super::{Announced, Answer, Fetch, FillResult, MOST_ATTEMPTS};
use crate::cache::hop;
use crate::cache::policy::Mode;
use crate::cache::reuse::is_failure;
use crate::chain::ledger::RequestStart;
use crate::clock::Moment;
use crate::reason::Reason;
use crate::upstream::{
    AnswerBody, Failure, RequestBody, RequestPriority, ResponseBody, Slot, UpstreamRequest,
};
use crate::wire::Body;
use crate::wire::stream::{BodyReader, collect};

/// ordgate's name in the `via` of responses. In that of requests it has a name of its own
/// for each process ([`Fill::pseudonym`](super::Fill::pseudonym)).
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

/// The head of an answer, and how it came.
#[derive(Clone)]
pub(super) struct Head {
    pub(super) status: StatusCode,
    pub(super) version: Version,
    pub(super) fields: HeaderMap,
    /// Where the chain's ledger was when the request was sent.
    pub(super) start: RequestStart,
    /// The number of the last purge then.
    pub(super) purge: u64,
    pub(super) sent: Moment,
    pub(super) received: Moment,
    /// How long the upstream took.
    pub(super) took: Duration,
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
        Fetched::by_all(Err(outdated()))
    }

    /// `None` if it is to be sent again.
    async fn exchange_once(
        self: &Arc<Self>,
        body: Option<RequestBody>,
        unconditional: bool,
    ) -> Result<Option<Fetched>, Failure> {
        let (fill, route) = (&self.fill, self.route());
        let (is_typed, number) = (self.is_typed(), route.upstream.number);
        let (mut fields, validates) = self.request_fields(unconditional);
        let body = match body {
            None => None,
            Some(body) => {
                let upstream = fill.upstreams.get(number);
                let most = upstream.settings.max_request_body;
                let client = self.priority.client;
                let received = upstream.uploads.receive(body, &mut fields, client, most);
                Some(received.await?)
            }
        };
        // Before it waits for a permit: an earlier moment is safe.
        let start = self.tip().read(|ledger| ledger.start());
        let (purge, sent) = (fill.cache.store().purges(), fill.clock.now());
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
            is_any_type: route.is_any_type(),
        };
        let priority = RequestPriority {
            route: Some(route.number),
            ..self.priority
        };
        let client = fill.upstreams.client(number);
        let answer = client.send(request, priority).await?;
        let mut head = Head {
            status: answer.head.status,
            version: answer.head.version,
            fields: answer.head.headers,
            start,
            purge,
            sent,
            received: fill.clock.now(),
            took: answer.took,
        };
        if validates && head.status == StatusCode::NOT_MODIFIED {
            // It may be about a response that is not stored (any more).
            return Ok(self.apply_not_modified(head));
        }
        if is_failure(head.status) && self.stale().is_some() {
            // The stale response takes its place.
            return Err(Failure::status(Reason::ServerError, head.status));
        }
        Ok(match (answer.body, route.cache.mode) {
            (AnswerBody::Whole(body, index), Mode::Chain) => self.ingest(head, body, index).await,
            (AnswerBody::Whole(body, index), Mode::Override | Mode::Off) => {
                let begun = self.begin(head, (index.empty, true));
                Some(self.complete(&begun, body))
            }
            (AnswerBody::Whole(body, _), Mode::Respect) => {
                self.take_head(&mut head)?;
                Some(self.store_and_answer(head, body))
            }
            (AnswerBody::Coming(body, slot), _) => {
                let length = self.take_head(&mut head)?;
                Some(self.stream(head, (body, slot), length).await)
            }
        })
    }

    /// Applies the head of an origin's answer to what is stored, and makes its fields ordgate's.
    /// Returns the length of the body, if it is announced.
    fn take_head(&self, head: &mut Head) -> Result<Option<u64>, Failure> {
        let length = content_length(head.version, &mut head.fields)?;
        self.invalidate(head);
        hop::add_via(&mut head.fields, head.version, NAME);
        Ok(length)
    }

    /// Sends an answer while its body is still coming.
    async fn stream(
        self: &Arc<Self>,
        head: Head,
        (body, slot): (ResponseBody, Option<Slot>),
        length: Option<u64>,
    ) -> Fetched {
        let upstream = self.fill.upstreams.get(self.route().upstream.number);
        let (settings, is_events) = (&upstream.settings, is_event_stream(&head.fields));
        let max = (settings.max_body_bytes).min(self.fill.cache.store().max_body());
        let is_off = self.route().cache.mode == Mode::Off;
        let fits = !is_events && !is_off && length.is_none_or(|length| length <= max);
        let silence = match length.is_some() && !is_events {
            true => settings.silence_timeout,
            // A body that may have no end may also pause.
            false => settings.first_byte_timeout,
        };
        let left = match body.is_end_stream() {
            true => Some(0),
            false => length,
        };
        let slot = slot.filter(|_| !is_events);
        let body = PacedBody::new(body, silence, slot).boxed_unsync();
        let begun = if !self.is_plain() {
            self.begin(head, (false, fits))
        } else if let Some(begun) = self.begin_plain(&head).filter(|_| fits) {
            begun
        } else {
            let body = Body::Streamed(Box::new(BodyReader::of(body, left)));
            return self.pass_on(head, body);
        };
        if !fits {
            let body = Body::Streamed(Box::new(BodyReader::of(body, left)));
            let all = self.not_shared(begun.stored.status);
            return Fetched::new(Ok(Answer::Coming(begun, body)), all);
        }
        let (collector, reader) = collect(left);
        // From the first byte, also if its client leaves before it gets the head.
        if let Some(activity) = &self.request.activity {
            collector.count_for(activity);
        }
        let mut collecting = Box::new(Collecting {
            fetch: self.clone(),
            begun: begun.clone(),
            lock: None,
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
            Some(Ok(Read::Whole(body))) => self.complete(&begun, body),
            Some(Err(failure)) => Fetched::by_all(Err(failure)),
            Some(Ok(Read::TooMuch | Read::Closed)) | None => {
                let answer = Answer::Coming(begun, Body::Streamed(Box::new(reader)));
                Fetched {
                    rest: Some(collecting),
                    ..Fetched::new(Ok(answer), None)
                }
            }
        }
    }
}
