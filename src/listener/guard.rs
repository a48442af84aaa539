//! Between a socket and hyper: lets whole and unambiguous heads through, and
//! nothing else.
//!
//! A head that comes in pieces is held back until it is whole, so that a client
//! which dribbles costs its own bytes and no more, and so that a faulty head
//! can be replaced as a whole by the request that stands for its refusal
//! ([`REFUSED_HEAD`]). A head that comes in one piece, as nearly all do, is
//! scanned in hyper's own buffer and not copied.
//!
//! The guard also writes the connection's [`Activity`], and lingers on close where
//! unread bytes would make the kernel reset the connection under the client's
//! eyes.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::watch::ConnectionTimeouts;
use crate::clock::{Clock, Moment};
use crate::unsent::{Account, Buffer};
use crate::wire::activity::Activity;
use crate::wire::head::{HeadBounds, REFUSED_HEAD, Scan};

/// The most bytes that are read and thrown away on close.
const LINGER: usize = 256 * 1024;

/// A guarded stream.
pub(super) struct Guard<S> {
    io: S,
    scan: Scan,
    /// What has been read and not been handed on.
    held: Vec<u8>,
    /// How much of it may be.
    passed: usize,
    pulse: Arc<Activity>,
    clock: Clock,
    times: ConnectionTimeouts,
    stuck: bool,
    /// Bytes written since all was written, or since the client was stuck.
    written: u64,
    /// Where the connection stands among those that are stuck.
    account: Account,
    slow: Option<Slow>,
    /// Whether hyper has yet to learn that the client has closed its side.
    withheld: bool,
    refusing: Refusing,
    lingered: Option<usize>,
}

/// An answer that the client does not take at once. It lasts until all of it is
/// written.
struct Slow {
    /// What is being sent.
    buffer: Buffer,
    /// What the answer's body holds.
    backlog: Option<(usize, u64)>,
    /// By when the client must have taken more.
    due: Moment,
}

/// A stream that can be ended by a reset, so that the kernel drops what it holds
/// of an answer as well.
pub(super) trait Reset {
    /// Has the connection reset once the stream is dropped.
    fn will_reset(&self);
}

impl Reset for TcpStream {
    fn will_reset(&self) {
        // Where the socket refuses, it is closed in the ordinary way.
        let _ = SockRef::from(self).set_linger(Some(Duration::ZERO));
    }
}

enum Refusing {
    No,
    /// So much of the stand-in has been handed on.
    Since(usize),
}

impl<S> Guard<S> {
    /// Guards a stream that has just been accepted.
    pub(super) fn new(
        io: S,
        bounds: HeadBounds,
        times: ConnectionTimeouts,
        pulse: Arc<Activity>,
        clock: Clock,
        account: Account,
    ) -> Self {
        Self {
            io,
            scan: Scan::new(bounds),
            held: Vec::new(),
            passed: 0,
            pulse,
            clock,
            times,
            stuck: false,
            written: 0,
            account,
            slow: None,
            withheld: false,
            refusing: Refusing::No,
            lingered: None,
        }
    }

    /// Judges bytes that have come, after what is held; says how many of all
    /// may be handed on.
    fn judge(&mut self, bytes: Option<&[u8]>) -> usize {
        let now = self.clock.now();
        self.pulse.record(now);
        let all = bytes.unwrap_or(&self.held);
        let progress = self.scan.scan(all);
        if let Some(fault) = progress.fault {
            self.pulse.set_fault(fault);
            self.refusing = Refusing::Since(0);
        }
        let in_head = progress.passed < all.len() && !self.scan.in_body();
        match (in_head, self.pulse.head_since()) {
            (true, None) => self.pulse.set_head_since(Some(now)),
            (false, Some(_)) => self.pulse.set_head_since(None),
            (true, Some(_)) | (false, None) => {}
        }
        progress.passed
    }
}

