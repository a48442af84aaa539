//! What differs in HTTP/2: hyper's limits, and the head of a response. Requests take the
//! same path as in HTTP/1.1.

use std::cell::Cell;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_STATUS, CONTENT_LENGTH};
use http::{HeaderMap, Method, Request, Response};
use hyper::body::{Body as _, Frame, Incoming, SizeHint};
use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper::service::Service;
use hyper_util::rt::TokioTimer;

use super::connection::{MAX_HEAD_BYTES, Requests};
use crate::connections::Activity;
use crate::gateway::ResponseFuture;
use crate::wire::{Body, RATELIMIT, X_REQUEST_ID};

/// The most concurrent streams, and the most streams with errors in the life of a connection.
/// Of those that the client resets before hyper has seen them, h2 takes 20 at a time.
const MAX_STREAMS: u32 = 100;
/// Bytes of the receive windows of a stream and of the connection (RFC 9113 §5.2).
const STREAM_WINDOW: u32 = 64 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// Bytes of a response that h2 buffers for a stream beyond the client's window.
const MAX_SEND_BUFFER: usize = 64 * 1024;
/// The time between two PINGs, and the time for the answer to one.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// hyper's server with ordgate's limits.
pub(super) fn builder() -> http2::Builder<InlineExecutor> {
    let mut http = http2::Builder::new(InlineExecutor);
    http.timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_local_error_reset_streams(MAX_STREAMS as usize)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(MAX_HEAD_BYTES as u32)
        .max_send_buf_size(MAX_SEND_BUFFER)
        .keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT);
    http
}

/// hyper's service for one connection.
pub(super) struct Http2Service {
    requests: Requests,
    /// Whether no request has come.
    is_first: Cell<bool>,
}

impl Http2Service {
    pub(super) fn new(requests: Requests) -> Self {
        Self {
            requests,
            is_first: Cell::new(true),
        }
    }
}

impl Service<Request<Incoming>> for Http2Service {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Http2Response;

    fn call(&self, request: Request<Incoming>) -> Http2Response {
        let activity = self.requests.activity();
        activity.add_requested(head_bytes(&request));
        let is_head = request.method() == Method::HEAD;
        let request = request.map(|body| RequestBody {
            body,
            activity: activity.clone(),
        });
        Http2Response {
            response: self.requests.answer(request),
            is_head,
            is_first: self.is_first.replace(false),
        }
    }
}

/// The bytes of a head as HTTP/1.1 would have them, about.
fn head_bytes(request: &Request<Incoming>) -> u64 {
    let target = request.uri().path_and_query();
    let target = target.map_or(0, |target| target.as_str().len());
    let fields = request.headers().iter();
    let fields = fields.map(|(name, value)| name.as_str().len() + value.len() + 4);
    (target + fields.sum::<usize>()) as u64
}

/// The body of a request, whose bytes are counted.
struct RequestBody {
    body: Incoming,
    activity: Arc<Activity>,
}

impl hyper::body::Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let body = self.get_mut();
        let frame = ready!(Pin::new(&mut body.body).poll_frame(cx));
        if let Some(Ok(frame)) = &frame {
            let length = frame.data_ref().map_or(0, Bytes::len);
            body.activity.add_requested(length as u64);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A response of the gateway, with the head that it has in HTTP/2.
pub(super) struct Http2Response {
    response: ResponseFuture,
    is_head: bool,
    /// Whether the request is the first of its connection.
    is_first: bool,
}

impl Future for Http2Response {
    type Output = Result<Response<Body>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let future = self.get_mut();
        let Ok(mut response) = ready!(Pin::new(&mut future.response).poll(cx));
        if future.is_first {
            index_names(response.headers_mut());
        }
        if future.is_head {
            // hyper does this by itself in HTTP/1.1 only.
            let body = std::mem::take(response.body_mut());
            if let Some(length) = body.size_hint().exact().filter(|length| *length > 0) {
                let fields = response.headers_mut();
                fields
                    .entry(CONTENT_LENGTH)
                    .or_insert_with(|| length.into());
            }
        }
        Poll::Ready(Ok(response))
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

/// Polls each response once where hyper has made it, and gives it a task only if
/// it must wait: most are ready at once.
#[derive(Clone, Copy)]
pub(super) struct InlineExecutor;

impl<F: Future<Output = ()> + Send + Unpin + 'static> Executor<F> for InlineExecutor {
    fn execute(&self, mut response: F) {
        let mut cx = Context::from_waker(Waker::noop());
        if Pin::new(&mut response).poll(&mut cx).is_pending() {
            // The task polls it again, with a waker that works.
            tokio::spawn(response);
        }
    }
}
