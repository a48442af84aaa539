//! What replicas share through an engine (Valkey or Redis).
//!
//! A provider counts the requests of a key, whichever replica sends them. So the replicas
//! share each budget: [`allowance`] says how much of it one process may use, [`engine`]
//! keeps account of what all of them may use, and the keeper reports. Without the engine
//! each process has its floor, and nothing waits for it: no request of a client asks the
//! engine, and the server is ready without it.

pub mod allowance;
pub mod engine;
mod keeper;

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use allowance::ProcessId;
use engine::server::{EngineSnapshot, EngineUrl, RedisEngine};
use keeper::Keeper;
pub use keeper::KeptSnapshot;

use crate::clock::Clock;
use crate::sync::lock;
use crate::upstream::Upstreams;

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
}

/// What this process shares with other replicas.
pub struct Shared {
    url: EngineUrl,
    timeout: Mutex<Duration>,
    /// Made by [`run`](Self::run).
    engine: OnceLock<Arc<RedisEngine>>,
    keeper: Keeper,
    clock: Clock,
}

/// What replicas share, as `/status` and metrics show it.
#[derive(Clone, Debug)]
pub struct SharedSnapshot {
    /// The engine; `None` before the first report.
    pub engine: Option<EngineSnapshot>,
    /// The budgets that were reported.
    pub budgets: Vec<KeptSnapshot>,
}

impl Shared {
    /// Shares the budgets of these upstreams. `process` is random, and tells this process
    /// from all others; `longest` is how long a request can be in flight.
    pub fn new(
        settings: &Settings,
        process: u128,
        upstreams: &Upstreams,
        longest: Duration,
        clock: &Clock,
    ) -> Arc<Self> {
        let keeper = Keeper::new(
            &settings.prefix,
            &settings.name,
            ProcessId(process),
            upstreams.budgets().clone(),
            clock.clone(),
        );
        keeper.set_longest(longest);
        Arc::new(Self {
            url: settings.url.clone(),
            timeout: Mutex::new(settings.timeout),
            engine: OnceLock::new(),
            keeper,
            clock: clock.clone(),
        })
    }

    /// Applies what a reload has changed.
    pub fn reconfigure(&self, timeout: Duration, longest: Duration) {
        self.keeper.set_longest(longest);
        *lock(&self.timeout) = timeout;
        if let Some(engine) = self.engine.get() {
            engine.set_timeout(timeout);
        }
    }

    /// Reports to the engine until it is dropped.
    pub async fn run(&self) {
        let new = || RedisEngine::new(self.url.clone(), *lock(&self.timeout), self.clock.clone());
        let engine = self.engine.get_or_init(new);
        self.keeper.run(&**engine).await;
    }

    /// The state now.
    pub fn snapshot(&self) -> SharedSnapshot {
        SharedSnapshot {
            engine: self.engine.get().map(|engine| engine.snapshot()),
            budgets: self.keeper.snapshot(),
        }
    }
}
