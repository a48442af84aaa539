//! What is known of one indexer's chain: its tip, the epoch, and which block is at which
//! height. Pure: moments and answers are arguments.
//!
//! It learns from two kinds of answers. The status path reports the tip
//! ([`Ledger::status`]): a new one begins an epoch. Every other answer names blocks and,
//! with the reference upstream, has the tip's tag as its `etag` ([`Ledger::apply`]). It is
//! stored only if it is of the present tip: its tag says so, or, where answers have none,
//! its request was sent since that tip was seen. Others are passed on.
//!
//! A block's hash commits to all blocks below it. So after a new tip one block is asked
//! for ([`Doubt`]): the highest that was surely known before. If it is still there, all
//! below it stands. If not, lower ones are asked for, and what names a block above the
//! first one that stands is purged.
//!
//! Which blocks were surely known before: an answer may be made after the tip has moved,
//! and arrive before that is seen. Its block is of the new chain, and proves nothing about
//! what was stored before. So only blocks count that were known when the last request was
//! sent whose answer still had the old tip's tag, if that is a block's hash. Where answers
//! have no tags, the tip may even have moved to and fro between two statuses; then only
//! blocks count that were known when the epoch began.
//!
//! Deliberately absent: locks, the cache, and when requests are sent.

mod check;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use super::freshness::{Epoch, NO_EPOCH, View};
use crate::clock::Moment;
use crate::pages::{Block, Hash, hash};
use check::Doubt;

/// The most blocks that are known; the lowest are forgotten first.
const MOST_BLOCKS: usize = 65_536;
/// The epochs of which it is remembered when they ended.
const MOST_ENDED: usize = 64;

/// The state of the ledger when a request was about to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestStart {
    epoch: Epoch,
    answers: u64,
}

impl RequestStart {
    /// The epoch then.
    pub(crate) const fn epoch(self) -> Epoch {
        self.epoch
    }
}

/// What an answer shows of the chain.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Observation<'a> {
    /// Its route.
    pub(crate) route: u16,
    /// The blocks that it names.
    pub(crate) blocks: &'a [Block],
    /// The height of a block whose whole list was requested and is empty.
    pub(crate) empty_block: Option<u32>,
    /// Its `etag`, as received.
    pub(crate) tag: Option<&'a [u8]>,
}

/// What an answer means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Applied {
    /// The epoch that it is stored with. `None`: it is passed on and not stored.
    pub(crate) stored_in: Option<Epoch>,
    /// What names a block at this height or above is to be purged.
    pub(crate) purge_from: Option<u32>,
    /// Whether the status is to be asked for.
    pub(crate) asks_status: bool,
    /// Whether a check has begun, or has another block to ask for.
    pub(crate) asks_block: bool,
}

/// What is known of one indexer's chain.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    status: Option<Status>,
    epoch: Epoch,
    /// When the present epoch began.
    began: Moment,
    /// When the epochs before it ceased to keep answers fresh, the last at the back.
    ended: VecDeque<Moment>,
    /// Recent answers of earlier epochs are stale, since `refuted_at`.
    refuted_before: Epoch,
    refuted_at: Moment,
    /// The number of answers so far, by which blocks and requests are ordered.
    answers: u64,
    /// Blocks learned by this answer or before are of the present tip's chain.
    proved: u64,
    blocks: BTreeMap<u32, Known>,
    heights: HashMap<Hash, u32>,
    /// The highest block that was asked for and stands.
    stands: Option<u32>,
    doubt: Option<Doubt>,
    /// When a contradiction last began a check.
    contradicted: Option<Moment>,
    /// The routes whose answers have had the tip's tag.
    tagged: Vec<u16>,
    reorgs: u64,
    /// When the status reported another tip than before, here or by another replica.
    moved: Option<Moment>,
    /// When the last reorg was found, and how many blocks up to the tip it replaced.
    last_reorg: Option<(Moment, u32)>,
}

/// The tip as the status path reports it.
#[derive(Debug, PartialEq, Eq)]
struct Status {
    height: u32,
    tag: Option<Box<[u8]>>,
}

/// A block with items.
#[derive(Clone, Copy, Debug)]
struct Known {
    hash: Hash,
    /// The number of the answer that named it first; 0 if an earlier run knew it.
    learned: u64,
}

impl Ledger {
    /// The state of the ledger, to be taken before a request is sent.
    pub(crate) const fn start(&self) -> RequestStart {
        RequestStart {
            epoch: self.epoch,
            answers: self.answers,
        }
    }

    /// The present epoch.
    pub(crate) const fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The tip's height.
    pub(crate) fn tip_height(&self) -> Option<u32> {
        Some(self.status.as_ref()?.height)
    }

