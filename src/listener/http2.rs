//! What differs in HTTP/2: hyper's limits, and the head of a response. Requests take the
//! same path as in HTTP/1.1.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Waker};

use bytes::Bytes;
use futures_util::TryFutureExt;
use http::header::{CACHE_STATUS, CONTENT_LENGTH};
use http::{Method, Request, Response};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use hyper::rt::Executor;
use hyper::server::conn::http2;

use super::connection::{MAX_HEAD_BYTES, Requests};
use crate::wire::{Body, RATELIMIT, X_REQUEST_ID};

/// The most concurrent streams, and the most streams with errors in the life of a connection.
/// Of those that the client resets before hyper has seen them, h2 takes 20 at a time.
const MAX_STREAMS: u32 = 100;
/// Bytes of the receive windows of a stream and of the connection (RFC 9113 §5.2).
const STREAM_WINDOW: u32 = 64 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// Bytes of a response that h2 buffers for a stream beyond the client's window.
const MAX_SEND_BUFFER: usize = 64 * 1024;

/// hyper's server with ordgate's limits.
pub(super) fn builder() -> http2::Builder<InlineExecutor> {
    let mut http = http2::Builder::new(InlineExecutor);
    http.max_concurrent_streams(MAX_STREAMS)
        .max_local_error_reset_streams(MAX_STREAMS as usize)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_header_list_size(MAX_HEAD_BYTES as u32)
        .max_send_buf_size(MAX_SEND_BUFFER);
    http
}

/// Answers a request, which may be the first of its connection.
pub(super) fn answer(
    requests: &Requests,
    request: Request<Incoming>,
    is_first: bool,
) -> impl Future<Output = Result<Response<Body>, Infallible>> + Send + Unpin + use<> {
    let activity = requests.session.activity.clone();
    activity.add_requested(head_bytes(&request));
    let is_head = request.method() == Method::HEAD;
    let request = request.map(|body| {
        body.inspect_frame(move |frame| {
            let length = frame.data_ref().map_or(0, Bytes::len);
            activity.add_requested(length as u64);
        })
    });
    let response = requests.answer(request);
    response.map_ok(move |response| complete(response, is_head, is_first))
}

/// The bytes of a head as HTTP/1.1 would have them, about.
fn head_bytes(request: &Request<Incoming>) -> u64 {
    let target = request.uri().path_and_query();
    let target = target.map_or(0, |target| target.as_str().len());
    let fields = request.headers().iter();
    let fields = fields.map(|(name, value)| name.as_str().len() + value.len() + 4);
    (target + fields.sum::<usize>()) as u64
}

/// Gives a response the head that it has in HTTP/2.
fn complete(mut response: Response<Body>, is_head: bool, is_first: bool) -> Response<Body> {
    if is_first {
        // h2 then adds these fields to the connection's table once, so that later responses
        // need only send their values ([`unindexed`](crate::wire::unindexed)).
        for name in [X_REQUEST_ID, CACHE_STATUS, RATELIMIT] {
            if let Some(value) = response.headers_mut().get_mut(name) {
                value.set_sensitive(false);
            }
        }
    }
    if is_head {
        // hyper does this by itself in HTTP/1.1 only.
        let body = std::mem::take(response.body_mut());
        if let Some(length) = body.size_hint().exact().filter(|length| *length > 0) {
            let fields = response.headers_mut();
            fields
                .entry(CONTENT_LENGTH)
                .or_insert_with(|| length.into());
        }
    }
    response
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
