//! Chance: what the trace draws, the same for the same seed.
//!
//! Used by `trace` alone. Deliberately absent: any real randomness.

use std::time::Duration;

/// A run of mixed words (splitmix64).
pub(crate) struct Chance(u64);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// In 0..1.
    pub(crate) fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// True with this probability.
    pub(crate) fn happens(&mut self, probability: f64) -> bool {
        self.share() < probability
    }

    /// One of these; nothing where there are none.
    pub(crate) fn one_of<'t, T>(&mut self, all: &'t [T]) -> Option<&'t T> {
        let at = self.share() * all.len() as f64;
        all.get(at as usize)
    }

    /// A time around the mean: from a half to three halves of it.
    pub(crate) fn around(&mut self, mean: Duration) -> Duration {
        mean.mul_f64(0.5 + self.share())
    }
}

/// Ranks from zero on, the first the most popular: the n-th in proportion to
/// 1 / n^exponent.
pub(crate) struct Zipf {
    /// Sums of the weights up to each rank.
    sums: Vec<f64>,
}

impl Zipf {
    pub(crate) fn new(ranks: usize, exponent: f64) -> Self {
        let mut sum = 0.0;
        let weights = (1..=ranks).map(|rank| (rank as f64).powf(-exponent));
        let sums = weights.map(|weight| {
            sum += weight;
            sum
        });
        Self {
            sums: sums.collect(),
        }
    }

    pub(crate) fn pick(&self, chance: &mut Chance) -> usize {
        let all = self.sums.last().copied().unwrap_or_default();
        let at = chance.share() * all;
        self.sums.partition_point(|sum| *sum <= at)
    }
}
