//! The stream between a client's socket and hyper.
//!
//! Reading, it passes only complete, unambiguous heads
//! ([`RequestScanner`]). An incomplete head is buffered here, so that a refused
//! one can be replaced as a whole ([`replacement`]). A head that arrives in one
//! piece, as nearly all do, is scanned in hyper's own buffer without a copy.
//!
//! Writing ([`mod@write`]), it notices clients that do not read their answer.
//!
//! It records the connection's [`Activity`] for the timer that ends it.

mod write;

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::io::{AsyncRead, ReadBuf};
use write::PendingWrite;

use super::watch::ConnectionTimeouts;
use crate::clock::Clock;
use crate::unsent::UnsentConnection;
use crate::wire::activity::Activity;
use crate::wire::head::{HeadBounds, RequestScanner, replacement};

/// A client's connection as hyper sees it.
pub(super) struct GuardedStream<S> {
    io: S,
    scanner: RequestScanner,
    /// Bytes that have been read and not been passed to hyper.
    buffered: Vec<u8>,
    /// How many of them may be passed.
    ready: usize,
    activity: Arc<Activity>,
    clock: Clock,
    times: ConnectionTimeouts,
    /// What is left of the [`replacement`] to pass, once a head has been refused.
    refused: Option<Bytes>,
    /// Whether the client has closed its side and hyper does not know it yet.
    eof_withheld: bool,
    /// Whether the socket accepts no more bytes.
    stalled: bool,
    /// Bytes written since the answer began, or since the socket stalled.
    written: u64,
    /// Of the bytes that the socket has accepted, how many it had when the stream could
    /// last not be flushed.
    flushed: u64,
    unsent: UnsentConnection,
    pending: Option<PendingWrite>,
    /// Bytes discarded while lingering on close.
    discarded: Option<usize>,
    /// Which protocol the client speaks.
    protocol: Protocol,
}

/// What is known of the protocol on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    /// No complete head has arrived.
    Unknown,
    /// HTTP/1.1 or 1.0.
    Http1,
    /// HTTP/2, by prior knowledge.
    Http2,
}

/// The line that a client's first bytes begin with in HTTP/2 (RFC 9113 §3.4).
pub(super) const HTTP2_PREFACE_LINE: &[u8] = b"PRI * HTTP/2.0\r\n";

impl<S> GuardedStream<S> {
    /// Guards a connection that has just been accepted. With [`Protocol::Http1`], the
    /// preface of HTTP/2 is refused like any other malformed head.
    pub(super) fn new(
        io: S,
        bounds: HeadBounds,
        times: ConnectionTimeouts,
        activity: Arc<Activity>,
        clock: Clock,
        unsent: UnsentConnection,
        protocol: Protocol,
    ) -> Self {
        Self {
            io,
            scanner: RequestScanner::new(bounds),
            buffered: Vec::new(),
            ready: 0,
            activity,
            clock,
            times,
            refused: None,
            eof_withheld: false,
            stalled: false,
            written: 0,
            flushed: 0,
            unsent,
            pending: None,
            discarded: None,
            protocol,
        }
    }

    /// The stream, and what has been read of it, if the client speaks HTTP/2. hyper
    /// has seen none of it then, but for an error that ended its connection.
    pub(super) fn into_http2(self) -> Option<(S, Vec<u8>, UnsentConnection)> {
        self.is_http2()
            .then_some((self.io, self.buffered, self.unsent))
    }

    fn is_http2(&self) -> bool {
        self.protocol == Protocol::Http2
    }

    /// Scans newly read bytes; with `None`, all that is buffered. Returns how many
    /// may be passed to hyper.
    fn scan(&mut self, bytes: Option<&[u8]>) -> usize {
        let now = self.clock.now();
        self.activity.record(now);
        let all = bytes.unwrap_or(&self.buffered);
        let progress = self.scanner.scan(all);
        if let Some(fault) = progress.fault {
            if self.protocol == Protocol::Unknown && all.starts_with(HTTP2_PREFACE_LINE) {
                self.protocol = Protocol::Http2;
                self.activity.set_head_since(None);
                return 0;
            }
            self.activity.set_fault(fault);
            self.refused = Some(replacement(&all[progress.passed..], fault));
        }
        let in_head = progress.passed < all.len() && !self.scanner.in_body();
        match (in_head, self.activity.head_since()) {
            (true, None) => self.activity.set_head_since(Some(now)),
            (false, Some(_)) => self.activity.set_head_since(None),
            (true, Some(_)) | (false, None) => {}
        }
        progress.passed
    }

