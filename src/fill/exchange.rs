//! One request to the upstream on a plain route, and its answer: read whole where the route
//! has typed fields, collected while it is sent where it may be stored, passed through
//! otherwise.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderMap, Method, StatusCode};
use http_body::Body as _;
use http_body_util::BodyExt;
use tokio::time::Instant;

use super::body::{Collecting, PacedBody, Read, content_length, is_event_stream};
use super::fields::RequestFields;
use super::store::{Times, pass_on};
use super::{Announced, Answer, Fetch, FillResult};
use crate::cache::hop;
use crate::cache::reuse::is_failure;
use crate::reason::Reason;
use crate::route::HeaderMode;
use crate::upstream::answer::check_head;
use crate::upstream::{Failure, RequestBody, RequestPriority, StreamedAnswer};
use crate::wire::Body;
use crate::wire::stream::{BodyReader, Collector};

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
    /// Sends the request and applies the rules to the answer. `unconditional` leaves out
    /// all conditions, which are then applied to the answer.
    pub(super) async fn exchange(
        self: &Arc<Self>,
        body: Option<RequestBody>,
        unconditional: bool,
    ) -> Fetched {
        let (fill, route) = (&self.fill, self.route());
        let had_body = body.is_some();
        let RequestFields { fields, validates } = self.request_fields(unconditional, had_body);
        let is_typed = route.headers == HeaderMode::Typed;
        let method = match is_typed {
            // A HEAD costs the upstream as much as a GET.
            true => Method::GET,
            false => self.request.method.clone(),
        };
        // Whether a body is JSON is known only at its end.
        let max_body = is_typed.then(|| self.max_stored());
        let (purge, sent) = (fill.cache.store().purges(), fill.clock.now());
        let key = self.key();
        let priority = RequestPriority {
            route: Some(route.number),
            ..self.priority
        };
        let upstream = fill.upstreams.client(route.upstream.number);
        let answer = upstream.forward(method, key.target(), fields, body, priority, max_body);
        let answer = match answer.await {
            Ok(answer) => answer,
            Err(failure) => return self.failed(failure),
        };
        let times = Times {
            purge,
            sent,
            received: fill.clock.now(),
        };
        if validates && answer.head.status == StatusCode::NOT_MODIFIED {
            return match self.apply_not_modified(&answer.head.headers, times) {
                Some(answer) => answer,
                // The 304 is about a response that is not stored (any more).
                None if !unconditional && !had_body => Box::pin(self.exchange(None, true)).await,
                None => self.failed(Failure::new(Reason::NotHttp)),
            };
        }
        let status = answer.head.status;
        if is_failure(status) && self.may_be_stale() {
            // The stale response takes its place.
            return self.failed(Failure::status(Reason::ServerError, status));
        }
        self.receive(answer, times).await
    }

    fn failed(&self, failure: Failure) -> Fetched {
        Fetched::by_all(Err(failure))
    }

    /// The most bytes of a body that is stored.
    fn max_stored(&self) -> u64 {
        let upstream = self.fill.upstreams.get(self.route().upstream.number);
        let max = upstream.settings.max_body_bytes;
        max.min(self.fill.cache.store().max_body())
    }

    /// Takes the upstream's answer: stores it where it may be stored, and answers
    /// the client.
    async fn receive(self: &Arc<Self>, mut answer: StreamedAnswer, times: Times) -> Fetched {
        let status = answer.head.status;
        let mut fields = std::mem::take(&mut answer.head.headers);
        let is_typed = self.route().headers == HeaderMode::Typed;
        let wall = self.fill.clock.wall(times.received);
        if is_typed && let Err(failure) = check_head(status, &fields, wall) {
            return self.failed(failure);
        }
        let length = match content_length(answer.head.version, &mut fields) {
            Ok(length) => length,
            Err(failure) => return self.failed(failure),
        };
        self.update_others(status, &fields);
        hop::add_via(&mut fields, answer.head.version, NAME);
        if is_typed {
            // It was read whole, and is JSON.
            return match answer.body.collect().await {
                Ok(body) => self.store_and_answer(status, &fields, body.to_bytes(), times),
                Err(error) => self.failed(Failure::of_body(&error)),
            };
        }
        self.stream(answer, (status, fields), length, times).await
    }

    /// Sends an answer while its body is still coming.
    async fn stream(
        self: &Arc<Self>,
        answer: StreamedAnswer,
        (status, mut fields): (StatusCode, HeaderMap),
        length: Option<u64>,
        times: Times,
    ) -> Fetched {
        let upstream = self.fill.upstreams.get(self.route().upstream.number);
        let settings = &upstream.settings;
        let (max, is_events) = (self.max_stored(), is_event_stream(&fields));
        let (method, request) = (&self.request.method, &self.request.fields);
        let may_store = self.may_store(method, request, status, &fields, times);
        let is_stored = may_store && !is_events && length.is_none_or(|length| length <= max);
        let is_empty = answer.body.is_end_stream();
        let silence = match length.is_some() && !is_events {
            true => settings.silence_timeout,
            // A body that may have no end may also pause.
            false => settings.first_byte_timeout,
        };
        let slot = answer.slot.filter(|_| !is_events);
        let body = PacedBody::new(answer.body, silence, slot).boxed_unsync();
        let left = if is_empty { Some(0) } else { length };
        if !is_stored {
            pass_on(&mut fields, self.fill.clock.wall(times.received));
            let body = Body::Streamed(Box::new(BodyReader::of(body, left)));
            let answer = Answer::Passed(status, fields, body);
            return Fetched::new(Ok(answer), self.not_shared(status));
        }
        let mut collecting = Box::new(Collecting {
            fetch: self.clone(),
            head: (status, fields),
            times,
            body,
            collector: Collector::default(),
            length: left,
            received: 0,
            max,
            deadline: Instant::now() + settings.timeout,
        });
        // A small body is already there. Where a stale response could be sent if this one
        // breaks off, its end is waited for; the client's wait is bounded by `stale_wait`.
        let read = match self.may_be_stale() {
            true => Some(collecting.read().await),
            false => collecting.read().now_or_never(),
        };
        match read {
            Some(Ok(Read::Whole(body))) => {
                let (status, fields) = &collecting.head;
                self.store_and_answer(*status, fields, body, times)
            }
            Some(Err(failure)) => self.failed(failure),
            Some(Ok(Read::TooMuch)) | None => {
                let answer = self.begin(&collecting);
                Fetched {
                    rest: Some(collecting),
                    ..Fetched::new(Ok(answer), None)
                }
            }
        }
    }

    /// The beginning of the response whose body is being collected.
    fn begin(&self, collecting: &Collecting) -> Answer {
        let (status, fields) = &collecting.head;
        let stored = self.prepare(*status, fields, Bytes::new(), collecting.times);
        let reader = collecting.collector.reader(collecting.length);
        let body = Body::Streamed(Box::new(reader));
        Answer::Coming(Box::new(stored), body, collecting.length)
    }
}
