//! Answers of all other paths: the blocks that they mention, and their tag.

use std::collections::HashSet;

use super::blocks::KnownBlock;
use super::tags::TagSignal;
use super::{
    Change, Epoch, KnownTip, Ledger, LedgerUpdate, NO_EPOCH, RequestStart, as_hash, bare, digest,
};
use crate::clock::Moment;
use crate::pages::Block;

/// What an answer shows of the chain.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Observation<'a> {
    /// The blocks that it mentions.
    pub(crate) blocks: &'a [Block],
    /// The height of a block whose whole list was requested and is empty.
    pub(crate) empty_block: Option<u32>,
    /// Its `etag`, as received.
    pub(crate) etag: Option<&'a [u8]>,
}

/// What became of an observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ObservationResult {
    /// Its request began before something that contradicts it was learned. The
    /// answer may be of an orphaned block, and has to be requested again.
    Outdated,
    /// It is part of the ledger.
    Applied(LedgerUpdate),
}

impl Ledger {
    /// Applies an answer of any other path. Its blocks count only where they can be
    /// of one chain.
    pub(crate) fn observe(
        &mut self,
        start: RequestStart,
        observation: Observation<'_>,
        now: Moment,
    ) -> ObservationResult {
        let is_impossible =
            is_impossible(observation.blocks) || self.reorgs.has_too_many_conflicts(now);
        let observation = match is_impossible {
            true => Observation {
                etag: observation.etag,
                ..Observation::default()
            },
            false => observation,
        };
        let tag = observation.etag.map(bare);
        self.count_answer(start, tag);
        if self.is_outdated(start, observation) {
            return ObservationResult::Outdated;
        }
        let highest = observation.blocks.iter().map(|block| block.height).max();
        let grows = highest > self.tip.map(|tip| tip.height);
        let was_present = start.epoch == self.epoch();
        let signal = self.tags.compare(tag, was_present);
        // Unless an answer's tag showed the new tip already.
        let known = signal == TagSignal::SameTip && self.tip.is_some_and(|tip| !tip.certain);
        let change = Change {
            begins_epoch: signal == TagSignal::NewTip || grows && self.tip.is_some() && !known,
            orphaned: self.contradicted_from(observation),
        };
        if change.orphaned.is_some() && !self.tags.are_of_tip() {
            self.reorgs.note_conflict(now);
        }
        // Not where the tip has only come back to what the status reported.
        let reported = self.status.last.as_ref().map(|last| last.height);
        let is_other =
            signal == TagSignal::NewTip || change.orphaned.is_some() || highest > reported;
        let orphaned = self.apply(change, now);
        if is_other {
            self.search_fork(u32::MAX, self.epoch());
        }
        if orphaned.is_some() || grows || signal == TagSignal::NewTip {
            self.revision += 1;
        }
        self.move_tip(observation.empty_block, highest, grows, orphaned.is_some());
        if signal == TagSignal::NewTip
            && let Some(tag) = tag
        {
            self.tags.set(tag);
            if !grows
                && orphaned.is_none()
                && let Some(tip) = &mut self.tip
            {
                tip.certain = false;
            }
        }
        let epoch = self.epoch_of(start, signal, tag, was_present);
        self.record_all(observation, epoch, tag.map(digest) == start.tag);
        let certain_tip = self.tip.filter(|tip| tip.certain);
        ObservationResult::Applied(LedgerUpdate {
            epoch,
            tip_height: certain_tip.filter(|_| !is_impossible).map(|tip| tip.height),
            orphaned,
            needs_probe: orphaned.is_some()
                || matches!(signal, TagSignal::NewTip | TagSignal::EarlierTip)
                || grows && self.tip.is_some() && certain_tip.is_none(),
            confirms_tip: signal == TagSignal::SameTip && self.is_hash_of_certain_tip(tag),
        })
    }

    /// The epoch of an answer, whose request began in the epoch that was present
    /// before it was applied or in an earlier one.
    fn epoch_of(
        &self,
        start: RequestStart,
        signal: TagSignal,
        tag: Option<&[u8]>,
        was_present: bool,
    ) -> Epoch {
        match signal {
            // The upstream sets the tag before it looks up the body: with the tip's
            // own hash, the body is of this tip or a later one.
            TagSignal::SameTip if tag.is_some_and(|tag| as_hash(tag).is_some()) => self.epoch(),
            TagSignal::EarlierTip => NO_EPOCH,
            TagSignal::SameTip | TagSignal::None | TagSignal::NewTip if was_present => self.epoch(),
            TagSignal::SameTip | TagSignal::None | TagSignal::NewTip => start.epoch,
        }
    }

