//! Numbers without a pattern, for what must not happen in step: pauses before
//! `upstream::breaker` and `upstream::retry` try again. Pure: the seed is an
//! argument.
//!
//! The numbers are those of SplitMix64 (Steele, Lea and Flood, "Fast splittable
//! pseudorandom number generators", OOPSLA 2014). Invariant: the same seed makes
//! the same row.
//!
//! Deliberately absent: secrets. Who has seen a few of the numbers knows the
//! rest.

/// A row of numbers without a pattern.
#[derive(Clone, Debug)]
pub struct Chance(u64);

impl Chance {
    /// The row that a seed makes: any number, that differs between processes.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number; each of 64 bits is as good as the others.
    pub const fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_splitmix() {
        // The first of seed 1234567, as the reference in C has them
        // (prng.di.unimi.it, splitmix64.c).
        let mut chance = Chance::new(1_234_567);
        for expected in [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ] {
            assert_eq!(chance.draw(), expected);
        }
    }

    #[test]
    fn every_bit_comes_about_as_often_as_not() {
        let mut chance = Chance::new(0);
        let mut ones = [0_u32; 64];
        for _ in 0..10_000 {
            let number = chance.draw();
            for (bit, ones) in ones.iter_mut().enumerate() {
                *ones += (number >> bit & 1) as u32;
            }
        }
        for (bit, ones) in ones.into_iter().enumerate() {
            assert!((4700..=5300).contains(&ones), "bit {bit}: {ones}");
        }
    }
}
