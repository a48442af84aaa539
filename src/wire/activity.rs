//! State of one client connection that its tasks share: when it was last active,
//! how far it is with its head and its answer, and whether it must be closed.
//!
//! The listener's guard writes it while it reads and writes the socket; the
//! connection's one timer and the gateway read it. It is plain numbers, so that a
//! request needs no timer of its own.

use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed,
};

use super::head::HeadFault;
use crate::clock::Moment;

/// Activity of one connection. Every access is relaxed: nearly all numbers are
/// read by the task that wrote them, and none orders anything else.
#[derive(Debug, Default)]
pub struct Activity {
    fault: AtomicU8,
    last: AtomicU64,
    head_since: AtomicU64,
    stalled_since: AtomicU64,
    write_deadline: AtomicU64,
    /// Bytes that the answer's body buffers beside what is being written, and the
    /// address of that buffer.
    backlog: AtomicU64,
    backlog_of: AtomicUsize,
    half_closed_since: AtomicU64,
    draining: AtomicBool,
    reset: AtomicBool,
    /// Whether `last` may be older than the next request.
    outdated: AtomicBool,
    /// Requests and answers in progress.
    busy: AtomicU32,
}

impl Activity {
    /// A connection that was accepted at a moment.
    pub fn new(now: Moment) -> Self {
        let activity = Self::default();
        activity.record(now);
        activity
    }

    /// Records that bytes were read or an answer was made.
    pub fn record(&self, now: Moment) {
        self.last.store(now.nanos(), Relaxed);
    }

    /// When bytes were last read or an answer was last made.
    pub fn last(&self) -> Moment {
        Moment::from_nanos(self.last.load(Relaxed))
    }

    /// Records when an incomplete head began; `None` once it is complete.
    pub(crate) fn set_head_since(&self, since: Option<Moment>) {
        self.head_since
            .store(since.map_or(0, Moment::nanos), Relaxed);
    }

    /// When the incomplete head began.
    pub(crate) fn head_since(&self) -> Option<Moment> {
        some(self.head_since.load(Relaxed))
    }

    /// The socket accepts no more bytes of the answer. The client must read more
    /// by the deadline.
    pub(crate) fn set_stalled(&self, since: Moment, write_deadline: Moment) {
        self.write_deadline.store(write_deadline.nanos(), Relaxed);
        self.stalled_since.store(since.nanos(), Relaxed);
        self.outdated.store(true, Relaxed);
    }

    /// The socket accepts bytes again.
    pub(crate) fn clear_stalled(&self) {
        self.stalled_since.store(0, Relaxed);
    }

    /// Since when the socket has accepted no bytes of the answer.
    pub(crate) fn stalled_since(&self) -> Option<Moment> {
        some(self.stalled_since.load(Relaxed))
    }

    /// By when the client of a stalled connection must read more.
    pub(crate) fn write_deadline(&self) -> Moment {
        Moment::from_nanos(self.write_deadline.load(Relaxed))
    }

    /// Sets the size of the buffer that the answer's body holds, which several
    /// connections may share; `of` is its address. The body calls this whenever
    /// the buffer grows, and with 0 bytes at its end.
    pub(crate) fn set_backlog(&self, of: usize, bytes: u64) {
        self.backlog_of.store(of, Relaxed);
        self.backlog.store(bytes, Relaxed);
    }

    /// The address and the size of the buffer that the answer's body holds.
    pub(crate) fn backlog(&self) -> Option<(usize, u64)> {
        let bytes = self.backlog.load(Relaxed);
        (bytes > 0).then(|| (self.backlog_of.load(Relaxed), bytes))
    }

    /// Asks for a reset of the connection: its client reads too slowly, or its
    /// memory is needed.
    pub(crate) fn request_reset(&self) {
        self.reset.store(true, Relaxed);
    }

    /// Withdraws that, since the client has read all of its answer.
    pub(crate) fn cancel_reset(&self) {
        self.reset.store(false, Relaxed);
    }

    /// Whether the connection must be reset.
    pub(crate) fn is_reset_requested(&self) -> bool {
        self.reset.load(Relaxed)
    }

    /// Whether [`last`](Self::last) may be older than the next request: the
    /// request may have been read into the buffer while a long answer was still
    /// being written.
    pub(crate) fn is_outdated(&self) -> bool {
        self.outdated.load(Relaxed)
    }

    /// Makes this the moment of the next request.
    pub(crate) fn refresh(&self, now: Moment) {
        self.record(now);
        self.outdated.store(false, Relaxed);
    }

    /// The client has closed its side of the connection.
    pub(crate) fn set_half_closed_since(&self, since: Moment) {
        self.half_closed_since.store(since.nanos(), Relaxed);
    }

    /// Since when the client's side of the connection has been closed.
    pub(crate) fn half_closed_since(&self) -> Option<Moment> {
        some(self.half_closed_since.load(Relaxed))
    }

    /// Records why the next message is refused. The first fault stays.
    pub(crate) fn set_fault(&self, fault: HeadFault) {
        let _first = self
            .fault
            .compare_exchange(0, fault as u8, Relaxed, Relaxed);
    }

    /// Why the next message is refused.
    pub(crate) fn fault(&self) -> Option<HeadFault> {
        HeadFault::from_code(self.fault.load(Relaxed))
    }

    /// The connection must close after the next answer.
    pub(crate) fn set_draining(&self) {
        self.draining.store(true, Relaxed);
    }

    /// Whether the connection closes after the next answer, which then carries
    /// `connection: close`.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Relaxed)
    }

    /// A request is in progress until the guard is dropped.
    pub(crate) fn begin_request(&self) -> RequestGuard<'_> {
        self.busy.fetch_add(1, Relaxed);
        RequestGuard(self)
    }

    /// A streamed answer is in progress until the guard is dropped.
    pub(crate) fn begin_answer(self: &Arc<Self>) -> AnswerGuard {
        self.outdated.store(true, Relaxed);
        self.busy.fetch_add(1, Relaxed);
        AnswerGuard(self.clone())
    }

    /// Whether a request or an answer is in progress.
    pub(crate) fn is_busy(&self) -> bool {
        self.busy.load(Relaxed) > 0
    }
}

/// A request in progress.
pub(crate) struct RequestGuard<'a>(&'a Activity);

impl Drop for RequestGuard<'_> {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Relaxed);
    }
}

/// A streamed answer in progress.
pub(crate) struct AnswerGuard(Arc<Activity>);

impl Drop for AnswerGuard {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Relaxed);
    }
}

fn some(nanos: u64) -> Option<Moment> {
    (nanos > 0).then(|| Moment::from_nanos(nanos))
}
