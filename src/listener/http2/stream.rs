//! A client's connection as hyper reads and writes it in HTTP/2: the guard sees
//! the frames pass, and what hyper writes is held back until its connection has
//! nothing more to do, so that the responses to requests that came together leave
//! in one write.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::guard::FrameGuard;
use super::windows::SendProgress;
use crate::clock::{Clock, Moment};
use crate::listener::socket::ClientStream;
use crate::listener::watch::ConnectionTimeouts;
use crate::sync::lock;
use crate::wire::activity::Activity;

/// How many bytes are held back at most.
const MAX_CORKED: usize = 16 * 1024;
/// Writes of at least this length are not copied.
const MIN_DIRECT: usize = 4 * 1024;
/// The most bytes that are read and discarded on close.
const MAX_DISCARDED: usize = 256 * 1024;

/// A connection and what is known of it. hyper's connection and the task that
/// drives it share it; they run in the same task, so the lock is never contended.
pub(super) struct Http2Stream<S> {
    io: S,
    /// Bytes that were read before HTTP/2 was recognised.
    early: Bytes,
    guard: FrameGuard,
    activity: Arc<Activity>,
    clock: Clock,
    times: ConnectionTimeouts,
    /// Bytes that hyper has written and the socket has not accepted.
    corked: Vec<u8>,
    /// How many of them the socket has accepted.
    written: usize,
    /// How many bytes the socket had accepted when the stream could last not be flushed.
    flushed: u64,
    /// What the socket accepts.
    socket: SendProgress,
    /// Bytes discarded while lingering on close.
    discarded: Option<usize>,
}

/// The stream that hyper gets.
pub(super) struct SharedStream<S>(Arc<Mutex<Http2Stream<S>>>);

impl<S> SharedStream<S> {
    pub(super) fn new(stream: Http2Stream<S>) -> Self {
        Self(Arc::new(Mutex::new(stream)))
    }

    /// Another handle of the same stream.
    pub(super) fn share(&self) -> Self {
        Self(self.0.clone())
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Http2Stream<S>> {
        lock(&self.0)
    }
}

impl<S: ClientStream> Http2Stream<S> {
    pub(super) fn new(
        io: S,
        early: Bytes,
        times: ConnectionTimeouts,
        activity: Arc<Activity>,
        clock: &Clock,
    ) -> Self {
        Self {
            io,
            early,
            guard: FrameGuard::new(times, clock),
            activity,
            clock: clock.clone(),
            times,
            corked: Vec::new(),
            written: 0,
            flushed: 0,
            socket: SendProgress::default(),
            discarded: None,
        }
    }

    /// The guard of its frames.
    pub(super) fn guard(&self) -> &FrameGuard {
        &self.guard
    }

    /// Since when the client has not taken what there is for it, and by when it
    /// must take more.
    pub(super) fn blocked(&self) -> Option<(Moment, Moment)> {
        match (self.socket.blocked(), self.guard.windows().blocked()) {
            (Some(one), Some(other)) => Some((one.0.min(other.0), one.1.min(other.1))),
            (one, other) => one.or(other),
        }
    }

    /// How many bytes are held that the socket has not accepted.
    pub(super) fn held(&self) -> u64 {
        let corked = self.corked.len() - self.written;
        let of_stream = match self.socket.blocked() {
            Some(_) => self.io.buffer_bytes(),
            None => 0,
        };
        corked as u64 + of_stream
    }

    /// Makes the stream reset the connection when it is dropped.
    pub(super) fn reset_on_close(&self) {
        self.io.reset_on_close();
    }

    /// Adds GOAWAY to what is sent, where that is possible.
    pub(super) fn send_goaway(&mut self, code: u32) {
        if let Some(goaway) = self.guard.goaway(code) {
            self.corked.extend_from_slice(&goaway);
        }
    }

    /// Holds bytes back. Returns how many.
    fn hold(&mut self, bytes: &[u8]) -> usize {
        if self.corked.capacity() == 0 {
            // More follows, and growing step by step would copy it each time.
            self.corked.reserve_exact(MAX_CORKED);
        }
        self.corked.extend_from_slice(bytes);
        bytes.len()
    }