impl<S: AsyncRead + Unpin> Guard<S> {
    /// Hands on what may be; `None` where more has to be read first.
    fn hand_on(&mut self, buf: &mut ReadBuf<'_>) -> Option<Poll<io::Result<()>>> {
        if self.passed > 0 {
            let some = self.passed.min(buf.remaining());
            buf.put_slice(&self.held[..some]);
            self.held.drain(..some);
            self.passed -= some;
            if self.held.is_empty() {
                self.held = Vec::new();
            }
            return Some(Poll::Ready(Ok(())));
        }
        let Refusing::Since(at) = &mut self.refusing else {
            return None;
        };
        let rest = &REFUSED_HEAD[*at..];
        if rest.is_empty() {
            // Nothing after the refused head is heard. It must not read as the
            // end of the stream, which hyper would take for a client that has
            // gone; the answer's `connection: close` ends this.
            return Some(Poll::Pending);
        }
        let some = rest.len().min(buf.remaining());
        buf.put_slice(&rest[..some]);
        *at += some;
        self.held = Vec::new();
        Some(Poll::Ready(Ok(())))
    }
}

impl<S> Guard<S> {
    /// The client has closed its side. hyper would drop what it is about to
    /// answer, so it learns of that only once all is answered and written, or
    /// when its grace is over: a client that waits is served, one that has gone
    /// does not hold its place for as long as the upstream takes.
    fn end(&mut self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        let now = self.clock.now();
        let Some(since) = self.pulse.ended_since() else {
            self.pulse.set_ended_since(now);
            cx.waker().wake_by_ref();
            return Poll::Pending;
        };
        // A request that has not come whole is not answered by waiting.
        let is_whole = !self.scan.in_body();
        let is_waited_for = now.since(since) < self.times.half_closed_timeout;
        self.withheld = is_whole && self.is_answering() && is_waited_for;
        match self.withheld {
            true => Poll::Pending,
            false => Poll::Ready(Ok(())),
        }
    }

    /// Whether an answer is under way, or written only in part.
    fn is_answering(&self) -> bool {
        self.pulse.is_busy() || self.stuck
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Guard<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let guard = self.get_mut();
        loop {
            if let Some(handed) = guard.hand_on(buf) {
                return handed;
            }
            if guard.pulse.fault().is_some() {
                // The watch has found the head too slow.
                guard.refusing = Refusing::Since(0);
                continue;
            }
            if guard.held.is_empty() {
                let before = buf.filled().len();
                ready!(Pin::new(&mut guard.io).poll_read(cx, buf))?;
                let come = buf.filled().len() - before;
                if come == 0 {
                    return guard.end(cx);
                }
                let passed = guard.judge(Some(&buf.filled()[before..]));
                if passed < come {
                    guard
                        .held
                        .extend_from_slice(&buf.filled()[before + passed..]);
                    buf.set_filled(before + passed);
                }
                if passed > 0 {
                    return Poll::Ready(Ok(()));
                }
            } else {
                let mut room = [0; 4096];
                let mut more = ReadBuf::new(&mut room);
                ready!(Pin::new(&mut guard.io).poll_read(cx, &mut more))?;
                if more.filled().is_empty() {
                    return guard.end(cx);
                }
                guard.held.extend_from_slice(more.filled());
                guard.passed = guard.judge(None);
            }
        }
    }
}

