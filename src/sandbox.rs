//! The sandbox: a deterministic model of a Bitcoin chain and of the upstream API, served in this process.
//!
//! It is the upstream of the tests, of the demo (`serve --sandbox`) and of load tests. It behaves like the reference
//! upstream, including its quirks, and shares no code with the rest of the crate.
//!
//! ```text
//! server -> faults -> gate (key, rate limit) -> api -> chain, runes, tokens
//! ```
//!
//! Blocks hold from none to about 1,000 transactions (more if the settings say so), in a pattern that repeats every 50
//! blocks. Tokens, runes, transactions and blocks are consistent with each other. Every answer follows from the seed and
//! the changes made to the chain.
//!
//! # Two servers
//! The reference has one server for each API. A sandbox can be served the same way: one listener with `Api::Ordinals`,
//! another with `Api::Runes`. Both serve one chain. Each has its own rate limit, counts and faults, and answers a path
//! of the other API like any unknown route.
//!
//! # Control routes
//! On the same listeners, for people and scripts. They need no key and are neither counted nor limited.
//!
//! | request | effect |
//! |---|---|
//! | `GET /sandbox/examples` | lists paths that have content |
//! | `GET /sandbox/counts` | the counts of requests and answers |
//! | `POST /sandbox/advance?blocks=N` | adds blocks (1 to 10,000; default 1) |
//! | `POST /sandbox/reorg?depth=N` | replaces the highest blocks |
//! | `POST /sandbox/rollback?depth=N` | the first half of a reorg: deletes the highest blocks |
//! | `POST /sandbox/apply` | the second half: adds the replacements |
//! | `POST /sandbox/tokens-ahead` | token figures become those of the next block before it arrives |
//! | `POST /sandbox/fault?kind=K` | queues a fault; also `times=N`, `path=PREFIX`, `chance=P`, `delay=MS`, `retry-after=S`, `bytes=N` |
//! | `GET /sandbox/fault` | lists the faults |
//! | `DELETE /sandbox/fault` | clears all faults, or the one of `id=N` |
//! | `GET /sandbox/journal?last=N` | the last requests (1 to 1,000; default 100), the newest first |
//!
//! Kinds of faults: a status from 400 to 599, `redirect`, `truncate`, `close`, `stall`, `drip`, `html`, `garbage`,
//! `oversize`, `oversize-chunked`.
//!
//! # Invariants
//! Only `server` reads a clock. Memory is bounded: 65,536 blocks of 24 bytes, no index of transactions, one counter
//! for each millisecond of the last minute, 1,000 requests (512 bytes of each target and 32 of each method), and 1,000
//! faults (a control request's path has at most 512 bytes). Keys are kept only in the settings and never printed.
//!
//! Not implemented: persistence, balances that add up, the other routes of the reference (404 here), HTTP/2 and TLS.

use std::fmt;
use std::sync::{
    Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
};

use http::{HeaderMap, Method};
use tokio::net::TcpListener;
use tokio::time::Instant;

mod answer;
mod api;
mod chain;
mod control;
mod counts;
mod examples;
mod faults;
mod gate;
mod journal;
mod latency;
mod mix;
mod payload;
mod rate;
mod runes;
mod server;
mod settings;
mod target;
mod tokens;

pub use answer::Answer;
pub use api::Api;
use api::Model;
pub use counts::Counts;
pub use examples::Examples;
pub use faults::{Fault, FaultKind};
pub use latency::Latency;
pub use settings::Settings;

/// The highest block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tip {
    /// The height.
    pub height: u32,
    /// The hash, 64 lower-case hex digits. It is also the entity tag of every answer under `/runes`.
    pub hash: String,
}

/// A handle to a sandbox. Clones share one sandbox.
#[derive(Clone)]
pub struct Sandbox {
    inner: Arc<Inner>,
}

struct Inner {
    settings: Settings,
    model: RwLock<Model>,
    faults: Mutex<faults::Faults>,
    journal: Mutex<journal::Journal>,
    /// Indexed by `Api`; the first counts the requests to all servers.
    counters: [Mutex<counts::Counter>; 3],
    /// Indexed by `Api`: one for each server.
    limiters: [Mutex<Option<rate::Limiter>>; 3],
    /// Held by the server that adds blocks on a timer.
    block_timer: tokio::sync::Mutex<()>,
    /// The number of blocks added by the timer.
    timed_blocks: Mutex<u64>,
    /// The start of the milliseconds that `server` passes on as `now`.
    started: OnceLock<Instant>,
}