    /// Writes what was held back, and `more` after it. Returns how many bytes of
    /// `more` the socket has accepted.
    fn write_out(&mut self, cx: &mut Context<'_>, more: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            let held = &self.corked[self.written..];
            if held.is_empty() && more.is_empty() {
                return Poll::Ready(Ok(0));
            }
            let slices = [io::IoSlice::new(held), io::IoSlice::new(more)];
            let first = usize::from(held.is_empty());
            let last = if more.is_empty() { 1 } else { 2 };
            let io = Pin::new(&mut self.io);
            let written = match &slices[first..last] {
                [one] => io.poll_write(cx, one),
                slices => io.poll_write_vectored(cx, slices),
            };
            let count = match written {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(count)) => count,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    self.socket.block(&self.times, self.clock.now());
                    return Poll::Pending;
                }
            };
            self.socket.take(count as u64);
            if self.socket.blocked().is_some() {
                self.socket.open(self.clock.now());
            }
            let of_held = count.min(held.len());
            self.written += of_held;
            if self.written == self.corked.len() {
                self.corked.clear();
                self.written = 0;
                if !more.is_empty() && count > of_held {
                    return Poll::Ready(Ok(count - of_held));
                }
            }
        }
    }

    /// Writes what was held back. Called once hyper's connection has nothing more
    /// to do.
    pub(super) fn flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.write_out(cx, &[]))?;
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        if flushed.is_pending() {
            let sent = self.io.sent();
            self.socket.take(sent - self.flushed);
            self.flushed = sent;
            self.socket.block(&self.times, self.clock.now());
            return Poll::Pending;
        }
        if !self.guard.windows().is_sending() {
            self.socket = SendProgress::default();
            if self.guard.windows().open_streams() == 0 {
                self.corked = Vec::new();
            }
        } else if self.socket.blocked().is_some() {
            self.socket.open(self.clock.now());
        }
        flushed
    }

    fn read(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        if self.early.is_empty() {
            ready!(Pin::new(&mut self.io).poll_read(cx, buf))?;
        } else {
            let count = self.early.len().min(buf.remaining());
            buf.put_slice(&self.early.split_to(count));
        }
        let now = self.clock.now();
        let bytes = &buf.filled()[before..];
        if bytes.is_empty() {
            return self.end_of_input(now);
        }
        if self.guard.receive(bytes, now) {
            // Only requests keep a connection from being idle.
            self.activity.record(now);
        }
        if self.guard.fault().is_some() {
            buf.set_filled(before);
            return Poll::Ready(Err(io::Error::other("the guard ends the connection")));
        }
        match (self.guard.in_head(), self.activity.head_since()) {
            (true, None) => self.activity.set_head_since(Some(now)),
            (false, Some(_)) => self.activity.set_head_since(None),
            (true, Some(_)) | (false, None) => {}
        }
        Poll::Ready(Ok(()))
    }

    /// The client has closed its side. h2 would then drop the responses in
    /// progress, so the end of input is withheld from it; the connection's timer
    /// ends it.
    fn end_of_input(&self, now: Moment) -> Poll<io::Result<()>> {
        if self.guard.windows().open_streams() == 0 {
            return Poll::Ready(Ok(()));
        }
        if self.activity.half_closed_since().is_none() {
            self.activity.set_half_closed_since(now);
        }
        Poll::Pending
    }

    /// Whether every response is written whole.
    pub(super) fn is_all_sent(&self) -> bool {
        self.guard.windows().open_streams() == 0 && self.corked.is_empty()
    }

    /// Whether nothing more can be sent before the client enlarges a window.
    pub(super) fn is_stuck(&self) -> bool {
        self.guard.windows().are_exhausted() && self.corked.is_empty()
    }

    /// Whether all is sent, and the client has yet to close its side.
    pub(super) fn is_shut_down(&self) -> bool {
        self.discarded.is_some()
    }

    fn shut_down(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.discarded.is_none() {
            ready!(self.flush(cx))?;
            ready!(Pin::new(&mut self.io).poll_shutdown(cx))?;
            self.discarded = Some(0);
        }
        // Where unread bytes are left, close() sends a reset, and the client may
        // lose what it has not read. The connection's timer bounds the time that
        // this takes.
        let mut bytes = [0; 4096];
        while let Some(discarded) = self.discarded.filter(|count| *count < MAX_DISCARDED) {
            let mut read = ReadBuf::new(&mut bytes);
            match ready!(Pin::new(&mut self.io).poll_read(cx, &mut read)) {
                Ok(()) if !read.filled().is_empty() => {
                    self.discarded = Some(discarded + read.filled().len());
                }
                // The end of input, or a reset.
                Ok(()) | Err(_) => break,
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Ends the connection once hyper has given it up.
    pub(super) fn finish(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.shut_down(cx).map(|_ended_anyway| ())
    }
}

impl<S: ClientStream> AsyncRead for SharedStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.lock().read(cx, buf)
    }
}

impl<S: ClientStream> AsyncWrite for SharedStream<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut stream = self.lock();
        let stream = &mut *stream;
        let count =
            match stream.corked.len() + bytes.len() > MAX_CORKED || bytes.len() >= MIN_DIRECT {
                true if bytes.len() >= MIN_DIRECT => ready!(stream.write_out(cx, bytes))?,
                true => {
                    ready!(stream.write_out(cx, &[]))?;
                    stream.hold(bytes)
                }
                false => stream.hold(bytes),
            };
        stream.guard.send(&bytes[..count]);
        Poll::Ready(Ok(count))
    }

    /// h2 then copies small DATA next to its HEADERS.
    fn is_write_vectored(&self) -> bool {
        false
    }

    /// What is held back is written once hyper's connection has nothing more to do.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.lock().shut_down(cx)
    }
}

#[cfg(test)]
mod tests;
