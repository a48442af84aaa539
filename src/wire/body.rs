//! The body of an answer: what memory holds, or what passes through.

use std::any::Any;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::combinators::UnsyncBoxBody;
use tokio::time::{Instant, Sleep};

/// Why a body ends before its end. hyper closes the client's connection then,
/// so that the client knows.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// The body of an answer.
pub enum Body {
    /// Held whole.
    Whole(Option<Bytes>),
    /// Lent whole by what memory holds; what a hit has.
    Lent(Option<Lent>),
    /// Pieces of what is held, one after the other.
    Pieces(VecDeque<Bytes>),
    /// Passing through, in constant memory.
    Passing(Box<Passing>),
}

/// A body on its way from the upstream to one client.
pub struct Passing {
    /// What has been read of it already.
    pub begun: VecDeque<Bytes>,
    /// The rest.
    pub rest: UnsyncBoxBody<Bytes, BodyError>,
    /// How long the upstream may say nothing.
    pub patience: Duration,
    /// What is held until the body has ended, such as its place among the
    /// requests under way.
    pub place: Box<dyn Any + Send>,
    /// Runs while the upstream says nothing.
    pub silence: Option<Pin<Box<Sleep>>>,
}

/// What holds bytes, and is held by all who are lent them.
pub type Lender = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// Bytes that are lent. A hit has their holder in its hands anyway; a handle of
/// their own would cost it another counter, in memory that nobody has looked at
/// lately.
pub struct Lent {
    of: Lender,
    /// How many of them have been taken.
    taken: usize,
}

/// Some bytes of a body.
pub enum Piece {
    /// With a handle of their own.
    Own(Bytes),
    /// Lent.
    Lent(Lent),
}

impl Buf for Lent {
    fn remaining(&self) -> usize {
        self.chunk().len()
    }

    fn chunk(&self) -> &[u8] {
        let bytes = (*self.of).as_ref();
        bytes.get(self.taken..).unwrap_or_default()
    }

    fn advance(&mut self, count: usize) {
        self.taken += count;
    }
}

impl Buf for Piece {
    fn remaining(&self) -> usize {
        match self {
            Self::Own(bytes) => bytes.remaining(),
            Self::Lent(lent) => lent.remaining(),
        }
    }

    fn chunk(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes.chunk(),
            Self::Lent(lent) => lent.chunk(),
        }
    }

    fn advance(&mut self, count: usize) {
        match self {
            Self::Own(bytes) => bytes.advance(count),
            Self::Lent(lent) => lent.advance(count),
        }
    }
}

impl Body {
    /// A body that is lent whole.
    pub fn lent(of: Lender) -> Self {
        Self::Lent(Some(Lent { of, taken: 0 }))
    }

    /// A body that is held whole.
    pub fn new(bytes: Bytes) -> Self {
        Self::Whole(Some(bytes))
    }
}

impl Default for Body {
    fn default() -> Self {
        Self::Whole(None)
    }
}

impl http_body::Body for Body {
    type Data = Piece;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Piece>, BodyError>>> {
        let next = match self.get_mut() {
            Self::Whole(bytes) => bytes
                .take()
                .filter(|bytes| !bytes.is_empty())
                .map(Piece::Own),
            Self::Lent(lent) => lent.take().filter(Buf::has_remaining).map(Piece::Lent),
            Self::Pieces(pieces) => pieces.pop_front().map(Piece::Own),
            Self::Passing(passing) => {
                let frame = passing.poll(cx);
                return frame.map_ok(|frame| frame.map_data(Piece::Own));
            }
        };
        Poll::Ready(next.map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.as_ref().is_none_or(Bytes::is_empty),
            Self::Lent(lent) => !lent.as_ref().is_some_and(Buf::has_remaining),
            Self::Pieces(pieces) => pieces.is_empty(),
            Self::Passing(passing) => passing.begun.is_empty() && passing.rest.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        let length = |bytes: &Bytes| bytes.len() as u64;
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, length)),
            Self::Lent(lent) => {
                let length = lent.as_ref().map_or(0, Buf::remaining);
                SizeHint::with_exact(length as u64)
            }
            Self::Pieces(pieces) => SizeHint::with_exact(pieces.iter().map(length).sum()),
            Self::Passing(passing) => {
                let begun: u64 = passing.begun.iter().map(length).sum();
                let rest = passing.rest.size_hint();
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

impl Passing {
    /// Holds something more until the body has ended.
    pub fn hold(&mut self, more: impl Any + Send) {
        let held = std::mem::replace(&mut self.place, Box::new(()));
        self.place = Box::new((held, more));
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some(bytes) = self.begun.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        match Pin::new(&mut self.rest).poll_frame(cx) {
            Poll::Ready(frame) => {
                self.silence = None;
                Poll::Ready(frame)
            }
            Poll::Pending => {
                let deadline = Instant::now() + self.patience;
                let silence = self
                    .silence
                    .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
                match silence.as_mut().poll(cx) {
                    Poll::Ready(()) => Poll::Ready(Some(Err("the upstream fell silent".into()))),
                    Poll::Pending => Poll::Pending,
                }
            }
        }
    }
}
