//! The work that all engines do: the keys, the values and the order of the puts.
//!
//! Put number `n` stores the value of `n` under the key of `n`. A value begins with
//! its number, so that each one read can be verified whole.

use std::io::Write;

/// How many different bodies there are.
const BODIES: usize = 1024;

/// How many entries are put at once.
pub const BATCH: u64 = 64;

/// One of this many puts is followed by the removal of an earlier entry.
pub const REMOVE_EVERY: u64 = 16;

/// How far back that entry is.
pub const REMOVE_BEHIND: u64 = 40;

pub type Key = [u8; 16];

/// The key of put `n`. As good as random, as digests are.
pub fn key(n: u64) -> Key {
    let mix = |mut x: u64| {
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    };
    let mut key = [0; 16];
    key[..8].copy_from_slice(&mix(n.wrapping_add(0x9e37_79b9_7f4a_7c15)).to_be_bytes());
    key[8..].copy_from_slice(&mix(n ^ 0x5bf0_3635_dcc5_5a1d).to_be_bytes());
    key
}

/// Bodies like those of the API: JSON that zstd makes 1 to 15 kB.
pub struct Bodies(Vec<Vec<u8>>);

impl Bodies {
    pub fn new() -> Self {
        let mut random = fastrand::Rng::with_seed(7);
        let bodies = (0..BODIES).map(|_| {
            // Small ones are more frequent, as pages and tokens are.
            let size = 2400.0 * 20f64.powf(random.f64());
            let mut json = Vec::from(*b"{\"items\":[");
            while (json.len() as f64) < size {
                let id = (random.u64(..), random.u64(..), random.u64(..), random.u64(..));
                write!(
                    json,
                    "{{\"id\":\"{:016x}{:016x}{:016x}{:016x}i0\",\"number\":{},\"content_type\":\"text/plain;charset=utf-8\",\"height\":{},\"fee\":{},\"sat\":{},\"value\":546}},",
                    id.0, id.1, id.2, id.3, random.u32(..100_000_000), random.u32(767_430..920_000), random.u32(..90_000), random.u64(..2_100_000_000_000_000),
                )
                .expect("memory takes it");
            }
            zstd::bulk::compress(&json, 3).expect("zstd compresses")
        });
        Self(bodies.collect())
    }

    /// The value of put `n`.
    pub fn value(&self, n: u64) -> Vec<u8> {
        let body = &self.0[n as usize % BODIES];
        let mut value = Vec::with_capacity(8 + body.len());
        value.extend_from_slice(&n.to_be_bytes());
        value.extend_from_slice(body);
        value
    }

    /// Whether this is the value of `n`, byte for byte.
    pub fn is_value(&self, n: u64, value: &[u8]) -> bool {
        value == self.value(n)
    }

    pub fn describe(&self) {
        let mut sizes: Vec<_> = self.0.iter().map(|body| body.len() + 8).collect();
        sizes.sort_unstable();
        let sum: usize = sizes.iter().sum();
        println!(
            "values: mean {} bytes, least {}, median {}, most {}; {} % fit a page",
            sum / sizes.len(),
            sizes[0],
            sizes[sizes.len() / 2],
            sizes[sizes.len() - 1],
            sizes.iter().filter(|size| **size <= 4096).count() * 100 / sizes.len(),
        );
    }
}

/// What put number `n` also removes.
pub fn removal(n: u64) -> Option<u64> {
    (n.is_multiple_of(REMOVE_EVERY) && n >= REMOVE_BEHIND).then(|| n - REMOVE_BEHIND)
}
