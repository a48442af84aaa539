//! In which stored window of its block a transaction was last seen: a hint for answering
//! from there. Pure.
//!
//! The table has a fixed number of slots; a transaction replaces another in its slot. So a
//! hint may be missing or out of date: its user looks into the window itself.

use std::hash::BuildHasher;

use foldhash::quality::FixedState;

use super::Chain;
use crate::pages::Hash;
use crate::sync::lock;

/// Where a transaction was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TransactionLocation {
    /// The route of its block's activity.
    pub(crate) route: u16,
    /// The block's height.
    pub(crate) height: u32,
    /// The window's offset.
    pub(crate) offset: u64,
}

/// Slots in the table; some 4 MiB, allocated on first use.
const SLOTS: usize = 1 << 16;

impl Chain {
    /// Notes that transactions are in a stored window.
    pub(crate) fn note_transactions(
        &self,
        location: TransactionLocation,
        txs: impl Iterator<Item = Hash>,
    ) {
        let mut slots = lock(&self.transactions);
        slots.resize(SLOTS, None);
        for tx in txs {
            slots[slot(&tx)] = Some((tx, location));
        }
    }

    /// The window in which a transaction was last seen, if that is still known.
    pub(crate) fn find_transaction(&self, tx: &Hash) -> Option<TransactionLocation> {
        let (held, location) = lock(&self.transactions).get(slot(tx)).copied().flatten()?;
        (held == *tx).then_some(location)
    }
}

fn slot(tx: &Hash) -> usize {
    // Truncation keeps the low bits, as intended.
    FixedState::default().hash_one(tx) as usize % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_transaction_takes_the_slot() {
        let index = Chain::without_tips();
        let location = |height| TransactionLocation {
            route: 1,
            height,
            offset: 60,
        };
        assert_eq!(index.find_transaction(&[1; 32]), None);
        index.note_transactions(location(7), [[1; 32]].into_iter());
        assert_eq!(index.find_transaction(&[1; 32]), Some(location(7)));
        assert_eq!(index.find_transaction(&[2; 32]), None);
        for n in 0..200_000_u32 {
            let mut tx = [0; 32];
            tx[..4].copy_from_slice(&n.to_be_bytes());
            index.note_transactions(location(n), [tx].into_iter());
            assert_eq!(index.find_transaction(&tx), Some(location(n)));
        }
        assert_eq!(lock(&index.transactions).len(), SLOTS);
    }
}
