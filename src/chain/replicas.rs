//! What of the chain means the same in another replica.

use super::finality::{Class, is_deep};
use super::ledger::Epoch;
use super::ledger::{MarkedEpoch, TipMark};
use super::{Chain, ChainStamp, TipNumber};
use crate::pages::Block;

impl Chain {
    /// The tip of an epoch, if it is the present one and its tip is known for certain.
    pub(crate) fn mark_of(&self, tip: TipNumber, epoch: Epoch) -> Option<TipMark> {
        self.tip_at(tip)?.ledger().mark_of(epoch)
    }

    /// The epoch in which an answer was valid that another replica got when its tip was
    /// this one, and that names no block above `highest`; `None` if that is not known.
    pub(crate) fn marked_epoch(
        &self,
        tip: TipNumber,
        mark: TipMark,
        highest: Option<u32>,
    ) -> Option<MarkedEpoch> {
        let is_below = highest.is_none_or(|highest| highest <= mark.height);
        let tip = self.tip_at(tip).filter(|_| is_below)?;
        tip.ledger().marked_epoch(mark)
    }

    /// Whether a response is one from whose blocks it follows that they are in the chain of
    /// the present tip: it was valid in the present epoch, and is not final, since those
    /// are valid in any.
    pub(crate) fn shows_block(&self, stamp: &ChainStamp) -> bool {
        stamp.class == Class::Recent && stamp.epoch() == self.epoch(stamp.tip)
    }

    /// Records that a block is in the chain of the present tip, where a response of another
    /// replica [shows](Self::shows_block) it and the same block is known here. Returns
    /// whether that is so.
    pub(crate) fn confirm_block(&self, stamp: &ChainStamp, block: Block) -> bool {
        let tip = self.tip_at(stamp.tip).filter(|_| self.shows_block(stamp));
        tip.is_some_and(|tip| {
            let mut ledger = tip.ledger();
            let is_confirmed = ledger.confirm_block(stamp.epoch(), block);
            tip.publish(&ledger);
            is_confirmed
        })
    }

    /// Whether all blocks up to a height are final by the tip that is known here.
    pub(crate) fn is_final(&self, tip: TipNumber, highest: u32) -> bool {
        let height = self.tip_height(tip);
        is_deep(highest, height, self.finality.final_depth)
    }
}
