//! The upstream's answer: read whole on typed routes, stored while it is sent
//! where it may be stored, passed through otherwise.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{HeaderMap, StatusCode};
use http_body::Body as _;
use http_body_util::BodyExt;
use tokio::time::Instant;

use super::content_length::content_length;
use super::pump::{AHEAD, Pump, Storing};
use super::serve::{finish, response, serve_in_progress};
use super::shared::{Announced, InProgress};
use super::storing::{for_requester, pass_on, withheld};
use super::{ExchangeRecord, Fetch, NAME, Relay, RelayAnswer, RelayResult, forwarded};
use crate::cache::hop;
use crate::cache::reuse::Origin;
use crate::collapse::Lead;
use crate::reason::Reason;
use crate::route::{HeaderMode, Route};
use crate::trace;
use crate::upstream::answer::check_head;
use crate::upstream::{Failure, StreamedAnswer};
use crate::wire::Body;
use crate::wire::stream::BodyStream;

impl Fetch {
    /// Takes the upstream's answer: stores it where it may be stored, and answers
    /// the client.
    pub(super) async fn receive(
        &self,
        relay: &Arc<Relay>,
        route: &Route,
        mut answer: StreamedAnswer,
        times: ExchangeRecord,
        lead: &mut Option<Lead<Announced>>,
    ) -> RelayResult {
        let status = answer.head.status;
        let mut fields = std::mem::take(&mut answer.head.headers);
        let fails = |failure| self.failed(relay, route, failure, Origin::Disconnected);
        let typed = route.headers == HeaderMode::Typed;
        if typed && let Err(failure) = check_head(status, &fields, times.received) {
            return fails(failure);
        }
        let length = match content_length(answer.head.version, &mut fields) {
            Ok(length) => length,
            Err(failure) => return fails(failure),
        };
        self.update_others(relay, route, status, &fields, times.sequence);
        hop::add_via(&mut fields, answer.head.version, NAME);
        match typed {
            // It was read whole, and is JSON.
            true => match answer.body.collect().await {
                Ok(read) => {
                    let body = read.to_bytes();
                    Ok(self.store_and_answer(relay, route, status, &fields, body, times))
                }
                Err(error) => fails(Failure::of_body(&error)),
            },
            false => {
                let head = (status, fields);
                self.stream(relay, route, head, answer, length, times, lead)
                    .await
            }
        }
    }

