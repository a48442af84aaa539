//! Blocks that an earlier run of the process knew.
//!
//! The chain may have changed since. A block's hash commits to all blocks below it: so
//! once one of these blocks is seen again, it and all of them below it stand in the epoch
//! in which it was seen ([`Ledger::stood`]). Until then they prove nothing, but another
//! block at the height of one is a reorg, like any other. The highest is requested first
//! ([`Ledger::next_seed_check`]); after a reorg the highest of those that are left.

use super::blocks::KnownBlock;
use super::{Block, Change, Epoch, Ledger, NO_EPOCH};
use crate::clock::Moment;

/// The most checks of a run. After a reorg each is further below the one before; so many
/// go as deep as a search for the fork point.
const MOST_CHECKS: u32 = 16;

/// The most runs whose answers are vouched for. What older ones stored is fetched again.
pub(crate) const MOST_RUNS: usize = 64;

/// What one run of the process leaves to the next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KnownBlocks {
    /// Blocks of one chain, and whether they have items.
    pub(crate) blocks: Vec<(Block, bool)>,
    /// The runs whose answers name blocks of that chain, the oldest first.
    pub(crate) runs: Vec<KnownRun>,
}

impl KnownBlocks {
    /// Leaves out the blocks at a height and above.
    pub(crate) fn cut_off(&mut self, height: Option<u32>) {
        let stays = |(block, _): &(Block, bool)| height.is_none_or(|height| block.height < height);
        self.blocks.retain(stays);
    }
}

/// A run of the process whose answers name blocks of a chain.
///
/// Blocks of a later run prove nothing for an answer above: it may name one that was
/// replaced while no process was there to see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KnownRun {
    /// The number of its state (`Chain::state_number`).
    pub(crate) state: u64,
    /// The height up to which that is known.
    pub(crate) up_to: u32,
}

/// What became of the blocks of an earlier run.
#[derive(Debug, Default)]
pub(super) struct Seed {
    /// The highest of them that was seen again, and the last epoch in which it was.
    stands: Option<(u32, Epoch)>,
    runs: Vec<KnownRun>,
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
    /// Takes over the blocks of an earlier run, at heights where none is known. One that is
    /// known already was seen again. Returns the height from which on they were replaced,
    /// where another one is known.
    pub(crate) fn seed(&mut self, known: &KnownBlocks) -> Option<u32> {
        if !self.seed.runs.is_empty() {
            return None;
        }
        self.seed.runs.clone_from(&known.runs);
        let contradicted = known.blocks.iter().map(|(block, _)| *block);
        let contradicted = contradicted.filter(|block| self.blocks.contradicts(*block));
        let lowest = contradicted.map(|block| block.height).min();
        let orphaned = lowest.map(|height| height.saturating_sub(self.bounds.margin));
        let stays = |height| orphaned.is_none_or(|from| height < from);
        for (block, has_items) in known.blocks.iter().filter(|(b, _)| stays(b.height)) {
            if let Some(seen) = self.blocks.get_mut(block.height) {
                seen.is_seed = true;
                let epoch = seen.epoch;
                self.confirm_seed(block.height, epoch);
                continue;
            }
            let known = KnownBlock {
                hash: block.hash,
                revision: 0,
                epoch: NO_EPOCH,
                // It is certain of no epoch.
                answer: u64::MAX,
                has_items: *has_items,
                is_empty: false,
                is_seed: true,
            };
            self.blocks.insert(block.height, known, self.bounds.blocks);
        }
        self.expect_seed();
        orphaned
    }

    /// The blocks, for the next run, and the runs that they speak for: this one by the
    /// number of its state, and earlier ones as far as their blocks were seen to stand.
    /// `None` while it is not known whether all are of one chain, or while blocks of an
    /// earlier run are still to be checked.
    pub(crate) fn known_blocks(&self, state: u64) -> Option<KnownBlocks> {
        if self.fork_search.is_some() || self.unseen().next().is_some() {
            return None;
        }
        // A block that was not seen again and cannot be checked is of no use.
        let open = self.first_open();
        let blocks = self.blocks.from(0);
        let blocks = blocks.filter(|(height, known)| !known.is_seed || *height < open);
        let blocks = blocks.map(|(height, known)| {
            let hash = known.hash;
            (Block { height, hash }, known.has_items)
        });
        let own = KnownRun {
            state,
            up_to: u32::MAX,
        };
        let earlier = self.seed.runs.iter().rev().take(MOST_RUNS - 1).rev();
        let earlier = earlier.filter_map(|run| self.run(run.state));
        Some(KnownBlocks {
            blocks: blocks.collect(),
            runs: earlier.chain([own]).collect(),
        })
    }

    /// An earlier run, and the height up to which its answers name blocks that are known
    /// to stand.
    fn run(&self, state: u64) -> Option<KnownRun> {
        let (height, _) = self.seed.stands?;
        let run = self.seed.runs.iter().find(|run| run.state == state)?;
        let up_to = run.up_to.min(height);
        Some(KnownRun { state, up_to })
    }

    /// The epoch of this run in which the blocks up to a height stood that an answer of an
    /// earlier run names, where that is known. Whether they still do is that epoch's
    /// question ([`Ledger::is_linked`]), as for an answer of it.
    pub(crate) fn stood(&self, state: u64, highest: u32) -> Option<Epoch> {
        let run = self.run(state).filter(|run| highest <= run.up_to);
        run.and(self.seed.stands).map(|(_, epoch)| epoch)
    }

    /// Notes that a block of the earlier run was seen in an epoch.
    pub(super) fn confirm_seed(&mut self, height: u32, epoch: Epoch) {
        let seen = (height, epoch);
        let says_more = self.seed.stands.is_none_or(|known| {
            // One that was orphaned since says nothing of the present chain.
            let is_known = self.blocks.get(known.0).is_some_and(|block| block.is_seed);
            known <= seen || !is_known
        });
        if epoch != NO_EPOCH && says_more {
            self.seed.stands = Some(seen);
        }
    }

    /// The first height above those that are known to stand.
    fn first_open(&self) -> u32 {
        let stands = self.seed.stands;
        stands.map_or(0, |(height, _)| height.saturating_add(1))
    }

    /// The heights of the earlier run's blocks that can be checked and are not known to
    /// stand, ascending. One that is seen again proves those below it.
    fn unseen(&self) -> impl DoubleEndedIterator<Item = u32> {
        let open = self.blocks.from(self.first_open());
        let open = open.filter(|(_, known)| known.is_seed && known.has_items);
        open.map(|(height, _)| height)
    }

    /// The next block of the earlier run to check. To be called again after each check
    /// that had an answer.
    pub(crate) fn next_seed_check(&mut self, now: Moment) -> SeedCheck {
        let Some((tip, _)) = self.tip() else {
            return SeedCheck::None;
        };
        let next = self.unseen().rev().find(|height| *height <= tip);
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
