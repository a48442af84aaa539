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

/// A chunk of a body.
pub struct Piece {
    /// Counts it as unread until it is sent, where it is large. Dropped before the bytes, since
    /// others may have their address afterwards.
    held: Option<Box<Held>>,
    bytes: Bytes,
}

impl Piece {
    const fn new(bytes: Bytes) -> Self {
        Self { bytes, held: None }
    }

    /// Counts it for a connection.
    fn count(&mut self, activity: &Arc<Activity>) {
        let bytes = self.remaining() as u64;
        let end = self.bytes.as_ptr_range().end.addr();
        if activity.is_http2() {
            activity.owe(bytes);
        }
        self.held = Some(Box::new(Held::new(activity, end, bytes)));
    }
}

impl Buf for Piece {
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        // In HTTP/1.1 the socket says what the client has taken.
        if let Some(held) = &self.held
            && held.of.is_http2()
        {
            held.of.forgive(count as u64);
            held.of.take(count as u64);
        }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        if let Some(held) = &self.held
            && held.of.is_http2()
        {
            held.of.forgive(self.bytes.len() as u64);
        }
    }
}

impl Body {
    /// Counts a complete body for a connection until it is sent, where it is large. A streamed
    /// one is counted as it comes.
    #[inline]
    pub(crate) fn count(&mut self, activity: &Arc<Activity>) {
        if let Self::Whole(Some(piece)) = self
            && piece.remaining() >= activity.least_counted()
        {
            piece.count(activity);
        }
    }

    /// A complete body.
    pub fn new(bytes: Bytes) -> Self {
        Self::Whole(Some(Piece::new(bytes)))
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
                let piece = |data: Bytes| {
                    let mut piece = Piece::new(data);
                    // In HTTP/1.1, hyper takes a small one when it has sent the one before.
                    if let Some(of) = reader.connection()
                        && (of.is_http2() || piece.remaining() >= of.least_counted())
                    {
                        piece.count(of);
                    }
                    piece
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
