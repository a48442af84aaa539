//! The budget of a key, shared by replicas.
//!
//! Each replica has a floor, which it enforces by itself, and there is a pool for all in
//! the engine ([`split`]). Floors and pool together are never more than the budget, also
//! while a reload of the budget goes round: both only grow with it. A request is charged to
//! the floor or to the pool, and stays there.
//!
//! A permit of the pool is for one attempt: a retry takes a new one. It is used within a
//! second of when it was asked for, or not at all: the engine has counted it since, and
//! will count it only so long. The boot clock says so, which goes on while the machine is
//! suspended. A permit whose reply did not come is never used.
//!
//! Not covered: two servers that are primaries at once, a clock of the engine that steps
//! forward, an old dump restored, a request that the upstream's machine holds for more than
//! a minute before it counts it.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::engine::{Engine, Script};
#[cfg(test)]
use crate::clock::Clock;
use crate::sync::Outcomes;

pub(super) const TAKE: &str = include_str!("scripts/take.lua");
pub(super) const GIVE_BACK: &str = include_str!("scripts/give_back.lua");

/// A permit is used so soon after it was asked for, or not at all.
const USABLE: Duration = Duration::from_secs(1);
/// How long the engine is not asked again while the pool is closed, at most.
const CLOSED: Duration = Duration::from_secs(5);
/// A rest after a 429 is shared for so long at most.
const LONGEST_REST: Duration = Duration::from_secs(3600);

/// How many requests a budget, a floor or a pool has; `None` for any number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// In any minute.
    pub per_minute: Option<u32>,
    /// In any second.
    pub per_second: Option<u32>,
}

impl Limits {
    /// The smaller of the two.
    pub(crate) fn least(self) -> Option<u32> {
        least(self.per_minute, self.per_second)
    }

    /// Of each period, the lower limit.
    pub(crate) fn stricter(self, other: Self) -> Self {
        Self {
            per_minute: least(self.per_minute, other.per_minute),
            per_second: least(self.per_second, other.per_second),
        }
    }
}

fn least(one: Option<u32>, other: Option<u32>) -> Option<u32> {
    one.into_iter().chain(other).min()
}

/// The parts of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// What this replica may send by itself.
    pub floor: Limits,
    /// What all replicas together may send by permits of the engine. Without an engine 0.
    pub pool: Limits,
}

/// Divides a budget among replicas. The floors are a quarter of it together, but at least
/// one request a second and a minute each; the rest is the pool. Without an engine, each
/// floor is an equal part of the whole. A limit lower than `replicas` gives floors of 0 and
/// no pool: the configuration refuses it.
pub fn split(budget: Limits, replicas: NonZeroU32, has_engine: bool) -> Split {
    let part = |limit: u32| match has_engine {
        false => (limit / replicas, 0),
        true if limit < replicas.get() => (0, 0),
        true => {
            let floor = (limit / 4 / replicas).max(1);
            (
                floor,
                (limit - limit.div_ceil(4)).min(limit - replicas.get()),
            )
        }
    };
    let limits = |of: fn((u32, u32)) -> u32| Limits {
        per_minute: budget.per_minute.map(part).map(of),
        per_second: budget.per_second.map(part).map(of),
    };
    Split {
        floor: limits(|(floor, _)| floor),
        pool: limits(|(_, pool)| pool),
    }
}

/// The pools of all keys.
pub struct Permits {
    engine: Arc<Engine>,
    take: Script,
    give_back: Script,
    /// No other process has it, so that no two permits have one id.
    process: u64,
    next: AtomicU64,
    pub(super) outcomes: Outcomes,
}

/// Why there is no permit.
#[derive(Debug)]
pub struct PermitDenied {
    /// `spent`: the pool is empty; `closed`: the engine has begun anew; `resting`: a replica got
    /// a 429 with this key from this host; `absent`: the engine has not answered in time.
    pub outcome: String,
    /// How long until it is worth another call.
    pub wait: Duration,
}

/// A request that the pool allows. Call [`answered`](Self::answered) when the head of its
/// answer has come, or [`never_written`](Self::never_written) if no byte of the request was
/// written; dropped, it counts for two minutes.
#[must_use = "dropped, it counts for two minutes"]
pub struct PoolPermit {
    permits: Arc<Permits>,
    keys: [String; 2],
    id: String,
    /// The time since boot when it was asked for.
    asked: Duration,
}

