//! The signs of life of one connection: written by the guard that reads and
//! writes it, read by the watch that ends it and by the walk.
//!
//! One timer watches a connection, not one for each request; so what the timer
//! needs to know is kept here, in plain numbers.

use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed,
};

use super::head::HeadFault;
use crate::clock::Moment;

/// Signs of life. All is relaxed: the numbers are read by the task that wrote
/// them, and order nothing else.
#[derive(Debug, Default)]
pub struct Activity {
    fault: AtomicU8,
    heard: AtomicU64,
    head_since: AtomicU64,
    stuck_since: AtomicU64,
    /// When the client must have taken more.
    due: AtomicU64,
    /// Bytes that the answer's body holds beside what is being written, and what
    /// holds them.
    backlog: AtomicU64,
    backlog_of: AtomicUsize,
    ended_since: AtomicU64,
    draining: AtomicBool,
    cut: AtomicBool,
    /// Whether time may have passed since `heard` without bytes from the client.
    late: AtomicBool,
    busy: AtomicU32,
}

impl Activity {
    /// A connection that began at a moment.
    pub fn new(now: Moment) -> Self {
        let pulse = Self::default();
        pulse.record(now);
        pulse
    }

    /// Bytes have come, or an answer has been made: the connection lives.
    pub fn record(&self, now: Moment) {
        self.heard.store(now.nanos(), Relaxed);
    }

    /// When it was last heard of.
    pub fn last(&self) -> Moment {
        Moment::from_nanos(self.heard.load(Relaxed))
    }

    /// A head has begun and is not complete, or is no longer so.
    pub fn set_head_since(&self, since: Option<Moment>) {
        self.head_since
            .store(since.map_or(0, Moment::nanos), Relaxed);
    }

    /// Since when a head has been incomplete.
    pub fn head_since(&self) -> Option<Moment> {
        some(self.head_since.load(Relaxed))
    }

    /// The client does not take what is written, and must have taken more by a
    /// moment.
    pub fn set_stuck(&self, since: Moment, due: Moment) {
        self.due.store(due.nanos(), Relaxed);
        self.stuck_since.store(since.nanos(), Relaxed);
        self.late.store(true, Relaxed);
    }

    /// The client takes what is written again.
    pub fn set_unstuck(&self) {
        self.stuck_since.store(0, Relaxed);
    }

    /// When a client that is stuck must have taken more.
    pub fn due(&self) -> Moment {
        Moment::from_nanos(self.due.load(Relaxed))
    }

    /// The body of the answer holds so many bytes, perhaps for several
    /// connections: `of` is the address of what holds them. A body that holds a
    /// buffer says so whenever that grows, and zero at its end.
    pub fn set_backlog(&self, of: usize, bytes: u64) {
        self.backlog_of.store(of, Relaxed);
        self.backlog.store(bytes, Relaxed);
    }

    /// What the body of the answer holds beside what is being written: where,
    /// and how many bytes.
    pub fn backlog(&self) -> Option<(usize, u64)> {
        let bytes = self.backlog.load(Relaxed);
        (bytes > 0).then(|| (self.backlog_of.load(Relaxed), bytes))
    }

    /// The connection is to be reset: its client takes too little, or others
    /// need the memory.
    pub fn cut(&self) {
        self.cut.store(true, Relaxed);
    }

    /// It has taken all of its answer after all.
    pub fn spare(&self) {
        self.cut.store(false, Relaxed);
    }

    /// Whether it is to be reset.
    pub fn is_cut(&self) -> bool {
        self.cut.load(Relaxed)
    }

    /// Whether [`last`](Self::last) may be too old to judge a request by: an
    /// answer took its time since, and the request was already in the buffer.
    pub fn is_late(&self) -> bool {
        self.late.load(Relaxed)
    }

    /// Judges what comes by this moment.
    pub fn catch_up(&self, now: Moment) {
        self.record(now);
        self.late.store(false, Relaxed);
    }

    /// Since when the client has not taken what is written.
    pub fn stuck_since(&self) -> Option<Moment> {
        some(self.stuck_since.load(Relaxed))
    }

    /// The client has closed its side.
    pub fn set_ended_since(&self, since: Moment) {
        self.ended_since.store(since.nanos(), Relaxed);
    }

    /// Since when the client's side has been closed.
    pub fn ended_since(&self) -> Option<Moment> {
        some(self.ended_since.load(Relaxed))
    }

    /// Says what is wrong with the message that comes next; the first fault
    /// stands.
    pub fn set_fault(&self, fault: HeadFault) {
        let _first = self
            .fault
            .compare_exchange(0, fault as u8, Relaxed, Relaxed);
    }

    /// What is wrong with the message that comes next.
    pub fn fault(&self) -> Option<HeadFault> {
        HeadFault::from_code(self.fault.load(Relaxed))
    }

    /// The connection is to end after the next answer.
    pub fn set_draining(&self) {
        self.draining.store(true, Relaxed);
    }

    /// Whether it is to end after the next answer, which should say so.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Relaxed)
    }

    /// A request waits for its answer until the token is dropped.
    pub fn work(&self) -> RequestGuard<'_> {
        self.busy.fetch_add(1, Relaxed);
        RequestGuard(self)
    }

    /// The same for an answer that goes on for a while once it has begun.
    pub fn go_on_working(self: &Arc<Self>) -> AnswerGuard {
        self.late.store(true, Relaxed);
        self.busy.fetch_add(1, Relaxed);
        AnswerGuard(self.clone())
    }

    /// Whether a request waits for its answer, or for the rest of it.
    pub fn is_busy(&self) -> bool {
        self.busy.load(Relaxed) > 0
    }
}

/// A request that waits for its answer.
pub struct RequestGuard<'p>(&'p Activity);

impl Drop for RequestGuard<'_> {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Relaxed);
    }
}

/// An answer that goes on, wherever it is kept.
pub struct AnswerGuard(Arc<Activity>);

impl Drop for AnswerGuard {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Relaxed);
    }
}

fn some(nanos: u64) -> Option<Moment> {
    (nanos > 0).then(|| Moment::from_nanos(nanos))
}