    /// The tip as any process knows it: its height and its tag.
    pub(crate) fn tip_mark(&self) -> Option<Vec<u8>> {
        let Status { height, tag } = self.status.as_ref()?;
        let mut mark = height.to_be_bytes().to_vec();
        mark.extend_from_slice(tag.as_deref().unwrap_or_default());
        Some(mark)
    }

    /// The hash of the block at a height.
    pub(crate) fn hash_at(&self, height: u32) -> Option<Hash> {
        self.blocks.get(&height).map(|known| known.hash)
    }

    /// The height of a block.
    pub(crate) fn height_of(&self, hash: &Hash) -> Option<u32> {
        self.heights.get(hash).copied()
    }

    /// The number of known blocks.
    pub(crate) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// How many checks have found that blocks were replaced.
    pub(crate) const fn reorgs(&self) -> u64 {
        self.reorgs
    }

    /// When the last reorg was found, and how many blocks up to the tip it replaced.
    pub(crate) const fn last_reorg(&self) -> Option<(Moment, u32)> {
        self.last_reorg
    }

    /// When the status last reported another tip than before.
    pub(crate) const fn moved(&self) -> Option<Moment> {
        self.moved
    }

    /// The highest block that was asked for and stands.
    pub(crate) const fn stands(&self) -> Option<u32> {
        self.stands
    }

    /// When an epoch ended. `None` if it is the present one, or no longer remembered.
    pub(crate) fn ended(&self, epoch: Epoch) -> Option<Moment> {
        let back = usize::try_from(self.epoch.checked_sub(epoch)?).ok()?;
        self.ended.get(self.ended.len().checked_sub(back)?).copied()
    }

    /// What a hit needs to know, where blocks `depth` below the tip are final.
    pub(super) fn view(&self, depth: u32) -> View {
        let tip = self.tip_height();
        let highest = self.blocks.last_key_value().map(|(height, _)| *height);
        // An empty block has no hash that a check could ask for: it is final below one
        // that has.
        let settled = tip.and_then(|tip| tip.checked_sub(depth)).min(highest);
        View {
            epoch: self.epoch,
            began: self.began,
            lowest_tip: self.doubt.map(|doubt| doubt.lowest_tip).or(tip),
            refuted_before: self.refuted_before,
            refuted_at: self.refuted_at,
            doubted: self.doubt.and_then(|doubt| doubt.since),
            final_up_to: settled.filter(|_| self.doubt.is_none()),
        }
    }

    /// Takes over the blocks of an earlier run, before the first status. They are in doubt.
    pub(crate) fn seed(&mut self, blocks: &[Block]) {
        for block in blocks {
            self.learn(*block);
        }
    }

    /// Applies a status: the tip's height and its tag. `lost`: since when the tip counts as
    /// unknown, if it does; `start`, unless another replica has asked for it. Returns from
    /// which height on everything is to be purged.
    pub(crate) fn status(
        &mut self,
        start: Option<RequestStart>,
        height: u32,
        tag: Option<&[u8]>,
        lost: Option<Moment>,
        now: Moment,
    ) -> Option<u32> {
        let status = Status {
            height,
            tag: tag.map(|tag| bare(tag).into()),
        };
        if self.status.as_ref() == Some(&status) {
            // Of statuses alone, two may be equal though the tip has moved to and fro.
            if let Some(start) = start.filter(|_| !self.tagged.is_empty()) {
                self.prove(start);
            }
            return None;
        }
        let before = self.proved;
        let lowest_tip = self.tip_height().map_or(height, |last| last.min(height));
        let is_first = self.status.replace(status).is_none();
        self.moved = Some(now);
        self.begin_epoch(lost.map_or(now, |lost| lost.min(now)), now);
        if is_first {
            self.refute_recent(now);
        }
        let began = self.answers;
        match &mut self.doubt {
            // Its check serves this tip too.
            Some(doubt) if doubt.since.is_some() || doubt.refuted > 0 => {
                doubt.since.get_or_insert(now);
                doubt.began = began;
                doubt.lowest_tip = doubt.lowest_tip.min(lowest_tip);
                // The tip may be back above blocks that it had left.
                if doubt.refuted > 0 && doubt.height <= height {
                    return None;
                }
            }
            Some(_) | None => {
                self.doubt = Some(Doubt {
                    since: Some(now),
                    before,
                    began,
                    lowest_tip,
                    height,
                    step: 1,
                    refuted: 0,
                });
            }
        }
        self.ask_up_to(Some(height), now)
    }

