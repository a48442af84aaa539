//! What ordgate knows of one indexer's chain: its tip, the epoch, and which block
//! is at which height. Pure: moments and answers are arguments.
//!
//! It learns from two kinds of answers. The status path reports the tip
//! ([`Ledger::status`]). Every other answer mentions blocks and, with the reference
//! upstream, has the tip's tag as its `etag` ([`Ledger::observe`]). Answers may
//! arrive out of order. So each request takes a [`RequestStart`] before it is sent.
//! An answer that contradicts what is known is believed if its request began after
//! that was learned; else it is [`ObservationResult::Outdated`].
//!
//! An epoch is a period in which none of this changed, and its number. A new tip, a
//! reorg, or another endpoint begins the next one. A block's hash commits to
//! all blocks below it, so a block that was seen in two epochs proves that the
//! chain up to its height is the same in both: a link ([`Ledger::is_linked`]).
//!
//! A status reports a new tip and nothing of the blocks below it. Whether blocks
//! far below were replaced as well is found out by requests for single blocks
//! ([`Ledger::next_fork_check`]).
//!
//! Deliberately absent: locks, the cache, and when requests are sent (`chain`).

mod blocks;
mod epochs;
mod fork_search;
mod observe;
mod reorgs;
mod seed;
mod status;
mod tags;

use std::hash::BuildHasher;
use std::time::Duration;

use foldhash::quality::FixedState;

use super::live_checks::{LiveChecks, UnchangedSpan};
use crate::clock::Moment;
use crate::pages::{Block, Hash};
use blocks::{Blocks, KnownBlock};
use epochs::Epochs;
pub(crate) use epochs::{Epoch, NO_EPOCH};
pub(crate) use fork_search::ForkCheck;
use fork_search::ForkSearch;
pub(crate) use observe::{Observation, ObservationResult};
use reorgs::Reorgs;
use seed::Seed;
pub(crate) use seed::SeedCheck;
use status::StatusPath;
use tags::{TipTags, as_hash, bare};

/// The state of the ledger when a request was about to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestStart {
    revision: u64,
    epoch: Epoch,
    /// A hash of the tip's tag.
    tag: Option<u64>,
    answers: u64,
}

/// What the ledger learned from an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LedgerUpdate {
    /// The epoch of which the answer is.
    pub(crate) epoch: Epoch,
    /// The height of the tip, where it is certain.
    pub(crate) tip_height: Option<u32>,
    /// Blocks at this height or above were orphaned, or may have been: whatever
    /// mentions one is to be purged.
    pub(crate) orphaned: Option<u32>,
    /// Whether the status path should be requested soon.
    pub(crate) needs_probe: bool,
    /// Whether the answer proves that the tip is unchanged: its tag is the tip's
    /// hash.
    pub(crate) confirms_tip: bool,
}

/// What is known of one indexer's chain.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// Grows whenever something is learned.
    revision: u64,
    tip: Option<KnownTip>,
    /// Since when the tip counts as lost, if it does.
    tip_lost: Option<Moment>,
    status: StatusPath,
    tags: TipTags,
    blocks: Blocks,
    epochs: Epochs,
    reorgs: Reorgs,
    /// The change of tip whose fork point is not known yet.
    fork_search: Option<ForkSearch>,
    /// What became of the blocks that an earlier run knew.
    seed: Seed,
    live_checks: LiveChecks,
    bounds: LedgerBounds,
}

/// How much is remembered, and how far a reorg is taken to reach.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LedgerBounds {
    /// The most heights whose hash is remembered; the lowest are forgotten first.
    pub(crate) blocks: usize,
    /// Blocks that are distrusted below the highest that is known to be orphaned:
    /// the lowest block of a reorg is seldom seen first. Also the most blocks by
    /// which an answer may raise the tip without a status.
    pub(crate) margin: u32,
    /// How long after a new tip its indexer may still be writing.
    pub(crate) write_time: Duration,
}

#[derive(Clone, Copy, Debug)]
struct KnownTip {
    height: u32,
    /// The revision that learned it.
    revision: u64,
    /// Whether nothing was seen since that may have lowered it.
    certain: bool,
}

/// What an answer changes.
#[derive(Default)]
struct Change {
    begins_epoch: bool,
    /// The lowest height whose block is another one.
    orphaned: Option<u32>,
}

