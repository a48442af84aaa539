//! Request bodies on their way from a client to the upstream.
//!
//! A request takes a slot among those under way only when its body has arrived,
//! so that a slow client costs itself time and nobody else a slot. A body up to
//! [`Limits::buffer`] is read whole first; of a longer one that much is, and the
//! rest is streamed at a minimum rate.
//!
//! Whatever is wrong with a body is the client's doing and has a name
//! ([`BodyFault`]), which `Progress` keeps: how the HTTP client reports it
//! depends on the version that the upstream speaks.
//!
//! Invariants: a body is waited for no longer than its rate, its grace and
//! [`Limits::timeout`] allow; the bytes that are buffered, counted by what is
//! allocated for them, stay within both bounds of [`Limits`].
//!
//! Deliberately absent: what a client is told (`refusal`).

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use foldhash::quality::RandomState;
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, HeaderValue, TRANSFER_ENCODING};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use serde::Serialize;
use tokio::time::{Instant, Sleep};

use crate::identify::Client;
use crate::upstream::client::min_rate::MinRate;
use crate::upstream::client::streamed::RequestBody;
use crate::wire::body::BodyError;

/// What a request's body may take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// Bytes of a body that are read before the request takes a slot.
    #[serde(serialize_with = "crate::units::serialize_size")]
    pub buffer: u64,
    /// Bytes that all buffered bodies together may take.
    #[serde(serialize_with = "crate::units::serialize_size")]
    pub max_buffered: u64,
    /// Bytes that the buffered bodies of one client may take.
    #[serde(serialize_with = "crate::units::serialize_size")]
    pub max_buffered_per_client: u64,
    /// Bytes a second that a client must send while it is waited for.
    #[serde(serialize_with = "crate::units::serialize_size")]
    pub min_rate: u64,
    /// How long a client may send nothing, and how far it may fall behind the
    /// rate.
    #[serde(serialize_with = "crate::units::serialize")]
    pub grace: Duration,
    /// From a body's first byte to its last.
    #[serde(serialize_with = "crate::units::serialize")]
    pub timeout: Duration,
    /// The longest body, in bytes.
    #[serde(serialize_with = "crate::units::serialize_size")]
    pub max_bytes: u64,
}

/// What is wrong with a request's body. None of it is the upstream's doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyFault {
    /// It ended before its end, or its framing is malformed.
    #[error("the request's body broke off or is malformed")]
    Broken,
    /// It came below the minimum rate, or took too long altogether.
    #[error("the request's body came too slowly")]
    TooSlow,
    /// It is longer than is accepted.
    #[error("the request's body is too long")]
    TooLarge,
    /// Too much is buffered already, for this client or for all.
    #[error("there is no room to buffer the request's body")]
    NoRoom,
}

impl BodyFault {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Broken, Self::TooSlow, Self::TooLarge, Self::NoRoom];

    /// Its word in metrics and in `/status`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Broken => "broken",
            Self::TooSlow => "too-slow",
            Self::TooLarge => "too-large",
            Self::NoRoom => "no-room",
        }
    }

    const fn index(self) -> usize {
        self as usize
    }
}

/// The request bodies of one upstream: how much of them is buffered, and how
/// many were refused.
#[derive(Debug, Default)]
pub struct Uploads {
    buffered: Mutex<Buffered>,
    refused: [AtomicU64; BodyFault::ALL.len()],
}

#[derive(Debug, Default)]
struct Buffered {
    bytes: u64,
    /// Those of each client that has any.
    clients: HashMap<Option<Client>, u64, RandomState>,
}

/// A body that has arrived, whole or as much of it as is buffered.
pub(crate) struct Upload {
    begun: Bytes,
    /// What of the last frame did not fit the buffer.
    beyond: Bytes,
    trailers: Option<HeaderMap>,
    /// The rest, where it is streamed.
    rest: Option<Paced>,
    progress: Arc<Progress>,
}

/// How far the upload of a body has come.
#[derive(Debug)]
pub(crate) struct Progress {
    fault: OnceLock<BodyFault>,
    /// Whether some of it has been sent since this was last looked at.
    moved: AtomicBool,
    /// Whether the client is waited for.
    waits: AtomicBool,
    ended: AtomicBool,
    deadline: Instant,
}

impl Uploads {
    /// Reads a body until it has ended or fills its buffer. `declared` is the
    /// length that its request says.
    pub(crate) async fn receive(
        self: &Arc<Self>,
        body: RequestBody,
        declared: Option<u64>,
        client: Option<Client>,
        limits: &Limits,
    ) -> Result<Upload, BodyFault> {
        let received = self.read(body, declared, client, limits).await;
        if let Err(fault) = &received {
            self.count(*fault);
        }
        received
    }

