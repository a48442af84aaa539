//! What is counted of asking the upstream.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::{Failure, Priority};

/// Why a request is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendReason {
    /// It is wished so.
    First(Priority),
    /// The one before has failed.
    Retry,
    /// The one before is slow.
    Hedge,
    /// A target was refused: whether the status path accepts the key.
    KeyCheck,
}

impl SendReason {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::First(Priority::Probe),
        Self::First(Priority::Miss),
        Self::First(Priority::Revalidation),
        Self::First(Priority::LookAhead),
        Self::Retry,
        Self::Hedge,
        Self::KeyCheck,
    ];

    /// Its word in logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::First(priority) => priority.name(),
            Self::Retry => "retry",
            Self::Hedge => "hedge",
            Self::KeyCheck => "key-check",
        }
    }

    const fn index(self) -> usize {
        match self {
            Self::First(priority) => priority.index(),
            Self::Retry => Priority::ALL.len(),
            Self::Hedge => Priority::ALL.len() + 1,
            Self::KeyCheck => Priority::ALL.len() + 2,
        }
    }
}

/// What has been sent and what came of it.
#[derive(Debug, Default)]
pub struct Counters {
    sent: [AtomicU64; SendReason::ALL.len()],
    /// Answers that could be handed on.
    pub answered: AtomicU64,
    /// Failures after sending, those that a retry made good not among them.
    pub failed: AtomicU64,
    /// Refused for want of budget, never sent.
    pub spent: AtomicU64,
    /// Refused since as many were under way, or waited, as may; never sent.
    pub crowded: AtomicU64,
    /// Of those refused for want of budget: there was some for clients that had
    /// had less of it.
    pub over_budget_share: AtomicU64,
    /// Of those refused since as many were under way as may: a slot was free for
    /// clients that held fewer.
    pub over_slot_share: AtomicU64,
    /// Not sent, since the upstream goes on failing.
    pub broken: AtomicU64,
    /// Not sent again, since too many were lately.
    pub unretried: AtomicU64,
    /// How often another endpoint was turned to for good.
    pub switches: AtomicU64,
}

impl Counters {
    /// A request is sent.
    pub fn send(&self, reason: SendReason) {
        self.sent[reason.index()].fetch_add(1, Relaxed);
    }

    /// Requests sent for a reason.
    pub fn sent_for(&self, reason: SendReason) -> u64 {
        self.sent[reason.index()].load(Relaxed)
    }

    /// Requests sent.
    pub fn sent(&self) -> u64 {
        self.sent.iter().map(|sent| sent.load(Relaxed)).sum()
    }

    /// A request is not sent, for such a reason.
    pub(super) fn refuse(&self, why: &Failure) {
        let spent = matches!(why, Failure::Spent { .. });
        let broken = matches!(why, Failure::BreakerOpen { .. });
        let counts = [
            (&self.spent, spent),
            (&self.broken, broken),
            (&self.crowded, *why == Failure::TooManyInFlight),
        ];
        for (count, _) in counts.into_iter().filter(|(_, is_it)| *is_it) {
            count.fetch_add(1, Relaxed);
        }
    }

    /// What was refused just now was so for its client's share of the budget.
    pub(super) fn count_over_budget_share(&self) {
        self.over_budget_share.fetch_add(1, Relaxed);
    }

    /// It was so for its client's share of the slots.
    pub(super) fn count_over_slot_share(&self) {
        self.over_slot_share.fetch_add(1, Relaxed);
    }

    pub(super) fn count_answered(&self) {
        self.answered.fetch_add(1, Relaxed);
    }

    pub(super) fn count_failed(&self) {
        self.failed.fetch_add(1, Relaxed);
    }

    pub(super) fn count_unretried(&self) {
        self.unretried.fetch_add(1, Relaxed);
    }
}