    /// Applies an answer of any other path. `interval` is the time between two statuses.
    pub(crate) fn apply(
        &mut self,
        start: RequestStart,
        observation: Observation<'_>,
        interval: Duration,
        now: Moment,
    ) -> Applied {
        let Observation {
            blocks,
            empty_block,
            ..
        } = observation;
        self.answers += 1;
        let mut applied = Applied::default();
        let Some(tip) = self.tip_height() else {
            applied.stored_in = Some(NO_EPOCH);
            return applied;
        };
        let is_ahead = blocks.iter().any(|block| block.height > tip);
        let is_present = self.is_of_present_tip(start, observation.route, observation.tag);
        if is_ahead || is_present != Some(true) {
            applied.asks_status = is_ahead || is_present.is_none();
            return applied;
        }
        let shown = self.shows(observation);
        if let Some(stands) = shown {
            applied.purge_from = match stands {
                true => self.end_doubt(self.doubt.map(|doubt| doubt.height), now),
                false => self.refute(now),
            };
            applied.asks_block = self.doubt.is_some();
        }
        if shown == Some(false) {
            return applied;
        }
        let mut wrong = blocks.iter().filter(|block| {
            let known = self.hash_at(block.height);
            known.is_some_and(|known| known != block.hash)
        });
        let wrong = wrong.next().map(|block| block.height);
        let emptied = empty_block.filter(|at| *at <= tip && self.blocks.contains_key(at));
        if let Some(height) = wrong.or(emptied) {
            let is_due = |last: Moment| now >= last + interval;
            if self.doubt.is_none() && self.contradicted.is_none_or(is_due) {
                self.contradicted = Some(now);
                self.doubt = Some(Doubt {
                    since: None,
                    before: self.proved,
                    began: self.proved,
                    lowest_tip: tip,
                    height,
                    step: 1,
                    refuted: 0,
                });
                applied.asks_block = true;
            }
            return applied;
        }
        for block in blocks {
            self.learn(*block);
        }
        applied.stored_in = Some(self.epoch);
        applied
    }

    /// Whether an answer is of the present tip; `None` where it is of one that the status
    /// has not reported, as far as is known.
    fn is_of_present_tip(
        &mut self,
        start: RequestStart,
        route: u16,
        tag: Option<&[u8]>,
    ) -> Option<bool> {
        let present = self
            .status
            .as_ref()
            .and_then(|status| status.tag.as_deref());
        let is_recent = start.epoch == self.epoch;
        let Some(tag) = tag.map(bare).filter(|_| present.is_some()) else {
            return Some(is_recent);
        };
        let is_same = present == Some(tag);
        match self.tagged.contains(&route) {
            false if is_same => self.tagged.push(route),
            false => return Some(is_recent),
            true if !is_same => return None,
            true => {}
        }
        // Another tag than a hash may be that of two tips.
        Some(self.prove(start) || is_recent)
    }

    /// Notes that an answer has the present tip's tag; returns whether that proves that it
    /// is of this tip.
    fn prove(&mut self, start: RequestStart) -> bool {
        let tag = self
            .status
            .as_ref()
            .and_then(|status| status.tag.as_deref());
        let is_hash =
            tag.is_some_and(|tag| std::str::from_utf8(tag).is_ok_and(|tag| hash(tag).is_some()));
        if is_hash {
            self.proved = self.proved.max(start.answers);
        }
        is_hash
    }

    fn begin_epoch(&mut self, ended: Moment, now: Moment) {
        self.ended.push_back(ended);
        if self.ended.len() > MOST_ENDED {
            self.ended.pop_front();
        }
        self.epoch += 1;
        self.began = now;
        self.proved = self.answers;
    }

    fn refute_recent(&mut self, now: Moment) {
        self.refuted_before = self.epoch;
        self.refuted_at = now;
    }

    fn learn(&mut self, block: Block) {
        if self.blocks.contains_key(&block.height) {
            return;
        }
        let known = Known {
            hash: block.hash,
            learned: self.answers,
        };
        self.blocks.insert(block.height, known);
        self.heights.insert(block.hash, block.height);
        if self.blocks.len() > MOST_BLOCKS
            && let Some((_, lowest)) = self.blocks.pop_first()
        {
            self.heights.remove(&lowest.hash);
        }
    }
}

/// A tag without its weakness indicator and its quotes (RFC 9110 §8.8.3).
fn bare(tag: &[u8]) -> &[u8] {
    let tag = tag.strip_prefix(b"W/").unwrap_or(tag);
    let inner = tag
        .strip_prefix(b"\"")
        .and_then(|tag| tag.strip_suffix(b"\""));
    inner.unwrap_or(tag)
}

#[cfg(test)]
mod tests;
