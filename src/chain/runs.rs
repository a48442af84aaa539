//! Where transactions stand in stored windows of their blocks: a hint for
//! answering from there. Pure.
//!
//! The table has a fixed number of places; a transaction whose place is taken
//! drives the other out. So a hint may be missing and may be out of date: who
//! uses one looks into the window itself.

use std::hash::BuildHasher;

use foldhash::quality::FixedState;

use crate::pages::Hash;

/// Where a transaction was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransactionLocation {
    /// The route of its block's activity.
    pub route: u16,
    /// The block's height.
    pub height: u32,
    /// The window's offset.
    pub offset: u64,
}

/// Places of transactions.
#[derive(Debug, Default)]
pub struct TransactionIndex(Vec<Option<(Hash, TransactionLocation)>>);

/// Places in the table; some 4 MiB once it is used.
const PLACES: usize = 1 << 16;

impl TransactionIndex {
    /// Notes where a transaction was seen.
    pub fn note(&mut self, tx: Hash, place: TransactionLocation) {
        if self.0.is_empty() {
            self.0.resize(PLACES, None);
        }
        self.0[slot(&tx)] = Some((tx, place));
    }

    /// Where a transaction was seen last, where that is still known.
    pub fn find(&self, tx: &Hash) -> Option<TransactionLocation> {
        let (held, place) = self.0.get(slot(tx)).copied().flatten()?;
        (held == *tx).then_some(place)
    }
}

fn slot(tx: &Hash) -> usize {
    // Truncation takes the low bits, which is what is wanted.
    FixedState::default().hash_one(tx) as usize % PLACES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_holds_the_place() {
        let mut runs = TransactionIndex::default();
        let place = |height| TransactionLocation {
            route: 1,
            height,
            offset: 60,
        };
        assert_eq!(runs.find(&[1; 32]), None);
        runs.note([1; 32], place(7));
        assert_eq!(runs.find(&[1; 32]), Some(place(7)));
        assert_eq!(runs.find(&[2; 32]), None);
        runs.note([1; 32], place(8));
        assert_eq!(runs.find(&[1; 32]), Some(place(8)));
        for n in 0..200_000_u32 {
            let mut tx = [0; 32];
            tx[..4].copy_from_slice(&n.to_be_bytes());
            runs.note(tx, place(n));
            assert_eq!(runs.find(&tx), Some(place(n)));
        }
        assert_eq!(runs.0.len(), PLACES);
    }
}
