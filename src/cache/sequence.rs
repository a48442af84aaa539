//! Positions in the order of purges and removals. A fetch takes the current
//! position before it sends its request, so that a purge or removal which
//! happens while the fetch is under way also applies to its answer.

use std::sync::atomic::{AtomicU64, Ordering};

/// A position in the order of removals and purges. An answer that was requested
/// before its key was removed or purged must not be stored afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PurgeSequence {
    /// The number of the next removal.
    pub(super) removal: u64,
    /// The number of the last purge.
    pub(super) purge: u64,
}

impl PurgeSequence {
    /// The number of the last purge.
    pub(crate) const fn purge(self) -> u64 {
        self.purge
    }
}

/// The number of the last purge that a stored response was checked against.
#[derive(Debug, Default)]
pub struct CheckedSequence(AtomicU64);

impl CheckedSequence {
    /// For a response whose fetch began at a position.
    pub(crate) const fn until(sequence: PurgeSequence) -> Self {
        Self(AtomicU64::new(sequence.purge))
    }

    /// For a response that is assembled from others: `number` is the lowest of
    /// theirs.
    pub(crate) const fn at(number: u64) -> Self {
        Self(AtomicU64::new(number))
    }

    /// The number of the purge.
    pub(crate) fn number(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Records a check against all purges up to a number.
    pub(super) fn raise(&self, number: u64) {
        self.0.fetch_max(number, Ordering::Relaxed);
    }
}
