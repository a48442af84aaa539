//! Carrying a body from the upstream to the clients that read it and, where it
//! may be stored, to the store: sent while it is being stored.
//!
//! A request holds its slot among the upstream requests under way until its
//! body has come, or its client has shown to be slow, or the time of an exchange
//! is over. What goes on for longer than that (a slow client, a slow upstream, a
//! stream of events) goes on without a slot, as one
//! of a bounded number of [`Lingering`] bodies, of which no client has more than
//! a share; beyond those it keeps its slot until others wait for it.
//!
//! A body that has an end keeps to the minimum rate of the upstream's bodies, or
//! breaks off for its clients; the endpoint learns of it while the request has
//! its slot.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http_body::Body as _;
use tokio::time::{Instant, sleep_until, timeout};

use crate::identify::Client;
use crate::upstream::{BodyPermit, Failure, MinRate, ResponseBody, TimedOut, Upstream};
use crate::wire::body::BodyError;
use crate::wire::stream::{Room, Stream};

/// Bytes that are read of a body before its client has taken those that came
/// before: enough that neither side waits for the other.
pub(super) const AHEAD: u64 = 64 * 1024;
/// Bytes in which slower readers are waited for once.
const STEP: u64 = 8 << 20;
/// A client that takes nothing for so long is slow: its answer gives its slot
/// back, if it may linger.
const SLOW: Duration = Duration::from_secs(1);

/// A body on its way, as far as it has been read.
pub(super) struct Pump {
    pub(super) stream: Arc<Stream>,
    body: ResponseBody,
    /// The length that the body is said to have.
    length: Option<u64>,
    received: u64,
    /// Whether the upstream keeps to the minimum rate, of a body that has to.
    min_rate: Option<MinRate>,
    permit: Option<BodyPermit>,
    /// How long slower readers have been waited for, and how many bytes had come
    /// when that began to count.
    waited: (u64, Duration),
    /// Whether all of it has come.
    is_over: bool,
    upstream: Arc<Upstream>,
}

/// What is to be done with a body that may be stored.
pub(super) struct Keep {
    /// Bytes of it that are stored at the most.
    pub(super) most: u64,
    /// When it must have come.
    pub(super) deadline: Instant,
    /// Stores it.
    pub(super) store: Box<dyn FnOnce(Bytes) + Send>,
    /// It is too large, or too slow, to be stored.
    pub(super) give_up: Box<dyn FnOnce() + Send>,
}

/// What came next of a body.
enum Next {
    Data(Bytes),
    End(Option<HeaderMap>),
    Broken(Failure),
    /// The upstream has sent nothing for too long, or too little.
    Silent,
    /// Nobody wants it any more.
    Deserted,
    /// It takes longer than an exchange may: it is not stored any more, and gives
    /// its slot back.
    Late,
}

impl Pump {
    pub(super) fn new(
        stream: Arc<Stream>,
        body: ResponseBody,
        length: Option<u64>,
        min_rate: Option<MinRate>,
        permit: BodyPermit,
        upstream: Arc<Upstream>,
    ) -> Self {
        let mut pump = Self {
            stream,
            body,
            length,
            received: 0,
            min_rate,
            permit: Some(permit),
            waited: (0, Duration::ZERO),
            is_over: false,
            upstream,
        };
        if pump.body.is_end_stream() {
            pump.end(None);
        }
        pump
    }

