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
    /// The present epoch.
    pub(crate) epoch: Epoch,
    /// Whether all of them are final.
    pub(crate) are_final: bool,
}

impl Chain {
    /// Takes over the blocks that an earlier run knew of a tip. Nothing is known of them
    /// before one is seen again.
    pub(crate) fn seed(&self, tip: TipNumber, blocks: &KnownBlocks) {
        if let Some(tip) = self.tip_at(tip) {
            tip.ledger().seed(blocks);
            let is_checked = blocks.is_empty() || tip.source.path.is_none();
            tip.seed_settled.send_replace(is_checked);
        }
    }

    /// The blocks that are known of a tip, for the next run; `None` while it is not known
    /// whether they are of one chain.
    pub(crate) fn known_blocks(&self, tip: TipNumber) -> Option<KnownBlocks> {
        self.tip_at(tip)?.ledger().known_blocks()
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
    /// run has stored; `None` while it is not known whether they still stand.
    pub(crate) fn standing_blocks(&self, tip: TipNumber, highest: u32) -> Option<StandingBlocks> {
        let tip = self.tip_at(tip)?;
        let ledger = tip.ledger();
        let certain_tip = ledger.tip().filter(|(_, certain)| *certain);
        let certain_tip = certain_tip.map(|(height, _)| height);
        let stands = ledger.stands().is_some_and(|stands| highest <= stands);
        stands.then(|| StandingBlocks {
            epoch: ledger.epoch(),
            are_final: is_deep(highest, certain_tip, self.finality.final_depth),
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
        drop(ledger);
        if let SeedCheck::Orphaned(from) = check {
            tip.report_reorg(Some(from), epoch);
        }
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
