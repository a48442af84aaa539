//! The body of an answer: what memory holds, or what is on its way from the
//! upstream.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use http_body::{Frame, SizeHint};

use super::stream::Reader;

/// Why a body ends before its end. hyper closes the client's connection then,
/// so that the client knows.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// The body of an answer.
pub enum Body {
    /// Held whole.
    Whole(Option<Bytes>),
    /// Lent whole by what memory holds; what a hit has.
    Lent(Option<Lent>),
    /// On its way from the upstream.
    Streamed(Box<Reader>),
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
            Self::Streamed(reader) => {
                let frame = reader.poll(cx);
                return frame.map_ok(|frame| frame.map_data(Piece::Own));
            }
        };
        Poll::Ready(next.map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.as_ref().is_none_or(Bytes::is_empty),
            Self::Lent(lent) => !lent.as_ref().is_some_and(Buf::has_remaining),
            Self::Streamed(reader) => reader.is_end(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => {
                let length = bytes.as_ref().map_or(0, Bytes::len);
                SizeHint::with_exact(length as u64)
            }
            Self::Lent(lent) => {
                let length = lent.as_ref().map_or(0, Buf::remaining);
                SizeHint::with_exact(length as u64)
            }
            Self::Streamed(reader) => reader.size_hint(),
        }
    }
}