impl<S: Reset> Guard<S> {
    /// Takes note of a write of these bytes. Where all goes well it is an
    /// addition; the rest is for clients that do not take what is written.
    fn note(
        &mut self,
        cx: &Context<'_>,
        written: Poll<io::Result<usize>>,
        offered: impl FnOnce() -> Offered,
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(count)) = &written {
            self.written += *count as u64;
        }
        match (written.is_pending(), self.stuck) {
            (true, _) => return self.set_stuck(cx, offered()),
            (false, true) => {
                self.stuck = false;
                self.pulse.set_unstuck();
            }
            (false, false) => {}
        }
        written
    }

    #[cold]
    fn set_stuck(&mut self, cx: &Context<'_>, offered: Offered) -> Poll<io::Result<usize>> {
        let taken = std::mem::take(&mut self.written);
        let backlog = self.pulse.backlog();
        let is_as_before = self
            .slow
            .as_ref()
            .is_some_and(|slow| slow.backlog == backlog);
        if self.stuck && taken == 0 && is_as_before && !self.pulse.is_cut() {
            // Polled again, and nothing has changed.
            return Poll::Pending;
        }
        let now = self.clock.now();
        let before = self.slow.take();
        let due = before.as_ref().map(|slow| (slow.due, taken));
        let due = self.times.due(due, now);
        let known = before
            .as_ref()
            .filter(|slow| slow.buffer.end == offered.end);
        let buffer = match (backlog, known) {
            // What is being written is a part of it.
            (Some((end, bytes)), _) => Buffer { end, bytes },
            // The buffer is freed as a whole: what of it has been written counts.
            (None, Some(slow)) => Buffer {
                end: offered.end,
                bytes: slow.buffer.bytes.max(offered.bytes),
            },
            (None, None) => Buffer {
                end: offered.end,
                bytes: offered.bytes + taken,
            },
        };
        let is_known = before.as_ref().is_some_and(|slow| slow.buffer == buffer);
        self.slow = Some(Slow {
            buffer,
            backlog,
            due,
        });
        self.stuck = true;
        self.pulse.set_stuck(now, due);
        if !is_known {
            self.account.hold(buffer, now, &self.pulse, cx.waker());
        }
        if self.pulse.is_cut() {
            self.io.will_reset();
            return Poll::Ready(Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the client does not take its answer",
            )));
        }
        Poll::Pending
    }
}

/// What is to be written.
struct Offered {
    /// The address where the largest slice ends.
    end: usize,
    /// The length of all.
    bytes: u64,
}

impl Offered {
    fn of<'b>(slices: impl Iterator<Item = &'b [u8]> + Clone) -> Self {
        let largest = slices.clone().max_by_key(|slice| slice.len());
        Self {
            end: largest.map_or(0, |slice| slice.as_ptr_range().end.addr()),
            bytes: slices.map(|slice| slice.len() as u64).sum(),
        }
    }
}

impl<S> Drop for Guard<S> {
    fn drop(&mut self) {
        if self.slow.is_some() {
            self.account.release();
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Reset + Unpin> AsyncWrite for Guard<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let guard = self.get_mut();
        let written = Pin::new(&mut guard.io).poll_write(cx, bytes);
        guard.note(cx, written, || Offered::of(std::iter::once(bytes)))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let guard = self.get_mut();
        let written = Pin::new(&mut guard.io).poll_write_vectored(cx, slices);
        guard.note(cx, written, || {
            Offered::of(slices.iter().map(|slice| &**slice))
        })
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let guard = self.get_mut();
        ready!(Pin::new(&mut guard.io).poll_flush(cx))?;
        // hyper flushes once all that it has is written.
        guard.written = 0;
        if guard.slow.is_some() {
            guard.slow = None;
            guard.account.release();
            guard.pulse.spare();
        }
        if guard.withheld && !guard.is_answering() {
            // All is written, and hyper does not read again by itself.
            guard.withheld = false;
            cx.waker().wake_by_ref();
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let guard = self.get_mut();
        if guard.lingered.is_none() {
            ready!(Pin::new(&mut guard.io).poll_shutdown(cx))?;
            let unread = matches!(guard.refusing, Refusing::Since(_)) || guard.scan.in_body();
            guard.lingered = Some(if unread { 0 } else { LINGER });
        }
        // A socket that is closed with unread bytes is reset, and a client that
        // still writes would lose the answer. The watch ends what takes long.
        let mut room = [0; 4096];
        while let Some(lingered) = guard.lingered.filter(|lingered| *lingered < LINGER) {
            let mut waste = ReadBuf::new(&mut room);
            match ready!(Pin::new(&mut guard.io).poll_read(cx, &mut waste)) {
                Ok(()) if !waste.filled().is_empty() => {
                    guard.lingered = Some(lingered + waste.filled().len());
                }
                // The end, or a reset: either way there is nothing left to do.
                Ok(()) | Err(_) => break,
            }
        }
        Poll::Ready(Ok(()))
    }
}
