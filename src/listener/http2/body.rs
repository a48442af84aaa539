//! Response bodies in HTTP/2. h2 keeps what a client's windows do not admit, so
//! each body registers the memory that it holds, until h2 has sent it.

use std::cmp::Reverse;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};

use bytes::Buf;
use http::header::{CACHE_STATUS, CONTENT_LENGTH};
use http::{HeaderMap, Response};
use http_body::{Body as _, Frame, SizeHint};

use crate::gateway::ResponseFuture;
use crate::sync::lock;
use crate::unsent::SendBuffer;
use crate::wire::body::{BodyError, Piece};
use crate::wire::stream::BodyStream;
use crate::wire::{Body, RATELIMIT, X_REQUEST_ID};

/// Smaller pieces do not register: a connection's 100 streams hold at most 100 KiB
/// of them, and a hit on a small body costs nothing then.
const MIN_REGISTERED: usize = 1024;

/// The buffers that the responses of a connection hold.
#[derive(Default)]
pub(super) struct HeldBuffers(Mutex<Vec<Held>>);

/// A buffer that a response holds.
enum Held {
    Piece(SendBuffer),
    /// A body that still arrives from the upstream, and grows.
    Stream(Arc<BodyStream>),
}

impl HeldBuffers {
    fn list(&self) -> MutexGuard<'_, Vec<Held>> {
        lock(&self.0)
    }

    /// All of them, each once.
    pub(super) fn buffers(&self) -> Vec<SendBuffer> {
        let list = self.list();
        let buffers = list.iter().map(|held| match held {
            Held::Piece(buffer) => *buffer,
            Held::Stream(stream) => {
                let (end, bytes) = stream.held();
                SendBuffer { end, bytes }
            }
        });
        let mut buffers: Vec<_> = buffers.filter(|buffer| buffer.bytes > 0).collect();
        // Streams that send the same stored response share it.
        buffers.sort_unstable_by_key(|buffer| (buffer.end, Reverse(buffer.bytes)));
        buffers.dedup_by_key(|buffer| buffer.end);
        buffers
    }

    fn remove(&self, is_it: impl Fn(&Held) -> bool) {
        let mut list = self.list();
        if let Some(at) = list.iter().rposition(is_it) {
            list.swap_remove(at);
        }
    }
}

/// A piece of a body, which is registered until it is dropped.
pub(super) struct HeldPiece {
    piece: Piece,
    held: Option<(Arc<HeldBuffers>, SendBuffer)>,
}

impl HeldPiece {
    fn new(piece: Piece, buffers: &Arc<HeldBuffers>) -> Self {
        let is_registered = piece.remaining() >= MIN_REGISTERED;
        let held = is_registered.then(|| {
            let buffer = SendBuffer {
                end: piece.chunk().as_ptr_range().end.addr(),
                bytes: piece.remaining() as u64,
            };
            buffers.list().push(Held::Piece(buffer));
            (buffers.clone(), buffer)
        });
        Self { piece, held }
    }
}

impl Drop for HeldPiece {
    fn drop(&mut self) {
        if let Some((buffers, buffer)) = self.held.take() {
            buffers.remove(|held| matches!(held, Held::Piece(other) if *other == buffer));
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
    stream: Option<Arc<BodyStream>>,
}

impl Http2Body {
    fn new(body: Body, buffers: Arc<HeldBuffers>) -> Self {
        let stream = match &body {
            Body::Streamed(reader) => Some(reader.stream().clone()),
            Body::Whole(_) | Body::Lent(_) => None,
        };
        if let Some(stream) = &stream {
            buffers.list().push(Held::Stream(stream.clone()));
        }
        Self {
            body,
            buffers,
            stream,
        }
    }
}

impl Drop for Http2Body {
    fn drop(&mut self) {
        if let Some(stream) = &self.stream {
            self.buffers
                .remove(|held| matches!(held, Held::Stream(other) if Arc::ptr_eq(other, stream)));
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
        let Self { body, buffers, .. } = self.get_mut();
        let frame = Pin::new(body).poll_frame(cx);
        frame.map_ok(|frame| frame.map_data(|piece| HeldPiece::new(piece, buffers)))
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
