//! The sandbox's settings, made by the command line and by tests.
//!
//! Every value works. Invariant: keys are never printed.

use std::fmt;
use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

use super::latency::Latency;
use super::mix;

/// The properties of a sandbox. Values out of bounds are clamped.
#[derive(Clone)]
pub struct Settings {
    /// All contents follow from it.
    pub seed: u64,
    /// The height of the lowest block.
    pub start_height: u32,
    /// The number of blocks at the start, at most 65,536. Zero is an index that is still empty.
    pub blocks: u32,
    /// The accepted values of `x-api-key`, separated by commas; without it no key is checked.
    pub require_key: Option<String>,
    /// The most requests within any 60 seconds (a sliding window), for each key and for all requests without a key.
    pub requests_per_minute: Option<NonZeroU32>,
    /// The time before every answer. The seed and the request's number decide which of the distribution.
    pub latency: Latency,
    /// The most bytes of each body per second; without it, a body is sent at once.
    pub bandwidth: Option<NonZeroU64>,
    /// The share (0 to 1) of requests to the database that fail with a statement timeout (500). The seed and the
    /// request's number decide which.
    pub error_rate: f64,
    /// The interval at which blocks are added while the sandbox is served; at least a millisecond.
    pub block_every: Option<Duration>,
    /// Every n-th of these blocks comes after a reorg of the highest 1 to 3 blocks.
    pub reorg_every: Option<NonZeroU32>,
    /// The number of transactions in the largest blocks: one block in fifty, the first 23 above the lowest. A
    /// transaction has about five items.
    pub largest_block: u16,
    /// The most items on a page, at least 1; self-hosted upstreams can raise it.
    pub max_limit: u32,
    /// The additional time before a page, for each item of its whole block or transaction.
    pub item_cost: Duration,
    /// Where a sandbox that serves a gateway in the same process listens; without it, at a free port of 127.0.0.1.
    pub listen: Option<SocketAddr>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            seed: 1,
            start_height: 840_000,
            blocks: 200,
            require_key: None,
            requests_per_minute: None,
            latency: Latency::default(),
            bandwidth: None,
            listen: None,
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
    /// The time before the answer to the request with this number.
    pub(super) fn latency_of(&self, number: u64) -> Duration {
        self.latency
            .at(mix::share(mix::mix2(self.seed ^ 0x6c61_7465, number)))
    }

    /// Whether a fault with this chance, in millionths, applies to the request with this number.
    pub(super) fn is_faulty(&self, fault: u64, chance: u32, number: u64) -> bool {
        let word = mix::mix2(mix::mix2(self.seed ^ 0x6368_616e, fault), number);
        mix::share(word) * 1_000_000.0 < f64::from(chance)
    }

    /// Whether the request with this number fails, according to `error_rate`.
    pub(super) fn is_error(&self, number: u64) -> bool {
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
            .field("bandwidth", &self.bandwidth)
            .field("error_rate", &self.error_rate)
            .field("block_every", &self.block_every)
            .field("reorg_every", &self.reorg_every)
            .field("largest_block", &self.largest_block)
            .field("max_limit", &self.max_limit)
            .field("item_cost", &self.item_cost)
            .field("listen", &self.listen)
            .finish()
    }
}
