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

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use super::freshness::{Epoch, NO_EPOCH, View};
use crate::clock::Moment;
use crate::pages::{Block, Hash, hash};

/// The most blocks that are known; the lowest are forgotten first.
const MOST_BLOCKS: usize = 65_536;
/// The most blocks that are asked for after one change of the chain. Each is twice as far
/// below as the one before, so they reach at least 127 blocks down.
const MOST_ASKED: u32 = 8;

/// The state of the ledger when a request was about to be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RequestStart {
    /// The epoch then.
    pub(crate) epoch: Epoch,
    answers: u64,
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
    /// What hits need to know; [`Ledger::view`] adds what follows from the rest.
    pub(crate) view: View,
    /// The number of answers so far, by which blocks and requests are ordered.
    answers: u64,
    /// Blocks learned by this answer or before are of the present tip's chain.
    proved: u64,
    pub(super) blocks: BTreeMap<u32, Known>,
    pub(super) heights: HashMap<Hash, u32>,
    /// The highest block that was asked for and stands.
    pub(crate) stands: Option<u32>,
    pub(super) doubt: Option<Doubt>,
    /// When a contradiction last began a check.
    contradicted: Option<Moment>,
    /// The routes whose answers have had the tip's tag.
    tagged: Vec<u16>,
    /// How many checks have found that blocks were replaced.
    pub(super) reorgs: u64,
    /// When the status reported another tip than before, here or by another replica.
    pub(super) moved: Option<Moment>,
    /// When the last reorg was found, and how many blocks up to the tip it replaced.
    pub(super) last_reorg: Option<(Moment, u32)>,
    /// Requests for the status, and those that failed.
    pub(crate) probes: u64,
    pub(super) failures: u64,
    /// Why the last one failed, if it did.
    pub(crate) trouble: Option<String>,
}

/// The tip as the status path reports it.
#[derive(Debug, PartialEq, Eq)]
struct Status {
    height: u32,
    tag: Option<Box<[u8]>>,
}

/// A block with items.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    hash: Hash,
    /// The number of the answer that named it first; 0 if an earlier run knew it.
    learned: u64,
}

/// A check under way: which of the known blocks still stand. One request at a time asks
/// for the highest of them; where it was replaced, lower ones are asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Doubt {
    /// When the new tip was seen. `None` where an answer has contradicted what is known.
    since: Option<Moment>,
    /// Blocks learned by this answer or before are of the chain before the change.
    before: u64,
    /// The number of answers when the tip was seen that the check is for.
    began: u64,
    /// The lowest tip since the check began, or just before: recent answers above it are
    /// stale.
    lowest_tip: u32,
    /// The block that is asked for.
    pub(super) height: u32,
    /// The blocks that were found not to stand.
    refuted: u32,
}

impl Ledger {
    /// The state of the ledger, to be taken before a request is sent.
    pub(crate) const fn start(&self) -> RequestStart {
        RequestStart {
            epoch: self.view.epoch,
            answers: self.answers,
        }
    }

    /// The tip's height.
    pub(crate) fn tip_height(&self) -> Option<u32> {
        Some(self.status.as_ref()?.height)
    }

    /// The tip's tag.
    fn tag(&self) -> Option<&[u8]> {
        self.status.as_ref()?.tag.as_deref()
    }

    /// The present epoch, and what any process calls its tip: the height and the tag.
    pub(crate) fn tip_mark(&self) -> Option<(Epoch, Vec<u8>)> {
        let Status { height, tag } = self.status.as_ref()?;
        let mark = [&height.to_be_bytes(), tag.as_deref().unwrap_or_default()].concat();
        Some((self.view.epoch, mark))
    }

    /// The hash of the block at a height.
    pub(crate) fn hash_at(&self, height: u32) -> Option<Hash> {
        self.blocks.get(&height).map(|known| known.hash)
    }