    /// Records the blocks of an answer of an epoch. `has_start_tag`: it bears the tag
    /// that the tip had when its request began.
    fn record_all(&mut self, observation: Observation<'_>, epoch: Epoch, has_start_tag: bool) {
        // An answer whose request began in an earlier epoch may be of any epoch
        // since, unless it bears the tag of that one: it proves nothing of either.
        let seen_in = match epoch == self.epoch() || has_start_tag {
            true => epoch,
            false => NO_EPOCH,
        };
        for block in observation.blocks {
            self.record(*block, true, seen_in);
        }
        if let Some(height) = observation.empty_block
            && epoch == self.epoch()
        {
            self.blocks.mark_empty(height);
        }
    }

    /// Whether a tag is the hash of the tip, and the tip is certain.
    fn is_hash_of_certain_tip(&self, tag: Option<&[u8]>) -> bool {
        let tip = self.tip.filter(|tip| tip.certain);
        let hash = tip.and_then(|tip| self.hash_at(tip.height));
        hash.is_some() && tag.and_then(as_hash) == hash
    }

    /// Whether an answer contradicts what was learned since its request began.
    fn is_outdated(&self, start: RequestStart, observation: Observation<'_>) -> bool {
        let is_newer = |block: &KnownBlock| start.revision < block.revision;
        let contradicts = |block: &Block| {
            let known = self.blocks.get(block.height);
            known.is_some_and(|known| known.hash != block.hash && is_newer(known))
        };
        let is_emptied = observation.empty_block.is_some_and(|height| {
            let known = self.blocks.get(height);
            known.is_some_and(|known| known.has_items && is_newer(known))
        });
        let mut blocks = observation.blocks.iter();
        is_emptied
            || blocks.any(|block| {
                self.reorgs.orphaned_since(start.revision, block.height) || contradicts(block)
            })
    }

    /// The lowest height at which an answer shows another block than is known.
    fn contradicted_from(&self, observation: Observation<'_>) -> Option<u32> {
        let blocks = observation.blocks.iter();
        let others = blocks.filter(|block| self.blocks.contradicts(**block));
        let other = others.map(|block| block.height).min();
        // A block that had items and has none was orphaned; unless this is another
        // endpoint by now, which is behind.
        let emptied = observation.empty_block.filter(|height| {
            self.blocks
                .get(*height)
                .is_some_and(|known| known.has_items)
                && self.tip.is_none_or(|tip| *height <= tip.height)
        });
        [other, emptied].into_iter().flatten().min()
    }

    /// Moves the tip by an answer that mentions blocks up to `highest`, or whose
    /// block is empty: where it `grows` the chain, or shows a reorg.
    fn move_tip(
        &mut self,
        empty_block: Option<u32>,
        highest: Option<u32>,
        grows: bool,
        is_reorg: bool,
    ) {
        // A block that is mentioned exists, so the tip is at least as high. But one
        // far above what the status path reported has to be confirmed by it.
        let is_near = |height: u32| {
            let before = self.tip.map_or(height, |tip| tip.height);
            self.status.last.is_none() || height.saturating_sub(before) <= self.bounds.margin
        };
        let mentioned = highest.map(|height| (height, is_near(height)));
        let below_empty = empty_block.map(|height| (height.saturating_sub(1), false));
        let moved = match (is_reorg, grows) {
            (true, _) => mentioned.or(below_empty),
            (false, true) => mentioned,
            (false, false) => None,
        };
        if let Some((height, certain)) = moved {
            self.tip = Some(KnownTip {
                height,
                revision: self.revision,
                certain,
            });
        }
    }
}

/// Whether blocks, each listed once, cannot be of one chain: two are at one height,
/// or one is at two.
fn is_impossible(blocks: &[Block]) -> bool {
    let heights: HashSet<_> = blocks.iter().map(|block| block.height).collect();
    let hashes: HashSet<_> = blocks.iter().map(|block| block.hash).collect();
    heights.len() < blocks.len() || hashes.len() < blocks.len()
}
