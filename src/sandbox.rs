//! The sandbox: a deterministic model of a Bitcoin chain and of the upstream API, served in this process.
//!
//! It is the upstream of the tests, of the demo (`serve --sandbox`) and of load tests. It behaves like the reference
//! upstream, including its quirks, and shares no code with the rest of the crate. `docs/sandbox.md` has its control routes.
//!
//! ```text
//! server -> control
//!        -> provider (counts, faults, key, rate limit) -> api -> chain, runes, tokens, rest
//! ```
//!
//! Blocks hold from none to about 1,000 transactions (more if the settings say so), in a pattern that repeats every 50
//! blocks. Tokens, runes, transactions and blocks are consistent with each other. Every answer follows from the seed and
//! the changes made to the chain.
//!
//! The reference has one server for each API. A sandbox can be served the same way: one listener with `Api::Ordinals`,
//! another with `Api::Runes`. Both serve one chain behind one provider, and each answers a path of the other API like any
//! unknown route.
//!
//! # Invariants
//! Only `server` and the timer of blocks read a clock. Memory is bounded: 65,536 blocks of 24 bytes, no index of
//! transactions, the moments of 100,000 requests for each key, 100 requests and 1,000 faults. Keys are kept only in the
//! settings and never printed.
//!
//! Not implemented: persistence, balances that add up, most other routes of the reference (404 here; `rest` has some),
//! CORS preflights, HTTP/2 and TLS.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::Request;
use serde::Serialize;

mod answer;
mod api;
mod chain;
mod control;
mod examples;
mod mix;
mod provider;
mod rest;
mod runes;
mod server;
mod tokens;

pub use answer::Answer;
pub use api::Api;
use api::Model;
use chain::Chain;
pub use examples::Examples;
use provider::Provider;
pub use provider::{Counts, Fault, FaultKind};

/// The properties of a sandbox. Values out of bounds are clamped.
#[derive(Clone)]
pub struct Settings {
    /// All contents follow from it.
    pub seed: u64,
    /// The number of blocks at the start, at most 65,536; the lowest has the height 840,000. Zero is an index that is
    /// still empty.
    pub blocks: u32,
    /// The number of transactions in the largest blocks: one block in fifty, the first 23 above the lowest. A
    /// transaction has about five items.
    pub largest_block: u16,
    /// The most items on a page, at least 1; self-hosted upstreams can raise it.
    pub max_limit: u32,
    /// The accepted values of `x-api-key`, separated by commas; without it no key is checked.
    pub require_key: Option<String>,
    /// The most requests within any 60 seconds, up to 100,000, for each required key, or for all requests.
    pub requests_per_minute: Option<u32>,
    /// The time before every answer. Most take little more than the least.
    pub latency: RangeInclusive<Duration>,
    /// The additional time before a page, for each item of its whole block or transaction.
    pub item_cost: Duration,
    /// The interval at which [`Sandbox::add_blocks`] adds a block; at least a millisecond.
    pub block_every: Option<Duration>,
    /// Where a sandbox that serves a gateway in the same process listens; without it, at a free port of 127.0.0.1.
    pub listen: Option<SocketAddr>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            seed: 1,
            blocks: 200,
            largest_block: 1_000,
            max_limit: 60,
            require_key: None,
            requests_per_minute: None,
            latency: Duration::ZERO..=Duration::ZERO,
            item_cost: Duration::ZERO,
            block_every: None,
            listen: None,
        }
    }
}

/// The highest block.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tip {
    /// The height.
    pub height: u32,
    /// The hash, 64 lower-case hex digits. It is also the entity tag of every answer under `/runes`.
    pub hash: String,
}

/// A handle to a sandbox. Clones share one sandbox.
#[derive(Clone)]
pub struct Sandbox {
    pub(crate) settings: Arc<Settings>,
    state: Arc<Mutex<State>>,
}

struct State {
    model: Model,
    provider: Provider,
}

