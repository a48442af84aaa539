//! What replicas share through one server of Valkey or Redis: permits of each key's budget
//! ([`permits`]), purges ([`purges`]), responses ([`responses`]) and statuses ([`tip`]).
//!
//! No answer to a client depends on the engine: a call that takes too long counts as
//! unanswered, and a hit in memory makes none. Without an engine, replicas only divide each
//! budget. Large responses have a connection of their own, so that no permit waits for them.

mod engine;
pub mod permits;
pub mod purges;
pub mod responses;
#[cfg(test)]
mod tests;
pub mod tip;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use engine::Engine;
pub use engine::{EngineError, EngineSnapshot, EngineUrl};
use permits::{Limits, Permits, PermitsSnapshot, Split};
use purges::{Generation, HeardPurge, PurgesSnapshot, SharedPurges};
use responses::{Responses, ResponsesSnapshot};
use serde::Serialize;
use tip::{SharedTips, TipsSnapshot};

use crate::clock::Clock;

/// How replicas share.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How many replicas there are at most, those included that overlap in a rollout.
    pub replicas: NonZeroU32,
    /// The engine; without one, only the budgets are divided.
    pub engine: Option<EngineUrl>,
    /// What the engine's keys begin with.
    pub prefix: String,
    /// How long a call may take.
    pub timeout: Duration,
    /// How long a request waits while another replica fetches the same response.
    pub fill_wait: Duration,
}

/// What this process shares with other replicas.
pub struct Shared {
    settings: Settings,
    /// For what is small, and for responses.
    engines: Option<[Arc<Engine>; 2]>,
    /// Of the budgets.
    pub permits: Arc<Permits>,
    /// That reach all replicas.
    pub purges: Arc<SharedPurges>,
    /// That replicas keep for each other.
    pub responses: Arc<Responses>,
    /// That one replica asks for.
    pub tips: Arc<SharedTips>,
}

/// What replicas share, as `/status` and metrics show it.
#[derive(Clone, Debug, Serialize)]
pub struct SharedSnapshot {
    /// `shared.replicas`.
    pub replicas: u32,
    /// The connection for permits, purges and statuses.
    pub engine: Option<EngineSnapshot>,
    /// The connection for responses.
    pub responses_engine: Option<EngineSnapshot>,
    /// Permits.
    pub permits: PermitsSnapshot,
    /// Purges.
    pub purges: PurgesSnapshot,
    /// Responses.
    pub responses: ResponsesSnapshot,
    /// Statuses.
    pub tips: TipsSnapshot,
}

impl Shared {
    /// No connection is made yet. `stored` is what the content of the disk has applied of the
    /// purges; `None` if nothing is stored.
    pub fn new(settings: Settings, stored: Option<Generation>, clock: &Clock) -> Arc<Self> {
        let Settings {
            timeout, fill_wait, ..
        } = settings;
        let url = settings.engine.as_ref();
        let engine = || Some(Arc::new(Engine::new(url?.clone(), timeout, clock.clone())));
        let (small, large) = (engine(), engine());
        let (prefix, process) = (&*settings.prefix, fastrand::u64(..));
        let replicas = settings.replicas.get();
        Arc::new(Self {
            permits: Permits::new(small.clone(), prefix, process, clock.clone()),
            purges: SharedPurges::new(small.clone(), prefix, process, replicas, stored),
            responses: Responses::new(large.clone(), prefix, fill_wait),
            tips: SharedTips::new(small.clone(), prefix, clock.clone()),
            engines: small.zip(large).map(Into::into),
            settings,
        })
    }

    /// Applies what a reload has changed.
    pub fn reconfigure(&self, timeout: Duration, fill_wait: Duration) {
        for engine in self.engines.iter().flatten() {
            engine.set_timeout(timeout);
        }
        self.responses.set_fill_wait(fill_wait);
    }

    /// How many replicas there are at most.
    pub fn replicas(&self) -> u32 {
        self.settings.replicas.get()
    }

    /// Whether replicas share an engine.
    pub fn has_engine(&self) -> bool {
        self.engines.is_some()
    }

    /// What this replica may send of a budget, and all of them by permits.
    pub fn split(&self, budget: Limits) -> Split {
        permits::split(budget, self.settings.replicas, self.has_engine())
    }

    /// Follows the purges until it is dropped; returns at once without an engine. `apply` purges
    /// what was heard, here and on disk, and keeps the generation on disk.
    pub async fn run(&self, apply: impl AsyncFn(Vec<HeardPurge>, Generation)) {
        if self.engines.is_some() {
            self.purges.run(apply).await;
        }
    }

    /// The state now.
    pub fn snapshot(&self) -> SharedSnapshot {
        let engine = |at: usize| Some(self.engines.as_ref()?[at].snapshot());
        SharedSnapshot {
            replicas: self.settings.replicas.get(),
            engine: engine(0),
            responses_engine: engine(1),
            permits: self.permits.snapshot(),
            purges: self.purges.snapshot(),
            responses: self.responses.snapshot(),
            tips: self.tips.snapshot(),
        }
    }
}
