//! The chain: its blocks, their transactions in order, and the effect of reorgs.
//!
//! `api` looks up, `Sandbox` adds blocks and replaces them. A block is stored as four numbers; its transactions are
//! computed from the seed on demand. A transaction's key is, from the highest bits on, the height of its first block (32
//! bits), that block's replacement count (16 bits, zero for the original block) and its number there (16 bits). Its id is
//! that key mixed, so that `unmix` finds it without an index.
//!
//! Invariants: equal seeds and histories give equal chains; a transaction is in at most one block; a block hash is never
//! reused; once there was a block, at least one stays. The activity of transactions is in `runes`. Parallel forks and
//! storage are not modelled.

use std::collections::VecDeque;

use super::mix::{mix, mix2, unmix};

/// The most blocks kept; older ones are dropped, which bounds memory at about 1.5 MB.
const MAX_BLOCKS: usize = 65_536;

/// The height of the first block; the pattern of sizes begins here.
pub(super) const ORIGIN: u32 = 840_000;
/// Its Unix time, in seconds.
const ORIGIN_TIME: u64 = 1_713_571_767;

const SALT_TX: u64 = 0x7478;
const SALT_BLOCK: u64 = 0x62_6c6f_636b;
const SALT_DEFER: u64 = 0x64_6566_6572;

/// A block of the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) height: u32,
    /// How often the block at this height was replaced.
    fork: u32,
    /// Unique in the history of the chain.
    pub(super) serial: u32,
    /// Unix time in seconds.
    pub(super) timestamp: u64,
}

/// A transaction's key, and its index in a block.
pub(super) type Placed = (u64, u32);

/// The blocks, and the state for their replacement.
#[derive(Clone, Debug)]
pub(super) struct Chain {
    pub(super) seed: u64,
    /// The number of transactions in the largest blocks.
    largest: u16,
    pub(super) blocks: VecDeque<Block>,
    /// The `fork` of each deleted block without a replacement; the lowest height is last.
    undone: Vec<u32>,
    /// The serial of the next block.
    next_serial: u32,
}

impl Chain {
    /// A chain of `count` blocks, at most 65,536, of which the largest have `largest` transactions.
    pub(super) fn new(seed: u64, count: u32, largest: u16) -> Self {
        let mut chain = Self {
            seed,
            largest,
            blocks: VecDeque::new(),
            undone: Vec::new(),
            next_serial: 0,
        };
        (0..count.min(MAX_BLOCKS as u32)).for_each(|_| chain.push());
        chain
    }

    pub(super) fn tip(&self) -> Option<&Block> {
        self.blocks.back()
    }

    pub(super) fn at(&self, height: u32) -> Option<&Block> {
        let first = self.blocks.front()?.height;
        self.blocks.get(height.checked_sub(first)? as usize)
    }

    /// The highest timestamp of all blocks. Only a block with an early timestamp has a lower one than its parent.
    pub(super) fn highest_timestamp(&self) -> Option<u64> {
        let last = self.blocks.iter().rev().take(2);
        last.map(|block| block.timestamp).max()
    }

    /// Adds a block.
    pub(super) fn push(&mut self) {
        let parent = self.tip().copied();
        let height = parent.map_or(ORIGIN, |parent| parent.height + 1);
        let fork = self.undone.pop().map_or(0, |fork| fork + 1);
        let jitter = mix2(self.seed, u64::from(height) << 32 | u64::from(fork)) % 89;
        // Successive replacements of a block have different timestamps.
        let jitter = jitter + u64::from(fork % 5) * 97;
        let above = height - ORIGIN;
        let timestamp = match parent {
            // Earlier than its parent's, as happens on the real chain: then the entity tag of the ordinals API, which
            // is the highest timestamp, does not change.
            Some(parent) if above % 11 == 5 => parent.timestamp - 30 - jitter,
            _ => ORIGIN_TIME + u64::from(above) * 600 + jitter,
        };
        self.blocks.push_back(Block {
            height,
            fork,
            serial: self.next_serial,
            timestamp,
        });
        self.next_serial += 1;
        if self.blocks.len() > MAX_BLOCKS {
            self.blocks.pop_front();
        }
    }

    /// Deletes the `depth` highest blocks except the lowest block. Returns their number.
    pub(super) fn rollback(&mut self, depth: u32) -> u32 {
        let left = self.blocks.len().saturating_sub(depth as usize).max(1);
        let deleted = self.blocks.drain(left.min(self.blocks.len())..).rev();
        let before = self.undone.len();
        self.undone.extend(deleted.map(|block| block.fork));
        (self.undone.len() - before) as u32
    }

    /// Adds replacements up to the height before the rollback.
    pub(super) fn apply(&mut self) {
        while !self.undone.is_empty() {
            self.push();
        }
    }

