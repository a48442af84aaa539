//! Carries a response body from the upstream to its clients and, where it may be
//! stored, to the store, at the same time.
//!
//! A request keeps its slot among the upstream's requests in flight until its
//! body is complete, its client turns out to be slow, or the time of an exchange
//! is over. After that (a slow client, a slow upstream, a stream of events) the
//! body continues without a slot as a [`LingeringBody`]. Their number is bounded,
//! in total and for each client; beyond the bound a body keeps its slot until
//! another request waits for one.
//!
//! A body that has an end must storing the minimum rate of upstream bodies;
//! otherwise it is broken off.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body::Body as _;
use tokio::time::{Instant, sleep_until, timeout};

use super::lingering::{Lingering, LingeringBody};
use crate::identify::Client;
use crate::reason::Reason;
use crate::upstream::{Failure, MinRate, ResponseBody, Slot, Upstream};
use crate::wire::body::BodyError;
use crate::wire::stream::{BodyStream, Room};

/// How many bytes of a body are read ahead of the fastest client: enough that
/// neither side waits for the other.
pub(super) const AHEAD: u64 = 64 * 1024;
/// Slower readers are waited for once in this many bytes.
const STEP: u64 = 8 << 20;
/// A client that takes nothing for this long is slow, and its response gives its
/// slot back if it may linger.
const SLOW: Duration = Duration::from_secs(1);

/// A response body in transfer.
pub(super) struct Pump {
    pub(super) stream: Arc<BodyStream>,
    body: ResponseBody,
    /// The announced length.
    length: Option<u64>,
    received: u64,
    /// Measures the minimum rate, where it applies.
    min_rate: Option<MinRate>,
    slot: Option<Slot>,
    /// How long slower readers have been waited for, since how many bytes.
    waited: (u64, Duration),
    /// Whether it is complete.
    is_over: bool,
    upstream: Arc<Upstream>,
}

/// What to do with a body that may be stored.
pub(super) struct Storing {
    /// The most bytes that are stored.
    pub(super) max: u64,
    /// When it must be complete.
    pub(super) deadline: Instant,
    /// Called with the complete body.
    pub(super) store: Box<dyn FnOnce(Bytes) + Send>,
    /// Called when it is too large, or too slow, to be stored.
    pub(super) give_up: Box<dyn FnOnce() + Send>,
}

/// What happens next with a body.
enum BodyEvent {
    Data(Bytes),
    End(Option<HeaderMap>),
    Broken(Failure),
    /// The upstream has sent nothing, or too little, for too long.
    Silent,
    /// It has no reader any more.
    Deserted,
    /// The time of an exchange is over: it is no longer stored, and gives its slot
    /// back.
    Late,
}

impl Pump {
    pub(super) fn new(
        stream: Arc<BodyStream>,
        body: ResponseBody,
        length: Option<u64>,
        min_rate: Option<MinRate>,
        slot: Option<Slot>,
        upstream: Arc<Upstream>,
    ) -> Self {
        let mut pump = Self {
            stream,
            body,
            length,
            received: 0,
            min_rate,
            slot,
            waited: (0, Duration::ZERO),
            is_over: false,
            upstream,
        };
        if pump.body.is_end_stream() {
            pump.end(None);
        }
        pump
    }

    /// Reads what has already arrived, up to `max` bytes, without waiting. Returns
    /// whether the body is complete.
    ///
    /// # Errors
    /// If the body is broken.
    pub(super) async fn begin(&mut self, max: u64) -> Result<bool, Failure> {
        let at_once = poll_fn(|cx| {
            loop {
                if self.is_over {
                    return Poll::Ready(Ok(true));
                }
                if self.received >= max {
                    return Poll::Ready(Ok(false));
                }
                match Pin::new(&mut self.body).poll_frame(cx) {
                    Poll::Pending => return Poll::Ready(Ok(false)),
                    Poll::Ready(frame) => {
                        let next = self.read(frame);
                        if let Err(failure) = self.take(next) {
                            return Poll::Ready(Err(failure));
                        }
                    }
                }
            }
        });
        at_once.await
    }

