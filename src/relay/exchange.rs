//! One request to the upstream, and its answer: read whole on typed routes, collected
//! while it is sent where it may be stored, passed through otherwise.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderMap, Method, StatusCode};
use http_body::Body as _;
use http_body_util::BodyExt;
use tokio::time::Instant;

use super::body::{Collecting, PacedBody, Read, content_length, is_event_stream};
use super::fields::RequestFields;
use super::serve::response;
use super::store::{Times, pass_on};
use super::{Announced, Fetch, NAME, RelayAnswer, RelayResult};
use crate::cache::hop;
use crate::cache::reuse::Origin;
use crate::reason::Reason;
use crate::route::HeaderMode;
use crate::upstream::answer::check_head;
use crate::upstream::{Failure, RequestBody, StreamedAnswer};
use crate::wire::Body;
use crate::wire::stream::{BodyReader, Collector};

/// What came of a request to the upstream.
pub(super) enum Exchanged {
    /// The response, or why there is none.
    Done(Box<RelayResult>),
    /// A response whose body is still coming, and what stores it.
    Streaming(Box<RelayAnswer>, Box<Collecting>),
}

impl From<RelayResult> for Exchanged {
    fn from(result: RelayResult) -> Self {
        Self::Done(Box::new(result))
    }
}

impl Fetch {
    /// Sends the request and applies the rules to the answer. `unconditional` leaves out
    /// all conditions, which are then applied to the answer.
    pub(super) async fn exchange(
        self: &Arc<Self>,
        body: Option<RequestBody>,
        unconditional: bool,
    ) -> Exchanged {
        let (relay, route) = (&self.relay, self.route());
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
        let (purge, requested) = (self.purges(), self.now());
        let (target, priority) = (self.request.key.target(), self.priority());
        let upstream = relay.upstreams.client(route.upstream.number);
        let answer = upstream.forward(method, target, fields, body, priority, max_body);
        let answer = match answer.await {
            Ok(answer) => answer,
            Err(failure) => return self.failed(failure),
        };
        let times = Times {
            purge,
            requested,
            received: self.now(),
        };
        if validates && answer.head.status == StatusCode::NOT_MODIFIED {
            return match self.apply_not_modified(&answer.head.headers, times) {
                Some(answer) => Ok(answer).into(),
                // The 304 is about a response that is not stored (any more).
                None if !unconditional && !had_body => Box::pin(self.exchange(None, true)).await,
                None => self.failed(Failure::new(Reason::NotHttp)),
            };
        }
        let status = answer.head.status;
        if Origin::after(status) == Origin::Failed && self.may_be_stale(Origin::Failed) {
            // The stale response takes its place.
            return self.failed(Failure::status(Reason::ServerError, status));
        }
        self.receive(answer, times).await
    }

    fn failed(&self, failure: Failure) -> Exchanged {
        Err(failure).into()
    }

    /// The most bytes of a body that is stored.
    fn max_stored(&self) -> u64 {
        let upstream = self.relay.upstreams.get(self.route().upstream.number);
        let max = upstream.settings.max_body_bytes;
        max.min(self.relay.cache.store().max_body())
    }

    /// Takes the upstream's answer: stores it where it may be stored, and answers
    /// the client.
    async fn receive(self: &Arc<Self>, mut answer: StreamedAnswer, times: Times) -> Exchanged {
        let status = answer.head.status;
        let mut fields = std::mem::take(&mut answer.head.headers);
        let is_typed = self.route().headers == HeaderMode::Typed;
        if is_typed && let Err(failure) = check_head(status, &fields, times.received) {
            return self.failed(failure);
        }
        let length = match content_length(answer.head.version, &mut fields) {
            Ok(length) => length,
            Err(failure) => return self.failed(failure),
        };
        self.update_others(status, &fields, times);
        hop::add_via(&mut fields, answer.head.version, NAME);
        if is_typed {
            // It was read whole, and is JSON.
            return match answer.body.collect().await {
                Ok(body) => {
                    Ok(self.store_and_answer(status, &fields, body.to_bytes(), times)).into()
                }
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
    ) -> Exchanged {
        let upstream = self.relay.upstreams.get(self.route().upstream.number);
        let settings = &upstream.settings;
        let (max, is_events) = (self.max_stored(), is_event_stream(&fields));
        let (method, request) = (&self.request.method, &self.request.fields);
        let may_store = self.may_store(method, request, status, &fields, times);
        let is_stored = may_store && !is_events && length.is_none_or(|length| length <= max);
        let is_empty = answer.body.is_end_stream();
        let silence = match is_stored || length.is_some() && !is_events {
            true => settings.silence_timeout,
            // A body that may have no end may also pause.
            false => settings.first_byte_timeout,
        };
        let slot = answer.slot.filter(|_| !is_events);
        let body = PacedBody::new(answer.body, silence, slot).boxed_unsync();
        let left = if is_empty { Some(0) } else { length };
        if !is_stored {
            pass_on(&mut fields, times.received);
            let outcome = self.outcome(Some(status), false, false);
            self.finish(&mut fields, outcome);
            let body = Body::Streamed(Box::new(BodyReader::of(body, left)));
            let answer = RelayAnswer {
                response: response(status, fields, body),
                outcome,
                announced: self.not_shared(status),
            };
            return Ok(answer).into();
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
        let read = match self.may_be_stale(Origin::Disconnected) {
            true => Some(collecting.read().await),
            false => collecting.read().now_or_never(),
        };
        match read {
            Some(Ok(Read::Whole(body))) => {
                let (status, fields) = &collecting.head;
                Ok(self.store_and_answer(*status, fields, body, times)).into()
            }
            Some(Err(failure)) => self.failed(failure),
            Some(Ok(Read::TooMuch)) | None => {
                let answer = self.begin(&collecting);
                Exchanged::Streaming(Box::new(answer), collecting)
            }
        }
    }

    /// The beginning of the response whose body is being collected.
    fn begin(&self, collecting: &Collecting) -> RelayAnswer {
        let (status, fields) = &collecting.head;
        let variant = self.prepare(*status, fields, Bytes::new(), collecting.times);
        let outcome = self.outcome(Some(*status), true, false);
        let reader = collecting.collector.reader(collecting.length);
        let body = (Body::Streamed(Box::new(reader)), collecting.length);
        RelayAnswer {
            response: self.serve_begun(&variant, fields, body, outcome),
            outcome,
            announced: Announced::Again,
        }
    }
}
