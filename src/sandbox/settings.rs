//! Settings: what a sandbox is like.
//!
//! Made by the command line and by tests, read by the other rooms of the sandbox. Invariant: printing them never prints
//! a key. Deliberately absent: parsing, which is the command line's, and refusals: any value works.

use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

use super::mix;

/// What a sandbox is like. Values out of bounds are brought within them, never refused.
#[derive(Clone)]
pub struct Settings {
    /// Everything is made from it.
    pub seed: u64,
    /// Height of the lowest block.
    pub start_height: u32,
    /// How many blocks there are at the start, at most 65,536. None at all model an index that is still empty.
    pub blocks: u32,
    /// The keys that `x-api-key` must carry, separated by commas; without one any key and none will do.
    pub require_key: Option<String>,
    /// The most requests within any 60 seconds (a sliding window) for each key, and for all without a key together.
    pub requests_per_minute: Option<NonZeroU32>,
    /// How long every answer takes.
    pub latency: Duration,
    /// The share, 0 to 1, of the requests that reach the database whose statement times out (500). Which ones follows
    /// from the seed and the number of the request.
    pub error_rate: f64,
    /// How often a block arrives while the sandbox is served; at least a millisecond.
    pub block_every: Option<Duration>,
    /// Every so many-th of these blocks comes as a reorg: the highest 1 to 3 are replaced, then it arrives.
    pub reorg_every: Option<NonZeroU32>,
    /// How many transactions the largest blocks hold: one block in fifty, the first 23 above the lowest. A transaction
    /// has some five items.
    pub largest_block: u16,
    /// The largest page, at least 1; self-hosted upstreams can raise it.
    pub max_limit: u32,
    /// How much longer a page takes for each item of its whole block or transaction.
    pub item_cost: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            seed: 1,
            start_height: 840_000,
            blocks: 200,
            require_key: None,
            requests_per_minute: None,
            latency: Duration::ZERO,
            error_rate: 0.0,
            block_every: None,
            reorg_every: None,
            largest_block: 1_000,
            max_limit: 60,
            item_cost: Duration::ZERO,
        }
    }
}

impl Settings {
    /// Whether the request of this number is one of those that fail.
    pub(super) fn strikes(&self, number: u64) -> bool {
        mix::share(mix::mix2(self.seed ^ 0x66_6175_6c74, number)) < self.error_rate
    }
}

impl fmt::Debug for Settings {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Settings")
            .field("seed", &self.seed)
            .field("start_height", &self.start_height)
            .field("blocks", &self.blocks)
            .field(
                "require_key",
                &self.require_key.as_ref().map(|_| "redacted"),
            )
            .field("requests_per_minute", &self.requests_per_minute)
            .field("latency", &self.latency)
            .field("error_rate", &self.error_rate)
            .field("block_every", &self.block_every)
            .field("reorg_every", &self.reorg_every)
            .field("largest_block", &self.largest_block)
            .field("max_limit", &self.max_limit)
            .field("item_cost", &self.item_cost)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::Settings;

    #[test]
    fn the_share_of_errors_is_kept() {
        for (error_rate, least, most) in [
            (0.0, 0, 0),
            (1.0, 1_000, 1_000),
            (0.1, 60, 140),
            (f64::NAN, 0, 0),
        ] {
            let settings = Settings {
                error_rate,
                ..Settings::default()
            };
            let struck = (0..1_000)
                .filter(|number| settings.strikes(*number))
                .count();
            assert!((least..=most).contains(&struck), "{error_rate}: {struck}");
        }
    }
}
