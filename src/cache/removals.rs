//! Keys that were removed lately, so that an answer which was requested before
//! its key was removed is not stored afterwards.

use std::collections::VecDeque;

/// How many removals are remembered. An answer that was requested before the
/// oldest of them is not stored, whatever its key.
pub(super) const REMEMBERED: usize = 4096;

/// The hashes of the removed keys, oldest first.
#[derive(Debug, Default)]
pub(super) struct Removals {
    next: u64,
    recent: VecDeque<(u64, u64)>,
}

impl Removals {
    /// The number that the next removal gets.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Adds a key, by its hash.
    pub(super) fn push(&mut self, hash: u64) {
        self.recent.push_back((self.next, hash));
        self.next += 1;
        if self.recent.len() > REMEMBERED {
            self.recent.pop_front();
        }
    }

    /// Whether a key was removed at `number` or later, or may have been because
    /// the removals since then are no longer all remembered.
    pub(super) fn since(&self, number: u64, hash: u64) -> bool {
        let oldest = self.next.saturating_sub(self.recent.len() as u64);
        let matches = |(at, removed): &(u64, u64)| *at >= number && *removed == hash;
        number < oldest || self.recent.iter().rev().any(matches)
    }
}
