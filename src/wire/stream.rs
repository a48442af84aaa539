//! The body of a response that is still coming from the upstream.
//!
//! One that is not stored is read from the upstream at its client's pace. One that may
//! be stored is collected by a task at the upstream's pace ([`Collector`]); its
//! [`BodyReader`] follows, however slowly. What is collected is held once: the reader
//! shares the chunks while they come, and the whole body once it is stored.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;

use crate::connections::{Activity, BusyGuard, Held};
use crate::sync::lock;

/// Why a body is broken off. hyper then closes the client's connection, so that
/// the client notices.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// A body as it comes from the upstream.
pub type Source = UnsyncBoxBody<Bytes, BodyError>;

/// A body that is being collected.
#[derive(Default)]
pub struct Collected(Mutex<Progress>);

#[derive(Default)]
struct Progress {
    /// What has come, until the whole body takes its place.
    chunks: Vec<Bytes>,
    /// Their bytes.
    bytes: u64,
    end: End,
    /// Wakes the task that polled the reader last,
    reader: Option<Waker>,
    /// and whether that waits for more.
    waits: bool,
    /// Counts them for the reader's connection, also after the reader has left.
    held: Option<Held>,
}

/// What follows the chunks.
#[derive(Default)]
enum End {
    /// More of them.
    #[default]
    More,
    /// Nothing; this is the whole body.
    Whole(Bytes),
    /// The rest of the body, which is not collected; `None` once the reader has it.
    Rest(Option<Source>),
    /// The body breaks off.
    Broken,
}

impl Collected {
    fn change(&self, change: impl FnOnce(&mut Progress)) {
        let mut progress = lock(&self.0);
        change(&mut progress);
        if let Some(held) = &progress.held {
            held.set(progress.bytes);
        }
        // At the end also a reader whose client takes nothing: what is held counts now.
        let is_over = !matches!(progress.end, End::More);
        if (is_over || std::mem::take(&mut progress.waits))
            && let Some(reader) = &progress.reader
        {
            reader.wake_by_ref();
        }
    }
}

/// The writing end of a body that is collected. Dropped before the body's end, it
/// breaks the body off for the reader.
#[derive(Default)]
pub struct Collector(Arc<Collected>);

impl Collector {
    /// Adds a chunk. Returns whether more is wanted: not once the connection for which it
    /// counts was closed.
    pub fn push(&self, chunk: Bytes) -> bool {
        let mut is_closed = false;
        self.0.change(|progress| {
            progress.bytes += chunk.len() as u64;
            progress.chunks.push(chunk);
            is_closed = progress
                .held
                .as_ref()
                .is_some_and(|held| held.of.is_closed());
        });
        !is_closed
    }

    /// The chunks so far, and the last one, as one.
    pub fn whole(&self, last: &[u8]) -> Bytes {
        let progress = lock(&self.0.0);
        let length = usize::try_from(progress.bytes).unwrap_or(0) + last.len();
        let mut whole = BytesMut::with_capacity(length);
        for chunk in &progress.chunks {
            whole.extend_from_slice(chunk);
        }
        whole.extend_from_slice(last);
        whole.freeze()
    }

    /// Ends the body: this is the whole of it.
    pub fn finish(self, whole: Bytes) {
        self.0.change(|progress| {
            progress.chunks = Vec::new();
            progress.bytes = whole.len() as u64;
            progress.end = End::Whole(whole);
        });
    }

    /// Leaves the rest of the body to the reader; it is not collected.
    pub fn hand_over(self, rest: Source) {
        self.0
            .change(|progress| progress.end = End::Rest(Some(rest)));
    }

