//! Blocks that an earlier run has left, and whether they still stand.

use std::time::Duration;

use super::ledger::SeedCheck;
use super::{Chain, TipNumber};
use crate::clock::Moment;
use crate::pages::Block;

/// What is known of an earlier run's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SeedState {
    /// The first request for the highest of them has not ended.
    Pending,
    /// It had no answer yet.
    Unanswered,
    /// It was answered, or there are none.
    Done,
}

impl Chain {
    /// Takes over the blocks that an earlier run knew of a tip, before the first probe.
    /// Nothing is known of them until one is seen again.
    pub(crate) fn seed(&self, tip: TipNumber, blocks: &[Block]) {
        let tip = self.tip_at(tip).filter(|_| !blocks.is_empty());
        if let Some(tip) = tip.filter(|tip| tip.source.path.is_some()) {
            tip.ledger().seed(blocks);
            tip.seed.send_replace(SeedState::Pending);
        }
    }

    /// Whether the blocks up to a height that an earlier run has seen are known to stand.
    pub(crate) fn stood(&self, tip: TipNumber, highest: u32) -> bool {
        self.tip_at(tip)
            .is_some_and(|tip| tip.ledger().stood(highest))
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
            tip.seed_unanswered();
        }
    }

    /// What an earlier run's blocks are is known now, as far as it can be.
    pub(crate) fn seed_checked(&self, tip: TipNumber) {
        if let Some(tip) = self.tip_at(tip) {
            tip.seed.send_replace(SeedState::Done);
        }
    }

    /// What is known of an earlier run's blocks, after a wait for the first request, at most
    /// for `patience`.
    pub(crate) async fn seed_state(&self, tip: TipNumber, patience: Duration) -> SeedState {
        let Some(tip) = self.tip_at(tip) else {
            return SeedState::Done;
        };
        let mut state = tip.seed.subscribe();
        let ended = state.wait_for(|state| *state != SeedState::Pending);
        let _in_time = tokio::time::timeout(patience, ended).await;
        *tip.seed.borrow()
    }
}
