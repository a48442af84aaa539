//! Response bodies in HTTP/2. h2 keeps what a client's windows do not admit, so
//! each body registers the memory that it holds, until h2 has sent it.

use std::cmp::Reverse;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::{Context, Poll};

use bytes::Buf;
use http::header::{CACHE_STATUS, CONTENT_LENGTH};
use http::{HeaderMap, Response};
use http_body::{Body as _, Frame, SizeHint};

use crate::gateway::ResponseFuture;
use crate::sync::lock;
use crate::unsent::SendBuffer;
use crate::wire::body::{BodyError, Piece};
use crate::wire::stream::Collected;
use crate::wire::{Body, RATELIMIT, X_REQUEST_ID};

/// Smaller bodies that are complete do not register: a connection's 100 streams hold at
/// most 100 KiB of them, and a hit on a small body costs nothing then.
const MIN_REGISTERED: usize = 1024;
/// About what h2 keeps for a piece of a body beside its bytes.
const PIECE_COST: u64 = 256;

/// The buffers that the responses of a connection hold.
#[derive(Default)]
pub(super) struct HeldBuffers(Mutex<Vec<Held>>);

/// What a response holds.
enum Held {
    /// A body that was complete.
    Whole(SendBuffer),
    /// A body that comes from the upstream in pieces.
    Streamed(Arc<StreamedBody>),
}

/// A body that comes in pieces.
struct StreamedBody {
    /// What is collected to be stored, if anything is.
    collected: Weak<Collected>,
    /// The cost of the body until its end was taken, and of the pieces that were taken
    /// until h2 has sent them.
    taken: AtomicU64,
}

impl StreamedBody {
    /// A piece that is kept to be stored counts twice.
    fn buffers(&self) -> impl Iterator<Item = SendBuffer> {
        let stream = self.collected.upgrade().map(|collected| collected.held());
        let taken = (std::ptr::from_ref(self).addr(), self.taken.load(Relaxed));
        let buffers = stream.into_iter().chain([taken]);
        buffers.map(|(end, bytes)| SendBuffer { end, bytes })
    }
}

impl Held {
    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Whole(one), Self::Whole(other)) => one == other,
            (Self::Streamed(one), Self::Streamed(other)) => Arc::ptr_eq(one, other),
            (Self::Whole(_), Self::Streamed(_)) | (Self::Streamed(_), Self::Whole(_)) => false,
        }
    }
}

impl HeldBuffers {
    fn list(&self) -> MutexGuard<'_, Vec<Held>> {
        lock(&self.0)
    }

    /// How many responses hold any, and all of them, each once.
    pub(super) fn buffers(&self) -> (usize, Vec<SendBuffer>) {
        let list = self.list();
        let mut buffers = Vec::with_capacity(list.len());
        for held in list.iter() {
            match held {
                Held::Whole(buffer) => buffers.push(*buffer),
                Held::Streamed(body) => buffers.extend(body.buffers()),
            }
        }
        // Streams that send the same response share it.
        buffers.sort_unstable_by_key(|buffer| (buffer.end, Reverse(buffer.bytes)));
        buffers.dedup_by_key(|buffer| buffer.end);
        (list.len(), buffers)
    }

    /// So many bytes of a response are sent, or dropped.
    fn release(&self, held: &Held, bytes: u64) {
        if let Held::Streamed(body) = held
            && body.taken.fetch_sub(bytes, Relaxed) > bytes
        {
            return;
        }
        let mut list = self.list();
        if let Some(at) = list.iter().rposition(|other| other.is(held)) {
            list.swap_remove(at);
        }
    }
}

/// A piece of a body, which is registered until it is dropped.
pub(super) struct HeldPiece {
    piece: Piece,
    held: Option<(Arc<HeldBuffers>, Held, u64)>,
}

