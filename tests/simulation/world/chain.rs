//! Blocks: mined, and taken back.

use super::{BASE, Block, BlockId, Item, TOKENS, Tx, World};
use crate::dice::Dice;

impl World {
    /// A block on top.
    pub(crate) fn mine(&mut self, dice: &mut Dice) {
        let height = BASE + self.chain.len() as u32;
        let hash = dice.hash();
        let parent = self.chain.last().map(|id| self.blocks[*id].timestamp);
        // Some blocks say an earlier time than their parent.
        let timestamp = match (parent, dice.percent(25)) {
            (Some(parent), true) => parent - dice.between(0, 60),
            (Some(parent), false) => parent + dice.between(1, 900),
            (None, _) => 1_713_571_767,
        };
        let mut picked = self.carried(dice);
        for _ in 0..dice.between(0, 6).saturating_sub(1) {
            let operations = ["etching", "mint", "burn", "send", "receive"];
            let items = match dice.percent(30) {
                true => dice.between(5, 12),
                false => dice.between(1, 3),
            };
            self.txs.push(Tx {
                id: dice.hash(),
                operations: (0..items).map(|_| *dice.pick(&operations)).collect(),
            });
            picked.push(self.txs.len() - 1);
        }
        let mut items = Vec::new();
        let mut txs = Vec::new();
        let mut index = picked.len() as u64 * 3;
        for tx in picked {
            let first = items.len();
            index -= dice.between(1, 3);
            let Tx { id, operations } = &self.txs[tx];
            for (event, operation) in operations.iter().enumerate().rev() {
                let text = format!(
                    r#"{{"rune":{{"id":"1:0","name":"UNCOMMON•GOODS"}},"operation":"{operation}","location":{{"block_hash":"{hash}","block_height":{height},"tx_id":"{id}","tx_index":{index},"timestamp":{timestamp}}},"amount":"{event}.50"}}"#
                );
                items.push(Item { text, operation });
            }
            txs.push((tx, first, items.len()));
        }
        let mut tokens = [(false, 0); TOKENS];
        for (token, slot) in tokens.iter_mut().enumerate() {
            // The third is deployed at some time, perhaps in a block that is
            // undone later.
            slot.0 = match token {
                2 => height > BASE + 8 && dice.percent(20),
                _ => self.chain.is_empty(),
            };
            slot.1 = match dice.percent(30) {
                true => dice.between(1, 1000),
                false => 0,
            };
        }
        self.chain.push(self.blocks.len());
        self.blocks.push(Block {
            height,
            hash,
            timestamp,
            items,
            txs,
            tokens,
        });
    }

    /// Transactions that were undone and are mined again.
    pub(super) fn carried(&self, dice: &mut Dice) -> Vec<usize> {
        let mined = self.txs_of(&self.chain);
        let from = self.before.len().saturating_sub(12);
        let undone = self.txs_of(&self.before[from..]);
        let mut carried: Vec<_> = undone
            .into_iter()
            .filter(|tx| !mined.contains(tx))
            .collect();
        carried.retain(|_| dice.percent(50));
        carried.truncate(3);
        carried
    }

    pub(super) fn txs_of(&self, chain: &[BlockId]) -> Vec<usize> {
        let blocks = chain.iter().map(|id| &self.blocks[*id]);
        blocks
            .flat_map(|block| block.txs.iter().map(|(tx, ..)| *tx))
            .collect()
    }

    /// Undoes so many blocks and mines others; or brings back those that were
    /// undone last.
    pub(crate) fn reorganise(&mut self, dice: &mut Dice, deep: bool) -> String {
        let comes_back = self.before.len() > self.chain.len().saturating_sub(2)
            && self.before != self.chain
            && dice.percent(40);
        if comes_back {
            std::mem::swap(&mut self.before, &mut self.chain);
            self.mine(dice);
            return format!("the branch before is back, up to {}", self.tip());
        }
        let depth = match deep {
            true => dice.between(8, 50) as usize,
            false => dice.between(1, 8).min(dice.between(1, 8)) as usize,
        };
        self.before = self.chain.clone();
        self.chain.truncate(self.chain.len() - depth);
        let fork = self.tip();
        // A branch may be seen while it is still shorter.
        let count = (depth as u64 + dice.between(0, 2)).saturating_sub(dice.between(0, 1));
        for _ in 0..count.max(1) {
            self.mine(dice);
        }
        format!(
            "a reorg of depth {depth}: all above {fork}, up to {}",
            self.tip()
        )
    }
}