    /// Takes in what has come already, `most` bytes of it at the most, without
    /// waiting. Says whether that is all.
    ///
    /// # Errors
    /// Where the body is broken.
    pub(super) async fn begin(&mut self, most: u64) -> Result<bool, Failure> {
        let at_once = poll_fn(|cx| {
            loop {
                if self.is_over {
                    return Poll::Ready(Ok(true));
                }
                if self.received >= most {
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

    /// Goes on for so long at the most. Says whether all has come.
    ///
    /// # Errors
    /// Where the body is broken.
    pub(super) async fn begin_for(&mut self, time: Duration, most: u64) -> Result<bool, Failure> {
        let begun = async {
            while !self.begin(most).await? && self.received < most {
                let frame = poll_fn(|cx| Pin::new(&mut self.body).poll_frame(cx)).await;
                let next = self.read(frame);
                self.take(next)?;
            }
            Ok(self.is_over)
        };
        timeout(time, begun).await.unwrap_or(Ok(false))
    }

    /// Carries it on to its end, and stores it as `keep` says. What is endless,
    /// such as a stream of events, has no slot from the start where that may
    /// be.
    pub(super) async fn run(
        mut self,
        mut keep: Option<Keep>,
        client: Client,
        lingering: Arc<Lingering>,
        is_endless: bool,
    ) {
        let mut lingers = None;
        if is_endless {
            self.linger(client, &lingering, &mut lingers);
        }
        let long = Instant::now() + self.upstream.settings().timeout;
        let mut late = keep.as_ref().map_or(long, |keep| keep.deadline);
        loop {
            if keep.is_none() && !self.has_room(client, &lingering, &mut lingers).await {
                return;
            }
            let holds = keep.is_some() || self.permit.is_some();
            match self.next(keep.is_some(), holds.then_some(late)).await {
                Next::Data(data) => {
                    if let Some(own) = keep.take_if(|keep| self.received > keep.most) {
                        (own.give_up)();
                        self.push(data);
                        self.stream.bound(own.most);
                        continue;
                    }
                    // Who has read an answer to its end may ask for it again at
                    // once: it is stored before its last byte is sent.
                    if self.length != Some(self.received) {
                        self.push(data);
                        continue;
                    }
                    if let Some(keep) = keep.take() {
                        store(&self.stream, &data, keep);
                    }
                    self.push(data);
                    return self.end(None);
                }
                Next::End(trailers) => {
                    match keep.take() {
                        Some(keep) if self.received > keep.most => (keep.give_up)(),
                        Some(keep) => store(&self.stream, &[], keep),
                        None => {}
                    }
                    return self.end(trailers);
                }
                Next::Late => {
                    if let Some(keep) = keep.take() {
                        (keep.give_up)();
                        self.stream.bound(keep.most);
                    }
                    if !self.may_go_on(client, &lingering, &mut lingers) {
                        return self
                            .stream
                            .fail("the answer takes long, and others wait for its slot");
                    }
                    late = Instant::now() + SLOW;
                }
                Next::Broken(_) => return self.stream.fail("the upstream's answer broke off"),
                Next::Silent => {
                    if let Some(permit) = &mut self.permit {
                        permit.failed(&Failure::TimedOut(TimedOut::Body));
                    }
                    return self
                        .stream
                        .fail("the upstream fell silent or sends too slowly");
                }
                Next::Deserted => return,
            }
        }
    }

    /// How long the clients may take nothing, and an upstream that need not keep to
    /// the minimum rate may send nothing.
    fn patience(&self) -> Duration {
        self.upstream.settings().first_byte_timeout
    }

    /// Whether other requests wait for a slot.
    fn others_wait(&self) -> bool {
        !self.upstream.line().is_empty()
    }

    /// Goes on without a slot, where that may be.
    fn linger(
        &mut self,
        client: Client,
        lingering: &Arc<Lingering>,
        lingers: &mut Option<Lingers>,
    ) {
        if lingers.is_none() {
            *lingers = lingering.enter(client);
        }
        if lingers.is_some() {
            self.permit = None;
        }
    }

    /// Goes on without a slot, where that may be; with its slot otherwise, as long
    /// as no others wait for one.
    fn may_go_on(
        &mut self,
        client: Client,
        lingering: &Arc<Lingering>,
        lingers: &mut Option<Lingers>,
    ) -> bool {
        self.linger(client, lingering, lingers);
        lingers.is_some() || !self.others_wait()
    }

    /// Waits until readers have taken enough of what has come; `false` where
    /// there are none any more, or none that ever goes on.
    async fn has_room(
        &mut self,
        client: Client,
        lingering: &Arc<Lingering>,
        lingers: &mut Option<Lingers>,
    ) -> bool {
        let stream = self.stream.clone();
        self.wait_for_slower().await;
        let give_up = Instant::now() + self.patience();
        while Instant::now() < give_up {
            let room = poll_fn(|cx| stream.poll_room(cx, AHEAD));
            if let Ok(room) = timeout(SLOW, room).await {
                return room == Room::Free;
            }
            if !self.may_go_on(client, lingering, lingers) {
                self.stream
                    .fail("the client reads slowly, and others wait for its slot");
                return false;
            }
        }
        self.stream.fail("the client does not read its answer");
        false
    }

    /// Waits a little for readers that are about to be cut off, which may have
    /// been held up for a moment only: for as long as makes one slow, in every
    /// [`STEP`] bytes. So the fastest still goes on at so much a second.
    async fn wait_for_slower(&mut self) {
        if self.received >= self.waited.0 + STEP {
            self.waited = (self.received, Duration::ZERO);
        }
        let began = Instant::now();
        let left = SLOW.saturating_sub(self.waited.1);
        let together = poll_fn(|cx| self.stream.poll_together(cx));
        // Who has not come nearer is cut off by what comes next.
        let _elapsed = timeout(left, together).await;
        self.waited.1 += began.elapsed();
    }

    /// Waits for what comes next, until it is late if ever; of what is not kept,
    /// as long as somebody reads it.
    async fn next(&mut self, is_kept: bool, late: Option<Instant>) -> Next {
        let began = Instant::now();
        let next = self.next_until(is_kept, late).await;
        // Between these waits it is the clients that are waited for.
        if let Some(min_rate) = &mut self.min_rate {
            min_rate.waited(began.elapsed());
            if let Next::Data(data) = &next {
                min_rate.received(data.len());
            }
        }
        next
    }

    async fn next_until(&mut self, is_kept: bool, late: Option<Instant>) -> Next {
        let min_rate = self.min_rate.as_ref();
        let patience = min_rate.map_or_else(|| self.patience(), MinRate::left);
        let silent = sleep_until(Instant::now() + patience);
        let late = late.map(sleep_until);
        let (mut silent, mut late) = (std::pin::pin!(silent), std::pin::pin!(late));
        poll_fn(|cx| {
            if !is_kept && self.stream.poll_deserted(cx).is_ready() {
                return Poll::Ready(Next::Deserted);
            }
            if let Some(late) = late.as_mut().as_pin_mut()
                && late.poll(cx).is_ready()
            {
                return Poll::Ready(Next::Late);
            }
            if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
                return Poll::Ready(self.read(frame));
            }
            silent.as_mut().poll(cx).map(|()| Next::Silent)
        })
        .await
    }

    fn read(&mut self, frame: Option<Result<http_body::Frame<Bytes>, BodyError>>) -> Next {
        match frame {
            None => Next::End(None),
            Some(Err(error)) => Next::Broken(Failure::of_body(&error)),
            Some(Ok(frame)) => match frame.into_data() {
                Ok(data) => {
                    self.received += data.len() as u64;
                    Next::Data(data)
                }
                Err(other) => Next::End(other.into_trailers().ok()),
            },
        }
    }

    fn push(&self, data: Bytes) {
        self.stream.push(data);
    }

    /// Takes in what has come before it runs.
    fn take(&mut self, next: Next) -> Result<(), Failure> {
        match next {
            Next::Data(data) => {
                self.push(data);
                if self.length == Some(self.received) {
                    self.end(None);
                }
                Ok(())
            }
            Next::End(trailers) => {
                self.end(trailers);
                Ok(())
            }
            Next::Broken(failure) => Err(failure),
            Next::Silent | Next::Deserted | Next::Late => Err(Failure::Incomplete),
        }
    }

    fn end(&mut self, trailers: Option<HeaderMap>) {
        self.is_over = true;
        self.permit = None;
        self.stream.finish(trailers);
    }
}

impl Drop for Pump {
    /// However it ends, readers learn of it: none waits for what never comes.
    fn drop(&mut self) {
        if !self.is_over {
            self.stream.fail("the answer was given up");
        }
    }
}

fn store(stream: &Stream, last: &[u8], keep: Keep) {
    if let Some(body) = stream.whole() {
        let body = match last {
            [] => body,
            last => [&body, last].concat().into(),
        };
        (keep.store)(body);
    }
}

/// The bodies that go on without a slot, by client.
pub(super) struct Lingering {
    most: AtomicUsize,
    clients: Mutex<HashMap<Client, usize>>,
}

/// One of them; it is over when this is dropped.
pub(super) struct Lingers {
    of: Arc<Lingering>,
    client: Client,
}

/// So many bodies linger for each request that may be under way: they are of
/// work that the upstream has done.
const FOR_EACH_SLOT: usize = 8;

impl Lingering {
    /// None; beside so many requests under way.
    pub(super) fn beside(in_flight: u32) -> Arc<Self> {
        Self::new(in_flight as usize * FOR_EACH_SLOT)
    }

    fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            most: AtomicUsize::new(most),
            clients: Mutex::default(),
        })
    }

    /// So many requests may be under way from now on.
    pub(super) fn bound(&self, in_flight: u32) {
        self.most.store(in_flight as usize * FOR_EACH_SLOT, Relaxed);
    }

    /// One more body of a client's goes on without a slot. A client has a
    /// quarter of them at the most, and one at the least.
    pub(super) fn enter(self: &Arc<Self>, client: Client) -> Option<Lingers> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        let all: usize = clients.values().sum();
        let own = clients.entry(client).or_default();
        let most = self.most.load(Relaxed);
        if all >= most || *own >= (most / 4).max(1) {
            if *own == 0 {
                clients.remove(&client);
            }
            return None;
        }
        *own += 1;
        Some(Lingers {
            of: self.clone(),
            client,
        })
    }
}

impl Drop for Lingers {
    fn drop(&mut self) {
        let clients = &self.of.clients;
        let mut clients = clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = clients.get_mut(&self.client) {
            *own -= 1;
            if *own == 0 {
                clients.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_client_has_more_than_a_share_of_what_lingers() {
        let lingering = Lingering::new(8);
        let enter = |client| lingering.enter(Client::V4(client));
        let mut held: Vec<_> = (0..2).map(|_| enter(1).unwrap()).collect();
        assert!(enter(1).is_none());
        for client in 2..=4 {
            held.extend([enter(client).unwrap(), enter(client).unwrap()]);
        }
        assert!(enter(5).is_none(), "there are as many as may be");
        held.remove(0);
        held.push(enter(5).unwrap());
        lingering.bound(2);
        held.push(enter(1).unwrap());
        lingering.bound(1);
        held.truncate(2);
        assert_eq!(lingering.clients.lock().unwrap().values().sum::<usize>(), 2);
        drop(held);
        assert!(lingering.clients.lock().unwrap().is_empty());
        let one = Lingering::new(1);
        assert!(one.enter(Client::V4(1)).is_some());
    }
}
