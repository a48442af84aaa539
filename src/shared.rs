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
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use engine::Engine;
pub use engine::EngineUrl;
use permits::{Limits, Permits, Split};
use purges::{Generation, SharedPurges};
use responses::Responses;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tip::SharedTips;

use crate::clock::Clock;
use crate::units::Time;

/// What several ordgates share that use the same API keys, for example behind a load
/// balancer. Without this table, an ordgate uses its API keys alone.
///
/// Each replica has the same part of each key's budget: requests_per_minute and
/// requests_per_second divided by `replicas`, rounded down. With an engine, that is so for a
/// quarter of the budget, and the rest goes to those that need it. Their requests together
/// never exceed the budget. Clients' limits are not shared: a client whose requests the load
/// balancer spreads over all replicas may send as many to each of them.
#[derive(Clone, Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The most replicas that run at the same time, those included that overlap while they
    /// are replaced.
    ///
    /// Every replica must have the same value. To add replicas, raise it everywhere first;
    /// to remove some, stop them, wait 61 s, and lower it then. ORDGATE_SHARED_REPLICAS
    /// takes precedence over this key. A change needs a restart.
    pub replicas: NonZeroU32,
    /// A file with the URL of the engine and its password, unless ORDGATE_SHARED_URL is set.
    /// Without either, replicas share through no engine.
    ///
    /// The file must not be readable by others or writable by its group (chmod 600). A
    /// change needs a restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url_file: Option<PathBuf>,
    /// How long the engine may take to answer. A later answer is ignored.
    #[serde(default = "default_timeout", with = "Time::<1>")]
    pub timeout: Duration,
    /// How long a request waits while another replica fetches the same response. Then it is
    /// fetched here as well.
    #[serde(skip, default = "default_fill_wait")]
    pub fill_wait: Duration,
    /// The engine; without one, only the budgets are divided. Its URL has a password.
    #[serde(skip)]
    pub engine: Option<EngineUrl>,
}

impl Settings {
    /// So many replicas, without an engine.
    pub fn of(replicas: NonZeroU32) -> Self {
        Self {
            replicas,
            url_file: None,
            timeout: default_timeout(),
            fill_wait: default_fill_wait(),
            engine: None,
        }
    }
}

fn default_timeout() -> Duration {
    Duration::from_millis(20)
}

fn default_fill_wait() -> Duration {
    Duration::from_secs(2)
}

/// What this process shares with other replicas.
pub struct Shared {
    settings: Settings,
    /// For what is small, and for responses.
    engines: [Arc<Engine>; 2],
    /// Of the budgets.
    pub permits: Arc<Permits>,
    /// That reach all replicas.
    pub purges: Arc<SharedPurges>,
    /// That replicas keep for each other.
    pub responses: Arc<Responses>,
    /// That one replica asks for.
    pub tips: Arc<SharedTips>,
}

impl Shared {
    /// No connection is made yet. `stored` is what the content of the disk has applied of the
    /// purges; `None` if nothing is stored.
    pub fn new(settings: Settings, stored: Option<Generation>, clock: &Clock) -> Arc<Self> {
        let Settings {
            timeout, fill_wait, ..
        } = settings;
        let new = || {
            let url = settings.engine.clone();
            Engine::new(url, timeout, clock.clone())
        };
        let (engines, process) = ([new(), new()], fastrand::u64(..));
        let [small, large] = &engines;
        let replicas = settings.replicas.get();
        Arc::new(Self {
            permits: Permits::new(small, process),
            purges: SharedPurges::new(small, process, replicas, stored),
            responses: Responses::new(large, fill_wait),
            tips: SharedTips::new(small),
            engines,
            settings,
        })
    }

    /// Sets how long the engine may take to answer, after a reload.
    pub fn set_timeout(&self, timeout: Duration) {
        for engine in &self.engines {
            engine.set_timeout(timeout);
        }
    }

    /// How long a request waits while another replica fetches the same response.
    pub(crate) fn fill_wait(&self) -> Duration {
        match self.has_engine() {
            true => self.settings.fill_wait,
            false => Duration::ZERO,
        }
    }

    /// How many replicas there are at most.
    pub fn replicas(&self) -> u32 {
        self.settings.replicas.get()
    }

    /// Whether replicas share an engine.
    pub fn has_engine(&self) -> bool {
        self.settings.engine.is_some()
    }

    /// What this replica may send of a budget, and all of them by permits.
    pub fn split(&self, budget: Limits) -> Split {
        permits::split(budget, self.settings.replicas, self.has_engine())
    }

    /// Follows the purges until it is dropped; returns at once without an engine. `apply` purges
    /// what was heard, here and on disk, and keeps the generation on disk.
    pub async fn run(&self, apply: impl AsyncFn(Vec<Vec<u8>>, Generation)) {
        if self.has_engine() {
            self.purges.run(apply).await;
        }
    }

    /// The state now, for `/status` and metrics.
    pub fn snapshot(&self) -> Value {
        json!({
            "replicas": self.settings.replicas,
            "engine": self.engines[0].snapshot(),
            "permits": self.permits.outcomes,
            "purges": self.purges.snapshot(),
            "responses": self.responses.outcomes,
        })
    }
}
