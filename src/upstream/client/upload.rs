//! Request bodies that are received from a client and sent to the upstream.
//!
//! A request takes a slot only when its body has been buffered, so that a slow client
//! occupies no slot. A body up to [`RequestBodyLimits::buffer`] bytes is buffered whole; of a
//! longer one that much is, and the rest is streamed at a minimum rate.
//!
//! A fault of a body is the client's and is one of [`BodyFault`], which [`Progress`]
//! keeps: how the HTTP client reports it depends on the HTTP version.
//!
//! Invariants: a body is waited for no longer than its minimum rate, the grace period
//! and [`RequestBodyLimits::timeout`] allow; the allocated buffers stay within both bounds of
//! [`RequestBodyLimits`].
//!
//! Deliberately absent: what a client is answered (`refusal`).

mod buffer;
mod paced;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use buffer::{Buffer, BufferUse};
use bytes::Bytes;
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, HeaderValue, TRANSFER_ENCODING};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use paced::Paced;
use serde::Serialize;
use tokio::time::Instant;

use crate::identify::Client;
use crate::sync::lock;
use crate::upstream::BodyFault;
use crate::upstream::client::RequestBody;
use crate::wire::body::BodyError;

/// Limits of request bodies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RequestBodyLimits {
    /// Bytes of a body that are buffered before the request takes a slot.
    #[serde(serialize_with = "crate::units::serialize_size")]
    pub buffer: u64,
    /// Bytes that all buffers together may take.
    #[serde(serialize_with = "crate::units::serialize_size")]
    pub max_buffered: u64,
    /// Bytes that the buffers of one client may take.
    #[serde(serialize_with = "crate::units::serialize_size")]
    pub max_buffered_per_client: u64,
    /// Bytes per second that a client must send while it is waited for.
    #[serde(serialize_with = "crate::units::serialize_size")]
    pub min_rate: u64,
    /// How long a client may send nothing, and how far it may fall behind the
    /// rate.
    #[serde(serialize_with = "crate::units::serialize")]
    pub grace: Duration,
    /// The longest time from a body's first byte to its last.
    #[serde(serialize_with = "crate::units::serialize")]
    pub timeout: Duration,
    /// The longest body, in bytes.
    #[serde(serialize_with = "crate::units::serialize_size")]
    pub max_bytes: u64,
}

/// The request bodies of one upstream: how much is buffered, and how many were
/// refused.
#[derive(Debug, Default)]
pub struct Uploads {
    buffered: Mutex<BufferUse>,
    refused: [AtomicU64; BodyFault::ALL.len()],
}

/// A body that has been received, whole or as much of it as is buffered.
pub(crate) struct Upload {
    buffered: Bytes,
    /// The part of the last frame that did not fit the buffer.
    beyond: Bytes,
    trailers: Option<HeaderMap>,
    /// The rest, if it is streamed.
    rest: Option<Paced>,
    progress: Arc<Progress>,
}

#[derive(Debug)]
pub(crate) struct Progress {
    fault: OnceLock<BodyFault>,
    /// Whether some of it was sent since [`makes_progress`](Self::makes_progress).
    moved: AtomicBool,
    /// Whether more is expected from the client.
    waits: AtomicBool,
    ended: AtomicBool,
    deadline: Instant,
}

impl Uploads {
    /// Reads a body until it has ended or its buffer is full. `declared` is its
    /// `content-length`.
    pub(crate) async fn receive(
        self: &Arc<Self>,
        body: RequestBody,
        declared: Option<u64>,
        client: Option<Client>,
        limits: &RequestBodyLimits,
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
        limits: &RequestBodyLimits,
    ) -> Result<Upload, BodyFault> {
        if declared.is_some_and(|declared| declared > limits.max_bytes) {
            return Err(BodyFault::TooLarge);
        }
        let mut buffer = Buffer::new(self, client);
        let mut paced = Paced::new(body, limits);
        let deadline = paced.deadline;
        let mut trailers: Option<HeaderMap> = None;
        let (beyond, rest) = loop {
            let Some(frame) = poll_fn(|cx| paced.poll(cx)).await else {
                break (Bytes::new(), None);
            };
            match frame?.into_data() {
                Ok(mut data) => {
                    let room = limits.buffer - buffer.len() as u64;
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
            buffered: Bytes::from_owner(buffer),
            beyond,
            trailers,
            rest,
            progress: Arc::new(progress),
        })
    }

    /// Counts a body that was refused for a fault.
    pub(crate) fn count(&self, fault: BodyFault) {
        self.refused[fault.index()].fetch_add(1, Relaxed);
    }

    /// How many bodies were refused for a fault.
    pub fn refused(&self, fault: BodyFault) -> u64 {
        self.refused[fault.index()].load(Relaxed)
    }

    /// Bytes in buffers.
    pub fn buffered(&self) -> u64 {
        self.state().bytes
    }

    fn state(&self) -> MutexGuard<'_, BufferUse> {
        lock(&self.buffered)
    }
}

impl Upload {
    pub(crate) fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// Whether a part of it is received while its request holds a slot.
    pub(crate) fn is_streamed(&self) -> bool {
        self.rest.is_some()
    }

    /// A copy of a body that was buffered whole.
    pub(crate) fn copy(&self) -> Option<Self> {
        if self.rest.is_some() {
            return None;
        }
        Some(Self {
            buffered: self.buffered.clone(),
            beyond: self.beyond.clone(),
            trailers: self.trailers.clone(),
            rest: None,
            progress: self.progress.clone(),
        })
    }

    /// Sets the framing fields of its request: `content-length` for a body that was
    /// buffered whole, unless it has trailers, which need chunks.
    pub(crate) fn frame(&self, fields: &mut HeaderMap) {
        if self.rest.is_none() && self.trailers.is_none() {
            fields.remove(TRANSFER_ENCODING);
            fields.insert(CONTENT_LENGTH, HeaderValue::from(self.buffered.len()));
        }
    }

    /// The body to send.
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
            buffered,
            beyond,
            trailers,
            rest,
            progress,
        } = &mut self.get_mut().0;
        for piece in [buffered, beyond] {
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
                // No other follows.
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
        // Without a rest, nothing is beyond the buffer.
        upload.buffered.is_empty() && upload.rest.is_none() && upload.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let Self(upload) = self;
        let first = (upload.buffered.len() + upload.beyond.len()) as u64;
        match &upload.rest {
            None => SizeHint::with_exact(first),
            Some(rest) => {
                let rest = rest.body.size_hint();
                let mut hint = SizeHint::new();
                hint.set_lower(first + rest.lower());
                if let Some(upper) = rest.upper() {
                    hint.set_upper(first + upper);
                }
                hint
            }
        }
    }
}

impl Progress {
    /// The fault of the body, if it has one.
    pub(crate) fn fault(&self) -> Option<BodyFault> {
        self.fault.get().copied()
    }

    /// Whether all of it has been handed to the connection.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Relaxed)
    }

    /// Whether the response may take another `first_byte_timeout`: more is expected
    /// from the client, or some of the body was sent since the last call.
    pub(crate) fn makes_progress(&self) -> bool {
        let moved = self.moved.swap(false, Relaxed);
        let waits = self.waits.load(Relaxed);
        // A client that is waited for has its own deadline.
        waits || (moved && Instant::now() < self.deadline)
    }
}

#[cfg(test)]
mod tests;