    async fn read(
        self: &Arc<Self>,
        body: RequestBody,
        declared: Option<u64>,
        client: Option<Client>,
        limits: &Limits,
    ) -> Result<Upload, BodyFault> {
        if declared.is_some_and(|declared| declared > limits.max_bytes) {
            return Err(BodyFault::TooLarge);
        }
        let mut buffer = Buffer {
            bytes: Vec::new(),
            counted: 0,
            uploads: self.clone(),
            client,
        };
        let mut paced = Paced::new(body, limits);
        let deadline = paced.deadline;
        let mut trailers: Option<HeaderMap> = None;
        let (beyond, rest) = loop {
            let Some(frame) = poll_fn(|cx| paced.poll(cx)).await else {
                break (Bytes::new(), None);
            };
            match frame?.into_data() {
                Ok(mut data) => {
                    let room = limits.buffer - buffer.bytes.len() as u64;
                    let fits = usize::try_from(room).unwrap_or(usize::MAX).min(data.len());
                    buffer.extend(&data.split_to(fits), limits)?;
                    if !data.is_empty() {
                        break (data, Some(paced));
                    }
                }
                Err(frame) => {
                    if let Ok(more) = frame.into_trailers() {
                        trailers.get_or_insert_default().extend(more);
                    }
                }
            }
        };
        let progress = Progress {
            fault: OnceLock::new(),
            moved: AtomicBool::new(false),
            waits: AtomicBool::new(false),
            ended: AtomicBool::new(rest.is_none()),
            deadline,
        };
        Ok(Upload {
            begun: Bytes::from_owner(buffer),
            beyond,
            trailers,
            rest,
            progress: Arc::new(progress),
        })
    }

    pub(crate) fn count(&self, fault: BodyFault) {
        self.refused[fault.index()].fetch_add(1, Relaxed);
    }

    /// How many bodies were refused for a fault.
    pub fn refused(&self, fault: BodyFault) -> u64 {
        self.refused[fault.index()].load(Relaxed)
    }

    /// Bytes that are buffered.
    pub fn buffered(&self) -> u64 {
        self.state().bytes
    }

    fn state(&self) -> MutexGuard<'_, Buffered> {
        self.buffered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Buffered {
    /// Counts more bytes of a client, where both bounds allow that.
    fn add(&mut self, client: Option<Client>, more: u64, limits: &Limits) -> bool {
        let own = self.clients.get(&client).copied().unwrap_or(0);
        let fits = own + more <= limits.max_buffered_per_client
            && self.bytes + more <= limits.max_buffered;
        if fits {
            self.bytes += more;
            self.clients.insert(client, own + more);
        }
        fits
    }

    fn remove(&mut self, client: Option<Client>, bytes: u64) {
        self.bytes -= bytes;
        if let Some(own) = self.clients.get_mut(&client) {
            *own -= bytes;
            if *own == 0 {
                self.clients.remove(&client);
            }
        }
    }
}

/// Buffered bytes of one body. They count until the last handle of them is
/// dropped, which is after they were sent.
struct Buffer {
    bytes: Vec<u8>,
    counted: u64,
    uploads: Arc<Uploads>,
    client: Option<Client>,
}

/// What is allocated for a body's first byte.
const FIRST: usize = 1024;

impl Buffer {
    fn extend(&mut self, data: &[u8], limits: &Limits) -> Result<(), BodyFault> {
        let length = self.bytes.len() + data.len();
        if length > self.bytes.capacity() {
            let most = usize::try_from(limits.buffer).unwrap_or(usize::MAX);
            let capacity = length.next_power_of_two().max(FIRST).min(most);
            let more = capacity as u64 - self.counted;
            if !self.uploads.state().add(self.client, more, limits) {
                return Err(BodyFault::NoRoom);
            }
            self.counted = capacity as u64;
            self.bytes.reserve_exact(capacity - self.bytes.len());
        }
        self.bytes.extend_from_slice(data);
        Ok(())
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.counted > 0 {
            self.uploads.state().remove(self.client, self.counted);
        }
    }
}

impl Upload {
    pub(crate) fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// Whether it goes on while its request holds a slot.
    pub(crate) fn is_streamed(&self) -> bool {
        self.rest.is_some()
    }

    /// The same once more, of a body that has arrived whole.
    pub(crate) fn copy(&self) -> Option<Self> {
        if self.rest.is_some() {
            return None;
        }
        Some(Self {
            begun: self.begun.clone(),
            beyond: self.beyond.clone(),
            trailers: self.trailers.clone(),
            rest: None,
            progress: self.progress.clone(),
        })
    }

