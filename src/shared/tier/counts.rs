//! What the second tier has done, for `/status` and metrics.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use super::usable::UnusableReason;

/// Counts since the start.
#[derive(Debug, Default)]
pub(super) struct TierCounts {
    pub(super) hits: AtomicU64,
    pub(super) unusable: [AtomicU64; UnusableReason::REASONS.len()],
    pub(super) led: AtomicU64,
    pub(super) followed: AtomicU64,
    pub(super) given_up: AtomicU64,
    pub(super) unlocked: AtomicU64,
    pub(super) skipped: AtomicU64,
    pub(super) errors: AtomicU64,
    pub(super) stored: AtomicU64,
    pub(super) overtaken: AtomicU64,
    pub(super) dropped: AtomicU64,
    pub(super) too_large: AtomicU64,
    pub(super) unstored: AtomicU64,
}

/// The tier as `/status` and metrics show it.
#[derive(Clone, Debug)]
pub(crate) struct TierSnapshot {
    /// Whether responses are looked up now.
    pub(crate) is_used: bool,
    /// Look-ups that found a usable response.
    pub(crate) hits: u64,
    /// Responses that were found and not used, by [`UnusableReason::REASONS`].
    pub(crate) unusable: [(&'static str, u64); UnusableReason::REASONS.len()],
    /// Fetches under a lock.
    pub(crate) led: u64,
    /// Look-ups that waited for another replica's fetch.
    pub(crate) followed: u64,
    /// Fetches under a lock that gave it up without a response.
    pub(crate) given_up: u64,
    /// Fetches without a lock after a wait, or because too many waited.
    pub(crate) unlocked: u64,
    /// Fetches without a look-up: the replica was not in sync with the journal.
    pub(crate) skipped: u64,
    /// Look-ups that the engine did not answer.
    pub(crate) errors: u64,
    /// Responses stored.
    pub(crate) stored: u64,
    /// Responses that were not stored, since a later one was.
    pub(crate) overtaken: u64,
    /// Responses that were not stored, since too many waited.
    pub(crate) dropped: u64,
    /// Responses that were not stored, since they were too large.
    pub(crate) too_large: u64,
    /// Responses that were not stored, since the engine did not answer.
    pub(crate) unstored: u64,
    /// Responses that wait to be stored.
    pub(crate) queued: u64,
}

impl TierCounts {
    pub(super) fn snapshot(&self, is_used: bool, queued: u64) -> TierSnapshot {
        let read = |counter: &AtomicU64| counter.load(Relaxed);
        let unusable =
            std::array::from_fn(|at| (UnusableReason::REASONS[at], read(&self.unusable[at])));
        TierSnapshot {
            is_used,
            hits: read(&self.hits),
            unusable,
            led: read(&self.led),
            followed: read(&self.followed),
            given_up: read(&self.given_up),
            unlocked: read(&self.unlocked),
            skipped: read(&self.skipped),
            errors: read(&self.errors),
            stored: read(&self.stored),
            overtaken: read(&self.overtaken),
            dropped: read(&self.dropped),
            too_large: read(&self.too_large),
            unstored: read(&self.unstored),
            queued,
        }
    }
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}
