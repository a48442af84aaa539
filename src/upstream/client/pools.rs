//! The connection pools of one upstream, and which HTTP version they use.
//!
//! An HTTP/1.1 connection carries one request at a time. With `upstream.http2`,
//! ordgate offers `h2` and `http/1.1` by ALPN to `https` URLs, and uses HTTP/2 with
//! prior knowledge for `http` URLs (RFC 9113 §3.3). All canonical requests to a
//! server then share one HTTP/2 connection. A forwarded response is read as fast as
//! its client reads it, so each forwarded request has a connection of its own
//! ([`RelayConnection`]): a slow client does not use up the flow-control window of
//! others.
//!
//! Invariant: the flow-control window of a connection is at least the sum of the
//! windows of all streams that may be open on it, so that no stream waits for the
//! reader of another.
//!
//! Deliberately absent: the state of one connection (`connection`).

use std::pin::Pin;
use std::sync::{Arc, Mutex};
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

use crate::sync::lock;
use crate::upstream::client::RequestBody;
use crate::upstream::client::connector::TimedConnector;
use crate::upstream::client::resolver::Resolver;
use crate::upstream::client::tls;
use crate::upstream::connection::TrackingConnector;
use crate::upstream::settings::{Settings, SetupError};

/// The largest head of a response, in bytes.
const MOST_HEAD: u32 = 128 * 1024;
/// The most header fields of a response over HTTP/1.1. Over HTTP/2 only their bytes
/// are limited.
const MOST_FIELDS: usize = 1000;

/// TCP's user time-out: how long bytes may be unacknowledged.
const UNACKNOWLEDGED: Duration = Duration::from_secs(25);
/// TCP keepalive: the idle time before the first probe,
const KEEPALIVE_AFTER: Duration = Duration::from_secs(15);
/// the time between probes,
const KEEPALIVE_EACH: Duration = Duration::from_secs(5);
/// and the unanswered probes after which the connection is closed.
const KEEPALIVE_TIMES: u32 = 3;

/// HTTP/2: with open streams, the idle time before a PING,
const PING_AFTER: Duration = Duration::from_secs(5);
/// and the time without an answer to it after which the connection is closed.
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// The flow-control window of a stream, unless very many streams may be open.
const STREAM_WINDOW: u32 = 256 * 1024;
/// The largest window of HTTP/2 (RFC 9113 §6.9.1).
const MOST_WINDOW: u32 = (1 << 31) - 1;
/// The smallest window of an HTTP/2 connection.
const LEAST_WINDOW: u32 = 65_535;
/// Requests that `max_in_flight` does not limit: probes of the tips and key checks.
const UNBOUNDED: u32 = 64;

type Pool =
    Client<TimedConnector<HttpsConnector<TrackingConnector<HttpConnector<Resolver>>>>, RequestBody>;

/// The connection pools of one upstream. Clones share the connections.
#[derive(Clone)]
pub(crate) struct ConnectionPools {
    shared: Pools,
    /// For forwarded requests over HTTP/2; over HTTP/1.1 they use the shared pools.
    exclusive: Option<Arc<ExclusivePools>>,
}

/// A pool for each scheme.
#[derive(Clone)]
struct Pools {
    https: Pool,
    http: Pool,
}

/// Pools of which each serves one request at a time.
struct ExclusivePools {
    make: Box<dyn Fn() -> Pools + Send + Sync>,
    /// Those that are not in use, the most recently used last.
    free: Mutex<Vec<Pools>>,
}

/// The pools that one forwarded request uses. Over HTTP/2 no other request uses
/// them meanwhile.
pub(crate) struct RelayConnection {
    pools: Pools,
    owner: Option<Arc<ExclusivePools>>,
}

impl ConnectionPools {
    /// The pools of an upstream with these settings. No connection is made yet.
    ///
    /// # Errors
    /// If TLS cannot be set up.
    pub(crate) fn new(settings: &Settings, resolver: Resolver) -> Result<Self, SetupError> {
        let make = maker(settings, resolver)?;
        let shared = make();
        let exclusive = settings.connections.http2.then(|| {
            Arc::new(ExclusivePools {
                make: Box::new(make),
                free: Mutex::default(),
            })
        });
        Ok(Self { shared, exclusive })
    }

    /// Sends a canonical request.
    pub(crate) fn request(&self, request: Request<RequestBody>) -> ResponseFuture {
        self.shared.request(request)
    }