    /// Reads for at most `time`, up to `max` bytes. Returns whether the body is
    /// complete.
    ///
    /// # Errors
    /// If the body is broken.
    pub(super) async fn begin_for(&mut self, time: Duration, max: u64) -> Result<bool, Failure> {
        let begun = async {
            while !self.begin(max).await? && self.received < max {
                let frame = poll_fn(|cx| Pin::new(&mut self.body).poll_frame(cx)).await;
                let next = self.read(frame);
                self.take(next)?;
            }
            Ok(self.is_over)
        };
        timeout(time, begun).await.unwrap_or(Ok(false))
    }

    /// Carries the body to its end, and stores it if `storing` is given. An
    /// endless body, such as a stream of events, gives its slot back at once if it
    /// may linger.
    pub(super) async fn run(
        mut self,
        mut storing: Option<Storing>,
        client: Client,
        lingering: Arc<Lingering>,
        is_endless: bool,
    ) {
        let mut place = None;
        if is_endless {
            self.linger(client, &lingering, &mut place);
        }
        let long = Instant::now() + self.upstream.settings().timeouts.whole;
        let mut late = storing.as_ref().map_or(long, |storing| storing.deadline);
        loop {
            if storing.is_none() && !self.has_room(client, &lingering, &mut place).await {
                return;
            }
            let holds = storing.is_some() || self.slot.is_some();
            match self.next(storing.is_some(), holds.then_some(late)).await {
                BodyEvent::Data(data) => {
                    if let Some(own) = storing.take_if(|storing| self.received > storing.max) {
                        (own.give_up)();
                        self.push(data);
                        self.stream.bound(own.max);
                        continue;
                    }
                    // It is stored before its last byte is sent, so that a client
                    // that requests it again at once finds it.
                    if self.length != Some(self.received) {
                        self.push(data);
                        continue;
                    }
                    if let Some(storing) = storing.take() {
                        store(&self.stream, &data, storing);
                    }
                    self.push(data);
                    return self.end(None);
                }
                BodyEvent::End(trailers) => {
                    match storing.take() {
                        Some(storing) if self.received > storing.max => (storing.give_up)(),
                        Some(storing) => store(&self.stream, &[], storing),
                        None => {}
                    }
                    return self.end(trailers);
                }
                BodyEvent::Late => {
                    if let Some(storing) = storing.take() {
                        (storing.give_up)();
                        self.stream.bound(storing.max);
                    }
                    if !self.may_go_on(client, &lingering, &mut place) {
                        return self
                            .stream
                            .fail("the answer takes long, and others wait for its slot");
                    }
                    late = Instant::now() + SLOW;
                }
                BodyEvent::Broken(_) => return self.stream.fail("the upstream's answer broke off"),
                BodyEvent::Silent => {
                    return self
                        .stream
                        .fail("the upstream fell silent or sends too slowly");
                }
                BodyEvent::Deserted => return,
            }
        }
    }

    /// How long the clients may take nothing, and how long an upstream without a
    /// minimum rate may send nothing.
    fn max_wait(&self) -> Duration {
        self.upstream.settings().timeouts.first_byte
    }

    /// Whether other requests wait for a slot.
    fn others_wait(&self) -> bool {
        self.upstream.queue.len() > 0
    }

    /// Gives the slot back if the body may linger.
    fn linger(
        &mut self,
        client: Client,
        lingering: &Arc<Lingering>,
        place: &mut Option<LingeringBody>,
    ) {
        if place.is_none() {
            *place = lingering.enter(client);
        }
        if place.is_some() {
            self.slot = None;
        }
    }

    /// Whether the body may continue: without a slot if it may linger, with its
    /// slot as long as no other request waits for one.
    fn may_go_on(
        &mut self,
        client: Client,
        lingering: &Arc<Lingering>,
        place: &mut Option<LingeringBody>,
    ) -> bool {
        self.linger(client, lingering, place);
        place.is_some() || !self.others_wait()
    }

    /// Waits until the readers have taken enough. Returns `false` if there is none
    /// any more, or none that continues to read.
    async fn has_room(
        &mut self,
        client: Client,
        lingering: &Arc<Lingering>,
        place: &mut Option<LingeringBody>,
    ) -> bool {
        let stream = self.stream.clone();
        self.wait_for_slower().await;
        let give_up = Instant::now() + self.max_wait();
        while Instant::now() < give_up {
            let room = poll_fn(|cx| stream.poll_room(cx, AHEAD));
            if let Ok(room) = timeout(SLOW, room).await {
                return room == Room::Free;
            }
            if !self.may_go_on(client, lingering, place) {
                self.stream
                    .fail("the client reads slowly, and others wait for its slot");
                return false;
            }
        }
        self.stream.fail("the client does not read its answer");
        false
    }

