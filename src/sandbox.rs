//! The sandbox: a deterministic model of a Bitcoin chain and of the upstream API, served in this process.
//!
//! It is the upstream of the tests, of the demo (`serve --sandbox`) and of load tests. It behaves like the reference
//! upstream, including its quirks, and shares no code with the rest of the crate.
//!
//! ```text
//! server -> control
//!        -> provider (counts, faults, key, rate limit) -> api -> chain, runes, tokens
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
//! # Control routes
//! | request | effect |
//! |---|---|
//! | `GET /sandbox/examples` | lists paths that have content |
//! | `GET /sandbox/counts` | the counts of requests |
//! | `GET /sandbox/journal` | the last 100 requests, the newest first |
//! | `POST /sandbox/advance?blocks=N` | adds blocks (1 to 10,000; default 1) |
//! | `POST /sandbox/reorg?depth=N` | replaces the highest blocks |
//! | `POST /sandbox/fault?kind=K` | adds a fault: a status from 400 to 599, `close`, or `stall`; also `times=N`, `path=PREFIX`, `chance=P`, `delay=MS` |
//! | `GET /sandbox/fault` | lists the faults |
//! | `DELETE /sandbox/fault` | clears the faults |
//!
//! # Invariants
//! Only `server` and the timer of blocks read a clock. Memory is bounded: 65,536 blocks of 24 bytes, no index of
//! transactions, the moments of 100,000 requests for each key, 100 requests and 1,000 faults. Keys are kept only in the
//! settings and never printed.
//!
//! Not implemented: persistence, balances that add up, the other routes of the reference (404 here), HTTP/2 and TLS.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::{HeaderMap, Method};
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::time::Instant;

mod answer;
mod api;
mod chain;
mod control;
mod examples;
mod mix;
mod provider;
mod runes;
mod server;
mod tokens;

pub use answer::Answer;
pub use api::Api;
use api::{Model, Received};
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

/// The height of the lowest block.
const LOWEST: u32 = 840_000;

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
    settings: Arc<Settings>,
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
        let Settings { seed, blocks, .. } = settings;
        let model = Model {
            chain: Chain::new(seed, LOWEST, blocks, settings.largest_block),
            max_limit: settings.max_limit.max(1),
            tokens_ahead: false,
        };
        let provider = Provider::default();
        Self {
            settings: Arc::new(settings),
            state: Arc::new(Mutex::new(State { model, provider })),
        }
    }

    /// What all answers follow from, but for the changes made to the chain.
    #[must_use]
    pub fn content(&self) -> String {
        format!(
            "sandbox {} {}",
            self.settings.seed, self.settings.largest_block
        )
    }

    /// Where it listens if it serves a gateway in the same process; none for a free port.
    #[must_use]
    pub fn listen(&self) -> Option<SocketAddr> {
        self.settings.listen
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
        let placements = chain.at(height).map(|block| chain.placements(block));
        let placements = placements.into_iter().flatten();
        placements.map(|placed| chain.tx_id(placed.key)).collect()
    }

    /// The upstream's present answer, without key check, rate limit, faults and counting. Tests compare with it.
    #[must_use]
    pub fn answer(&self, method: &Method, path_and_query: &str, headers: &HeaderMap) -> Answer {
        let request = Received {
            api: Api::Both,
            method,
            target: path_and_query,
            headers,
        };
        self.state().model.answer(&request)
    }

    /// Adds blocks. After a rollback, the first ones replace the deleted blocks.
    pub fn advance(&self, blocks: u32) {
        self.change(|chain| {
            for _ in 0..blocks {
                chain.push();
            }
        });
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

    /// The second half of a reorg: adds replacements up to the old height and returns their number.
    pub fn apply(&self) -> u32 {
        self.change(Chain::apply)
    }

    fn change<T>(&self, change: impl FnOnce(&mut Chain) -> T) -> T {
        let model = &mut self.state().model;
        model.tokens_ahead = false;
        change(&mut model.chain)
    }

    /// Puts the token indexer one block ahead: its figures are those of the next block, while tags and heights are
    /// those of the tip. The next change of the chain ends this.
    pub fn tokens_ahead(&self) {
        self.state().model.tokens_ahead = true;
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

    /// Serves this API by HTTP/1.1 on the listener until `stop` resolves, then drops all connections and returns. Several
    /// listeners can be served at the same time, with the same API or different ones.
    pub async fn serve(self, api: Api, listener: TcpListener, stop: impl Future<Output = ()>) {
        server::serve(self, api, listener, stop).await;
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

    /// The answer to a request and how long it takes; without an answer, the connection closes.
    fn receive(&self, request: &Received<'_>, now: Instant) -> (Option<Answer>, Duration) {
        let State { model, provider } = &mut *self.state();
        provider.receive(&self.settings, model, request, now)
    }

    /// Also after a panic of its holder: its value is consistent after every statement.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