impl fmt::Debug for Sandbox {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Sandbox")
            .field("settings", &self.inner.settings)
            .finish_non_exhaustive()
    }
}

impl Sandbox {
    /// Makes a sandbox that is not served yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let model = Model::new(&settings);
        let limiter = || settings.requests_per_minute.map(rate::Limiter::new);
        let inner = Inner {
            model: RwLock::new(model),
            faults: Mutex::default(),
            journal: Mutex::default(),
            counters: std::array::from_fn(|_api| Mutex::new(counts::Counter::new())),
            limiters: std::array::from_fn(|_api| Mutex::new(limiter())),
            block_timer: tokio::sync::Mutex::default(),
            settings,
            timed_blocks: Mutex::new(0),
            started: OnceLock::new(),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// What all answers follow from, but for the changes made to the chain.
    #[must_use]
    pub fn content(&self) -> String {
        let settings = &self.inner.settings;
        let (seed, lowest) = (settings.seed, settings.start_height);
        format!("sandbox {seed} {lowest} {}", settings.largest_block)
    }

    /// Where it listens if it serves a gateway in the same process; none for a free port.
    #[must_use]
    pub fn listen(&self) -> Option<std::net::SocketAddr> {
        self.inner.settings.listen
    }

    /// Paths that have content on the current chain.
    #[must_use]
    pub fn examples(&self) -> Examples {
        Examples::of(&self.model().chain)
    }

    /// The highest block. Its height is zero and its hash empty while the index is empty.
    #[must_use]
    pub fn tip(&self) -> Tip {
        let model = self.model();
        let tip = model.chain.tip().map(|block| Tip {
            height: block.height,
            hash: model.chain.hash(block),
        });
        tip.unwrap_or(Tip {
            height: 0,
            hash: String::new(),
        })
    }

    /// The hash of the block at a height.
    #[must_use]
    pub fn hash_at(&self, height: u32) -> Option<String> {
        let model = self.model();
        model.chain.at(height).map(|block| model.chain.hash(block))
    }

    /// The ids of the transactions with rune activity in the block at a height, by ascending index.
    #[must_use]
    pub fn transactions_at(&self, height: u32) -> Vec<String> {
        let model = self.model();
        let block = model.chain.at(height);
        let placements = block.map(|block| model.chain.placements(block));
        let placements = placements.into_iter().flatten();
        placements
            .map(|placed| model.chain.tx_id(placed.key))
            .collect()
    }

    /// The upstream's present answer, without key check, rate limit, faults and counting. Tests compare with it.
    #[must_use]
    pub fn answer(&self, method: &Method, path_and_query: &str, headers: &HeaderMap) -> Answer {
        self.model()
            .answer(Api::Both, method, path_and_query, headers)
    }

    /// Adds blocks. After a rollback, the first ones replace the deleted blocks.
    pub fn advance(&self, blocks: u32) {
        let mut model = self.model_mut();
        for _ in 0..blocks {
            model.chain.push();
        }
        model.tokens_ahead = false;
    }

    /// Replaces the highest blocks, up to the same height, and returns their number. The replacements hold most of the
    /// transactions, at other indexes; the next block holds the rest.
    pub fn reorg(&self, depth: u32) -> u32 {
        let mut model = self.model_mut();
        let replaced = model.chain.rollback(depth);
        model.chain.apply();
        model.tokens_ahead = false;
        replaced
    }

    /// The first half of a reorg: deletes the highest blocks and returns their number. Their lists and those of their
    /// transactions are then empty, and the tags are those of the block below. The lowest block always stays.
    pub fn rollback(&self, depth: u32) -> u32 {
        let mut model = self.model_mut();
        model.tokens_ahead = false;
        model.chain.rollback(depth)
    }

    /// The second half of a reorg: adds replacements up to the old height and returns their number.
    pub fn apply(&self) -> u32 {
        let mut model = self.model_mut();
        model.tokens_ahead = false;
        model.chain.apply()
    }

    /// Puts the token indexer one block ahead: its figures are those of the next block, while tags and heights are
    /// those of the tip. The next change of the chain ends this.
    pub fn tokens_ahead(&self) {
        self.model_mut().tokens_ahead = true;
    }

    /// Queues a fault. At most 1,000 are queued; further ones are ignored.
    pub fn fault(&self, fault: Fault) {
        let _number = self.faults().push(fault);
    }

    /// Clears all queued faults.
    pub fn clear_faults(&self) {
        self.faults().clear(Api::Both);
    }

    /// The counts of all servers together.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts_at(Api::Both)
    }

