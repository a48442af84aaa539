//! The byte stream of a connection: it records activity for [`Connection`], and is
//! drained after the HTTP client has dropped it while a given-up request on it may
//! still arrive.

use std::future::Future;
use std::io;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::atomic::{Ordering::Relaxed, Ordering::SeqCst};
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection as IsConnection};
use hyper_util::rt::TokioIo;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::runtime::Handle;
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tower_service::Service;

use super::{Connection, Silent};

/// How long a connection is drained, at most.
const LONGEST: Duration = Duration::from_mins(10);
/// How often a draining connection is checked for given-up requests.
const CHECK: Duration = Duration::from_secs(1);
/// A server that sends this many bytes on a draining connection has read what was
/// sent to it: HTTP/1.1 has one request in flight, and HTTP/2's flow control permits
/// fewer bytes of earlier responses, for up to 192 requests in flight.
const ENOUGH: usize = 64 * 1024 * 1024;
/// Bytes that are read without a given-up request on the connection.
const UNWANTED: usize = 64 * 1024;
/// Any receive buffer has room for this many bytes.
const FITS: usize = 32 * 1024;
/// If what was sent on a draining connection is unacknowledged for this long, the
/// machine is gone.
const UNACKNOWLEDGED: Duration = Duration::from_secs(30);

/// A byte stream on a socket.
pub(crate) trait Stream: AsyncRead + AsyncWrite + AsFd + Send + Unpin + 'static {}

impl<S: AsyncRead + AsyncWrite + AsFd + Send + Unpin + 'static> Stream for S {}

/// The byte stream of a connection; with TLS, the encrypted one.
pub(crate) struct TrackedStream<S>
where
    S: Stream,
{
    /// `None` only while it is dropped.
    inner: Option<S>,
    connection: Connection,
    /// Bytes written since the server last sent some.
    unanswered: usize,
    /// Whether `unanswered` has ever exceeded what any receive buffer holds.
    may_be_full: bool,
}

impl<S> TrackedStream<S>
where
    S: Stream,
{
    fn new(inner: S) -> Self {
        Self {
            inner: Some(inner),
            connection: Connection::default(),
            unanswered: 0,
            may_be_full: false,
        }
    }

    fn inner(&mut self) -> io::Result<Pin<&mut S>> {
        let inner = self.inner.as_mut();
        inner
            .map(Pin::new)
            .ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    fn record_write(&mut self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = written {
            self.unanswered += bytes;
            self.may_be_full |= self.unanswered > FITS;
        }
        self.record(written)
    }

    fn record<T>(&self, done: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if matches!(done, Poll::Ready(Err(_))) {
            self.connection.ended();
        }
        done
    }
}

impl<S> AsyncRead for TrackedStream<S>
where
    S: Stream,
{
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.connection.0.reader.register(cx.waker());
        if self.connection.0.is_given_up.load(SeqCst) {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, Silent)));
        }
        let before = to.filled().len();
        let read = self.inner()?.poll_read(cx, to);
        if matches!(read, Poll::Ready(Ok(()))) {
            match to.filled().len() > before {
                true => {
                    let connection = &self.connection.0;
                    connection.read.store(connection.age(), Relaxed);
                    self.unanswered = 0;
                }
                false if to.remaining() > 0 => self.connection.ended(),
                false => {}
            }
        }
        self.record(read)
    }
}

impl<S> AsyncWrite for TrackedStream<S>
where
    S: Stream,
{
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = self.inner()?.poll_write(cx, bytes);
        self.record_write(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = self.inner()?.poll_write_vectored(cx, slices);
        self.record_write(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner
            .as_ref()
            .is_some_and(AsyncWrite::is_write_vectored)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = self.inner()?.poll_flush(cx);
        self.record(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = self.inner()?.poll_shutdown(cx);
        self.record(shut)
    }
}

impl<S> IsConnection for TrackedStream<S>
where
    S: IsConnection + Stream,
{
    fn connected(&self) -> Connected {
        let connected = self.inner.as_ref().map(IsConnection::connected);
        let connected = connected.unwrap_or_else(Connected::new);
        connected.extra(self.connection.clone())
    }
}

impl<S> Drop for TrackedStream<S>
where
    S: Stream,
{
    fn drop(&mut self) {
        let Some(inner) = self.inner.take() else {
            return;
        };
        let connection = self.connection.clone();
        if connection.has_ended() {
            return;
        }
        if !self.may_be_full {
            // The kernel of a stopped server still acknowledges. Without this timeout,
            // unacknowledged data is retransmitted for a quarter of an hour, during
            // which TCP keepalive does not probe.
            let socket = SockRef::from(&inner);
            let _unsupported = socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED));
        }
        // If the task does not run to its end, the guard is dropped with it.
        let guard = DrainGuard(connection);
        match Handle::try_current() {
            Ok(runtime) => _ = runtime.spawn(drain(inner, guard)),
            Err(_no_runtime) => drop(guard),
        }
    }
}

/// Marks the connection as unwatched when dropped.
struct DrainGuard(Connection);

impl Drop for DrainGuard {
    fn drop(&mut self) {
        self.0.unwatched();
    }
}

/// Reads a connection until the server has closed it, or no given-up request on it may
/// still arrive.
async fn drain<S>(mut stream: S, guard: DrainGuard)
where
    S: Stream,
{
    let DrainGuard(connection) = &guard;
    // If this fails, the connection has ended, which reading shows.
    let _read_below = stream.shutdown().await;
    let until = Instant::now() + LONGEST;
    // A request may be given up after its connection was dropped: they are two tasks.
    let mut check = interval_at(Instant::now() + CHECK, CHECK);
    check.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut buffer = [0; 4096];
    let mut received = 0;
    while received < ENOUGH && Instant::now() < until {
        let is_read = received < UNWANTED || connection.is_awaited();
        tokio::select! {
            read = stream.read(&mut buffer), if is_read => match read {
                Ok(0) | Err(_) => return connection.ended(),
                Ok(more) => received += more,
            },
            _ = check.tick() => if !connection.is_awaited() {
                break;
            }
        }
    }
}

/// A connector whose connections record their activity.
#[derive(Clone)]
pub(crate) struct TrackingConnector<C>(pub(crate) C);

impl<C, S> Service<Uri> for TrackingConnector<C>
where
    C: Service<Uri, Response = TokioIo<S>>,
    C::Future: Send + 'static,
    S: Stream,
{
    type Response = TokioIo<TrackedStream<S>>;
    type Error = C::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, C::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), C::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let connecting = self.0.call(to);
        Box::pin(async move {
            let connected = connecting.await?;
            Ok(TokioIo::new(TrackedStream::new(connected.into_inner())))
        })
    }
}

#[cfg(test)]
mod tests;
