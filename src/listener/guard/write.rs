//! Writing answers: notices clients that do not read, and lingers on close.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::GuardedStream;
use crate::clock::Moment;
use crate::listener::socket::StreamControl;
use crate::unsent::SendBuffer;

/// The most bytes that are read and discarded on close.
const MAX_DISCARDED: usize = 256 * 1024;

/// An answer that the socket did not accept at once. It lasts until all of the
/// answer is written.
pub(super) struct PendingWrite {
    /// The buffer that is being sent.
    buffer: SendBuffer,
    /// The buffer of the answer's body.
    backlog: Option<(usize, u64)>,
    /// By when the client must read more.
    deadline: Moment,
}

/// The bytes that hyper wants to write.
struct OfferedBytes {
    /// The address at which the largest slice ends.
    end: usize,
    /// The length of all slices.
    bytes: u64,
}

impl OfferedBytes {
    fn of<'b>(slices: impl Iterator<Item = &'b [u8]> + Clone) -> Self {
        let largest = slices.clone().max_by_key(|slice| slice.len());
        Self {
            end: largest.map_or(0, |slice| slice.as_ptr_range().end.addr()),
            bytes: slices.map(|slice| slice.len() as u64).sum(),
        }
    }
}

impl<S: StreamControl> GuardedStream<S> {
    /// Records the result of a write. A write that is accepted needs one addition;
    /// the rest is for stalled connections.
    fn after_write(
        &mut self,
        cx: &Context<'_>,
        written: Poll<io::Result<usize>>,
        offered: impl FnOnce() -> OfferedBytes,
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(count)) = &written {
            self.written += *count as u64;
        }
        match (written.is_pending(), self.stalled) {
            (true, _) => return self.stall(cx, Some(offered())),
            (false, true) => {
                self.stalled = false;
                self.activity.clear_stalled();
            }
            (false, false) => {}
        }
        written
    }

    /// The socket accepts nothing more of what hyper offers, or, with `None`, of what
    /// the stream holds.
    #[cold]
    fn stall<T>(&mut self, cx: &Context<'_>, offered: Option<OfferedBytes>) -> Poll<io::Result<T>> {
        let taken = std::mem::take(&mut self.written);
        let backlog = self.activity.backlog();
        let is_unchanged = self
            .pending
            .as_ref()
            .is_some_and(|pending| pending.backlog == backlog);
        if self.stalled && taken == 0 && is_unchanged && !self.activity.is_reset_requested() {
            return Poll::Pending;
        }
        let now = self.clock.now();
        let before = self.pending.take();
        let progress = before.as_ref().map(|before| (before.deadline, taken));
        let deadline = self.times.write_deadline(progress, now);
        let of_stream = SendBuffer {
            end: Arc::as_ptr(&self.activity).addr(),
            bytes: self.io.buffer_bytes(),
        };
        let buffer = match (backlog, offered) {
            // What is being written is a part of it.
            (Some((end, bytes)), _) => SendBuffer { end, bytes },
            (None, Some(offered)) => {
                let same = before.as_ref();
                let same = same.filter(|before| before.buffer.end == offered.end);
                SendBuffer {
                    end: offered.end,
                    bytes: match same {
                        // The buffer is freed as a whole, so its written part counts too.
                        Some(same) => same.buffer.bytes.max(offered.bytes),
                        None => offered.bytes + taken,
                    },
                }
            }
            (None, None) => of_stream,
        };
        let is_registered = before.is_some_and(|before| before.buffer == buffer);
        self.pending = Some(PendingWrite {
            buffer,
            backlog,
            deadline,
        });
        self.stalled = true;
        self.activity.set_stalled(now, deadline);
        if !is_registered {
            let all = [buffer, of_stream];
            let count = usize::from(of_stream.bytes > 0 && buffer != of_stream) + 1;
            self.unsent
                .set_stalled(&all[..count], now, &self.activity, cx.waker());
        }
        if self.activity.is_reset_requested() {
            self.io.reset_on_close();
            return Poll::Ready(Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the client does not read its answer",
            )));
        }
        Poll::Pending
    }
}

impl<S: AsyncRead + AsyncWrite + StreamControl + Unpin> AsyncWrite for GuardedStream<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let stream = self.get_mut();
        let written = Pin::new(&mut stream.io).poll_write(cx, bytes);
        stream.after_write(cx, written, || OfferedBytes::of(std::iter::once(bytes)))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let stream = self.get_mut();
        let written = Pin::new(&mut stream.io).poll_write_vectored(cx, slices);
        stream.after_write(cx, written, || {
            OfferedBytes::of(slices.iter().map(|slice| &**slice))
        })
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        match Pin::new(&mut stream.io).poll_flush(cx) {
            Poll::Ready(flushed) => flushed?,
            Poll::Pending => {
                let sent = stream.io.sent();
                stream.written += sent - stream.flushed;
                stream.flushed = sent;
                return stream.stall(cx, None);
            }
        }
        // hyper flushes once it has written all that it has.
        stream.written = 0;
        if stream.pending.is_some() {
            stream.pending = None;
            if std::mem::take(&mut stream.stalled) {
                stream.activity.clear_stalled();
            }
            stream.unsent.clear_stalled();
            stream.activity.cancel_reset();
        }
        if stream.eof_withheld && !stream.is_answering() {
            // hyper does not read again by itself.
            stream.eof_withheld = false;
            cx.waker().wake_by_ref();
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        if stream.is_http2() {
            // It goes on without hyper's HTTP/1.1.
            return Poll::Ready(Ok(()));
        }
        if stream.discarded.is_none() {
            ready!(Pin::new(&mut stream.io).poll_shutdown(cx))?;
            let is_unread = stream.refused.is_some() || stream.scanner.in_body();
            stream.discarded = Some(if is_unread { 0 } else { MAX_DISCARDED });
        }
        // Where unread bytes are left, close() sends a reset, and a client that
        // is still writing would lose the answer. The connection's timer bounds
        // the time that this takes.
        let mut bytes = [0; 4096];
        while let Some(discarded) = stream.discarded.filter(|count| *count < MAX_DISCARDED) {
            let mut read = ReadBuf::new(&mut bytes);
            match ready!(Pin::new(&mut stream.io).poll_read(cx, &mut read)) {
                Ok(()) if !read.filled().is_empty() => {
                    stream.discarded = Some(discarded + read.filled().len());
                }
                // The end of input, or a reset.
                Ok(()) | Err(_) => break,
            }
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests;
