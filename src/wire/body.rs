//! The body of a response: from memory, or still arriving from the upstream.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use http_body::{Frame, SizeHint};

pub use super::stream::BodyError;
use super::stream::BodyReader;
use crate::connections::{Activity, Held};

/// The body of a response.
pub enum Body {
    /// Complete: one piece, until it is taken.
    Whole(Option<Piece>),
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
    /// The bytes of a shared owner: the body of a hit.
    Lent(Lent),
    /// Counted for its connection.
    Counted(Box<CountedPiece>),
}

/// A piece that counts as unread until it is sent.
pub struct CountedPiece {
    piece: Piece,
    held: Held,
}

impl Piece {
    /// Counts it for a connection.
    fn count(self, activity: &Arc<Activity>) -> Self {
        let bytes = self.remaining() as u64;
        let end = self.chunk().as_ptr_range().end.addr();
        if activity.is_http2() {
            activity.owe(bytes);
        }
        let held = Held::new(activity, end, bytes);
        Self::Counted(Box::new(CountedPiece { piece: self, held }))
    }
}

impl CountedPiece {
    fn advance(&mut self, count: usize) {
        self.piece.advance(count);
        // In HTTP/1.1 the socket says what the client has taken.
        let activity = &self.held.of;
        if activity.is_http2() {
            activity.forgive(count as u64);
            activity.take(count as u64);
        }
    }
}

impl Drop for CountedPiece {
    fn drop(&mut self) {
        let activity = &self.held.of;
        if activity.is_http2() {
            activity.forgive(self.piece.remaining() as u64);
        }
    }
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
            Self::Counted(counted) => counted.piece.remaining(),
        }
    }

    fn chunk(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes.chunk(),
            Self::Lent(lent) => lent.chunk(),
            Self::Counted(counted) => counted.piece.chunk(),
        }
    }

    fn advance(&mut self, count: usize) {
        match self {
            Self::Own(bytes) => bytes.advance(count),
            Self::Lent(lent) => lent.advance(count),
            Self::Counted(counted) => counted.advance(count),
        }
    }
}

impl Body {
    /// A body inside a shared owner.
    pub fn lent(owner: Lender) -> Self {
        Self::Whole(Some(Piece::Lent(Lent {
            length: (*owner).as_ref().len(),
            owner,
            taken: 0,
        })))
    }

    /// Counts a complete body for a connection until it is sent, where it is large. A streamed
    /// one is counted as it comes.
    #[inline]
    pub(crate) fn count(&mut self, activity: &Arc<Activity>) {
        if let Self::Whole(piece) = self
            && remaining(piece) >= activity.least_counted()
        {
            *piece = piece.take().map(|piece| piece.count(activity));
        }
    }

    /// A complete body.
    pub fn new(bytes: Bytes) -> Self {
        Self::Whole(Some(Piece::Own(bytes)))
    }
}

#[inline]
fn remaining(piece: &Option<Piece>) -> usize {
    piece.as_ref().map_or(0, Buf::remaining)
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
            Self::Whole(piece) => piece.take().filter(Buf::has_remaining),
            Self::Streamed(reader) => {
                let frame = reader.poll(cx);
                let piece = |data: Bytes| match reader.connection() {
                    // In HTTP/1.1, hyper takes a small one when it has sent the one before.
                    Some(of) if of.is_http2() || data.len() >= of.least_counted() => {
                        Piece::Own(data).count(of)
                    }
                    Some(_) | None => Piece::Own(data),
                };
                return frame.map_ok(|frame| frame.map_data(piece));
            }
        };
        Poll::Ready(next.map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(piece) => remaining(piece) == 0,
            Self::Streamed(reader) => reader.is_end(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(piece) => SizeHint::with_exact(remaining(piece) as u64),
            Self::Streamed(reader) => reader.size_hint(),
        }
    }
}