    /// Waits for readers that are about to be cut off, which may have paused for a
    /// moment only: up to [`SLOW`] in every [`STEP`] bytes. So the fastest reader
    /// still gets that many bytes a second.
    async fn wait_for_slower(&mut self) {
        if self.received >= self.waited.0 + STEP {
            self.waited = (self.received, Duration::ZERO);
        }
        let began = Instant::now();
        let left = SLOW.saturating_sub(self.waited.1);
        let together = poll_fn(|cx| self.stream.poll_together(cx));
        // A reader that has not caught up is cut off by the next chunk.
        let _elapsed = timeout(left, together).await;
        self.waited.1 += began.elapsed();
    }

    /// Waits for the next event, until `late` if given. A body that is not stored
    /// is waited for only as long as it has a reader.
    async fn next(&mut self, is_stored: bool, late: Option<Instant>) -> BodyEvent {
        let began = Instant::now();
        let next = self.next_until(is_stored, late).await;
        // Only this wait is the upstream's; between waits, clients are waited for.
        if let Some(min_rate) = &mut self.min_rate {
            min_rate.waited(began.elapsed());
            if let BodyEvent::Data(data) = &next {
                min_rate.received(data.len());
            }
        }
        next
    }

    async fn next_until(&mut self, is_stored: bool, late: Option<Instant>) -> BodyEvent {
        let min_rate = self.min_rate.as_ref();
        let max_wait = min_rate.map_or_else(|| self.max_wait(), MinRate::left);
        let silent = sleep_until(Instant::now() + max_wait);
        let late = late.map(sleep_until);
        let (mut silent, mut late) = (std::pin::pin!(silent), std::pin::pin!(late));
        poll_fn(|cx| {
            if !is_stored && self.stream.poll_deserted(cx).is_ready() {
                return Poll::Ready(BodyEvent::Deserted);
            }
            if let Some(late) = late.as_mut().as_pin_mut()
                && late.poll(cx).is_ready()
            {
                return Poll::Ready(BodyEvent::Late);
            }
            if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
                return Poll::Ready(self.read(frame));
            }
            silent.as_mut().poll(cx).map(|()| BodyEvent::Silent)
        })
        .await
    }

    fn read(&mut self, frame: Option<Result<http_body::Frame<Bytes>, BodyError>>) -> BodyEvent {
        match frame {
            None => BodyEvent::End(None),
            Some(Err(error)) => BodyEvent::Broken(Failure::of_body(&error)),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => {
                    self.received += data.len() as u64;
                    BodyEvent::Data(data)
                }
                Err(other) => BodyEvent::End(other.into_trailers().ok()),
            },
        }
    }

    fn push(&self, data: Bytes) {
        self.stream.push(data);
    }

    /// Handles an event before the body is carried by a task.
    fn take(&mut self, next: BodyEvent) -> Result<(), Failure> {
        match next {
            BodyEvent::Data(data) => {
                self.push(data);
                if self.length == Some(self.received) {
                    self.end(None);
                }
                Ok(())
            }
            BodyEvent::End(trailers) => {
                self.end(trailers);
                Ok(())
            }
            BodyEvent::Broken(failure) => Err(failure),
            BodyEvent::Silent | BodyEvent::Deserted | BodyEvent::Late => {
                Err(Failure::new(Reason::Truncated))
            }
        }
    }

    fn end(&mut self, trailers: Option<HeaderMap>) {
        self.is_over = true;
        self.slot = None;
        self.stream.finish(trailers);
    }
}

impl Drop for Pump {
    /// Ends the readers' bodies, so that none waits for ever.
    fn drop(&mut self) {
        if !self.is_over {
            self.stream.fail("the answer was given up");
        }
    }
}

fn store(stream: &BodyStream, last: &[u8], storing: Storing) {
    if let Some(body) = stream.whole() {
        let body = match last {
            [] => body,
            last => [&body, last].concat().into(),
        };
        (storing.store)(body);
    }
}