impl Change {
    fn orphan(&mut self, from: u32) {
        self.orphaned = Some(self.orphaned.map_or(from, |other| other.min(from)));
    }
}

impl Ledger {
    /// A ledger that knows nothing.
    pub(crate) fn new(bounds: LedgerBounds) -> Self {
        Self {
            revision: 0,
            tip: None,
            tip_lost: None,
            status: StatusPath::default(),
            tags: TipTags::default(),
            blocks: Blocks::default(),
            epochs: Epochs::default(),
            reorgs: Reorgs::default(),
            fork_search: None,
            seed: Seed::default(),
            live_checks: LiveChecks::default(),
            bounds,
        }
    }

    /// Changes the bounds.
    pub(crate) fn set_bounds(&mut self, bounds: LedgerBounds) {
        self.bounds = bounds;
        self.blocks.shrink_to(bounds.blocks);
    }

    /// The state of the ledger, to be taken before a request is sent.
    pub(crate) fn start(&self) -> RequestStart {
        RequestStart {
            revision: self.revision,
            epoch: self.epoch(),
            tag: self.tags.current().map(digest),
            answers: self.epochs.answers(),
        }
    }

    /// The present epoch.
    pub(crate) const fn epoch(&self) -> Epoch {
        self.epochs.present()
    }

    /// The tip's height, where one is known, and whether it is certain.
    pub(crate) fn tip(&self) -> Option<(u32, bool)> {
        self.tip.map(|tip| (tip.height, tip.certain))
    }

    /// The present epoch, and its tip as any process knows it: the height and the tag.
    /// `None` while the tip is not certain.
    pub(crate) fn tip_mark(&self) -> Option<(Epoch, Vec<u8>)> {
        let (height, _) = self.tip().filter(|(_, is_certain)| *is_certain)?;
        let mut mark = height.to_be_bytes().to_vec();
        mark.extend_from_slice(self.tags.current().unwrap_or_default());
        Some((self.epoch(), mark))
    }

    /// Whether the status path has ever reported a height.
    pub(crate) const fn has_status(&self) -> bool {
        self.status.last.is_some()
    }

    /// The hash of the block at a height.
    pub(crate) fn hash_at(&self, height: u32) -> Option<Hash> {
        self.blocks.get(height).map(|block| block.hash)
    }

    /// The height of a block of the chain, where an answer has shown the two
    /// together. A status does not: the upstream sets its tag before its height,
    /// so that the tag may be that of the block before.
    pub(crate) fn height_of(&self, hash: &Hash) -> Option<u32> {
        self.blocks.height_of(hash)
    }

    /// The number of heights whose hash is known.
    pub(crate) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// When an epoch ended; `None` for the present one, and the clock's beginning
    /// for one that is no longer remembered.
    pub(crate) fn ended(&self, epoch: Epoch) -> Option<Moment> {
        self.epochs.ended_at(epoch)
    }

    /// The period in which live answers of the present epoch are known to be
    /// unchanged.
    pub(crate) const fn live_checks(&self) -> &LiveChecks {
        &self.live_checks
    }

    /// The same of an epoch that has ended, if it is remembered.
    pub(crate) fn live_span(&self, epoch: Epoch) -> Option<UnchangedSpan> {
        self.epochs.live_span(epoch)
    }

    /// A live answer of an epoch, unchanged since `since`, was fetched again by a
    /// request sent at `sent`. Answers whether this proves that nothing changed:
    /// an answer that may have been half written proves nothing.
    pub(crate) fn checked(
        &mut self,
        epoch: Epoch,
        since: Moment,
        sent: Moment,
        unchanged: bool,
        now: Moment,
    ) -> bool {
        if epoch != self.epoch() || !self.live_checks.is_settled(since) {
            return false;
        }
        match unchanged {
            true => self.live_checks.unchanged(since, sent),
            false => self.live_checks.restart(now, self.bounds.write_time),
        }
        unchanged
    }

    /// Sets since when the tip counts as lost, before an answer is applied. An
    /// epoch that ends now has kept nothing fresh since.
    pub(crate) fn set_tip_lost(&mut self, lost: Option<Moment>) {
        self.tip_lost = lost;
    }

