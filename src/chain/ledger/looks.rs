//! Looks at blocks after a change of tip.
//!
//! A status shows a new tip, and nothing of the blocks below it. A reorg may
//! have replaced many of them and be shown by none of the answers that clients
//! ask for, while final answers that name its orphans are served on. So after
//! each change one block is looked at that was known before: the tip before,
//! where its hash is known. A block's hash commits to all blocks below it: if it
//! still stands, all of them do. If another is there, that is a reorg, what
//! names blocks down to `margin` below it is purged, and the highest block known
//! below that is looked at, until one stands.
//!
//! What was learned only after the status had said the tip before may be of the
//! new chain already: that it stands says nothing of what was known before. So
//! it is looked at by itself, after the highest block that was known before.

use super::{Block, Change, Epoch, Ledger, Seen, as_hash};
use crate::clock::Moment;

/// Looks until all is proven. After a reorg each lies more than `margin` below
/// the one before, so that they reach some 200 blocks down at the least; after
/// one that is deeper still, nothing that was known of the chain counts. Where a
/// block stood, what was learned above it does not count.
const MOST_LOOKS: u32 = 16;

/// A change of tip of which it is not known yet what it undid.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unproven {
    /// The beat at which the status was asked that said the tip before: what
    /// was learned up to then is of its chain.
    asked: u64,
    /// The beat after that answer: reorgs since then belong to this change.
    told: u64,
    /// The last epoch of the tip before.
    ended: Epoch,
    /// The tip before, where its hash is known.
    before: Option<Block>,
    /// Above this height nothing is looked at: it is not in both chains.
    top: u32,
    /// A block that was seen in this epoch or later stands.
    epoch: Epoch,
    looks: u32,
    /// Where the last look went, and whether the block there was seen under the
    /// tip before beyond doubt.
    last: Option<(u32, bool)>,
}

/// Where to look after a change of tip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Nowhere: there was no change, or all that was known is proven or gone.
    Nowhere,
    /// At the block at this height.
    At(u32),
    /// However often it was looked, not all is proven: what names blocks from
    /// this height up has to go.
    Undone(u32),
}

impl Ledger {
    /// Another tip is known. What was known before is unproven up to a height,
    /// but for blocks that were seen in an epoch or later.
    pub(super) fn doubt_blocks(&mut self, top: u32, epoch: Epoch) {
        let Some(said) = &self.said else {
            return;
        };
        let tag = said.tag.as_deref();
        let before = tag.and_then(as_hash).map(|hash| Block {
            height: said.height,
            hash,
        });
        let change = Unproven {
            asked: said.asked,
            told: said.told,
            ended: said.epoch,
            before,
            top: top.min(said.height),
            epoch,
            looks: 0,
            last: None,
        };
        // Where the one before is not proven yet, one look may prove both.
        let older = self.unproven.take();
        self.unproven = Some(older.map_or(change, |older| Unproven {
            asked: older.asked,
            told: older.told,
            ended: older.ended,
            before: older.before,
            looks: older.looks,
            ..change
        }));
    }

    /// Where to look next. To be asked again after each look that had an
    /// answer, until it is nowhere.
    pub fn next_look(&mut self, now: Moment) -> Look {
        let suspect = self.suspect();
        let seen = suspect.and_then(|height| self.heights.get(&height));
        let sure = seen.filter(|seen| self.is_sure(seen));
        let sure = sure.map(|seen| seen.epoch);
        let Some(unproven) = &mut self.unproven else {
            return Look::Nowhere;
        };
        let is_sure = sure.is_some_and(|epoch| epoch <= unproven.ended);
        let last = unproven.last.map(|(height, _)| height);
        // Where a look has changed nothing, the next would not either.
        let Some(height) = suspect.filter(|_| last != suspect) else {
            self.unproven = None;
            return Look::Nowhere;
        };
        if unproven.looks < MOST_LOOKS {
            unproven.looks += 1;
            unproven.last = Some((height, is_sure));
            return Look::At(height);
        }
        let undone = match self.proven() {
            Some(proven) => Some(proven.saturating_add(1)),
            // Nothing stood, where something was undone; else all were empty.
            None => self.has_undone().then_some(0),
        };
        self.unproven = None;
        let Some(undone) = undone else {
            return Look::Nowhere;
        };
        let mut change = Change::default();
        change.orphan(undone);
        let from = self.turn(change, now);
        self.beat += 1;
        from.map_or(Look::Nowhere, Look::Undone)
    }

    /// The look has had no answer: it is to be tried again.
    pub fn look_failed(&mut self) {
        if let Some(unproven) = &mut self.unproven {
            unproven.last = None;
            unproven.looks = unproven.looks.saturating_sub(1);
        }
    }

    /// The highest block of those known before the change that shows, if it
    /// still stands, that all below it do; none where that is shown already.
    pub(super) fn suspect(&self) -> Option<u32> {
        let unproven = self.unproven.as_ref()?;
        let highest = self.in_both(unproven).find(|(_, _, knew)| *knew);
        let proven = match highest {
            Some((height, false, _)) => return Some(height),
            Some((height, true, _)) => Some(height),
            None => None,
        };
        let above = self.in_both(unproven);
        let mut above = above.take_while(|(height, ..)| proven.is_none_or(|below| below < *height));
        let suspect = above.find(|(_, stands, _)| !stands);
        suspect.map(|(height, ..)| height)
    }

    /// Up to which height all that was known before the change stands.
    fn proven(&self) -> Option<u32> {
        let unproven = self.unproven.as_ref()?;
        let mut blocks = self.in_both(unproven);
        let proof = blocks.find(|(_, stands, knew)| *stands && *knew);
        proof.map(|(height, ..)| height)
    }

    /// Whether something was undone since the change.
    fn has_undone(&self) -> bool {
        let told = self.unproven.as_ref().map(|unproven| unproven.told);
        told.is_some_and(|told| self.reorgs.back().is_some_and(|last| told < last.beat))
    }

    /// The blocks that may be in the chain before a change and in the one after
    /// it, from the highest down; of each whether it stands, and whether it was
    /// known before the change.
    fn in_both(&self, unproven: &Unproven) -> impl Iterator<Item = (u32, bool, bool)> {
        let reorgs = self.reorgs.iter().rev();
        let reorgs = reorgs.take_while(|reorg| unproven.told < reorg.beat);
        let below = reorgs.map(|reorg| reorg.from).min();
        let below = below
            .unwrap_or(u32::MAX)
            .min(unproven.top.saturating_add(1));
        let blocks = self.heights.range(..below).rev();
        let blocks = blocks.filter(|(_, seen)| !seen.empty);
        blocks.map(move |(height, seen)| {
            let stands = unproven.epoch <= seen.epoch;
            (*height, stands, unproven.knew(*height, seen))
        })
    }

    /// A block's list was found empty.
    pub(super) fn see_empty(&mut self, height: u32) {
        if let Some(seen) = self.heights.get_mut(&height) {
            seen.empty = !seen.items;
        }
    }
}

impl Unproven {
    /// Whether a block was known before the change.
    fn knew(&self, height: u32, seen: &Seen) -> bool {
        let is_tip = |tip: Block| tip.height == height && tip.hash == seen.hash;
        let was_sure = self.last == Some((height, true));
        was_sure || seen.beat <= self.asked || self.before.is_some_and(is_tip)
    }
}