impl HeldPiece {
    fn new(piece: Piece, buffers: &Arc<HeldBuffers>, streamed: Option<&Arc<StreamedBody>>) -> Self {
        let bytes = piece.remaining() as u64;
        let held = match streamed {
            Some(body) => {
                let bytes = bytes + PIECE_COST;
                body.taken.fetch_add(bytes, Relaxed);
                Some((buffers.clone(), Held::Streamed(body.clone()), bytes))
            }
            None if piece.remaining() >= MIN_REGISTERED => {
                let end = piece.chunk().as_ptr_range().end.addr();
                let buffer = SendBuffer { end, bytes };
                buffers.list().push(Held::Whole(buffer));
                Some((buffers.clone(), Held::Whole(buffer), bytes))
            }
            None => None,
        };
        Self { piece, held }
    }
}

impl Drop for HeldPiece {
    fn drop(&mut self) {
        if let Some((buffers, held, bytes)) = &self.held {
            buffers.release(held, *bytes);
        }
    }
}

impl Buf for HeldPiece {
    fn remaining(&self) -> usize {
        self.piece.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.piece.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.piece.advance(count);
    }
}

/// The body of a response.
pub(super) struct Http2Body {
    body: Body,
    buffers: Arc<HeldBuffers>,
    streamed: Option<Arc<StreamedBody>>,
}

impl Http2Body {
    fn new(body: Body, buffers: Arc<HeldBuffers>) -> Self {
        let streamed = match &body {
            Body::Streamed(reader) => Some(Arc::new(StreamedBody {
                collected: reader.collected().map_or_else(Weak::new, Arc::downgrade),
                taken: AtomicU64::new(PIECE_COST),
            })),
            Body::Whole(_) | Body::Lent(_) => None,
        };
        if let Some(body) = &streamed {
            buffers.list().push(Held::Streamed(body.clone()));
        }
        Self {
            body,
            buffers,
            streamed,
        }
    }
}

impl Drop for Http2Body {
    fn drop(&mut self) {
        if let Some(body) = self.streamed.take() {
            self.buffers.release(&Held::Streamed(body), PIECE_COST);
        }
    }
}

impl http_body::Body for Http2Body {
    type Data = HeldPiece;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<HeldPiece>, BodyError>>> {
        let Self {
            body,
            buffers,
            streamed,
        } = self.get_mut();
        let frame = Pin::new(body).poll_frame(cx);
        let hold = |piece| HeldPiece::new(piece, buffers, streamed.as_ref());
        frame.map_ok(|frame| frame.map_data(hold))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A response of the gateway, with a body that registers what it holds.
pub(super) struct Http2Response {
    response: ResponseFuture,
    buffers: Arc<HeldBuffers>,
    is_head: bool,
    /// Whether the request is the first of its connection.
    is_first: bool,
}

impl Http2Response {
    pub(super) fn new(
        response: ResponseFuture,
        buffers: &Arc<HeldBuffers>,
        is_head: bool,
        is_first: bool,
    ) -> Self {
        Self {
            response,
            buffers: buffers.clone(),
            is_head,
            is_first,
        }
    }
}

/// Lets h2 add these fields to the connection's table once, so that later responses
/// need only send their values ([`unindexed`](crate::wire::unindexed)).
#[cold]
fn index_names(fields: &mut HeaderMap) {
    for name in [X_REQUEST_ID, CACHE_STATUS, RATELIMIT] {
        if let Some(value) = fields.get_mut(name) {
            value.set_sensitive(false);
        }
    }
}

impl Future for Http2Response {
    type Output = Result<Response<Http2Body>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let future = self.get_mut();
        let response = Pin::new(&mut future.response).poll(cx);
        response.map_ok(|response| {
            let (mut head, body) = response.into_parts();
            if future.is_first {
                index_names(&mut head.headers);
            }
            let body = match future.is_head {
                false => body,
                true => {
                    // hyper does this by itself in HTTP/1.1 only.
                    if let Some(length) = body.size_hint().exact().filter(|length| *length > 0) {
                        head.headers
                            .entry(CONTENT_LENGTH)
                            .or_insert_with(|| length.into());
                    }
                    Body::default()
                }
            };
            Response::from_parts(head, Http2Body::new(body, future.buffers.clone()))
        })
    }
}
