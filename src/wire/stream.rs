//! The body of a response that is still coming from the upstream.
//!
//! One that is not stored is read from the upstream at its client's pace. One that may
//! be stored is collected by a task at the upstream's pace ([`Collector`]); its
//! [`BodyReader`] follows, however slowly, and shares its chunks.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::connections::{Activity, BusyGuard, Held};
use crate::sync::lock;

/// Why a body is broken off. hyper then closes the client's connection, so that
/// the client notices.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// A body as it comes from the upstream.
pub type Source = UnsyncBoxBody<Bytes, BodyError>;

/// What the reader of a collected body gets.
enum Part {
    Chunk(Bytes),
    /// All that follows.
    Rest(Source),
}

/// What a chunk takes beside its bytes: a handle to store it by and one for the reader.
const HANDLES: usize = 2 * size_of::<Part>();

/// How many bytes have been collected, and what counts them for a connection: until both ends
/// have gone, or the reader has come to the rest. What the reader has taken counts too, since it
/// is kept to be stored.
#[derive(Default)]
struct Count {
    bytes: u64,
    held: Option<Held>,
}

/// A body that is collected, whose length may be known, and its reader.
pub fn collect(length: Option<u64>) -> (Collector, BodyReader) {
    let (reader, parts) = unbounded_channel();
    let count = Arc::<Mutex<Count>>::default();
    let collector = Collector {
        chunks: Vec::new(),
        reader,
        count: count.clone(),
    };
    (
        collector,
        BodyReader::new(
            From::Collected {
                parts,
                _count: count,
            },
            length,
        ),
    )
}

/// The writing end of a body that is collected. Dropped before the body's end, it
/// breaks the body off for the reader.
pub struct Collector {
    chunks: Vec<Bytes>,
    reader: UnboundedSender<Part>,
    count: Arc<Mutex<Count>>,
}

impl Collector {
    /// Adds a chunk. Returns whether more is wanted: not once the connection for which it
    /// counts was closed.
    pub fn push(&mut self, chunk: Bytes) -> bool {
        let mut count = lock(&self.count);
        count.bytes += (chunk.len() + HANDLES) as u64;
        self.chunks.push(chunk.clone());
        // What is stored is also collected without a reader.
        let _ = self.reader.send(Part::Chunk(chunk));
        count.held.as_ref().is_none_or(|held| {
            // What has made room is not entered again.
            let is_wanted = !held.of.is_closed();
            if is_wanted {
                held.set(count.bytes);
            }
            is_wanted
        })
    }

    /// Counts all that is collected for a connection.
    pub(crate) fn count_for(&self, activity: &Arc<Activity>) {
        let address = Arc::as_ptr(&self.count).addr();
        let mut count = lock(&self.count);
        count.held = Some(Held::new(activity, address, count.bytes));
    }

    /// Adds the last chunk; the reader gets it by [`finish`](Self::finish). Returns the whole
    /// body.
    pub fn whole(&mut self, last: Bytes) -> Bytes {
        self.chunks.push(last);
        self.chunks.concat().into()
    }

    /// Ends the body.
    pub fn finish(mut self) {
        let last = Full::new(self.chunks.pop().unwrap_or_default());
        self.hand_over(last.map_err(|never| match never {}).boxed_unsync());
    }

    /// Leaves the rest of the body to the reader; it is not collected.
    pub fn hand_over(self, rest: Source) {
        let _ = self.reader.send(Part::Rest(rest));
    }
}

/// The body of a client's response.
pub struct BodyReader {
    from: From,
    /// The bytes still to come, where that is known.
    left: Option<u64>,
    guard: Option<BusyGuard>,
}

enum From {
    Upstream(Source),
    Collected {
        parts: UnboundedReceiver<Part>,
        /// What is not read yet counts until this is dropped.
        _count: Arc<Mutex<Count>>,
    },
    Ended,
}

impl BodyReader {
    /// A body that is read from the upstream, and whose length may be known.
    pub fn of(source: Source, length: Option<u64>) -> Self {
        Self::new(From::Upstream(source), length)
    }

    fn new(from: From, left: Option<u64>) -> Self {
        Self {
            from,
            left,
            guard: None,
        }
    }

    /// Assigns the body to a connection, which is busy until the body has ended.
    pub(crate) fn serve(&mut self, activity: &Arc<Activity>) {
        self.guard = Some(activity.busy());
    }

    /// The connection that it is assigned to.
    pub(super) fn connection(&self) -> Option<&Arc<Activity>> {
        self.guard.as_ref().map(|guard| &guard.0)
    }

    /// The next frame.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame = loop {
            match &mut self.from {
                From::Ended => return Poll::Ready(None),
                From::Upstream(source) => break ready!(Pin::new(source).poll_frame(cx)),
                From::Collected { parts, .. } => match ready!(parts.poll_recv(cx)) {
                    Some(Part::Chunk(chunk)) => break Some(Ok(Frame::data(chunk))),
                    Some(Part::Rest(rest)) => self.from = From::Upstream(rest),
                    None => break Some(Err("the upstream's answer broke off".into())),
                },
            }
        };
        match &frame {
            Some(Ok(frame)) => {
                let length = frame.data_ref().map_or(0, Bytes::len) as u64;
                self.left = self.left.map(|left| left.saturating_sub(length));
            }
            Some(Err(_)) | None => self.from = From::Ended,
        }
        Poll::Ready(frame)
    }

    /// Whether the body has ended.
    pub(super) fn is_end(&self) -> bool {
        match &self.from {
            From::Ended => true,
            From::Upstream(source) => source.is_end_stream(),
            From::Collected { .. } => false,
        }
    }

    /// The length of the rest, where that is known.
    pub(super) fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::new, SizeHint::with_exact)
    }
}

#[cfg(test)]
mod tests;
