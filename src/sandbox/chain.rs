//! The chain: its blocks, their transactions in order, and the effect of reorgs.
//!
//! `api` looks up, `Sandbox` adds blocks and replaces them. A block is stored as six numbers; its transactions are computed
//! from the seed on demand. A transaction's key is the height of its first block, the replacement and its number there.
//! Its id is that key mixed, so that `unmix` finds it without an index.
//!
//! Invariants: equal seeds and histories give equal chains; a transaction is in at most one block; a block hash is never
//! reused; once there was a block, at least one stays. The activity of transactions is in `runes`. Parallel forks and
//! storage are not modelled.

use std::collections::VecDeque;

use super::mix::{is_lower_hex, mix, mix2, unmix};

/// The most blocks kept; older ones are dropped, which bounds memory at about 1.5 MB.
pub(super) const MAX_BLOCKS: u32 = 65_536;

/// The height and Unix time (seconds) from which timestamps are computed.
const ANCHOR: (i64, i64) = (840_000, 1_713_571_767);

const SALT_TX: u64 = 0x7478;
const SALT_BLOCK: u64 = 0x62_6c6f_636b;
const SALT_DEFER: u64 = 0x64_6566_6572;

/// A block of the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) height: u32,
    /// How often the block at this height was replaced.
    fork: u32,
    /// The parent's `fork`; it decides which of the parent's transactions this block holds.
    parent_fork: u32,
    /// Unique in the history of the chain.
    pub(super) serial: u32,
    /// Unix time in seconds.
    pub(super) timestamp: u32,
    /// The highest timestamp of this block and all below it.
    pub(super) highest_timestamp: u32,
}

/// The identity of a transaction: the height of its first block, that block's replacement count (zero for the original
/// block) and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TxKey {
    pub(super) height: u32,
    pub(super) fork: u16,
    pub(super) number: u16,
}

impl TxKey {
    /// A transaction of the original block at a height.
    const fn original(height: u32, number: u16) -> Self {
        Self {
            height,
            fork: 0,
            number,
        }
    }

    pub(super) const fn word(self) -> u64 {
        ((self.height as u64) << 32) | ((self.fork as u64) << 16) | self.number as u64
    }

    const fn from_word(word: u64) -> Self {
        Self {
            height: (word >> 32) as u32,
            fork: (word >> 16) as u16,
            number: word as u16,
        }
    }
}

/// A transaction and its index in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Placed {
    pub(super) key: TxKey,
    pub(super) index: u32,
}

/// The blocks, and the state for their replacement.
#[derive(Clone, Debug)]
pub(super) struct Chain {
    pub(super) seed: u64,
    /// The height of the first block; the pattern of sizes begins here.
    pub(super) origin: u32,
    /// The number of transactions in the largest blocks.
    largest: u16,
    pub(super) blocks: VecDeque<Block>,
    /// The `fork` of each deleted block without a replacement; the lowest height is last.
    undone: Vec<u32>,
    /// The serial of the next block.
    pub(super) next_serial: u32,
}

impl Chain {
    /// A chain of `count` blocks (at most [`MAX_BLOCKS`]), the first at height `origin`, of which
    /// the largest have `largest` transactions.
    pub(super) fn new(seed: u64, origin: u32, count: u32, largest: u16) -> Self {
        let mut chain = Self {
            seed,
            origin,
            largest,
            blocks: VecDeque::new(),
            undone: Vec::new(),
            next_serial: 0,
        };
        for _ in 0..count.min(MAX_BLOCKS) {
            chain.push();
        }
        chain
    }

    pub(super) fn tip(&self) -> Option<&Block> {
        self.blocks.back()
    }

    pub(super) fn at(&self, height: u32) -> Option<&Block> {
        let first = self.blocks.front()?.height;
        self.blocks.get(height.checked_sub(first)? as usize)
    }

    /// Adds a block; does nothing at the highest height that fits in a u32.
    pub(super) fn push(&mut self) {
        let parent = self.blocks.back().copied();
        let height = match parent {
            None => self.origin,
            Some(parent) => match parent.height.checked_add(1) {
                Some(height) => height,
                None => return,
            },
        };
        let fork = self.undone.pop().map_or(0, |fork| fork.wrapping_add(1));
        let timestamp = self.timestamp(height, fork, parent);
        self.blocks.push_back(Block {
            height,
            fork,
            parent_fork: parent.map_or(0, |parent| parent.fork),
            serial: self.next_serial,
            timestamp,
            highest_timestamp: parent
                .map_or(timestamp, |parent| parent.highest_timestamp.max(timestamp)),
        });
        self.next_serial = self.next_serial.wrapping_add(1);
        if self.blocks.len() > MAX_BLOCKS as usize {
            self.blocks.pop_front();
        }
    }

    /// Deletes the `depth` highest blocks except the lowest block. Returns their number.
    pub(super) fn rollback(&mut self, depth: u32) -> u32 {
        let depth = depth.min((self.blocks.len() as u32).saturating_sub(1));
        for _ in 0..depth {
            if let Some(block) = self.blocks.pop_back() {
                self.undone.push(block.fork);
            }
        }
        depth
    }

    /// Adds replacements up to the height before the rollback. Returns their number.
    pub(super) fn apply(&mut self) -> u32 {
        let count = self.undone.len() as u32;
        while !self.undone.is_empty() {
            self.push();
        }
        count
    }

