//! Blocks that an earlier run of the process knew.
//!
//! The chain may have changed since. A block's hash commits to all blocks below it: once
//! one of these blocks is seen again, it and all below it stand ([`Ledger::stood`]). Until
//! then they prove nothing, but another block at the height of one is a reorg, like any
//! other. The highest is requested first ([`Ledger::next_seed_check`]); after a reorg the
//! highest of those that are left.

use super::blocks::KnownBlock;
use super::{Block, Change, Epoch, Ledger, NO_EPOCH};
use crate::clock::Moment;

/// The most checks of a run. After a reorg each is further below the one before.
const MOST_CHECKS: u32 = 16;

/// What became of the blocks of an earlier run.
#[derive(Debug, Default)]
pub(super) struct Seed {
    /// The highest of them that was seen again.
    stands: Option<u32>,
    checks: u32,
    last_check: Option<u32>,
}

/// The next step of the check of an earlier run's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SeedCheck {
    /// Request the block at this height.
    At(u32),
    /// None of the blocks from this height on still stands, or it is not known: what
    /// names one is to be purged.
    Orphaned(u32),
    /// There is nothing to check, or nothing that can be checked now.
    None,
}

impl Ledger {
    /// Takes over the blocks of an earlier run, all with items. Nothing is known yet.
    pub(crate) fn seed(&mut self, blocks: &[Block]) {
        for block in blocks {
            let known = KnownBlock {
                hash: block.hash,
                revision: 0,
                epoch: NO_EPOCH,
                // It is certain of no epoch.
                answer: u64::MAX,
                has_items: true,
                is_empty: false,
                is_seed: true,
            };
            self.blocks.insert(block.height, known, self.bounds.blocks);
        }
    }

    /// Whether the blocks up to a height that an earlier run has seen stood in this run.
    /// What was replaced since was purged then.
    pub(crate) fn stood(&self, highest: u32) -> bool {
        self.seed.stands.is_some_and(|height| highest <= height)
    }

    /// Notes that a block of the earlier run was seen in an epoch.
    pub(super) fn confirm_seed(&mut self, height: u32, epoch: Epoch) {
        if epoch != NO_EPOCH {
            self.seed.stands = self.seed.stands.max(Some(height));
        }
    }

    /// The first height above those that are known to stand.
    fn first_open(&self) -> u32 {
        self.seed
            .stands
            .map_or(0, |height| height.saturating_add(1))
    }

    /// The next block of the earlier run to check. To be called again after each check
    /// that had an answer.
    pub(crate) fn next_seed_check(&mut self, now: Moment) -> SeedCheck {
        let Some((tip, _)) = self.tip() else {
            return SeedCheck::None;
        };
        let open = self.blocks.from(self.first_open()).rev();
        let mut open = open.filter(|(_, known)| known.is_seed);
        let next = open.find(|(height, _)| *height <= tip);
        let next = next.map(|(height, _)| height);
        drop(open);
        // Where a check has changed nothing, another would not either: the upstream may
        // be behind. A new tip may help.
        let Some(height) = next.filter(|height| self.seed.last_check != Some(*height)) else {
            return SeedCheck::None;
        };
        if self.seed.checks < MOST_CHECKS {
            self.seed.checks += 1;
            self.seed.last_check = Some(height);
            return SeedCheck::At(height);
        }
        let change = Change {
            begins_epoch: false,
            orphaned: Some(self.first_open().saturating_add(self.bounds.margin)),
        };
        let from = self.apply(change, now);
        self.revision += 1;
        from.map_or(SeedCheck::None, SeedCheck::Orphaned)
    }

    /// The chain has changed: a check that was without effect may have one now.
    pub(super) fn expect_seed(&mut self) {
        self.seed.last_check = None;
    }

    /// The last check had no answer: it is to be tried again.
    pub(crate) fn retry_seed_check(&mut self) {
        if self.seed.last_check.take().is_some() {
            self.seed.checks = self.seed.checks.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests;