    /// What a hit needs to know, where blocks `depth` below the tip are final, and the
    /// status is asked for each interval `every` or less often.
    pub(super) fn view(&self, depth: u32, every: Duration) -> View {
        let tip = self.tip_height();
        let highest = self.blocks.last_key_value().map(|(height, _)| *height);
        // An empty block has no hash that a check could ask for: it is final below one
        // that has.
        let settled = tip.and_then(|tip| tip.checked_sub(depth)).min(highest);
        View {
            lowest_tip: self.doubt.map(|doubt| doubt.lowest_tip).or(tip),
            doubted: self.doubt.and_then(|doubt| doubt.since),
            final_up_to: settled.filter(|_| self.doubt.is_none()),
            interval: self.view.interval.max(every),
            ..self.view
        }
    }

    /// The block that a check asks for, and the present epoch. A check that has the same result
    /// as before has had no answer that counts.
    pub(crate) fn check(&self) -> Option<(u32, Epoch)> {
        Some((self.doubt?.height, self.view.epoch))
    }

    /// Applies a status: the tip's height and its tag. `lost`: since when the tip counts as
    /// unknown, if it does; `start`, unless another replica has asked for it. Returns from
    /// which height on everything is to be purged.
    pub(super) fn status(
        &mut self,
        start: Option<RequestStart>,
        height: u32,
        tag: Option<&[u8]>,
        lost: Option<Moment>,
        now: Moment,
    ) -> Option<u32> {
        let tag = tag.map(|tag| bare(tag).into());
        let status = Status { height, tag };
        if self.status.as_ref() == Some(&status) {
            // Of statuses alone, two may be equal though the tip has moved to and fro.
            if let Some(start) = start.filter(|_| !self.tagged.is_empty()) {
                self.prove(start);
            }
            return None;
        }
        let before = self.proved;
        let last = self.status.replace(status).map(|last| last.height);
        self.moved = Some(now);
        self.begin_epoch(lost.map_or(now, |lost| lost.min(now)), now);
        if last.is_none() {
            self.refute_recent(now);
        }
        // A check under way serves this tip too.
        let mut under_way = self.doubt;
        under_way = under_way.filter(|doubt| doubt.since.is_some() || doubt.refuted > 0);
        let mut doubt = under_way.unwrap_or(Doubt {
            before,
            lowest_tip: height,
            ..Doubt::default()
        });
        doubt.since.get_or_insert(now);
        doubt.began = self.answers;
        doubt.lowest_tip = doubt.lowest_tip.min(height).min(last.unwrap_or(height));
        self.doubt = Some(doubt);
        // The tip may be back above blocks that it had left.
        match doubt.refuted > 0 && doubt.height <= height {
            true => None,
            false => self.ask_up_to(Some(height), now),
        }
    }

    /// Applies an answer of any other path. `interval` is the time between two statuses.
    pub(super) fn apply(
        &mut self,
        start: RequestStart,
        observation: Observation<'_>,
        interval: Duration,
        now: Moment,
    ) -> Applied {
        let (blocks, empty) = (observation.blocks, observation.empty_block);
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
        if let Some(Doubt { height, .. }) = self.doubt {
            let shown = blocks.iter().find(|block| block.height == height);
            if shown.is_some_and(|block| self.hash_at(height) == Some(block.hash)) {
                applied.purge_from = self.end_doubt(Some(height), now);
            } else if shown.is_some() || empty == Some(height) {
                applied.purge_from = self.refute(now);
                applied.asks_block = self.doubt.is_some();
                return applied;
            }
        }
        let is_wrong = |block: &&Block| {
            let known = self.hash_at(block.height);
            known.is_some_and(|known| known != block.hash)
        };
        let wrong = blocks.iter().find(is_wrong).map(|block| block.height);
        let emptied = empty.filter(|at| *at <= tip && self.blocks.contains_key(at));
        if let Some(height) = wrong.or(emptied) {
            let is_due = |last: Moment| now >= last + interval;
            if self.doubt.is_none() && self.contradicted.is_none_or(is_due) {
                self.contradicted = Some(now);
                self.doubt = Some(Doubt {
                    before: self.proved,
                    began: self.proved,
                    lowest_tip: tip,
                    height,
                    ..Doubt::default()
                });
                applied.asks_block = true;
            }
            return applied;
        }
        for block in blocks {
            self.learn(*block);
        }
        applied.stored_in = Some(self.view.epoch);
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
        let is_recent = start.epoch == self.view.epoch;
        let both = self.tag().zip(tag.map(bare));
        let Some(is_same) = both.map(|(present, tag)| present == tag) else {
            return Some(is_recent);
        };
        let is_tagged = self.tagged.contains(&route);
        if !is_same {
            return (!is_tagged).then_some(is_recent);
        }
        if !is_tagged {
            self.tagged.push(route);
        }
        // Another tag than a hash may be that of two tips.
        Some(self.prove(start) || is_recent)
    }