    /// The connection of a forwarded request, to be kept until its body has ended.
    pub(crate) fn relay_connection(&self) -> RelayConnection {
        let free = self.exclusive.as_ref().map(|pools| pools.take());
        RelayConnection {
            pools: free.unwrap_or_else(|| self.shared.clone()),
            owner: self.exclusive.clone(),
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

impl ExclusivePools {
    fn take(&self) -> Pools {
        let mut free = lock(&self.free);
        let known = free.pop();
        drop(free);
        known.unwrap_or_else(|| (self.make)())
    }
}

impl RelayConnection {
    pub(crate) fn request(&self, request: Request<RequestBody>) -> ResponseFuture {
        self.pools.request(request)
    }

    /// Keeps the connection until this body is dropped.
    pub(crate) fn keep_for<B>(self, body: B) -> RelayConnectionBody<B> {
        RelayConnectionBody {
            body,
            _connection: self,
        }
    }
}

impl Drop for RelayConnection {
    fn drop(&mut self) {
        if let Some(owner) = self.owner.take() {
            let mut free = lock(&owner.free);
            free.push(self.pools.clone());
        }
    }
}

/// A body that keeps the connection that it is received on.
pub(crate) struct RelayConnectionBody<B> {
    body: B,
    _connection: RelayConnection,
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

/// Returns a function that makes pools with these settings.
fn maker(
    settings: &Settings,
    resolver: Resolver,
) -> Result<impl Fn() -> Pools + Send + Sync + 'static, SetupError> {
    let mut http = HttpConnector::new_with_resolver(resolver);
    http.enforce_http(false);
    http.set_nodelay(true);
    // It is divided among the addresses of a name. `TimedConnector` limits the whole.
    http.set_connect_timeout(Some(settings.connections.connect_timeout));
    // So a machine that is gone is noticed before responses time out.
    http.set_keepalive(Some(KEEPALIVE_AFTER));
    http.set_keepalive_interval(Some(KEEPALIVE_EACH));
    http.set_keepalive_retries(Some(KEEPALIVE_TIMES));
    // Without this, what a machine that is gone does not acknowledge is retransmitted for a
    // quarter of an hour, during which TCP keepalive does not probe. The kernel of a stopped
    // server still acknowledges.
    http.set_tcp_user_timeout(Some(UNACKNOWLEDGED));
    let mut tls = tls::config(settings)?;
    tls.alpn_protocols = match settings.connections.http2 {
        true => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
        false => vec![b"http/1.1".to_vec()],
    };
    let connector = HttpsConnector::from((TrackingConnector(http), tls));
    let connector = TimedConnector::new(connector, settings.connections.connect_timeout);
    let (stream, connection) = windows(streams(settings));
    let mut https = Client::builder(TokioExecutor::new());
    https
        .pool_timer(TokioTimer::new())
        .timer(TokioTimer::new())
        .pool_idle_timeout(settings.connections.idle_timeout)
        .http1_max_buf_size(MOST_HEAD as usize)
        .http1_max_headers(MOST_FIELDS)
        .http2_max_header_list_size(MOST_HEAD)
        .http2_initial_stream_window_size(stream)
        .http2_initial_connection_window_size(connection)
        .http2_keep_alive_interval(PING_AFTER)
        .http2_keep_alive_timeout(PING_TIMEOUT);
    let mut http = https.clone();
    http.http2_only(settings.connections.http2);
    Ok(move || Pools {
        https: https.build(connector.clone()),
        http: http.build(connector.clone()),
    })
}

/// How many streams may be open on one connection. All base URLs of a server share
/// it, each with its own limit of requests.
fn streams(settings: &Settings) -> u32 {
    let urls = u32::try_from(settings.endpoints.urls.len()).unwrap_or(u32::MAX);
    let bounded = settings.admission.max_in_flight.get().saturating_mul(urls);
    bounded.saturating_add(UNBOUNDED)
}

/// The flow-control windows of each of this many streams, and of their connection.
fn windows(streams: u32) -> (u32, u32) {
    let streams = streams.max(1);
    let stream = STREAM_WINDOW.min(MOST_WINDOW / streams);
    (stream, (stream * streams).max(LEAST_WINDOW))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_connection_window_has_room_for_all_stream_windows() {
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
