//! Bodies as they are sent: whole, in pieces with pauses, broken off, or far too large.
//!
//! Made by `server` from an answer and, where one struck, a fault. Invariant: an oversize body never exists as a whole
//! in memory. Deliberately absent: trailers and compression, which the reference does not use.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::{Sleep, sleep};

use super::faults::{OVERSIZE_ENDS, oversize_length};

static BLANKS: [u8; 16 * 1024] = [b' '; 16 * 1024];

/// Long enough for the first half of a truncated body to leave the process before the connection closes.
const FLUSH: Duration = Duration::from_millis(5);

/// A body of the sandbox.
#[derive(Debug)]
pub(super) struct Payload {
    pieces: VecDeque<Bytes>,
    /// Blanks that follow the first piece.
    blanks: u64,
    pause: Duration,
    /// The body fails when all pieces are out.
    breaks: bool,
    waiting: Option<Pin<Box<Sleep>>>,
    length: Option<u64>,
}

impl Payload {
    pub(super) fn whole(body: Bytes) -> Self {
        let length = Some(body.len() as u64);
        let pieces = if body.is_empty() {
            VecDeque::new()
        } else {
            VecDeque::from([body])
        };
        Self {
            pieces,
            blanks: 0,
            pause: Duration::ZERO,
            breaks: false,
            waiting: None,
            length,
        }
    }

    /// The same in up to sixteen pieces, with a pause before each but the first.
    pub(super) fn drip(body: &Bytes, pause: Duration) -> Self {
        let size = body.len().div_ceil(16).max(1);
        let pieces = (0..body.len())
            .step_by(size)
            .map(|at| body.slice(at..body.len().min(at + size)))
            .collect();
        Self {
            pieces,
            pause,
            ..Self::whole(body.clone())
        }
    }

    /// The first half, and then a failure.
    pub(super) fn truncated(body: &Bytes) -> Self {
        let half = body.slice(..body.len() / 2);
        Self {
            breaks: true,
            length: None,
            ..Self::whole(half)
        }
    }

    /// JSON of so many bytes, nearly all of them blanks.
    pub(super) fn oversize(bytes: u64, declared: bool) -> Self {
        let (head, tail) = OVERSIZE_ENDS;
        let total = oversize_length(bytes);
        let blanks = total - (head.len() + tail.len()) as u64;
        let pieces = VecDeque::from([
            Bytes::from_static(head.as_bytes()),
            Bytes::from_static(tail.as_bytes()),
        ]);
        Self {
            pieces,
            blanks,
            length: declared.then_some(total),
            ..Self::whole(Bytes::new())
        }
    }

    fn next_piece(&mut self) -> Option<Bytes> {
        // One piece left means that the head of an oversize body is out and the tail is to come.
        if self.blanks > 0 && self.pieces.len() == 1 {
            let size = self.blanks.min(BLANKS.len() as u64);
            self.blanks -= size;
            return Some(Bytes::from_static(&BLANKS[..size as usize]));
        }
        let piece = self.pieces.pop_front()?;
        if !self.pause.is_zero() && !self.pieces.is_empty() {
            self.waiting = Some(Box::pin(sleep(self.pause)));
        } else if self.breaks && self.pieces.is_empty() {
            self.waiting = Some(Box::pin(sleep(FLUSH)));
        }
        Some(piece)
    }
}

impl Body for Payload {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if let Some(waiting) = self.waiting.as_mut() {
            ready!(waiting.as_mut().poll(context));
            self.waiting = None;
        }
        match self.next_piece() {
            Some(piece) => Poll::Ready(Some(Ok(Frame::data(piece)))),
            None if self.breaks => Poll::Ready(Some(Err(io::Error::other("truncated to order")))),
            None => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.pieces.is_empty() && !self.breaks
    }

    fn size_hint(&self) -> SizeHint {
        self.length
            .map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