    /// Notes that an answer has the present tip's tag; returns whether that proves that it
    /// is of this tip.
    fn prove(&mut self, start: RequestStart) -> bool {
        let tag = self.tag().and_then(|tag| std::str::from_utf8(tag).ok());
        let is_hash = tag.is_some_and(|tag| hash(tag).is_some());
        if is_hash {
            self.proved = self.proved.max(start.answers);
        }
        is_hash
    }

    fn begin_epoch(&mut self, ended: Moment, now: Moment) {
        self.view.ended.rotate_right(1);
        self.view.ended[0] = ended;
        self.view.epoch += 1;
        self.view.began = now;
        self.proved = self.answers;
    }

    fn refute_recent(&mut self, now: Moment) {
        self.view.refuted_before = self.view.epoch;
        self.view.refuted_at = now;
    }

    /// Learns a block that an answer names; or one of an earlier run, before the first
    /// status, which is then in doubt.
    pub(crate) fn learn(&mut self, block: Block) {
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

    /// No route shows the block that a check asks for: what is recent is stale.
    pub(crate) fn cannot_check(&mut self, now: Moment) {
        self.refute_recent(now);
        self.doubt = None;
    }

    /// The block that was asked for does not stand: a lower one is asked for. Returns from which
    /// height on everything is to be purged, if the check has ended.
    fn refute(&mut self, now: Moment) -> Option<u32> {
        let doubt = self.doubt.as_mut()?;
        let most = doubt.height.checked_sub(1 << doubt.refuted);
        doubt.refuted += 1;
        let most = most.filter(|_| doubt.refuted < MOST_ASKED);
        if doubt.refuted == 1 {
            self.begin_epoch(now, now);
            self.refute_recent(now);
        }
        self.ask_up_to(most, now)
    }

    /// Has the check ask for the highest block up to a height that was known before the
    /// change. Where there is none, nothing is known to stand. Returns the same.
    fn ask_up_to(&mut self, most: Option<u32>, now: Moment) -> Option<u32> {
        let doubt = self.doubt.as_mut()?;
        let next = most.and_then(|most| {
            let mut known = self.blocks.range(..=most).rev();
            known.find(|(_, known)| known.learned <= doubt.before)
        });
        let Some((height, _)) = next else {
            return self.end_doubt(None, now);
        };
        doubt.height = *height;
        None
    }

    /// Ends the check: the block at a height stands, or none. Returns from which height on
    /// everything is to be purged.
    fn end_doubt(&mut self, stands: Option<u32>, now: Moment) -> Option<u32> {
        let doubt = self.doubt.take()?;
        let above = stands.map_or(0, |height| height.saturating_add(1));
        if doubt.refuted > 0 {
            for known in self.blocks.split_off(&above).into_values() {
                self.heights.remove(&known.hash);
            }
            self.reorgs += 1;
            self.stands = stands;
            let replaced = (self.tip_height()).map_or(0, |tip| (tip + 1).saturating_sub(above));
            self.last_reorg = Some((now, replaced));
            return Some(above);
        }
        self.stands = self.stands.max(stands);
        // Blocks learned between may be of either chain, or of a third.
        let between = |known: &Known| doubt.before < known.learned && known.learned <= doubt.began;
        let mut higher = self.blocks.range(above..);
        let is_open = higher.any(|(_, known)| between(known));
        is_open.then_some(above)
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
