//! The sandbox: a deterministic model of a Bitcoin chain and of the upstream API, in this process.
//!
//! It is the upstream of the tests, of the demo (`serve --sandbox`) and of load tests. It behaves like the reference
//! upstream, its oddities included, not like ordgate; so it shares no code with the rest of the crate.
//!
//! ```text
//! server -> faults -> gate (key, rate limit) -> api -> chain, runes, tokens
//! ```
//!
//! Blocks hold between no and some thousand items (more, if the settings say so) in a pattern that repeats every fifty
//! blocks; tokens, runes, transactions and blocks agree with each other. Everything follows from the seed and from what
//! was done to the chain.
//!
//! # Two servers
//! The reference is two processes, one for each API. A sandbox can be served so as well: on one listener with
//! `Api::Ordinals`, on another with `Api::Runes`. The two have one chain and one sequence of blocks that arrive. Each has
//! its own rate limit, counts and faults, and answers a path of the other API like any unknown route.
//!
//! # Control routes
//! On the same listeners, for people and scripts. They are neither counted nor limited and need no key.
//!
//! | request | effect |
//! |---|---|
//! | `GET /sandbox/examples` | lists of paths that have something to show |
//! | `GET /sandbox/counts` | what was asked so far |
//! | `POST /sandbox/advance?blocks=N` | adds blocks (1 to 10,000; default 1) |
//! | `POST /sandbox/reorg?depth=N` | replaces the highest blocks by others |
//! | `POST /sandbox/rollback?depth=N` | the first half of a reorg: deletes them |
//! | `POST /sandbox/apply` | the second half: brings the replacements |
//! | `POST /sandbox/tokens-ahead` | token figures become those of the next block, before it is there |
//! | `POST /sandbox/fault?kind=K` | orders a fault; also `times=N`, `path=PREFIX`, `delay=MS`, `retry-after=S`, `bytes=N` |
//! | `DELETE /sandbox/fault` | clears all faults |
//!
//! Kinds of faults: a status from 400 to 599, `redirect`, `truncate`, `close`, `stall`, `drip`, `html`, `garbage`,
//! `oversize`, `oversize-chunked`.
//!
//! # Invariants
//! Only `server` reads a clock. Memory is bounded: 65,536 blocks of 24 bytes, no index of transactions, one entry for
//! each millisecond of the last minute in the counts. No key is kept beyond the settings, and none is printed.
//!
//! Deliberately absent: persistence, balances that add up, the reference's other routes (they are 404 here), HTTP/2
//! and TLS.

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
mod mix;
mod payload;
mod rate;
mod runes;
mod server;
mod settings;
mod target;
mod tokens;

pub use answer::Answer;
pub use api::{Api, Model};
pub use counts::Counts;
pub use examples::Examples;
pub use faults::{Fault, FaultKind};
pub use settings::Settings;

/// The highest block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tip {
    /// Its height.
    pub height: u32,
    /// Its hash, 64 hex digits in lower case, which is also the tag of everything under `/runes`.
    pub hash: String,
}

/// A handle to a sandbox; clones are the same sandbox.
#[derive(Clone)]
pub struct Sandbox {
    inner: Arc<Inner>,
}

struct Inner {
    settings: Settings,
    model: RwLock<Model>,
    faults: Mutex<faults::Faults>,
    /// By `Api`; the first counts the requests to all servers.
    counters: [Mutex<counts::Counter>; 3],
    /// By `Api`: one for each server.
    limiters: [Mutex<Option<rate::Limiter>>; 3],
    /// Held by the server that lets blocks arrive.
    bringing: tokio::sync::Mutex<()>,
    /// Blocks that arrived by themselves.
    arrived: Mutex<u64>,
    /// The moment from which `server` counts its time.
    epoch: OnceLock<Instant>,
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
    /// Makes a sandbox; nothing listens yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let model = Model::new(&settings);
        let limiter = || settings.requests_per_minute.map(rate::Limiter::new);
        let inner = Inner {
            model: RwLock::new(model),
            faults: Mutex::default(),
            counters: std::array::from_fn(|_api| Mutex::new(counts::Counter::new())),
            limiters: std::array::from_fn(|_api| Mutex::new(limiter())),
            bringing: tokio::sync::Mutex::default(),
            settings,
            arrived: Mutex::new(0),
            epoch: OnceLock::new(),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Paths that have something to show, made from the chain as it is now.
    #[must_use]
    pub fn examples(&self) -> Examples {
        Examples::of(&self.model().chain)
    }

    /// The highest block; height zero and an empty hash while the index is empty.
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

    /// The hash of the block that stands at a height.
    #[must_use]
    pub fn hash_at(&self, height: u32) -> Option<String> {
        let model = self.model();
        model.chain.at(height).map(|block| model.chain.hash(block))
    }

    /// The ids of the transactions with rune activity in the block at a height, by ascending index.
    #[must_use]
    pub fn transactions_at(&self, height: u32) -> Vec<String> {
        let model = self.model();
        let placements = model
            .chain
            .at(height)
            .map(|block| model.chain.placements(block))
            .unwrap_or_default();
        placements
            .into_iter()
            .map(|placed| model.chain.tx_id(placed.key))
            .collect()
    }

    /// What the upstream would answer now, past key, limit and faults, and without being counted: for comparison.
    #[must_use]
    pub fn answer(&self, method: &Method, path_and_query: &str, headers: &HeaderMap) -> Answer {
        self.model().answer(method, path_and_query, headers)
    }

    /// Adds so many blocks at once. Where blocks were rolled back, the first ones are their replacements.
    pub fn advance(&self, blocks: u32) {
        let mut model = self.model_mut();
        for _ in 0..blocks {
            model.chain.push();
        }
        model.tokens_ahead = false;
    }

    /// Replaces the highest blocks at once, up to the same height, and says how many. Most of their transactions are in
    /// the replacements, at other places; a few wait for the next block.
    pub fn reorg(&self, depth: u32) -> u32 {
        let mut model = self.model_mut();
        let replaced = model.chain.rollback(depth);
        model.chain.apply();
        model.tokens_ahead = false;
        replaced
    }

    /// The first half of a reorg: deletes the highest blocks, so that they and their transactions are empty and the
    /// tags are those of the block below. Says how many went; the lowest block always stays.
    pub fn rollback(&self, depth: u32) -> u32 {
        let mut model = self.model_mut();
        model.tokens_ahead = false;
        model.chain.rollback(depth)
    }

    /// The second half: brings the replacements up to the old height, and says how many.
    pub fn apply(&self) -> u32 {
        let mut model = self.model_mut();
        model.tokens_ahead = false;
        model.chain.apply()
    }

    /// Lets the token indexer run ahead: its figures are those of the next block while tags and heights still tell of
    /// the last one. Ends with the next change of the chain.
    pub fn tokens_ahead(&self) {
        self.model_mut().tokens_ahead = true;
    }

    /// Orders a fault. At most 1,000 wait; one that is ordered beyond is ignored.
    pub fn fault(&self, fault: Fault) {
        self.faults().order(fault);
    }

    /// Clears all faults that wait.
    pub fn clear_faults(&self) {
        self.clear_faults_at(Api::Both);
    }

    /// Clears the faults that wait for the server with this API.
    fn clear_faults_at(&self, api: Api) {
        self.faults().clear(api);
    }

    /// What was asked so far, of all servers.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts_at(Api::Both)
    }

