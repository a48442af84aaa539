//! Blocks that an earlier run has left, and whether they still stand.

use std::time::Duration;

use super::finality::is_deep;
use super::ledger::{Epoch, SeedCheck};
use super::{Chain, TipNumber};
use crate::clock::Moment;
use crate::pages::Block;

impl Chain {
    /// Takes over the blocks that an earlier run knew of a tip, before the first probe.
    /// Nothing is known of them until one is seen again.
    pub(crate) fn seed(&self, tip: TipNumber, blocks: &[Block]) {
        if let Some(tip) = self.tip_at(tip) {
            tip.ledger().seed(blocks);
            let is_open = !blocks.is_empty() && tip.source.path.is_some();
            tip.seed_settled.send_replace(!is_open);
        }
    }

    /// The epoch in which the blocks up to a height stood that an earlier run has seen,
    /// where they are final and known to stand still.
    pub(crate) fn stands(&self, tip: TipNumber, highest: u32) -> Option<Epoch> {
        let ledger = self.tip_at(tip)?.ledger();
        let epoch = ledger.stood(highest)?;
        let certain_tip = ledger.tip().filter(|(_, certain)| *certain);
        let certain_tip = certain_tip.map(|(height, _)| height);
        let is_deep = is_deep(highest, certain_tip, self.finality.final_depth);
        (is_deep && ledger.is_linked(epoch, highest)).then_some(epoch)
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