    /// The reader of the body, whose length may be known. There is one at most.
    pub fn reader(&self, length: Option<u64>) -> BodyReader {
        BodyReader::new(From::Collected(self.0.clone(), Position::default()), length)
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.0.change(|progress| {
            if matches!(progress.end, End::More) {
                progress.end = End::Broken;
            }
        });
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
    Collected(Arc<Collected>, Position),
    Ended,
}

/// How far a body has been read.
#[derive(Clone, Copy, Default)]
struct Position {
    chunks: usize,
    bytes: usize,
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
        if let From::Collected(collected, _) = &self.from {
            let address = Arc::as_ptr(collected).addr();
            let mut progress = lock(&collected.0);
            progress.held = Some(Held::new(activity, address, progress.bytes));
        }
    }

    /// The next frame.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame = loop {
            match &mut self.from {
                From::Ended => return Poll::Ready(None),
                From::Upstream(source) => {
                    let Poll::Ready(frame) = Pin::new(source).poll_frame(cx) else {
                        return Poll::Pending;
                    };
                    break frame;
                }
                From::Collected(collected, position) => {
                    let next = position.next(&mut lock(&collected.0), cx);
                    match next {
                        Poll::Pending => return Poll::Pending,
                        Poll::Ready(Next::Frame(frame)) => break frame,
                        Poll::Ready(Next::Rest(rest)) => {
                            self.leave();
                            self.from = From::Upstream(rest);
                        }
                    }
                }
            }
        };
        match &frame {
            Some(Ok(frame)) => {
                let length = frame.data_ref().map_or(0, Bytes::len) as u64;
                self.left = self.left.map(|left| left.saturating_sub(length));
            }
            Some(Err(_)) | None => {
                self.leave();
                self.from = From::Ended;
            }
        }
        Poll::Ready(frame)
    }

    /// Nothing is sent to the connection any more. What is still being collected counts for it.
    fn leave(&self) {
        if let From::Collected(collected, _) = &self.from {
            collected.change(|progress| {
                progress.reader = None;
                if !matches!(progress.end, End::More) {
                    progress.held = None;
                }
            });
        }
    }

    /// Whether the body has ended.
    pub(super) fn is_end(&self) -> bool {
        match &self.from {
            From::Ended => true,
            From::Upstream(source) => source.is_end_stream(),
            From::Collected(collected, position) => match &lock(&collected.0).end {
                End::Whole(whole) => position.bytes == whole.len(),
                End::More | End::Rest(_) | End::Broken => false,
            },
        }
    }

    /// The length of the rest, where that is known.
    pub(super) fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::new, SizeHint::with_exact)
    }
}

impl Drop for BodyReader {
    fn drop(&mut self) {
        self.leave();
    }
}

/// What comes next of a collected body.
enum Next {
    Frame(Option<Result<Frame<Bytes>, BodyError>>),
    Rest(Source),
}

impl Position {
    fn next(&mut self, progress: &mut Progress, cx: &Context<'_>) -> Poll<Next> {
        let reader = progress.reader.get_or_insert_with(|| cx.waker().clone());
        reader.clone_from(cx.waker());
        if let Some(chunk) = progress.chunks.get_mut(self.chunks) {
            // Once the rest is not collected, what was read is not needed.
            let is_kept = !matches!(progress.end, End::Rest(_));
            let chunk = if is_kept {
                chunk.clone()
            } else {
                std::mem::take(chunk)
            };
            self.chunks += 1;
            self.bytes += chunk.len();
            return Poll::Ready(Next::Frame(Some(Ok(Frame::data(chunk)))));
        }
        let frame = match &mut progress.end {
            End::More => {
                progress.waits = true;
                return Poll::Pending;
            }
            End::Rest(rest) => match rest.take() {
                Some(rest) => return Poll::Ready(Next::Rest(rest)),
                None => None,
            },
            End::Whole(whole) => {
                let rest = whole.slice(self.bytes..);
                self.bytes = whole.len();
                // It counts as a piece from now on.
                progress.held = None;
                (!rest.is_empty()).then(|| Ok(Frame::data(rest)))
            }
            End::Broken => Some(Err("the upstream's answer broke off".into())),
        };
        Poll::Ready(Next::Frame(frame))
    }
}

#[cfg(test)]
mod tests;
