//! A client's connection as hyper reads and writes it: says what is read and written to the
//! connection's [`Activity`], ends a flood in HTTP/2, and lingers on close.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::socket::{Stream, reset_on_close};
use crate::connections::Activity;

/// The kind of error by which a flood ends its connection.
pub(super) const FLOOD: io::ErrorKind = io::ErrorKind::QuotaExceeded;

pub(super) struct ClientIo {
    io: Stream,
    activity: Arc<Activity>,
    received: u64,
    sent: u64,
}

impl ClientIo {
    pub(super) fn new(io: Stream, activity: Arc<Activity>) -> Self {
        Self {
            io,
            activity,
            received: 0,
            sent: 0,
        }
    }

    #[inline]
    fn after_write(&mut self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        let activity = &self.activity;
        match &written {
            Poll::Ready(Ok(count)) => {
                self.sent += *count as u64;
                if activity.is_blocked.load(Relaxed) && !activity.is_http2() {
                    activity.take(*count as u64);
                }
            }
            Poll::Ready(Err(_)) => {}
            Poll::Pending => activity.is_blocked.store(true, Relaxed),
        }
        written
    }
}

impl AsyncRead for ClientIo {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        let before = buf.filled().len();
        match ready!(Pin::new(&mut stream.io).poll_read(cx, buf)) {
            // Many clients end TLS without close_notify. HTTP's own framing shows whether a
            // request is complete.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {}
            read => read?,
        }
        let count = buf.filled().len() - before;
        if count > 0 {
            stream.activity.read();
            stream.received += count as u64;
        }
        let activity = &stream.activity;
        match activity.is_http2() && activity.is_flood(stream.received, stream.sent) {
            true => Poll::Ready(Err(FLOOD.into())),
            false => Poll::Ready(Ok(())),
        }
    }
}

impl AsyncWrite for ClientIo {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let stream = self.get_mut();
        let written = Pin::new(&mut stream.io).poll_write(cx, bytes);
        stream.after_write(written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let stream = self.get_mut();
        let written = Pin::new(&mut stream.io).poll_write_vectored(cx, slices);
        stream.after_write(written)
    }

    /// Not in HTTP/2: h2 then copies small DATA next to its HEADERS, and several answers
    /// leave in one write.
    fn is_write_vectored(&self) -> bool {
        !self.activity.is_http2() && self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        let flushed = Pin::new(&mut stream.io).poll_flush(cx);
        // hyper flushes once it has written all that it has.
        let is_blocked = flushed.is_pending();
        stream.activity.is_blocked.store(is_blocked, Relaxed);
        flushed
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { io, activity, .. } = self.get_mut();
        if !activity.is_closing.load(Relaxed) {
            ready!(Pin::new(&mut *io).poll_shutdown(cx))?;
            activity.is_closing.store(true, Relaxed);
        }
        // Where unread bytes are left, close() sends a reset, and a client that is still
        // writing would lose the answer. The connection's timer bounds the time that this
        // takes. In HTTP/2, a client that sends on has been told to stop.
        let mut bytes = [0; 4096];
        while !activity.is_http2() {
            let mut read = ReadBuf::new(&mut bytes);
            match ready!(Pin::new(&mut *io).poll_read(cx, &mut read)) {
                Ok(()) if !read.filled().is_empty() => {}
                // The end of input, or a reset.
                Ok(()) | Err(_) => break,
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl Drop for ClientIo {
    fn drop(&mut self) {
        if self.activity.is_closed() {
            reset_on_close(&self.io);
        }
    }
}
