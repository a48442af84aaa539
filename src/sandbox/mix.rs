//! Pseudo-random values: the only source of randomness in the sandbox.
//!
//! Used for whatever must look random and be the same for the same seed. The mixer is a bijection of 64-bit words, so an
//! identifier made with it can be inverted (`unmix`) and the model needs no index of transactions. Invariant: equal
//! arguments give equal results on every machine and in every version. The values are predictable.

/// The odd increment between two states of a [`Stream`].
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// The characters of bech32 in the order of their values.
const BECH32: &[u8; 32] = b"qpzry9x8gf2tvdw0s3jn54khce6mua7l";

/// Mixes one word; a bijection.
pub(super) const fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// The inverse of [`mix`].
pub(super) const fn unmix(word: u64) -> u64 {
    let word = (word ^ (word >> 31) ^ (word >> 62)).wrapping_mul(0x3196_42b2_d24d_8ec3);
    let word = (word ^ (word >> 27) ^ (word >> 54)).wrapping_mul(0x96de_1b17_3f11_9089);
    word ^ (word >> 30) ^ (word >> 60)
}

/// Mixes two words into one; the order of the two matters.
pub(super) const fn mix2(first: u64, second: u64) -> u64 {
    mix(first ^ mix(second.wrapping_add(STEP)))
}

/// Maps a word to 0..1, for comparison with a probability.
pub(super) fn share(word: u64) -> f64 {
    // A double holds 53 bits exactly, so the result is below one.
    (word >> 11) as f64 / (1u64 << 53) as f64
}

/// A sequence of mixed words for one object (a transaction, an address).
pub(super) struct Stream(u64);

impl Stream {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// A value in 0..bound; a bound of zero counts as one.
    pub(super) const fn below(&mut self, bound: u64) -> u64 {
        let bound = if bound == 0 { 1 } else { bound };
        self.next() % bound
    }
}

/// An address in the form of segwit or taproot. Its checksum is invalid, so that nothing can be sent to it.
pub(super) fn address(identity: u64) -> String {
    let mut stream = Stream::new(mix(identity));
    let (prefix, length) = match identity & 1 {
        0 => ("bc1q", 38),
        _ => ("bc1p", 58),
    };
    let mut address = prefix.to_owned();
    let mut bits = 0;
    for position in 0..length {
        // A word gives twelve characters of five bits each.
        if position % 12 == 0 {
            bits = stream.next();
        }
        address.push(char::from(BECH32[(bits & 31) as usize]));
        bits >>= 5;
    }
    address
}

/// An amount with its last `digits` digits after the decimal point; without a point if `digits` is zero.
pub(super) fn decimal(raw: u128, digits: u8) -> String {
    let digits = usize::from(digits);
    let mut text = format!("{raw:0>width$}", width = digits + 1);
    if digits > 0 {
        text.insert(text.len() - digits, '.');
    }
    text
}