    /// The timestamp of a block. Every eleventh one is earlier than its parent's, as happens on the real chain: then the
    /// highest timestamp, which is the entity tag of the ordinals API, does not change.
    fn timestamp(&self, height: u32, fork: u32, parent: Option<Block>) -> u32 {
        let jitter = (mix2(self.seed, u64::from(height) << 32 | u64::from(fork)) % 89) as i64;
        // Successive replacements of a block have different timestamps.
        let jitter = jitter + i64::from(fork % 5) * 97;
        let late = (height - self.origin) % 11 == 5;
        let seconds = match parent {
            Some(parent) if late => i64::from(parent.timestamp) - 30 - jitter,
            _ => ANCHOR.1 + (i64::from(height) - ANCHOR.0) * 600 + jitter,
        };
        // Heights near zero would be before 1970, and high ones beyond a u32.
        seconds.clamp(1, i64::from(u32::MAX)) as u32
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
        let handle = tail_word(hash)?;
        let handle = unmix(handle) ^ mix(self.seed ^ SALT_BLOCK);
        let block = self.at((handle >> 32) as u32)?;
        (block.serial == handle as u32 && self.hash(block) == hash).then_some(block)
    }

    pub(super) fn tx_id(&self, key: TxKey) -> String {
        let head = mix(key.word() ^ mix(self.seed ^ SALT_TX));
        let second = mix2(self.seed, head);
        let third = mix(second ^ SALT_TX);
        format!("{head:016x}{second:016x}{third:016x}{:016x}", mix(third))
    }

    /// The block that holds the transaction with this id, and its index there.
    pub(super) fn find_tx(&self, id: &str) -> Option<(&Block, Placed)> {
        if id.len() != 64 || !is_lower_hex(id) {
            return None;
        }
        let head = u64::from_str_radix(&id[..16], 16).ok()?;
        let key = TxKey::from_word(unmix(head) ^ mix(self.seed ^ SALT_TX));
        if self.tx_id(key) != id {
            return None;
        }
        let home = self.at(key.height)?;
        let block = if key.fork == 0 && self.is_deferred(key, home.fork) {
            self.at(key.height.checked_add(1)?)?
        } else {
            home
        };
        let placed = self
            .placements(block)
            .into_iter()
            .find(|placed| placed.key == key)?;
        Some((block, placed))
    }

    /// The transactions of a block that have rune activity, by ascending index.
    pub(super) fn placements(&self, block: &Block) -> Vec<Placed> {
        let mut keys = Vec::new();
        let below = block.height.checked_sub(1);
        if let Some(below) = below.filter(|below| *below >= self.origin) {
            let carried = (0..self.tx_count(below)).map(|number| TxKey::original(below, number));
            keys.extend(carried.filter(|key| self.is_deferred(*key, block.parent_fork)));
        }
        let own = 0..self.tx_count(block.height);
        let own = own.map(|number| TxKey::original(block.height, number));
        keys.extend(own.filter(|key| !self.is_deferred(*key, block.fork)));
        if block.fork > 0 {
            // A replacement has one or two transactions that the orphan did not have.
            let extra =
                1 + (mix2(self.seed ^ u64::from(block.height), u64::from(block.fork)) % 2) as u16;
            // Zero is the original block; the cast gives zero after 65,536 replacements.
            let fork = (block.fork as u16).max(1);
            keys.extend((0..extra).map(|number| TxKey {
                height: block.height,
                fork,
                number,
            }));
            keys.sort_by_cached_key(|key| mix2(u64::from(block.fork), key.word()));
        }
        let shift = 1 + block.fork.wrapping_mul(3) % 7;
        let place = |(position, key): (usize, TxKey)| {
            let gap = (mix2(u64::from(block.fork), key.word()) & 1) as u32;
            Placed {
                key,
                index: shift + 2 * position as u32 + gap,
            }
        };
        keys.into_iter().enumerate().map(place).collect()
    }

    /// The number of transactions with rune activity in the original block at a height. The pattern repeats every fifty
    /// blocks: one block of a thousand (or as the settings say), four of none, ten of 30 to 99, the others of 1 to 8.
    fn tx_count(&self, height: u32) -> u16 {
        let offset = height - self.origin;
        let chance = mix2(self.seed ^ 0x63_6f75_6e74, u64::from(height));
        if is_huge(offset) {
            self.largest
        } else if offset % 10 == 3 {
            0
        } else if offset % 5 == 1 {
            30 + (chance % 70) as u16
        } else {
            1 + (chance % 8) as u16
        }
    }

    /// True for a transaction with far more outputs than usual (an airdrop).
    pub(super) const fn is_wide(&self, key: TxKey) -> bool {
        let offset = key.height.wrapping_sub(self.origin);
        key.number == 0 && key.fork == 0 && (is_huge(offset) || offset % 25 == 14)
    }

    /// True if a replacement moves this transaction of the original block to the next block: one in eight.
    fn is_deferred(&self, key: TxKey, fork: u32) -> bool {
        fork > 0 && mix2(self.seed ^ SALT_DEFER ^ u64::from(fork), key.word()).is_multiple_of(8)
    }
}

const fn is_huge(offset: u32) -> bool {
    offset % 50 == 23
}

/// The number in the last sixteen digits of a hash.
fn tail_word(hash: &str) -> Option<u64> {
    if hash.len() != 64 || !is_lower_hex(hash) {
        return None;
    }
    u64::from_str_radix(&hash[48..], 16).ok()
}

#[cfg(test)]
mod tests;
