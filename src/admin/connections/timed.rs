//! A bound on the time in which a client must read a response.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// How long a client may take to read a response that its socket buffer does not
/// hold.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// A stream whose peer must read each response within [`WRITE_TIMEOUT`].
pub(in crate::admin) struct Timed<S> {
    io: S,
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<S> Timed<S> {
    pub(in crate::admin) fn new(io: S) -> Self {
        Self { io, deadline: None }
    }

    /// Starts the deadline at the first write that must wait; fails once it has
    /// passed.
    fn limit(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            return written;
        }
        let deadline = self
            .deadline
            .get_or_insert_with(|| Box::pin(sleep(WRITE_TIMEOUT)));
        deadline.as_mut().poll(cx).map(|()| {
            Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the client does not read the answer",
            ))
        })
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Timed<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Timed<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let timed = self.get_mut();
        let written = Pin::new(&mut timed.io).poll_write(cx, bytes);
        timed.limit(cx, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let timed = self.get_mut();
        let written = Pin::new(&mut timed.io).poll_write_vectored(cx, slices);
        timed.limit(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let timed = self.get_mut();
        let flushed = Pin::new(&mut timed.io).poll_flush(cx);
        if flushed.is_ready() {
            // hyper flushes once it has written the whole response.
            timed.deadline = None;
        }
        flushed
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_is_disconnected() {
        let (here, _there) = tokio::io::duplex(64);
        let mut timed = Timed::new(here);
        let answer = [0; 100];
        let error = timed.write_all(&answer).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);

        let (here, mut other) = tokio::io::duplex(64);
        let mut timed = Timed::new(here);
        let reading = async {
            let mut room = [0; 100];
            for _ in 0..3 {
                sleep(WRITE_TIMEOUT / 2).await;
                other.read_exact(&mut room).await.unwrap();
            }
        };
        let writing = async {
            for _ in 0..3 {
                timed.write_all(&answer).await.unwrap();
                timed.flush().await.unwrap();
            }
        };
        tokio::join!(reading, writing);
    }
}