    /// Ends the epoch where there is cause, and forgets the blocks of a reorg.
    /// Answers with the height from which on everything is to be purged.
    fn apply(&mut self, change: Change, now: Moment) -> Option<u32> {
        if !change.begins_epoch && change.orphaned.is_none() {
            return None;
        }
        let ended = self.tip_lost.map_or(now, |lost| lost.min(now));
        // The first tip that is known is no new one.
        let had_tip = self.epoch() > NO_EPOCH;
        self.epochs.end(ended, self.live_checks.span());
        if had_tip {
            self.live_checks.restart(now, self.bounds.write_time);
        }
        let from = change.orphaned?.saturating_sub(self.bounds.margin);
        // Distrusted blocks are forgotten too: else each of their heights would be
        // another reorg when it is seen again.
        self.blocks.forget_from(from);
        self.reorgs.push(self.revision + 1, from, self.epoch());
        Some(from)
    }

    /// Counts an answer. The upstream sets its tag after the request and before it
    /// looks up the body: so the body may be of a later tip, but the tip's tag
    /// proves that the tip was unchanged when the request began.
    fn count_answer(&mut self, start: RequestStart, tag: Option<&[u8]>) {
        let has_tip_tag = tag.is_some() && self.tags.current() == tag;
        let proves = has_tip_tag.then_some(start.answers);
        self.epochs.count_answer(proves);
    }

    /// Records that a block was seen at its height in an epoch, or in none for
    /// certain.
    fn record(&mut self, block: Block, has_items: bool, epoch: Epoch) {
        let answer = self.epochs.answers();
        let known = self.blocks.get_mut(block.height);
        if let Some(known) = known.filter(|known| known.hash == block.hash) {
            let is_seed = known.is_seed;
            known.has_items |= has_items;
            if epoch == self.epochs.present() && known.epoch != epoch {
                // Only where each answer bears the tip's hash can no change within an
                // epoch go unnoticed.
                if self.tags.are_tip_hashes() && self.epochs.is_certain(known.epoch, known.answer) {
                    self.epochs.link(known.epoch, block.height);
                }
                known.epoch = epoch;
                known.answer = answer;
            }
            if is_seed {
                self.confirm_seed(block.height, epoch);
            }
            return;
        }
        self.revision += 1;
        let known = KnownBlock {
            hash: block.hash,
            revision: self.revision,
            epoch,
            answer,
            has_items,
            is_empty: false,
            is_seed: false,
        };
        self.blocks.insert(block.height, known, self.bounds.blocks);
    }

    /// Whether a block was certainly seen in the epoch that it is recorded with,
    /// which has ended.
    fn is_certain(&self, block: &KnownBlock) -> bool {
        self.epochs.is_certain(block.epoch, block.answer)
    }

    /// Whether what was true up to a height in an epoch is still true: a block at
    /// that height or above was seen then and was seen in the present epoch.
    pub(crate) fn is_linked(&self, epoch: Epoch, height: u32) -> bool {
        self.epochs.is_linked(epoch, height)
    }

    /// The height of a block that would prove, if it is still in the chain, that
    /// what was true up to a height in an epoch is still true. It is the highest
    /// such block, which proves the most. `None` where it is proved already, or
    /// cannot be.
    pub(crate) fn anchor(&self, epoch: Epoch, height: u32) -> Option<u32> {
        if epoch == self.epoch() || !self.tags.are_tip_hashes() {
            return None;
        }
        let linked = self.epochs.linked(epoch, height);
        if linked.contains(&self.epoch()) {
            return None;
        }
        // The block of the next fork check will do, whether it has items or not: so
        // one request serves both.
        let next = self.fork_check_height();
        let can_show = |height: u32, known: &KnownBlock| known.has_items || next == Some(height);
        let proves = |known: &KnownBlock| linked.contains(&known.epoch) && self.is_certain(known);
        let mut candidates = self.blocks.from(height).rev().take(ANCHORS);
        let anchor = candidates.find(|(height, known)| can_show(*height, known) && proves(known));
        anchor.map(|(height, _)| height)
    }
}

/// The most heights that are searched for an anchor.
const ANCHORS: usize = 64;

/// A tag's 64-bit digest.
fn digest(tag: &[u8]) -> u64 {
    FixedState::default().hash_one(tag)
}

#[cfg(test)]
mod tests;
