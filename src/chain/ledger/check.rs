//! The check after a new tip: which of the known blocks still stand. One request at a time
//! asks for the highest of them; where it was replaced, lower ones are asked for.

use super::{Epoch, Known, Ledger, Observation};
use crate::clock::Moment;

/// The most blocks that are asked for after one change of the chain. Each is twice as far
/// below as the one before, so they reach at least 127 blocks down.
const MOST_ASKED: u32 = 8;
/// A check under way: which of the known blocks still stand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Doubt {
    /// When the new tip was seen. `None` where an answer has contradicted what is known.
    pub(super) since: Option<Moment>,
    /// Blocks learned by this answer or before are of the chain before the change.
    pub(super) before: u64,
    /// The number of answers when the tip was seen that the check is for.
    pub(super) began: u64,
    /// The lowest tip since the check began, or just before: recent answers above it are
    /// stale.
    pub(super) lowest_tip: u32,
    /// The block that is asked for.
    pub(super) height: u32,
    /// How far below it the next one is.
    pub(super) step: u32,
    /// The blocks that were found not to stand.
    pub(super) refuted: u32,
}

impl Ledger {
    /// The block that a check asks for, and the present epoch. A check that has the same
    /// result as before has had no answer that counts.
    pub(crate) fn check(&self) -> Option<(u32, Epoch)> {
        Some((self.doubt?.height, self.epoch))
    }

    /// No route shows the block that a check asks for: what is recent is stale.
    pub(crate) fn cannot_check(&mut self, now: Moment) {
        self.refute_recent(now);
        self.doubt = None;
    }

    /// Whether the block that a check asks for stands, if an answer of the present tip shows
    /// that.
    pub(super) fn shows(&self, observation: Observation<'_>) -> Option<bool> {
        let height = self.doubt?.height;
        let mut blocks = observation.blocks.iter();
        match blocks.find(|block| block.height == height) {
            Some(block) => Some(self.hash_at(height) == Some(block.hash)),
            None => (observation.empty_block == Some(height)).then_some(false),
        }
    }

    /// The block that was asked for does not stand: a lower one is asked for.
    pub(super) fn refute(&mut self, now: Moment) -> Option<u32> {
        let doubt = self.doubt.as_mut()?;
        let most = doubt.height.checked_sub(doubt.step);
        doubt.step *= 2;
        doubt.refuted += 1;
        let most = most.filter(|_| doubt.refuted < MOST_ASKED);
        if doubt.refuted == 1 {
            self.begin_epoch(now, now);
            self.refute_recent(now);
        }
        self.ask_up_to(most, now)
    }

    /// Has the check ask for the highest block up to a height that was known before the
    /// change. Where there is none, nothing is known to stand.
    pub(super) fn ask_up_to(&mut self, most: Option<u32>, now: Moment) -> Option<u32> {
        let before = self.doubt?.before;
        let next = most.and_then(|most| {
            let mut known = self.blocks.range(..=most).rev();
            known.find(|(_, known)| known.learned <= before)
        });
        match next.map(|(height, _)| *height) {
            Some(height) => {
                self.doubt.as_mut()?.height = height;
                None
            }
            None => self.end_doubt(None, now),
        }
    }

    /// Ends the check: the block at a height stands, or none. Returns from which height on
    /// everything is to be purged.
    pub(super) fn end_doubt(&mut self, stands: Option<u32>, now: Moment) -> Option<u32> {
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