    /// Sends an answer while its body is still coming.
    #[expect(
        clippy::too_many_arguments,
        reason = "each is a different noun of the exchange"
    )]
    async fn stream(
        &self,
        relay: &Arc<Relay>,
        route: &Route,
        (status, mut fields): (StatusCode, HeaderMap),
        answer: StreamedAnswer,
        length: Option<u64>,
        times: ExchangeRecord,
        lead: &mut Option<Lead<Announced>>,
    ) -> RelayResult {
        let StreamedAnswer { body, slot, .. } = answer;
        let max = relay.max_stored(route);
        let is_events = is_event_stream(&fields);
        let (variant, storable) =
            self.prepare_variant(relay, route, status, &fields, Bytes::new(), times);
        let is_stored = storable && !is_events && length.is_none_or(|length| length <= max);
        let stream = match is_stored {
            true => BodyStream::kept(),
            false => BodyStream::passing(AHEAD),
        };
        let is_empty = body.is_end_stream();
        let upstream = relay.upstreams.get(route.upstream.number).clone();
        // A body that may have no end may also pause.
        let has_end = length.is_some() || is_stored && self.is_shareable(&variant);
        let limits = &upstream.settings().response_body;
        let min_rate = (has_end && !is_events).then(|| limits.min_rate());
        let mut pump = Pump::new(stream, body, length, min_rate, slot, upstream);
        if !is_stored {
            pass_on(&mut fields, times.received);
            return Ok(self.pass(relay, route, (status, fields), pump, length, is_events));
        }
        // A small body is already there. Where a stale response could be sent if
        // this one breaks off, it is worth waiting a little for the end.
        let origin = Origin::Disconnected;
        let has_stale = self.stale_if_error(relay, route, origin, Reason::Truncated);
        let whole = match has_stale.is_some() {
            true => pump.begin_for(relay.wait_for_end, max).await,
            false => pump.begin(max).await,
        };
        match whole {
            Err(failure) => self.failed(relay, route, failure, Origin::Disconnected),
            Ok(true) => {
                let body = pump.stream.whole().unwrap_or_default();
                Ok(self.store_and_answer(relay, route, status, &fields, body, times))
            }
            Ok(false) => {
                let begun = InProgress {
                    variant,
                    stream: pump.stream.clone(),
                    length: length.filter(|_| !is_empty),
                    sequence: times.sequence,
                };
                Ok(self.store_while_sending(relay, route, (fields, begun), pump, times, lead))
            }
        }
    }

    /// Sends an answer while it is being stored, to this client and to those
    /// that wait for the same.
    fn store_while_sending(
        &self,
        relay: &Arc<Relay>,
        route: &Route,
        (fields, begun): (HeaderMap, InProgress),
        pump: Pump,
        times: ExchangeRecord,
        lead: &mut Option<Lead<Announced>>,
    ) -> RelayAnswer {
        let begun = Arc::new(begun);
        let outcome = forwarded(self.why, Some(begun.variant.status), true, false);
        let announced = match self.is_shareable(&begun.variant) {
            true => Announced::InProgress(begun.clone()),
            false => self.not_shareable(relay),
        };
        let lead = lead.take();
        if let Some(lead) = &lead {
            lead.announce(announced.clone());
        }
        let request = &self.request;
        let own = for_requester(&begun.variant, &withheld(&begun.variant, &fields));
        let own = own.map(|variant| InProgress {
            variant,
            stream: begun.stream.clone(),
            ..*begun
        });
        let answered = own.as_ref().unwrap_or(&begun);
        let response = serve_in_progress(relay, route, answered, request, outcome, times.received);
        let settings = relay.upstreams.get(route.upstream.number).settings();
        let as_get = || (self.as_get(request.fields.clone()), relay.clone());
        let ((own, at), (given_up, at_given_up)) = (as_get(), as_get());
        let storing = Storing {
            max: relay.max_stored(route),
            deadline: Instant::now() + settings.timeouts.whole,
            store: Box::new(move |body| {
                if let Some(route) = at.routes.get(own.request.key.route()) {
                    let status = begun.variant.status;
                    own.store_and_answer(&at, route, status, &fields, body, times);
                }
                // Requests from here on find it stored.
                drop(lead);
            }),
            give_up: Box::new(move || given_up.remember_uncacheable(&at_given_up)),
        };
        let upstream = relay.upstreams.get(route.upstream.number);
        let lingering = relay.state.lingering_at(upstream);
        let pump = pump.run(Some(storing), request.client, lingering, false);
        tokio::spawn(trace::inherit(pump));
        RelayAnswer {
            response: response.unwrap_or_default(),
            outcome,
            announced,
        }
    }

    /// Passes through an answer that is not stored.
    fn pass(
        &self,
        relay: &Arc<Relay>,
        route: &Route,
        (status, mut fields): (StatusCode, HeaderMap),
        pump: Pump,
        length: Option<u64>,
        is_endless: bool,
    ) -> RelayAnswer {
        let outcome = forwarded(self.why, Some(status), false, false);
        finish(relay, route, &mut fields, &self.request.key, outcome);
        // No byte has been read yet, so the beginning is there.
        let reader = pump.stream.reader(length);
        let body = reader.map_or_else(Body::default, |reader| Body::Streamed(Box::new(reader)));
        let upstream = relay.upstreams.get(route.upstream.number);
        let lingering = relay.state.lingering_at(upstream);
        tokio::spawn(pump.run(None, self.request.client, lingering, is_endless));
        RelayAnswer {
            response: response(status, fields, body),
            outcome,
            announced: self.unstored(relay, status),
        }
    }

    /// What other requests may do when an answer of this status is not stored.
    pub(super) fn unstored(&self, relay: &Relay, status: StatusCode) -> Announced {
        match status.is_server_error() {
            // It may pass at once, and is no property of the key.
            true => Announced::Unshared,
            false => self.not_shareable(relay),
        }
    }
}

/// Whether an answer is a stream of events, which has no end to wait for.
fn is_event_stream(fields: &HeaderMap) -> bool {
    let media = fields.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let media = media.and_then(|media| media.split(|byte| *byte == b';').next());
    media.is_some_and(|media| {
        media
            .trim_ascii()
            .eq_ignore_ascii_case(b"text/event-stream")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_streams_are_recognised_by_their_media_type() {
        for (content_type, expected) in [
            ("text/event-stream", true),
            ("Text/Event-Stream ; charset=utf-8", true),
            ("text/event-stream-x", false),
            ("application/json", false),
        ] {
            let value = HeaderValue::from_static(content_type);
            let fields = HeaderMap::from_iter([(CONTENT_TYPE, value)]);
            assert_eq!(is_event_stream(&fields), expected, "{content_type}");
        }
        assert!(!is_event_stream(&HeaderMap::new()));
    }
}