    /// Whether an answer is in progress, or not completely written.
    fn is_answering(&self) -> bool {
        self.activity.is_busy() || self.stalled
    }

    /// The client has closed its side. hyper would then drop the answer in
    /// progress, so the end of input is withheld from it until the answer is
    /// written or `half_closed_timeout` has passed: a client that still reads gets
    /// its answer, and one that has gone frees its connection soon.
    fn end_of_input(&mut self, cx: &Context<'_>) -> Poll<io::Result<()>> {
        let now = self.clock.now();
        let Some(since) = self.activity.half_closed_since() else {
            self.activity.set_half_closed_since(now);
            cx.waker().wake_by_ref();
            return Poll::Pending;
        };
        // A request that is incomplete can no longer be answered.
        let is_complete = !self.scanner.in_body();
        let is_in_time = now.since(since) < self.times.half_closed_timeout;
        self.eof_withheld = is_complete && self.is_answering() && is_in_time;
        match self.eof_withheld {
            true => Poll::Pending,
            false => Poll::Ready(Ok(())),
        }
    }

    /// Passes buffered bytes, or the replacement of a refused head; `None` where
    /// more has to be read first.
    fn pass(&mut self, buf: &mut ReadBuf<'_>) -> Option<Poll<io::Result<()>>> {
        if self.ready > 0 {
            let count = self.ready.min(buf.remaining());
            buf.put_slice(&self.buffered[..count]);
            self.buffered.drain(..count);
            self.ready -= count;
            if self.buffered.is_empty() {
                self.buffered = Vec::new();
            }
            return Some(Poll::Ready(Ok(())));
        }
        let rest = self.refused.as_mut()?;
        if rest.is_empty() {
            // Nothing is read after a refused head. hyper must not see an end of
            // input either: it would drop the answer, whose `connection: close`
            // ends the connection.
            return Some(Poll::Pending);
        }
        let count = rest.len().min(buf.remaining());
        buf.put_slice(&rest.split_to(count));
        self.buffered = Vec::new();
        Some(Poll::Ready(Ok(())))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for GuardedStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        loop {
            if let Some(passed) = stream.pass(buf) {
                return passed;
            }
            if stream.is_http2() {
                return Poll::Ready(Err(io::Error::other("the client speaks HTTP/2")));
            }
            if let Some(fault) = stream.activity.fault() {
                // The connection's timer has refused the head as too slow.
                stream.refused = Some(replacement(&stream.buffered, fault));
                continue;
            }
            if stream.buffered.is_empty() {
                let before = buf.filled().len();
                ready!(Pin::new(&mut stream.io).poll_read(cx, buf))?;
                let count = buf.filled().len() - before;
                if count == 0 {
                    return stream.end_of_input(cx);
                }
                let passed = stream.scan(Some(&buf.filled()[before..]));
                if passed < count {
                    stream
                        .buffered
                        .extend_from_slice(&buf.filled()[before + passed..]);
                    buf.set_filled(before + passed);
                }
                if passed > 0 {
                    stream.protocol = Protocol::Http1;
                    return Poll::Ready(Ok(()));
                }
            } else {
                let mut bytes = [0; 4096];
                let mut more = ReadBuf::new(&mut bytes);
                ready!(Pin::new(&mut stream.io).poll_read(cx, &mut more))?;
                if more.filled().is_empty() {
                    return stream.end_of_input(cx);
                }
                stream.buffered.extend_from_slice(more.filled());
                stream.ready = stream.scan(None);
                if stream.ready > 0 {
                    stream.protocol = Protocol::Http1;
                }
            }
        }
    }
}