impl Permits {
    /// `process` is random.
    pub(super) fn new(engine: &Arc<Engine>, process: u64) -> Arc<Self> {
        let outcomes = ["granted", "spent", "closed", "resting", "absent", "unused"];
        Arc::new(Self {
            engine: engine.clone(),
            take: Script::new(TAKE),
            give_back: Script::new(GIVE_BACK),
            process,
            next: AtomicU64::new(0),
            outcomes: Outcomes::of(outcomes),
        })
    }

    /// The engine's keys of the pool of a provider's key, by its digest, and of its rest at a
    /// host.
    pub fn keys(digest: &[u8], host: &str) -> [String; 2] {
        let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        [
            format!("ordgate:permits:{digest}"),
            format!("ordgate:rest:{digest}:{host}"),
        ]
    }

    /// Takes a permit for a request that is ready to be written, on a connection that is
    /// ready. `pool` is this replica's [`Split::pool`]; `rest` is how long the key rests at
    /// this host as far as this replica knows, which the others learn by their next calls.
    /// Write the request at once, if the permit [is usable](PoolPermit::is_usable).
    ///
    /// # Errors
    /// Where the pool has none.
    pub async fn take(
        self: &Arc<Self>,
        keys: [String; 2],
        pool: Limits,
        rest: Duration,
    ) -> Result<PoolPermit, PermitDenied> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let permit = PoolPermit {
            permits: self.clone(),
            keys,
            id: format!("{:016x}{number:x}", self.process),
            asked: self.engine.clock.since_boot(),
        };
        let limits = [pool.per_minute, pool.per_second].map(|limit| limit.unwrap_or(u32::MAX));
        let (outcome, ms) = match limits.contains(&0) {
            true => ("spent".to_owned(), 60_000),
            false => {
                let ([minute, second], rest) =
                    (limits.map(|limit| limit.to_string()), rest_ms(rest));
                let arguments = [&*permit.id, &minute, &second, &rest];
                let answer = self.engine.call(&self.take, &permit.keys, &arguments);
                // The engine has a breaker of its own.
                answer.await.unwrap_or(("absent".to_owned(), 1000))
            }
        };
        self.outcomes.count(&outcome);
        let mut wait = Duration::from_millis(ms);
        match &*outcome {
            "granted" => return Ok(permit),
            // Each engine, and each life of one, begins its own wait with the first call.
            "closed" => wait = wait.min(CLOSED),
            // It may be granted all the same, and is not used.
            "absent" => permit.send_back("unused", Duration::ZERO),
            _ => {}
        }
        Err(PermitDenied { outcome, wait })
    }
}

impl PoolPermit {
    /// Whether the request may be written now. To be looked at right before it is.
    pub fn is_usable(&self) -> bool {
        let since_boot = self.permits.engine.clock.since_boot();
        since_boot.saturating_sub(self.asked) < USABLE
    }

    /// The head of the answer has come: the permit counts for a minute from now. `rest`: the
    /// answer was a 429, and the key rests for so long; zero otherwise.
    pub fn answered(self, rest: Duration) {
        self.send_back("answered", rest);
    }

    /// No byte of the request was written, and none will be.
    pub fn never_written(self) {
        self.permits.outcomes.count("unused");
        self.send_back("unused", Duration::ZERO);
    }

    /// Sends a return, and does not wait for it: one that is lost costs the pool a minute.
    fn send_back(self, how: &'static str, rest: Duration) {
        if !self.permits.engine.is_on() {
            return;
        }
        tokio::spawn(async move {
            let (permits, rest) = (&self.permits, rest_ms(rest));
            let _counted_by_the_engine: Result<(), _> = permits
                .engine
                .call(&permits.give_back, &self.keys, &[&*self.id, how, &rest])
                .await;
        });
    }
}

#[cfg(test)]
impl PoolPermit {
    /// One that no engine has granted.
    pub(crate) fn without_engine(clock: &Clock) -> Self {
        Self {
            permits: Permits::new(&Engine::new(None, USABLE, clock.clone()), 0),
            keys: Default::default(),
            id: String::new(),
            asked: clock.since_boot(),
        }
    }

    /// Reads how many were given back without use.
    pub(crate) fn unused(&self) -> impl Fn() -> u64 + use<> {
        let permits = self.permits.clone();
        move || permits.outcomes.get("unused")
    }
}

fn rest_ms(rest: Duration) -> String {
    rest.min(LONGEST_REST).as_millis().to_string()
}
