//! The connection pools of one upstream, and which HTTP version they speak.
//!
//! HTTP/1.1 has one request on a connection at a time. With `upstream.http2`,
//! `https` URLs are offered `h2` and `http/1.1` by ALPN, and `http` URLs are spoken
//! to in HTTP/2 with prior knowledge (RFC 9113 §3.3). All canonical requests share
//! one HTTP/2 connection for each server then. A relayed response is read as fast
//! as its client takes it, so each relayed exchange has a connection of its own
//! ([`RelayConnection`]): what one client does not read takes up no other's flow control
//! window.
//!
//! Invariant: the window of a connection has room for the windows of all streams
//! that may be open on it, so no stream waits for the reader of another.
//!
//! Deliberately absent: what happens on one connection (`upstream::connection`).

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http::uri::Scheme;
use http_body::{Body, Frame, SizeHint};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client, ResponseFuture};
use hyper_util::rt::{TokioExecutor, TokioTimer};

use crate::upstream::client::connection::Watch;
use crate::upstream::client::connector::Timely;
use crate::upstream::client::resolver::Names;
use crate::upstream::client::streamed::RequestBody;
use crate::upstream::client::tls;
use crate::upstream::settings::{Settings, SetupError};

/// The most bytes of an answer's head.
const MOST_HEAD: u32 = 128 * 1024;
/// The most fields of an answer's head over HTTP/1.1. Over HTTP/2, its bytes
/// alone are bounded.
const MOST_FIELDS: usize = 1000;

/// TCP probes a connection on which nothing has come for so long,
const KEEPALIVE_AFTER: Duration = Duration::from_secs(15);
/// again after so long,
const KEEPALIVE_EACH: Duration = Duration::from_secs(5);
/// and so often before it counts as ended.
const KEEPALIVE_TIMES: u32 = 3;

/// HTTP/2 sends a PING where streams are open and nothing has come for so long,
const PING_AFTER: Duration = Duration::from_secs(5);
/// and the connection is closed where nothing comes for so long after it.
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// What a server may send of one body before it is read, unless very many streams
/// may be open.
const STREAM_WINDOW: u32 = 256 * 1024;
/// The largest window that HTTP/2 has (RFC 9113 §6.9.1).
const MOST_WINDOW: u32 = (1 << 31) - 1;
/// The window that an HTTP/2 connection has at the least.
const LEAST_WINDOW: u32 = 65_535;
/// Requests beside those that are bounded by `max_in_flight`: probes of the tips
/// and key checks.
const UNBOUNDED: u32 = 64;

type Pool = Client<Timely<HttpsConnector<Watch<HttpConnector<Names>>>>, RequestBody>;

/// The connections of one upstream. Clones share them.
#[derive(Clone)]
pub(crate) struct Connections {
    shared: Pools,
    /// The lanes of relayed exchanges; HTTP/1.1 needs none.
    lanes: Option<Arc<Lanes>>,
}

/// A pool for each scheme.
#[derive(Clone)]
struct Pools {
    https: Pool,
    http: Pool,
}

struct Lanes {
    make: Box<dyn Fn() -> Pools + Send + Sync>,
    /// Those in no use, the one that was used last at the end.
    free: Mutex<Vec<Pools>>,
}

/// What one relayed exchange is sent on. Over HTTP/2 nothing else is while it is
/// held.
pub(crate) struct RelayConnection {
    pools: Pools,
    home: Option<Arc<Lanes>>,
}

impl Connections {
    /// Those of an upstream with these settings; no connection is made yet.
    ///
    /// # Errors
    /// Where TLS cannot be set up.
    pub(crate) fn new(settings: &Settings, names: Names) -> Result<Self, SetupError> {
        let make = maker(settings, names)?;
        let shared = make();
        let lanes = settings.http2.then(|| {
            Arc::new(Lanes {
                make: Box::new(make),
                free: Mutex::default(),
            })
        });
        Ok(Self { shared, lanes })
    }

    /// Sends a canonical request.
    pub(crate) fn request(&self, request: Request<RequestBody>) -> ResponseFuture {
        self.shared.request(request)
    }

    /// What a relayed exchange is sent on, to be kept until its body has ended.
    pub(crate) fn lane(&self) -> RelayConnection {
        let free = self.lanes.as_ref().map(|lanes| lanes.take());
        RelayConnection {
            pools: free.unwrap_or_else(|| self.shared.clone()),
            home: self.lanes.clone(),
        }
    }
}

