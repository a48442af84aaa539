//! What two processes can compare of what they know of one indexer's chain: the tip's
//! height and its tag, which is its hash where the indexer has such tags. Epochs mean
//! something only within a process.

use aws_lc_rs::digest::{SHA256, digest};

use super::{Epoch, Ledger, NO_EPOCH, as_hash};
use crate::pages::Block;

/// The tip of an epoch, as any process knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TipMark {
    /// Its height.
    pub(crate) height: u32,
    /// Its hash, or the digest of its tag.
    pub(crate) tag: [u8; 32],
    /// Whether that is its hash.
    pub(crate) is_hash: bool,
}

/// An epoch in which what another process has stored was valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MarkedEpoch {
    /// The epoch.
    pub(crate) epoch: Epoch,
    /// Whether the mark is that of the present tip.
    pub(crate) is_present: bool,
}

impl Ledger {
    /// The mark of an epoch, if it is the present one, its tip is certain, and answers
    /// bear the tip's tag: those of another indexer do not say of which tip they are.
    pub(crate) fn mark_of(&self, epoch: Epoch) -> Option<TipMark> {
        let (height, is_certain) = self.tip()?;
        if epoch != self.epoch() || epoch == NO_EPOCH {
            return None;
        }
        if !is_certain || !self.tags.are_of_tip() {
            return None;
        }
        let current = self.tags.current()?;
        let hash = as_hash(current);
        if hash.is_some() && hash != self.hash_at(height) {
            return None;
        }
        let of_tag = || {
            let mut tag = [0; 32];
            tag.copy_from_slice(digest(&SHA256, current).as_ref());
            tag
        };
        Some(TipMark {
            height,
            tag: hash.unwrap_or_else(of_tag),
            is_hash: hash.is_some(),
        })
    }

    /// The epoch of this process in which the chain was that of a mark, up to the mark's
    /// height: the present one, or the last one in which the mark's block was seen for
    /// certain.
    pub(crate) fn marked_epoch(&self, mark: TipMark) -> Option<MarkedEpoch> {
        let present = self.epoch();
        if self.mark_of(present) == Some(mark) {
            return Some(MarkedEpoch {
                epoch: present,
                is_present: true,
            });
        }
        let known = self.blocks.get(mark.height);
        let known = known.filter(|known| mark.is_hash && known.hash == mark.tag)?;
        let is_certain = known.epoch == present || self.is_certain(known);
        let is_usable = known.epoch != NO_EPOCH && is_certain && self.tags.are_tip_hashes();
        is_usable.then_some(MarkedEpoch {
            epoch: known.epoch,
            is_present: false,
        })
    }

    /// Records that a block is in the chain of an epoch's tip, as another process has seen
    /// under that tip. It must be the block that is known here at its height, and the epoch
    /// the present one, of a tip that is known by its hash: the hash commits to all blocks
    /// below it, whoever has requested them and whenever. Returns whether all of this is so.
    pub(crate) fn confirm_block(&mut self, epoch: Epoch, block: Block) -> bool {
        let mark = self.mark_of(epoch).filter(|mark| mark.is_hash);
        let is_below = mark.is_some_and(|mark| block.height <= mark.height);
        let is_confirmed = is_below && self.hash_at(block.height) == Some(block.hash);
        if is_confirmed {
            // No request that began before proves it.
            self.epochs.count_answer(None);
            self.record(block, true, epoch);
        }
        is_confirmed
    }
}