    /// The counts of the server of this API; of all servers for [`Api::Both`].
    #[must_use]
    pub fn counts_at(&self, api: Api) -> Counts {
        self.counter(api).snapshot()
    }

    /// Serves this API by HTTP/1.1 on the listener until `stop` resolves, then drops all connections and returns. Several
    /// listeners can be served at the same time, with the same API or different ones. While any is served, blocks are
    /// added once per `Settings::block_every`.
    pub async fn serve(self, api: Api, listener: TcpListener, stop: impl Future<Output = ()>) {
        server::serve(self, api, listener, stop).await;
    }

    /// Counts a request to the server of this API and returns its number, counted over all servers from one.
    fn count_request(&self, api: Api, route: &api::Route, now: u64) -> u64 {
        if api != Api::Both {
            self.counter(api).count_request(route, now);
        }
        self.counter(Api::Both).count_request(route, now)
    }

    /// Counts an answer of the server of this API; `None` if the connection was closed without one.
    fn count_answer(&self, api: Api, status: Option<http::StatusCode>) {
        if api != Api::Both {
            self.counter(api).count_answer(status);
        }
        self.counter(Api::Both).count_answer(status);
    }

    /// Adds the next block of the timer, after a reorg where `Settings::reorg_every` says so.
    fn add_timed_block(&self) {
        let mut added = lock(&self.inner.timed_blocks);
        *added += 1;
        let settings = &self.inner.settings;
        if settings
            .reorg_every
            .is_some_and(|every| added.is_multiple_of(u64::from(every.get())))
        {
            self.reorg(1 + (mix::mix2(settings.seed, *added) % 3) as u32);
        }
        self.advance(1);
    }

    fn model(&self) -> RwLockReadGuard<'_, Model> {
        let model = self.inner.model.read();
        model.unwrap_or_else(PoisonError::into_inner)
    }

    fn model_mut(&self) -> RwLockWriteGuard<'_, Model> {
        let model = self.inner.model.write();
        model.unwrap_or_else(PoisonError::into_inner)
    }

    fn faults(&self) -> MutexGuard<'_, faults::Faults> {
        lock(&self.inner.faults)
    }

    fn journal(&self) -> MutexGuard<'_, journal::Journal> {
        lock(&self.inner.journal)
    }

    fn counter(&self, api: Api) -> MutexGuard<'_, counts::Counter> {
        lock(&self.inner.counters[api as usize])
    }

    fn limiter(&self, api: Api) -> MutexGuard<'_, Option<rate::Limiter>> {
        lock(&self.inner.limiters[api as usize])
    }
}

/// Locks a mutex, also after a panic of its holder: its value is consistent after every statement.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::{Sandbox, Settings};
    use std::num::NonZeroU32;

    #[test]
    fn timed_blocks_raise_the_tip_and_every_nth_is_a_reorg() {
        let settings = Settings {
            reorg_every: NonZeroU32::new(2),
            blocks: 20,
            ..Settings::default()
        };
        let sandbox = Sandbox::new(settings);
        let before = sandbox.tip();
        sandbox.add_timed_block();
        assert_eq!(
            sandbox.hash_at(before.height).as_deref(),
            Some(before.hash.as_str())
        );
        let first = sandbox.tip();
        sandbox.add_timed_block();
        assert_eq!(sandbox.tip().height, before.height + 2);
        assert_ne!(sandbox.hash_at(first.height), Some(first.hash));
    }

    #[test]
    fn rollback_and_apply_give_the_chain_of_a_reorg() {
        let halves = Sandbox::new(Settings::default());
        let whole = Sandbox::new(Settings::default());
        let parent = halves.hash_at(840_197);
        assert_eq!(halves.rollback(2), 2);
        assert_eq!(Some(halves.tip().hash), parent);
        assert_eq!(halves.transactions_at(840_199), Vec::<String>::new());
        assert_eq!(halves.apply(), 2);
        assert_eq!(whole.reorg(2), 2);
        assert_eq!(halves.tip(), whole.tip());
    }
}
