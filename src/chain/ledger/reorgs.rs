//! The reorgs that were seen, and whether there are so many of them that the
//! upstream's answers contradict each other.

use std::collections::VecDeque;
use std::time::Duration;

use super::Epoch;
use super::epochs::push_bounded;
use crate::clock::Moment;

const REORGS: usize = 256;

/// So many reorgs within [`CONFLICT_PERIOD`] that no tag showed are none: the
/// upstream's answers contradict each other, and their blocks are ignored.
pub(super) const MOST_CONFLICTS: usize = 32;
pub(super) const CONFLICT_PERIOD: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(super) struct Reorgs {
    reorgs: VecDeque<Reorg>,
    /// When reorgs were seen that bodies alone showed.
    conflicts: VecDeque<Moment>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Reorg {
    /// The revision that learned it.
    pub(super) revision: u64,
    /// The lowest height that it orphaned, or may have.
    pub(super) from: u32,
    /// The epoch that it began.
    pub(super) epoch: Epoch,
}

impl Reorgs {
    pub(super) fn push(&mut self, revision: u64, from: u32, epoch: Epoch) {
        let reorg = Reorg {
            revision,
            from,
            epoch,
        };
        push_bounded(&mut self.reorgs, reorg, REORGS);
    }

    pub(super) fn last(&self) -> Option<&Reorg> {
        self.reorgs.back()
    }

    /// The lowest height that the reorgs after a revision orphaned.
    pub(super) fn lowest_since(&self, revision: u64) -> Option<u32> {
        let reorgs = self.reorgs.iter().rev();
        let since = reorgs.take_while(|reorg| revision < reorg.revision);
        since.map(|reorg| reorg.from).min()
    }

    /// Whether a height was orphaned after a revision.
    pub(super) fn orphaned_since(&self, revision: u64, height: u32) -> bool {
        self.lowest_since(revision)
            .is_some_and(|from| from <= height)
    }

    /// Notes a reorg that a body alone showed.
    pub(super) fn note_conflict(&mut self, now: Moment) {
        push_bounded(&mut self.conflicts, now, MOST_CONFLICTS);
    }

    pub(super) fn has_too_many_conflicts(&self, now: Moment) -> bool {
        let first = self.conflicts.len().checked_sub(MOST_CONFLICTS);
        first.is_some_and(|first| now.since(self.conflicts[first]) < CONFLICT_PERIOD)
    }
}
