//! The blocks that are known, by height and by hash.

use std::collections::{BTreeMap, HashMap};

use super::Epoch;
use crate::pages::{Block, Hash};

/// The blocks that are known; one at each height.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    by_height: BTreeMap<u32, KnownBlock>,
    heights: HashMap<Hash, u32>,
}

/// What is known of a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownBlock {
    pub(super) hash: Hash,
    /// The revision that learned it.
    pub(super) revision: u64,
    /// The last epoch in which it was seen.
    pub(super) epoch: Epoch,
    /// The number of answers when it was first seen in that epoch.
    pub(super) answer: u64,
    /// Whether it has items, all operations counted.
    pub(super) has_items: bool,
    /// Whether it is known to have none.
    pub(super) is_empty: bool,
    /// Whether an earlier run knew it.
    pub(super) is_seed: bool,
}

impl Blocks {
    pub(super) fn get(&self, height: u32) -> Option<&KnownBlock> {
        self.by_height.get(&height)
    }

    pub(super) fn get_mut(&mut self, height: u32) -> Option<&mut KnownBlock> {
        self.by_height.get_mut(&height)
    }

    /// Whether another block is known at a block's height.
    pub(super) fn contradicts(&self, block: Block) -> bool {
        self.get(block.height)
            .is_some_and(|known| known.hash != block.hash)
    }

    /// The height of a block that has items.
    pub(super) fn height_of(&self, hash: &Hash) -> Option<u32> {
        let height = *self.heights.get(hash)?;
        self.get(height)?.has_items.then_some(height)
    }

    pub(super) fn len(&self) -> usize {
        self.by_height.len()
    }

    /// The blocks at a height and above, ascending.
    pub(super) fn from(&self, height: u32) -> impl DoubleEndedIterator<Item = (u32, &KnownBlock)> {
        let blocks = self.by_height.range(height..);
        blocks.map(|(height, block)| (*height, block))
    }

    /// The blocks below a height, ascending.
    pub(super) fn below(&self, height: u32) -> impl DoubleEndedIterator<Item = (u32, &KnownBlock)> {
        let blocks = self.by_height.range(..height);
        blocks.map(|(height, block)| (*height, block))
    }

    /// Inserts a block in place of the one at its height, and forgets the lowest
    /// where there are more than `most`.
    pub(super) fn insert(&mut self, height: u32, block: KnownBlock, most: usize) {
        if let Some(elsewhere) = self.heights.insert(block.hash, height) {
            self.by_height.remove(&elsewhere);
        }
        if let Some(before) = self.by_height.insert(height, block) {
            self.heights.remove(&before.hash);
        }
        self.shrink_to(most);
    }

    /// Notes that the list of a block without items was found empty.
    pub(super) fn mark_empty(&mut self, height: u32) {
        if let Some(known) = self.get_mut(height) {
            known.is_empty = !known.has_items;
        }
    }

    /// Forgets the blocks at a height and above.
    pub(super) fn forget_from(&mut self, height: u32) {
        for (_, block) in self.by_height.split_off(&height) {
            self.heights.remove(&block.hash);
        }
    }

    /// Forgets the lowest blocks until there are no more than `most`.
    pub(super) fn shrink_to(&mut self, most: usize) {
        while self.by_height.len() > most {
            let Some((_, lowest)) = self.by_height.pop_first() else {
                return;
            };
            self.heights.remove(&lowest.hash);
        }
    }

    /// Checks that both maps hold the same blocks.
    #[cfg(test)]
    pub(super) fn is_consistent(&self) -> bool {
        let mut blocks = self.by_height.iter();
        self.heights.len() == self.by_height.len()
            && blocks.all(|(height, block)| self.heights.get(&block.hash) == Some(height))
    }
}
