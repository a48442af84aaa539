//! Random numbers from a seed: the same on every machine.

/// A stream of numbers (Steele, Lea and Flood's SplitMix64).
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        // Neighbouring seeds must not begin alike.
        let mut dice = Self(seed.wrapping_mul(0xd134_2543_de82_ef95) ^ 0x6f72_6467_6174_6500);
        dice.next();
        dice
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number from `low` to `high`, both included.
    pub(super) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    /// An index below a length.
    pub(super) fn below(&mut self, length: usize) -> usize {
        (self.next() % length as u64) as usize
    }

    /// True so many times in a hundred.
    pub(super) fn percent(&mut self, chance: u64) -> bool {
        self.next() % 100 < chance
    }

    /// A time in milliseconds between two others, in microseconds.
    pub(super) fn ms(&mut self, low: u64, high: u64) -> u64 {
        self.between(low * 1000, high * 1000)
    }

    /// A time in seconds between two others, in microseconds.
    pub(super) fn seconds(&mut self, low: u64, high: u64) -> u64 {
        self.between(low * 1_000_000, high * 1_000_000)
    }
}