    /// The hash of a block: 19 zeros, 29 digits of filling, and height and serial in invertible form.
    pub(super) fn hash(&self, block: &Block) -> String {
        let handle = u64::from(block.height) << 32 | u64::from(block.serial);
        let first = mix2(self.seed ^ SALT_BLOCK, handle);
        let filling = format!("{first:016x}{:016x}", mix(first));
        let handle = mix(handle ^ mix(self.seed ^ SALT_BLOCK));
        format!("{:0<19}{}{handle:016x}", "", &filling[..29])
    }

    /// The block with this hash, in lower case, if it is on the chain.
    pub(super) fn by_hash(&self, hash: &str) -> Option<&Block> {
        let handle = u64::from_str_radix(hash.get(48..)?, 16).ok()?;
        let handle = unmix(handle) ^ mix(self.seed ^ SALT_BLOCK);
        let block = self.at((handle >> 32) as u32)?;
        (self.hash(block) == hash).then_some(block)
    }

    pub(super) fn tx_id(&self, key: u64) -> String {
        let head = mix(key ^ mix(self.seed ^ SALT_TX));
        let second = mix2(self.seed, head);
        let third = mix(second ^ SALT_TX);
        format!("{head:016x}{second:016x}{third:016x}{:016x}", mix(third))
    }

    /// The block that holds the transaction with this id, in lower case, and its place there.
    pub(super) fn find_tx(&self, id: &str) -> Option<(&Block, Placed)> {
        let head = u64::from_str_radix(id.get(..16)?, 16).ok()?;
        let key = unmix(head) ^ mix(self.seed ^ SALT_TX);
        if self.tx_id(key) != id {
            return None;
        }
        let home = (key >> 32) as u32;
        // A reorg may have moved it to the next block.
        let blocks = [Some(home), home.checked_add(1)].into_iter().flatten();
        blocks
            .filter_map(|height| self.at(height))
            .find_map(|block| {
                let all = self.transactions(block).into_iter();
                Some((block, all.into_iter().find(|placed| placed.0 == key)?))
            })
    }

    /// The transactions of a block that have rune activity, by ascending index.
    pub(super) fn transactions(&self, block: &Block) -> Vec<Placed> {
        let original = |height: u32| {
            let numbers = 0..u64::from(self.tx_count(height));
            numbers.map(move |number| u64::from(height) << 32 | number)
        };
        let mut keys = Vec::new();
        if let Some(parent) = self.at(block.height - 1) {
            let carried = original(parent.height);
            keys.extend(carried.filter(|key| self.is_deferred(*key, parent.fork)));
        }
        let own = original(block.height);
        keys.extend(own.filter(|key| !self.is_deferred(*key, block.fork)));
        let (height, fork) = (u64::from(block.height), u64::from(block.fork));
        if fork > 0 {
            // A replacement has one or two transactions that the orphan did not have.
            let extra = 1 + mix2(self.seed ^ height, fork) % 2;
            keys.extend((0..extra).map(|number| height << 32 | (fork & 0xffff) << 16 | number));
            keys.sort_by_cached_key(|key| mix2(fork, *key));
        }
        let shift = 1 + block.fork * 3 % 7;
        let place = |(key, position): (u64, u32)| {
            let gap = mix2(fork, key) & 1;
            (key, shift + 2 * position + gap as u32)
        };
        keys.into_iter().zip(0..).map(place).collect()
    }

    /// The number of transactions with rune activity in the original block at a height. The pattern repeats every fifty
    /// blocks: one block of a thousand (or as the settings say), four of none, ten of 30 to 99, the others of 1 to 8.
    fn tx_count(&self, height: u32) -> u16 {
        let above = height - ORIGIN;
        let chance = mix2(self.seed ^ 0x63_6f75_6e74, u64::from(height));
        if above % 50 == 23 {
            self.largest
        } else if above % 10 == 3 {
            0
        } else if above % 5 == 1 {
            30 + (chance % 70) as u16
        } else {
            1 + (chance % 8) as u16
        }
    }

    /// True if a replacement moves this transaction of the original block to the next block: one in eight.
    fn is_deferred(&self, key: u64, fork: u32) -> bool {
        fork > 0 && mix2(self.seed ^ SALT_DEFER ^ u64::from(fork), key).is_multiple_of(8)
    }
}

/// True for a transaction with far more outputs than usual (an airdrop).
pub(super) const fn is_wide(key: u64) -> bool {
    let above = ((key >> 32) as u32).wrapping_sub(ORIGIN);
    key as u32 == 0 && (above % 50 == 23 || above % 25 == 14)
}

#[cfg(test)]
mod tests;
