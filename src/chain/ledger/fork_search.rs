//! The search for the fork point after a change of tip.
//!
//! A status shows a new tip, and nothing of the blocks below it. A reorg may have
//! replaced many of them without any client's answer showing it, while final
//! answers that mention orphaned blocks are served. So after each change of tip one
//! block is checked that was known before: the previous tip, where its hash is
//! known. A block's hash commits to all blocks below it: if it is still in the
//! chain, all of them are. If another block is there, that is a reorg; whatever
//! mentions blocks down to `margin` below it is purged, and the highest known block
//! below that is checked, until one is still in the chain.
//!
//! Blocks that were learned after the status reported the previous tip may be of
//! the new chain already: that they are in it proves nothing of what was known
//! before. They are checked by themselves, after the highest block that was known
//! before.

use super::{Block, Change, Epoch, KnownBlock, Ledger, as_hash};
use crate::clock::Moment;

/// The most checks of one search. After a reorg each is more than `margin` below the
/// one before, so that they reach at least some 200 blocks down. After a deeper
/// reorg all blocks are forgotten. Where a block is still in the chain, only those
/// above it are.
const MOST_CHECKS: u32 = 16;

/// A change of tip whose fork point is not known yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct ForkSearch {
    /// The revision at which the status was requested that reported the previous
    /// tip: blocks learned up to then are of its chain.
    requested: u64,
    /// The revision after that status: reorgs since then belong to this change.
    applied: u64,
    /// The last epoch of the previous tip.
    last_epoch: Epoch,
    /// The previous tip, where its hash is known.
    previous_tip: Option<Block>,
    /// Blocks above this height are not in both chains.
    highest: u32,
    /// A block that was seen in this epoch or later is in the new chain.
    epoch: Epoch,
    checks: u32,
    /// The height of the last check, and whether the block there was certainly seen
    /// under the previous tip.
    last_check: Option<(u32, bool)>,
}

/// The next step of the search for a fork point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForkCheck {
    /// None: the tip did not change, or the fork point is known, or no block was.
    None,
    /// The block at this height is to be requested.
    At(u32),
    /// The fork point was not found in [`MOST_CHECKS`]: whatever mentions blocks at
    /// this height or above is to be purged.
    Orphaned(u32),
}

/// A block that may be in the chain before a change of tip and in the one after it.
#[derive(Clone, Copy)]
struct Candidate {
    height: u32,
    /// Whether it is in the chain after the change.
    is_in_chain: bool,
    /// Whether it was known before the change.
    was_known: bool,
}

impl Ledger {
    /// Begins a search, or extends the present one, after the tip has changed: for
    /// blocks up to a height, but for those that were seen in an epoch or later.
    pub(super) fn search_fork(&mut self, highest: u32, epoch: Epoch) {
        self.expect_seed();
        let Some(last) = &self.status.last else {
            return;
        };
        let tag = last.tag.as_deref();
        let search = ForkSearch {
            requested: last.requested,
            applied: last.applied,
            last_epoch: last.epoch,
            previous_tip: tag.and_then(as_hash).map(|hash| Block {
                height: last.height,
                hash,
            }),
            highest: highest.min(last.height),
            epoch,
            checks: 0,
            last_check: None,
        };
        // Where an earlier change is still being searched, one check may serve both.
        let earlier = self.fork_search.take();
        self.fork_search = Some(earlier.map_or(search, |earlier| ForkSearch {
            requested: earlier.requested,
            applied: earlier.applied,
            last_epoch: earlier.last_epoch,
            previous_tip: earlier.previous_tip,
            checks: earlier.checks,
            ..search
        }));
    }

    /// The next block to check. To be called again after each check that had an
    /// answer, until there is none.
    pub(crate) fn next_fork_check(&mut self, now: Moment) -> ForkCheck {
        let next = self.fork_check_height();
        let known = next.and_then(|height| self.blocks.get(height));
        let certain = known.filter(|known| self.is_certain(known));
        let certain_epoch = certain.map(|known| known.epoch);
        let Some(search) = &mut self.fork_search else {
            return ForkCheck::None;
        };
        let is_certain = certain_epoch.is_some_and(|epoch| epoch <= search.last_epoch);
        let last = search.last_check.map(|(height, _)| height);
        // Where a check has changed nothing, another would not either.
        let Some(height) = next.filter(|_| last != next) else {
            self.fork_search = None;
            return ForkCheck::None;
        };
        if search.checks < MOST_CHECKS {
            search.checks += 1;
            search.last_check = Some((height, is_certain));
            return ForkCheck::At(height);
        }
        let orphaned = match self.fork_point() {
            Some(height) => Some(height.saturating_add(1)),
            // No block was in the chain and some were orphaned; else all were empty.
            None => self.has_reorg_since_change().then_some(0),
        };
        self.fork_search = None;
        let Some(orphaned) = orphaned else {
            return ForkCheck::None;
        };
        let change = Change {
            begins_epoch: false,
            orphaned: Some(orphaned),
        };
        let from = self.apply(change, now);
        self.revision += 1;
        from.map_or(ForkCheck::None, ForkCheck::Orphaned)
    }

    /// The last check had no answer: it is to be tried again.
    pub(crate) fn fork_check_failed(&mut self) {
        if let Some(search) = &mut self.fork_search {
            search.last_check = None;
            search.checks = search.checks.saturating_sub(1);
        }
    }

    /// The height of the next check: of the highest block known before the change,
    /// unless it is known to be in the chain; then of the highest above it that is
    /// not.
    pub(super) fn fork_check_height(&self) -> Option<u32> {
        let search = self.fork_search.as_ref()?;
        let highest = self.candidates(search).find(|block| block.was_known);
        if let Some(highest) = highest.filter(|block| !block.is_in_chain) {
            return Some(highest.height);
        }
        let above = self.candidates(search);
        let mut above =
            above.take_while(|block| highest.is_none_or(|highest| highest.height < block.height));
        let open = above.find(|block| !block.is_in_chain);
        open.map(|block| block.height)
    }

    /// The highest block known before the change that is still in the chain.
    fn fork_point(&self) -> Option<u32> {
        let mut blocks = self.candidates(self.fork_search.as_ref()?);
        let fork = blocks.find(|block| block.is_in_chain && block.was_known);
        fork.map(|block| block.height)
    }

    /// Whether blocks were orphaned since the change.
    fn has_reorg_since_change(&self) -> bool {
        let search = self.fork_search.as_ref();
        search.is_some_and(|search| {
            let last = self.reorgs.last();
            last.is_some_and(|last| search.applied < last.revision)
        })
    }

    /// The blocks that may be in both chains, descending.
    fn candidates(&self, search: &ForkSearch) -> impl Iterator<Item = Candidate> {
        let orphaned = self.reorgs.lowest_since(search.applied);
        let below = orphaned.unwrap_or(u32::MAX);
        let below = below.min(search.highest.saturating_add(1));
        let blocks = self.blocks.below(below).rev();
        let blocks = blocks.filter(|(_, known)| !known.is_empty);
        blocks.map(move |(height, known)| Candidate {
            height,
            is_in_chain: search.epoch <= known.epoch,
            was_known: search.was_known(height, known),
        })
    }
}

impl ForkSearch {
    /// Whether a block was known before the change.
    fn was_known(&self, height: u32, known: &KnownBlock) -> bool {
        let is_tip = |tip: Block| tip.height == height && tip.hash == known.hash;
        self.last_check == Some((height, true))
            || known.revision <= self.requested
            || self.previous_tip.is_some_and(is_tip)
    }
}