impl Pools {
    fn request(&self, request: Request<RequestBody>) -> ResponseFuture {
        match request.uri().scheme() == Some(&Scheme::HTTPS) {
            true => self.https.request(request),
            false => self.http.request(request),
        }
    }
}

impl Lanes {
    fn take(&self) -> Pools {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let known = free.pop();
        drop(free);
        known.unwrap_or_else(|| (self.make)())
    }
}

impl RelayConnection {
    /// Sends a request.
    pub(crate) fn request(&self, request: Request<RequestBody>) -> ResponseFuture {
        self.pools.request(request)
    }

    /// Keeps the lane until this body is dropped.
    pub(crate) fn keep_for<B>(self, body: B) -> RelayConnectionBody<B> {
        RelayConnectionBody { body, _lane: self }
    }
}

impl Drop for RelayConnection {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            let mut free = home.free.lock().unwrap_or_else(PoisonError::into_inner);
            free.push(self.pools.clone());
        }
    }
}

/// A body that keeps the lane on which it comes.
pub(crate) struct RelayConnectionBody<B> {
    body: B,
    _lane: RelayConnection,
}

impl<B: Body<Data = Bytes> + Unpin> Body for RelayConnectionBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Makes pools by these settings.
fn maker(
    settings: &Settings,
    names: Names,
) -> Result<impl Fn() -> Pools + Send + Sync + 'static, SetupError> {
    let mut http = HttpConnector::new_with_resolver(names);
    http.enforce_http(false);
    http.set_nodelay(true);
    // Of several addresses each gets a share of it; the whole is bounded
    // below.
    http.set_connect_timeout(Some(settings.connect_timeout));
    // A machine that is gone is found so, and not by waiting for its answers.
    http.set_keepalive(Some(KEEPALIVE_AFTER));
    http.set_keepalive_interval(Some(KEEPALIVE_EACH));
    http.set_keepalive_retries(Some(KEEPALIVE_TIMES));
    let mut tls = tls::config(settings)?;
    tls.alpn_protocols = match settings.http2 {
        true => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
        false => vec![b"http/1.1".to_vec()],
    };
    let connector = HttpsConnector::from((Watch(http), tls));
    let connector = Timely::new(connector, settings.connect_timeout);
    let (stream, connection) = windows(streams(settings));
    let mut https = Client::builder(TokioExecutor::new());
    https
        .pool_timer(TokioTimer::new())
        .timer(TokioTimer::new())
        .pool_idle_timeout(settings.idle_timeout)
        .http1_max_buf_size(MOST_HEAD as usize)
        .http1_max_headers(MOST_FIELDS)
        .http2_max_header_list_size(MOST_HEAD)
        .http2_initial_stream_window_size(stream)
        .http2_initial_connection_window_size(connection)
        .http2_keep_alive_interval(PING_AFTER)
        .http2_keep_alive_timeout(PING_TIMEOUT);
    let mut http = https.clone();
    http.http2_only(settings.http2);
    Ok(move || Pools {
        https: https.build(connector.clone()),
        http: http.build(connector.clone()),
    })
}

/// How many streams may be open on one connection at once. Base URLs of one server
/// share it, each with requests of its own.
fn streams(settings: &Settings) -> u32 {
    let urls = u32::try_from(settings.urls.len()).unwrap_or(u32::MAX);
    let bounded = settings.max_in_flight.get().saturating_mul(urls);
    bounded.saturating_add(UNBOUNDED)
}

/// The window of each of so many streams, and that of their connection.
fn windows(streams: u32) -> (u32, u32) {
    let streams = streams.max(1);
    let stream = STREAM_WINDOW.min(MOST_WINDOW / streams);
    (stream, (stream * streams).max(LEAST_WINDOW))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_of_a_connection_has_room_for_all_streams() {
        for streams in [0, 1, 33, 96, 8191, 8192, 100_064, 1 << 30, MOST_WINDOW] {
            let (stream, connection) = windows(streams);
            assert!((1..=STREAM_WINDOW).contains(&stream), "{streams}");
            assert!((LEAST_WINDOW..=MOST_WINDOW).contains(&connection));
            let all = u64::from(stream) * u64::from(streams);
            assert!(all <= u64::from(connection), "{streams}");
        }
        assert_eq!(windows(96), (STREAM_WINDOW, 96 * STREAM_WINDOW));
        assert_eq!(windows(8191).0, STREAM_WINDOW);
    }
}
