//! What replicas share through an engine (Valkey or Redis).
//!
//! A provider counts the requests of a key, whichever replica sends them. So the replicas
//! share each budget: [`allowance`] says how much of it one process may use, [`engine`]
//! keeps account of what all of them may use, and the keeper reports. What one replica
//! purges, all purge ([`journal`]), what one has fetched, all may use (`tier`), and one
//! probes each tip for all ([`tip`]). Without the engine each process has its floor, purges
//! alone, probes and fetches for itself. A hit in memory does not ask the engine; a miss
//! does, and goes on when it does not answer. The
//! server is ready without it, after half a second at most.
//!
//! Each use of the engine has a connection and a breaker of its own, so that a flood of
//! one does not stop another.

pub mod allowance;
pub mod engine;
pub(crate) mod journal;
mod keeper;
pub(crate) mod left_out;
mod tier;
pub(crate) mod tip;

#[cfg(test)]
#[allow(dead_code, reason = "tests/shared uses the rest of it")]
#[path = "../tests/shared/servers.rs"]
mod servers;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use allowance::ProcessId;
use engine::entries::SharedEntries;
use engine::server::{EngineSnapshot, EngineUrl, RedisEngine, RedisEntries};
use journal::Journal;
pub use journal::JournalReport;
use keeper::Keeper;
pub use keeper::KeptSnapshot;
use tier::TierLink;
pub(crate) use tier::{FillTicket, PeekedEntry, SharedAnswer, SharedResponse, SharedTier};
use tip::TipLeases;
pub use tip::TipShare;

use crate::chain::TipSource;
use crate::clock::Clock;
use crate::state_dir::OpenedState;
use crate::sync::lock;
use crate::upstream::Upstreams;

/// Decodes any bytes as a record of the journal: for the fuzz target.
pub fn decode_journal_record(bytes: &[u8]) -> bool {
    journal::record::decode_any(bytes)
}

/// Decodes any bytes as a response that replicas keep for each other, with a checksum and
/// without: for the fuzz target.
pub fn decode_shared_value(bytes: &[u8]) -> bool {
    tier::decode_any(bytes)
}

/// How the engine is used.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where it is.
    pub url: EngineUrl,
    /// What its keys begin with.
    pub prefix: String,
    /// The name of this replica.
    pub name: String,
    /// How long it may take to answer.
    pub timeout: Duration,
    /// How long a request waits for another replica's fetch.
    pub fill_wait: Duration,
}

/// What this process shares with other replicas.
pub struct Shared {
    url: EngineUrl,
    timeout: Mutex<Duration>,
    /// Made by [`run`](Self::run).
    engines: OnceLock<Engines>,
    keeper: Keeper,
    journal: Arc<Journal>,
    tier: Arc<TierLink>,
    tips: Arc<TipLeases>,
    clock: Clock,
}

/// The engine, once for each use.
struct Engines {
    budgets: Arc<RedisEngine>,
    journal: Arc<RedisEngine>,
    /// Says when there are new records.
    announcer: Arc<RedisEngine>,
    responses: [Arc<RedisEngine>; tier::CONNECTIONS],
}

/// What replicas share, as `/status` and metrics show it.
#[derive(Clone, Debug)]
pub struct SharedSnapshot {
    /// The engine; `None` before the first report.
    pub engine: Option<EngineSnapshot>,
    /// The budgets that were reported.
    pub budgets: Vec<KeptSnapshot>,
    /// The journal.
    pub journal: JournalReport,
    /// What this replica does for each tip, by its name.
    pub tips: BTreeMap<Box<str>, TipShare>,
}

impl Shared {
    /// Shares the budgets of these upstreams. `process` is random, and tells this process
    /// from all others; `longest` is how long a request can be in flight.
    pub fn new(
        settings: &Settings,
        process: u128,
        upstreams: &Upstreams,
        longest: Duration,
        (state, clock): (&OpenedState, &Clock),
    ) -> Arc<Self> {
        let (prefix, name) = (&settings.prefix, &settings.name);
        let journal = Journal::new(
            prefix,
            name,
            ProcessId(process),
            upstreams.budgets().clone(),
            (state, clock),
        );
        let keeper = Keeper::new(
            &settings.prefix,
            &settings.name,
            ProcessId(process),
            upstreams.budgets().clone(),
            clock.clone(),
        );
        keeper.set_longest(longest);
        let tier = TierLink::new(prefix, journal.clone(), clock.clone());
        tier.set_waits(settings.fill_wait, settings.timeout);
        Arc::new(Self {
            url: settings.url.clone(),
            timeout: Mutex::new(settings.timeout),
            engines: OnceLock::new(),
            keeper,
            journal,
            tier,
            tips: TipLeases::new(settings, ProcessId(process), clock),
            clock: clock.clone(),
        })
    }

    /// Applies what a reload has changed.
    pub fn reconfigure(
        &self,
        (timeout, fill_wait): (Duration, Duration),
        longest: Duration,
        tips: &[TipSource],
    ) {
        self.tips.retain(tips.iter().map(|tip| &*tip.name));
        self.keeper.set_longest(longest);
        self.tier.set_waits(fill_wait, timeout);
        *lock(&self.timeout) = timeout;
        self.tips.set_timeout(timeout);
        if let Some(engines) = self.engines.get() {
            let all = [&engines.budgets, &engines.journal, &engines.announcer];
            let all = all.into_iter().chain(&engines.responses);
            all.for_each(|engine| engine.set_timeout(timeout));
        }
    }

    /// Reports to the engine until it is dropped, and follows the journal.
    pub async fn run(&self) {
        let new = || RedisEngine::new(self.url.clone(), *lock(&self.timeout), self.clock.clone());
        let engines = self.engines.get_or_init(|| Engines {
            budgets: new(),
            journal: new(),
            announcer: new(),
            responses: std::array::from_fn(|_| new()),
        });
        self.tier.open(engines.responses.clone().map(|engine| {
            let entries: Arc<dyn SharedEntries> = Arc::new(RedisEntries::new(engine));
            entries
        }));
        tokio::join!(
            self.keeper.run(&*engines.budgets),
            self.journal.run(&engines.journal, &engines.announcer),
            self.tier.run()
        );
    }

    /// Says to the other replicas that this process is about to end. [`run`](Self::run)
    /// must have been dropped.
    pub async fn leave(&self) {
        if let Some(engines) = self.engines.get() {
            self.journal.leave(&engines.journal).await;
        }
    }

    /// What replicas keep for each other.
    pub(crate) fn tier(&self) -> &Arc<TierLink> {
        &self.tier
    }

    /// Waits, briefly, for what others have purged while this process was down.
    pub(crate) fn catch_up(&self) {
        self.journal.catch_up();
    }

    /// The journal.
    pub(crate) fn journal(&self) -> &Arc<Journal> {
        &self.journal
    }

    /// Who probes each tip.
    pub(crate) fn tips(&self) -> &Arc<TipLeases> {
        &self.tips
    }

    /// The state now.
    pub fn snapshot(&self) -> SharedSnapshot {
        SharedSnapshot {
            engine: self.engines.get().and_then(|engines| {
                let all = [&engines.budgets, &engines.journal].into_iter();
                let all = all.chain(&engines.responses);
                EngineSnapshot::of_all(all.map(|engine| engine.snapshot()))
            }),
            budgets: self.keeper.snapshot(),
            journal: self.journal.report(),
            tips: self.tips.shares(),
        }
    }
}