    /// What was asked so far of the server with this API; of all servers for [`Api::Both`].
    #[must_use]
    pub fn counts_at(&self, api: Api) -> Counts {
        self.counter(api).snapshot()
    }

    /// Serves this API by HTTP/1.1 on the listener until `stop` resolves, and lets blocks arrive where the settings say
    /// so. Then it returns at once and drops the connections. Several listeners may be served at a time, with the same
    /// API or others; blocks arrive once for all of them.
    pub async fn serve(self, api: Api, listener: TcpListener, stop: impl Future<Output = ()>) {
        server::serve(self, api, listener, stop).await;
    }

    /// Counts a request to the server with this API, and gives its number among those to all servers.
    fn arrive(&self, api: Api, route: &api::Route, now: u64) -> u64 {
        if api != Api::Both {
            self.counter(api).arrive(route, now);
        }
        self.counter(Api::Both).arrive(route, now)
    }

    /// Counts what became of it; nothing means that its connection was closed.
    fn leave(&self, api: Api, status: Option<http::StatusCode>) {
        if api != Api::Both {
            self.counter(api).leave(status);
        }
        self.counter(Api::Both).leave(status);
    }

    /// A block arrives by itself.
    fn next_block(&self) {
        let mut arrived = self
            .inner
            .arrived
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *arrived += 1;
        let settings = &self.inner.settings;
        if settings
            .reorg_every
            .is_some_and(|every| arrived.is_multiple_of(u64::from(every.get())))
        {
            self.reorg(1 + (mix::mix2(settings.seed, *arrived) % 3) as u32);
        }
        self.advance(1);
    }

    // A poisoned lock only means that some test panicked meanwhile; what it guards is whole after every statement.

    fn model(&self) -> RwLockReadGuard<'_, Model> {
        self.inner
            .model
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn model_mut(&self) -> RwLockWriteGuard<'_, Model> {
        self.inner
            .model
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn faults(&self) -> MutexGuard<'_, faults::Faults> {
        self.inner
            .faults
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn counter(&self, api: Api) -> MutexGuard<'_, counts::Counter> {
        self.inner.counters[api as usize]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn limiter(&self, api: Api) -> MutexGuard<'_, Option<rate::Limiter>> {
        self.inner.limiters[api as usize]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::{Sandbox, Settings};
    use std::num::NonZeroU32;

    #[test]
    fn a_key_is_never_printed() {
        let settings = Settings {
            require_key: Some("hush-hush".to_owned()),
            ..Settings::default()
        };
        let text = format!("{settings:?} {:?}", Sandbox::new(settings.clone()));
        assert!(text.contains("redacted") && !text.contains("hush-hush"));
    }

    #[test]
    fn blocks_that_arrive_raise_the_tip_and_some_replace_others() {
        let settings = Settings {
            reorg_every: NonZeroU32::new(2),
            blocks: 20,
            ..Settings::default()
        };
        let sandbox = Sandbox::new(settings);
        let before = sandbox.tip();
        sandbox.next_block();
        assert_eq!(
            sandbox.hash_at(before.height).as_deref(),
            Some(before.hash.as_str())
        );
        let first = sandbox.tip();
        sandbox.next_block();
        assert_eq!(sandbox.tip().height, before.height + 2);
        assert_ne!(sandbox.hash_at(first.height), Some(first.hash));
    }

    #[test]
    fn a_reorg_in_two_halves_ends_like_one_at_once() {
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
