//! Counters of the requests to an upstream.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::Priority;
use super::admission::Denied;
use crate::clock::Moment;
use crate::sync::lock;

/// Why a request is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendReason {
    /// First attempt, at this priority.
    First(Priority),
    /// The attempt before has failed.
    Retry,
    /// A key check, after a target was refused.
    KeyCheck,
}

impl SendReason {
    /// All reasons.
    pub const ALL: [Self; 5] = [
        Self::First(Priority::Probe),
        Self::First(Priority::Miss),
        Self::First(Priority::Revalidation),
        Self::Retry,
        Self::KeyCheck,
    ];

    /// Its name in logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::First(priority) => priority.name(),
            Self::Retry => "retry",
            Self::KeyCheck => "key-check",
        }
    }

    pub(super) const fn index(self) -> usize {
        match self {
            Self::First(priority) => priority.index(),
            Self::Retry => Priority::ALL.len(),
            Self::KeyCheck => Priority::ALL.len() + 1,
        }
    }
}

/// The requests sent to an upstream, and their outcomes.
#[derive(Debug, Default)]
pub struct Counters {
    sent: [AtomicU64; SendReason::ALL.len()],
    /// Answers that could be passed on.
    pub answered: AtomicU64,
    /// Requests that failed after sending, without a successful retry.
    pub failed: AtomicU64,
    /// Not sent: no budget was left.
    pub no_budget: AtomicU64,
    /// Not sent: too many were in flight, or waited.
    pub no_slot: AtomicU64,
    /// Of `no_slot`: those for which clients with fewer slots still had a slot.
    pub over_slot_share: AtomicU64,
    /// Not sent: the circuit breaker was open.
    pub broken: AtomicU64,
    /// Not retried: the retry budget was used up.
    pub unretried: AtomicU64,
    /// How often the endpoint in use changed.
    pub switches: AtomicU64,
    last_failover: Mutex<Option<Failover>>,
}

/// A change of the endpoint in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failover {
    pub(crate) at: Moment,
    /// The base URL of the endpoint before.
    pub(crate) from: Box<str>,
    /// The base URL of the endpoint from then on.
    pub(crate) to: Box<str>,
    /// Why: the condition of the endpoint before, and its last failure.
    pub(crate) cause: String,
}

impl Counters {
    /// Counts a request that is sent.
    pub fn send(&self, reason: SendReason) {
        self.sent[reason.index()].fetch_add(1, Relaxed);
    }

    /// Requests sent for a reason.
    pub fn sent_for(&self, reason: SendReason) -> u64 {
        self.sent[reason.index()].load(Relaxed)
    }

    /// All requests sent.
    pub fn sent(&self) -> u64 {
        self.sent.iter().map(|sent| sent.load(Relaxed)).sum()
    }

    /// Counts a request that is not admitted.
    pub(super) fn count_denied(&self, denied: Denied) {
        let count = match denied {
            Denied::NoSlot => &self.no_slot,
            Denied::SpentFor(_) | Denied::SpentUntilRequestEnds => &self.no_budget,
            Denied::BreakerOpen(_) => &self.broken,
            Denied::KeyRefused(_) => return,
        };
        count.fetch_add(1, Relaxed);
    }

    /// Counts a denied request that is beyond the client's share of the slots.
    pub(super) fn count_over_slot_share(&self) {
        self.over_slot_share.fetch_add(1, Relaxed);
    }

    pub(super) fn count_answered(&self) {
        self.answered.fetch_add(1, Relaxed);
    }

    pub(super) fn count_failed(&self) {
        self.failed.fetch_add(1, Relaxed);
    }

    /// Counts a change of the endpoint in use.
    pub(super) fn switch(&self, failover: Failover) {
        self.switches.fetch_add(1, Relaxed);
        *lock(&self.last_failover) = Some(failover);
    }

    /// The last change of the endpoint in use.
    pub(crate) fn last_failover(&self) -> Option<Failover> {
        lock(&self.last_failover).clone()
    }

    pub(super) fn count_unretried(&self) {
        self.unretried.fetch_add(1, Relaxed);
    }
}