    /// Frames its request: what has arrived whole has a length, unless it has
    /// trailers, which take chunks.
    pub(crate) fn frame(&self, fields: &mut HeaderMap) {
        if self.rest.is_none() && self.trailers.is_none() {
            fields.remove(TRANSFER_ENCODING);
            fields.insert(CONTENT_LENGTH, HeaderValue::from(self.begun.len()));
        }
    }

    /// The body as it goes up.
    pub(crate) fn into_body(self) -> RequestBody {
        Sending(self).boxed()
    }
}

/// An upload that is being sent.
struct Sending(Upload);

impl Body for Sending {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Upload {
            begun,
            beyond,
            trailers,
            rest,
            progress,
        } = &mut self.get_mut().0;
        for piece in [begun, beyond] {
            if !piece.is_empty() {
                progress.moved.store(true, Relaxed);
                return Poll::Ready(Some(Ok(Frame::data(std::mem::take(piece)))));
            }
        }
        let Some(rest) = rest else {
            let trailers = trailers.take().map(Frame::trailers);
            return Poll::Ready(trailers.map(Ok));
        };
        let polled = rest.poll(cx);
        progress.waits.store(polled.is_pending(), Relaxed);
        match polled {
            Poll::Ready(Some(Ok(frame))) => {
                progress.moved.store(true, Relaxed);
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(fault))) => {
                // The first stands; there is no other after it.
                let _first = progress.fault.set(fault);
                Poll::Ready(Some(Err(fault.into())))
            }
            Poll::Ready(None) => {
                progress.ended.store(true, Relaxed);
                Poll::Ready(None)
            }
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        let Self(upload) = self;
        // Nothing is beyond the buffer where there is no rest.
        upload.begun.is_empty() && upload.rest.is_none() && upload.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let Self(upload) = self;
        let begun = (upload.begun.len() + upload.beyond.len()) as u64;
        match &upload.rest {
            None => SizeHint::with_exact(begun),
            Some(rest) => {
                let rest = rest.body.size_hint();
                let mut hint = SizeHint::new();
                hint.set_lower(begun + rest.lower());
                if let Some(upper) = rest.upper() {
                    hint.set_upper(begun + upper);
                }
                hint
            }
        }
    }
}

impl Progress {
    /// What was wrong with the body, if anything.
    pub(crate) fn fault(&self) -> Option<BodyFault> {
        self.fault.get().copied()
    }

    /// Whether all of it has been handed to the connection.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Relaxed)
    }

    /// Whether the upstream may be waited for once more before it has answered:
    /// the client is waited for, or some of the body has been sent since this
    /// was last asked.
    pub(crate) fn goes_on(&self) -> bool {
        let moved = self.moved.swap(false, Relaxed);
        let waits = self.waits.load(Relaxed);
        // A client that is waited for has its own deadline.
        waits || (moved && Instant::now() < self.deadline)
    }
}

/// A body whose client must keep to a rate. Only the time counts in which the
/// client is waited for: an upstream that takes the body slowly costs it
/// nothing.
struct Paced {
    body: RequestBody,
    min_rate: MinRate,
    left: u64,
    deadline: Instant,
    /// Since when it is waited for.
    waits: Option<Instant>,
    timer: Pin<Box<Sleep>>,
}

impl Paced {
    fn new(body: RequestBody, limits: &Limits) -> Self {
        let deadline = Instant::now() + limits.timeout;
        Self {
            body,
            min_rate: MinRate::new(limits.min_rate, limits.grace),
            left: limits.max_bytes,
            deadline,
            waits: None,
            timer: Box::pin(tokio::time::sleep_until(deadline)),
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyFault>>> {
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                let length = frame.data_ref().map_or(0, Bytes::len);
                if let Some(since) = self.waits.take() {
                    self.min_rate.waited(since.elapsed());
                }
                self.min_rate.received(length);
                match self.left.checked_sub(length as u64) {
                    Some(left) => self.left = left,
                    None => return Poll::Ready(Some(Err(BodyFault::TooLarge))),
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => {
                tracing::debug!(%error, "a request's body broke off or is malformed");
                Poll::Ready(Some(Err(BodyFault::Broken)))
            }
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => {
                if self.waits.is_none() {
                    let now = Instant::now();
                    self.waits = Some(now);
                    let until = self.deadline.min(now + self.min_rate.left());
                    self.timer.as_mut().reset(until);
                }
                let elapsed = self.timer.as_mut().poll(cx);
                elapsed.map(|()| Some(Err(BodyFault::TooSlow)))
            }
        }
    }
}

#[cfg(test)]
mod tests;
