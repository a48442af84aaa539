//! In which stored window of its block a transaction was last seen: a hint for answering
//! from there. Pure.
//!
//! The table has a fixed number of slots; a transaction replaces another in its slot. So a
//! hint may be missing or out of date: its user looks into the window itself.

use std::hash::BuildHasher;

use foldhash::quality::FixedState;

use crate::pages::Hash;

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

/// Where transactions were seen.
#[derive(Debug, Default)]
pub(super) struct TransactionIndex(Vec<Option<(Hash, TransactionLocation)>>);

/// Slots in the table; some 4 MiB, allocated on first use.
const SLOTS: usize = 1 << 16;

impl TransactionIndex {
    /// Notes where a transaction was seen.
    pub(super) fn note(&mut self, tx: Hash, location: TransactionLocation) {
        if self.0.is_empty() {
            self.0.resize(SLOTS, None);
        }
        self.0[slot(&tx)] = Some((tx, location));
    }

    /// Where a transaction was last seen, if that is still known.
    pub(super) fn find(&self, tx: &Hash) -> Option<TransactionLocation> {
        let (held, location) = self.0.get(slot(tx)).copied().flatten()?;
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
        let mut index = TransactionIndex::default();
        let location = |height| TransactionLocation {
            route: 1,
            height,
            offset: 60,
        };
        assert_eq!(index.find(&[1; 32]), None);
        index.note([1; 32], location(7));
        assert_eq!(index.find(&[1; 32]), Some(location(7)));
        assert_eq!(index.find(&[2; 32]), None);
        for n in 0..200_000_u32 {
            let mut tx = [0; 32];
            tx[..4].copy_from_slice(&n.to_be_bytes());
            index.note(tx, location(n));
            assert_eq!(index.find(&tx), Some(location(n)));
        }
        assert_eq!(index.0.len(), SLOTS);
    }
}
