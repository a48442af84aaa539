//! The bytes of a connection: they are counted for [`Connection`], and read on after
//! the HTTP client has dropped them, where a request on it may still arrive.

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

/// How long a connection lingers at the most.
const LONGEST: Duration = Duration::from_mins(10);
/// How often a connection that lingers is looked at, whether anybody still wants
/// to know when it ends.
const LOOK: Duration = Duration::from_secs(1);
/// A server that sends so many bytes on a connection that lingers has read what
/// was sent to it: HTTP/1.1 has but one request under way, and HTTP/2's windows let
/// it send less of earlier answers, up to 192 requests under way.
const ENOUGH: usize = 64 * 1024 * 1024;
/// So many are read while nobody waits to know when it ends.
const UNWANTED: usize = 64 * 1024;
/// No receive buffer is too small for so many bytes.
const FITS: usize = 32 * 1024;
/// What was sent on a connection that lingers has not been acknowledged for so
/// long where its machine is gone.
const UNACKNOWLEDGED: Duration = Duration::from_secs(30);

/// A stream of bytes on a socket.
pub(in crate::upstream) trait Stream:
    AsyncRead + AsyncWrite + AsFd + Send + Unpin + 'static
{
}

impl<S: AsyncRead + AsyncWrite + AsFd + Send + Unpin + 'static> Stream for S {}

/// The bytes of a connection; they are those of TLS where that is spoken.
pub(in crate::upstream) struct Watched<S>
where
    S: Stream,
{
    /// `None` only when it is dropped.
    inner: Option<S>,
    connection: Connection,
    /// How many bytes were written since the server sent some.
    unanswered: usize,
    /// Whether that was ever more than a receive buffer takes for sure.
    may_be_full: bool,
}

impl<S> Watched<S>
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

    /// Takes in what came of writing.
    fn see_written(&mut self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(bytes)) = written {
            self.unanswered += bytes;
            self.may_be_full |= self.unanswered > FITS;
        }
        self.see(written)
    }

    /// Takes in what came of reading or writing.
    fn see<T>(&self, done: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if matches!(done, Poll::Ready(Err(_))) {
            self.connection.ended();
        }
        done
    }
}

impl<S> AsyncRead for Watched<S>
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
        self.see(read)
    }
}

impl<S> AsyncWrite for Watched<S>
where
    S: Stream,
{
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = self.inner()?.poll_write(cx, bytes);
        self.see_written(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = self.inner()?.poll_write_vectored(cx, slices);
        self.see_written(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner
            .as_ref()
            .is_some_and(AsyncWrite::is_write_vectored)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = self.inner()?.poll_flush(cx);
        self.see(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = self.inner()?.poll_shutdown(cx);
        self.see(shut)
    }
}

impl<S> IsConnection for Watched<S>
where
    S: IsConnection + Stream,
{
    fn connected(&self) -> Connected {
        let connected = self.inner.as_ref().map(IsConnection::connected);
        let connected = connected.unwrap_or_else(Connected::new);
        connected.extra(self.connection.clone())
    }
}

impl<S> Drop for Watched<S>
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
            // A server that does not run has a kernel that acknowledges. Without
            // this, what is not acknowledged is sent again for a quarter of an
            // hour, and TCP's keepalive waits for that.
            let socket = SockRef::from(&inner);
            let _unsupported = socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED));
        }
        // If the task is never run, or not to its end, this is dropped with it.
        let leave = Leave(connection);
        match Handle::try_current() {
            Ok(runtime) => _ = runtime.spawn(linger(inner, leave)),
            Err(_no_runtime) => drop(leave),
        }
    }
}

/// A connection that nobody watches any more once this is dropped.
struct Leave(Connection);

impl Drop for Leave {
    fn drop(&mut self) {
        self.0.left();
    }
}

/// Reads a connection until the server has closed it, or nobody wants to know any
/// more.
async fn linger<S>(mut stream: S, leave: Leave)
where
    S: Stream,
{
    let Leave(connection) = &leave;
    // Where it cannot be closed it is at its end, which reading tells.
    let _read_below = stream.shutdown().await;
    let until = Instant::now() + LONGEST;
    // One task drops the connection and another gives the request up: which of
    // them is first, nobody knows.
    let mut look = interval_at(Instant::now() + LOOK, LOOK);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut some = [0; 4096];
    let mut came = 0;
    while came < ENOUGH && Instant::now() < until {
        let is_read = came < UNWANTED || connection.is_awaited();
        tokio::select! {
            read = stream.read(&mut some), if is_read => match read {
                Ok(0) | Err(_) => return connection.ended(),
                Ok(more) => came += more,
            },
            _ = look.tick() => if !connection.is_awaited() {
                break;
            }
        }
    }
}

/// A connector of connections that are watched.
#[derive(Clone)]
pub(in crate::upstream) struct Watch<C>(pub(in crate::upstream) C);

impl<C, S> Service<Uri> for Watch<C>
where
    C: Service<Uri, Response = TokioIo<S>>,
    C::Future: Send + 'static,
    S: Stream,
{
    type Response = TokioIo<Watched<S>>;
    type Error = C::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, C::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), C::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let connecting = self.0.call(to);
        Box::pin(async move {
            let connected = connecting.await?;
            Ok(TokioIo::new(Watched::new(connected.into_inner())))
        })
    }
}

#[cfg(test)]
mod tests;
