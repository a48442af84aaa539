//! The signs of life of one connection: written by the guard that reads and
//! writes it, read by the watch that ends it and by the walk.
//!
//! One timer watches a connection, not one for each request; so what the timer
//! needs to know is kept here, in plain numbers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};

use super::head::HeadFault;
use crate::clock::Moment;

/// Signs of life. All is relaxed: the numbers are read by the task that wrote
/// them, and order nothing else.
#[derive(Debug, Default)]
pub struct Pulse {
    fault: AtomicU8,
    heard: AtomicU64,
    head_since: AtomicU64,
    stuck_since: AtomicU64,
    ended_since: AtomicU64,
    draining: AtomicBool,
    busy: AtomicU32,
}

impl Pulse {
    /// A connection that began at a moment.
    pub fn new(now: Moment) -> Self {
        let pulse = Self::default();
        pulse.hear(now);
        pulse
    }

    /// Bytes have come, or an answer has been made: the connection lives.
    pub fn hear(&self, now: Moment) {
        self.heard.store(now.nanos(), Relaxed);
    }

    /// When it was last heard of.
    pub fn heard(&self) -> Moment {
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

    /// The client does not take what is written, or does so again.
    pub fn set_stuck_since(&self, since: Option<Moment>) {
        self.stuck_since
            .store(since.map_or(0, Moment::nanos), Relaxed);
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
    pub fn work(&self) -> Working<'_> {
        self.busy.fetch_add(1, Relaxed);
        Working(self)
    }

    /// The same for an answer that goes on for a while once it has begun.
    pub fn go_on_working(self: &Arc<Self>) -> StillWorking {
        self.busy.fetch_add(1, Relaxed);
        StillWorking(self.clone())
    }

    /// Whether a request waits for its answer, or for the rest of it.
    pub fn is_busy(&self) -> bool {
        self.busy.load(Relaxed) > 0
    }
}

/// A request that waits for its answer.
pub struct Working<'p>(&'p Pulse);

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Relaxed);
    }
}

/// An answer that goes on, wherever it is kept.
pub struct StillWorking(Arc<Pulse>);

impl Drop for StillWorking {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Relaxed);
    }
}

fn some(nanos: u64) -> Option<Moment> {
    (nanos > 0).then(|| Moment::from_nanos(nanos))
}