impl Sandbox {
    /// Makes a sandbox that is not served yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let state = State {
            model: Model::new(&settings),
            provider: Provider::default(),
        };
        Self {
            settings: Arc::new(settings),
            state: Arc::new(Mutex::new(state)),
        }
    }

    /// Paths that have content on the current chain.
    #[must_use]
    pub fn examples(&self) -> Examples {
        Examples::of(&self.state().model.chain)
    }

    /// The highest block. Its height is zero and its hash empty while the index is empty.
    #[must_use]
    pub fn tip(&self) -> Tip {
        let chain = &self.state().model.chain;
        let tip = chain.tip().map(|block| Tip {
            height: block.height,
            hash: chain.hash(block),
        });
        tip.unwrap_or_default()
    }

    /// The hash of the block at a height.
    #[must_use]
    pub fn hash_at(&self, height: u32) -> Option<String> {
        let chain = &self.state().model.chain;
        chain.at(height).map(|block| chain.hash(block))
    }

    /// The ids of the transactions with rune activity in the block at a height, by ascending index.
    #[must_use]
    pub fn transactions_at(&self, height: u32) -> Vec<String> {
        let chain = &self.state().model.chain;
        let placed = chain.at(height).map(|block| chain.transactions(block));
        let placed = placed.into_iter().flatten();
        placed.map(|(key, _)| chain.tx_id(key)).collect()
    }

    /// The upstream's present answer to GET, without key check, rate limit, faults and counting. Tests compare with it.
    ///
    /// # Panics
    /// If the target is no path with a query.
    #[must_use]
    pub fn answer(&self, target: &str) -> Answer {
        let request = Request::get(target).body(()).expect("the target is valid");
        self.state()
            .model
            .answer(Api::Both, &request.into_parts().0)
    }

    /// Adds blocks. After a rollback, the first ones replace the deleted blocks.
    pub fn advance(&self, blocks: u32) {
        self.change(|chain| (0..blocks).for_each(|_| chain.push()));
    }

    /// Replaces the highest blocks, up to the same height, and returns their number. The replacements hold most of the
    /// transactions, at other indexes; the next block holds the rest.
    pub fn reorg(&self, depth: u32) -> u32 {
        self.change(|chain| {
            let replaced = chain.rollback(depth);
            chain.apply();
            replaced
        })
    }

    /// The first half of a reorg: deletes the highest blocks and returns their number. Their lists and those of their
    /// transactions are then empty, and the tags are those of the block below. The lowest block always stays.
    pub fn rollback(&self, depth: u32) -> u32 {
        self.change(|chain| chain.rollback(depth))
    }

    /// The second half of a reorg: adds replacements up to the old height.
    pub fn apply(&self) {
        self.change(Chain::apply);
    }

    fn change<T>(&self, change: impl FnOnce(&mut Chain) -> T) -> T {
        let model = &mut self.state().model;
        model.ahead = None;
        change(&mut model.chain)
    }

    /// Puts the token indexer one block ahead: its figures are those of the next block, while tags and heights are
    /// those of the tip. The next change of the chain ends this.
    pub fn tokens_ahead(&self) {
        let model = &mut self.state().model;
        let mut ahead = model.chain.clone();
        ahead.push();
        model.ahead = Some(ahead);
    }

    /// Adds a fault. At most 1,000 are kept; further ones are ignored.
    pub fn fault(&self, fault: Fault) {
        self.state().provider.add_fault(fault);
    }

    /// Clears all faults.
    pub fn clear_faults(&self) {
        self.state().provider.faults.clear();
    }

    /// The counts of all servers together.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.state().provider.counts
    }

    /// Adds a block once per `Settings::block_every`; never returns.
    pub async fn add_blocks(&self) {
        let Some(every) = self.settings.block_every else {
            return std::future::pending().await;
        };
        loop {
            tokio::time::sleep(every.max(Duration::from_millis(1))).await;
            self.advance(1);
        }
    }

    /// Also after a panic of its holder: its value is consistent after every statement.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
