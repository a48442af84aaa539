//! The body of a response: from memory, or still arriving from the upstream.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use http_body::{Frame, SizeHint};

use super::stream::BodyReader;

/// Why a body is broken off. hyper then closes the client's connection, so that
/// the client notices.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// The body of a response.
pub enum Body {
    /// Complete, with a handle of its own.
    Whole(Option<Bytes>),
    /// Complete, inside a stored response: the body of a hit.
    Lent(Option<Lent>),
    /// Still arriving from the upstream.
    Streamed(Box<BodyReader>),
}

/// A shared owner of bytes, such as a stored response.
pub type Lender = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// The bytes of a shared owner. A hit holds the stored response anyway; a handle
/// of the bytes' own would update a second reference counter, in memory that is
/// probably not in the processor's cache.
pub struct Lent {
    owner: Lender,
    length: usize,
    /// How many bytes have been taken.
    taken: usize,
}

/// A chunk of a body.
pub enum Piece {
    /// Bytes with a handle of their own.
    Own(Bytes),
    /// The bytes of a shared owner.
    Lent(Lent),
}

impl Buf for Lent {
    fn remaining(&self) -> usize {
        self.length - self.taken
    }

    fn chunk(&self) -> &[u8] {
        let bytes = (*self.owner).as_ref();
        bytes.get(self.taken..).unwrap_or_default()
    }

    fn advance(&mut self, count: usize) {
        self.taken = self.length.min(self.taken + count);
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
    /// A body inside a shared owner.
    pub fn lent(owner: Lender) -> Self {
        Self::Lent(Some(Lent {
            length: (*owner).as_ref().len(),
            owner,
            taken: 0,
        }))
    }

    /// A complete body.
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
