//! What of the chain outlives the process: the blocks that were known, and which of them
//! still stand.

use std::time::Duration;

use super::finality::is_deep;
use super::ledger::{Epoch, KnownBlocks, SeedCheck};
use super::{Chain, TipNumber};
use crate::clock::Moment;

/// What is known of the blocks that a response names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StandingBlocks {
    /// The epoch in which they stood.
    pub(crate) epoch: Epoch,
    /// Whether all of them are final, and still stand.
    pub(crate) are_final: bool,
}

impl Chain {
    /// Takes over the blocks that an earlier run knew of a tip. Nothing is known of them
    /// before one is seen again. Returns the height from which on they were replaced, if
    /// that is known already: what names a block from there on is to be purged, and then
    /// [`purged`](Self::purged) to be called.
    pub(crate) fn seed(&self, tip: TipNumber, blocks: &KnownBlocks) -> Option<u32> {
        let tip = self.tip_at(tip)?;
        let mut ledger = tip.ledger();
        // Later, nobody waits for the next probe.
        let is_first = ledger.revision() == 0;
        let orphaned = ledger.seed(blocks);
        let epoch = ledger.epoch();
        tip.note_orphaned(orphaned);
        drop(ledger);
        let is_open = is_first && !blocks.blocks.is_empty() && tip.source.path.is_some();
        tip.seed_settled.send_replace(!is_open);
        tip.report_reorg(orphaned, epoch);
        orphaned
    }

    /// The blocks that are known of a tip, for the next run; `None` while it is not known
    /// whether they are of one chain, or while a reorg of them has purged nothing yet: a
    /// process that is killed then must find the blocks of before.
    pub(crate) fn known_blocks(&self, tip: TipNumber) -> Option<KnownBlocks> {
        let tip = self.tip_at(tip)?;
        let ledger = tip.ledger();
        let known = || ledger.known_blocks(tip.number);
        tip.is_purged().then(known).flatten()
    }

    /// Notes that what names the orphaned blocks that were reported was purged.
    pub(crate) fn purged(&self, tip: TipNumber) {
        if let Some(tip) = self.tip_at(tip) {
            tip.note_purged();
        }
    }

    /// A number that grows with what is known of a tip.
    pub(crate) fn revision(&self, tip: TipNumber) -> u64 {
        self.tip_at(tip).map_or(0, |tip| tip.ledger().revision())
    }

    /// The number of what is known of a tip: another process has another one, and so has
    /// another indexer. Epochs mean something only within one.
    pub(crate) fn state_number(&self, tip: TipNumber) -> Option<u64> {
        self.tip_at(tip).map(|tip| tip.number)
    }

    /// What is known of the blocks up to a height that a response names which an earlier
    /// run has stored, by the number of that run's state; `None` while it is not known
    /// whether they stood in any epoch of this run.
    pub(crate) fn standing_blocks(
        &self,
        tip: TipNumber,
        state: u64,
        highest: u32,
    ) -> Option<StandingBlocks> {
        let tip = self.tip_at(tip)?;
        let ledger = tip.ledger();
        let certain_tip = ledger.tip().filter(|(_, certain)| *certain);
        let certain_tip = certain_tip.map(|(height, _)| height);
        let epoch = ledger.stood(state, highest)?;
        let is_deep = is_deep(highest, certain_tip, self.finality.final_depth);
        Some(StandingBlocks {
            epoch,
            are_final: is_deep && ledger.is_linked(epoch, highest),
        })
    }

    /// The next step of the check of an earlier run's blocks. Call it again after each
    /// check that was answered, and purge what it reports as orphaned.
    pub(crate) fn next_seed_check(&self, tip: TipNumber, now: Moment) -> SeedCheck {
        let Some(tip) = self.tip_at(tip) else {
            return SeedCheck::None;
        };
        let mut ledger = tip.ledger();
        let check = ledger.next_seed_check(now);
        tip.publish(&ledger);
        let epoch = ledger.epoch();
        let orphaned = match check {
            SeedCheck::Orphaned(from) => Some(from),
            SeedCheck::At(_) | SeedCheck::None => None,
        };
        tip.note_orphaned(orphaned);
        drop(ledger);
        tip.report_reorg(orphaned, epoch);
        check
    }

