//! Random numbers from a seed: the same on every machine.

/// A stream of numbers (Steele, Lea and Flood's SplitMix64).
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        // Neighbouring seeds must not begin alike.
        let mut dice = Self(seed.wrapping_mul(0xd134_2543_de82_ef95) ^ 0x6f72_6467_6174_6500);
        dice.next();
        dice
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number from `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    /// An index below a length.
    pub(crate) fn below(&mut self, length: usize) -> usize {
        (self.next() % length as u64) as usize
    }

    /// True so many times in a hundred.
    pub(crate) fn percent(&mut self, chance: u64) -> bool {
        self.next() % 100 < chance
    }

    /// One of several.
    pub(crate) fn pick<'t, T>(&mut self, of: &'t [T]) -> &'t T {
        &of[self.below(of.len())]
    }

    /// A time in milliseconds around `mean`: mostly less, now and then much
    /// more.
    pub(crate) fn around(&mut self, mean: u64) -> u64 {
        let one = self.between(0, mean * 2);
        match self.percent(10) {
            true => one * 3,
            false => one,
        }
    }

    /// 64 hexadecimal digits, with zeros in front.
    pub(crate) fn hash(&mut self) -> String {
        format!(
            "00000000{:014x}{:014x}{:014x}{:014x}",
            self.next() >> 8,
            self.next() >> 8,
            self.next() >> 8,
            self.next() >> 8
        )
    }
}