    /// A check of an earlier run's blocks had no answer.
    pub(crate) fn seed_check_failed(&self, tip: TipNumber) {
        if let Some(tip) = self.tip_at(tip) {
            tip.ledger().retry_seed_check();
        }
    }

    /// The first check of an earlier run's blocks has ended, whatever it showed.
    pub(crate) fn settle_seed(&self, tip: TipNumber) {
        if let Some(tip) = self.tip_at(tip) {
            tip.seed_settled.send_replace(true);
        }
    }

    /// Waits until the first check of an earlier run's blocks has ended, at most for
    /// `patience`.
    pub(crate) async fn seed_settled(&self, tip: TipNumber, patience: Duration) {
        if let Some(tip) = self.tip_at(tip) {
            let mut settled = tip.seed_settled.subscribe();
            if !*settled.borrow() {
                let ended = settled.wait_for(|settled| *settled);
                let _in_time = tokio::time::timeout(patience, ended).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::ledger::Observation;
    use crate::chain::{KnownRun, Settings};
    use crate::pages::Block;

    const NOW: Moment = Moment::from_nanos(1 << 50);

    fn block(height: u32) -> Block {
        let mut hash = [1; 32];
        hash[..4].copy_from_slice(&height.to_be_bytes());
        Block { height, hash }
    }

    fn chain() -> Chain {
        Chain::new(&Settings::of_tests())
    }

    /// The upstream has a tip, and answers with it and a block.
    fn learn(chain: &Chain, tip: u32, seen: u32) {
        let tag = crate::pages::hex(&block(tip).hash);
        let status = || {
            let start = chain.request_start(0).unwrap();
            chain.apply_status(0, start, NOW, Some(tip), Some(tag.as_bytes()), NOW);
        };
        status();
        let start = chain.request_start(0).unwrap();
        let observation = Observation {
            blocks: &[block(seen)],
            etag: Some(tag.as_bytes()),
            ..Observation::default()
        };
        chain.apply_answer(0, start, NOW, observation, NOW);
        status();
    }

    #[test]
    fn blocks_are_not_for_the_next_run_before_their_reorg_has_purged() {
        let chain = chain();
        // Without a status there is no search for the fork point.
        let learn = |block| {
            let start = chain.request_start(0).unwrap();
            let observation = Observation {
                blocks: &[block],
                ..Observation::default()
            };
            chain.apply_answer(0, start, NOW, observation, NOW);
        };
        learn(block(100));
        assert_eq!(chain.known_blocks(0).unwrap().blocks.len(), 1);
        let height = 100;
        learn(Block {
            height,
            hash: [9; 32],
        });
        assert_eq!(chain.known_blocks(0), None);
        chain.purged(0);
        assert_eq!(chain.known_blocks(0).unwrap().blocks.len(), 1);
    }

    #[test]
    fn blocks_of_an_earlier_run_stand_as_long_as_a_later_epoch_is_linked() {
        let chain = chain();
        let run = KnownRun {
            state: 1,
            up_to: u32::MAX,
        };
        let earlier = KnownBlocks {
            blocks: (80..=100).map(|height| (block(height), true)).collect(),
            runs: vec![run],
        };
        chain.seed(0, &earlier);
        assert_eq!(chain.standing_blocks(0, 1, 99), None);
        learn(&chain, 101, 100);
        let (first, depth) = (chain.epoch(0), chain.finality().final_depth);
        let standing = |are_final| {
            Some(StandingBlocks {
                epoch: first,
                are_final,
            })
        };
        let deep = 101 - depth;
        assert_eq!(chain.standing_blocks(0, 1, 99), standing(false));
        assert_eq!(chain.standing_blocks(0, 1, deep), standing(true));
        // A new tip, and nothing of the blocks below it: as it may be after a reorg.
        let tag = crate::pages::hex(&block(130).hash);
        let start = chain.request_start(0).unwrap();
        chain.apply_status(0, start, NOW, Some(130), Some(tag.as_bytes()), NOW);
        assert!(chain.epoch(0) > first);
        assert_eq!(chain.standing_blocks(0, 1, 99), standing(false));
        // A block that was seen before is seen again.
        learn(&chain, 130, 101);
        assert_eq!(chain.standing_blocks(0, 1, 99), standing(true));
    }
}
