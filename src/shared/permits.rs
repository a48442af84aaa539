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
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::Serialize;

use super::engine::{Engine, Script};
#[cfg(test)]
use crate::clock::Clock;
use crate::sync::lock;

pub(super) const TAKE: &str = include_str!("scripts/take.lua");
pub(super) const GIVE_BACK: &str = include_str!("scripts/give_back.lua");

/// A permit is used so soon after it was asked for, or not at all.
const USABLE: Duration = Duration::from_secs(1);
/// A rest after a 429 is shared for so long at most.
const LONGEST_REST: Duration = Duration::from_secs(3600);

/// How many requests a budget, a floor or a pool has; `None` for any number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
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

/// Which budget a permit is taken from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PoolKey {
    /// A digest of the provider's key. The key itself never reaches the engine.
    pub digest: Box<str>,
    /// The host at which the key rests after a 429.
    pub host: Box<str>,
}

/// The pools of all keys.
pub struct Permits {
    engine: Arc<Engine>,
    take: Script,
    give_back: Script,
    /// No other process has it, so that no two permits have one id.
    process: u64,
    next: AtomicU64,
    counts: Mutex<PermitsSnapshot>,
}

/// What became of the calls for permits.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct PermitsSnapshot {
    /// Permits that were granted in time.
    pub granted: u64,
    /// The pool was empty.
    pub spent: u64,
    /// The pool was closed.
    pub closed: u64,
    /// The key rested after a 429.
    pub resting: u64,
    /// The engine did not answer.
    pub absent: u64,
    /// Granted, but more than a second after the call: not used.
    pub late: u64,
}

/// Why there is no permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PermitDenied {
    /// The pool is empty; one may be free after this time.
    Spent {
        /// From now.
        retry_after: Duration,
    },
    /// The engine has begun anew, and the pool opens after this time.
    Closed {
        /// From now.
        opens_in: Duration,
    },
    /// A replica got a 429 with this key from this host.
    Resting {
        /// From now.
        rest: Duration,
    },
    /// There is no engine, or it has not answered in time.
    Absent,
}

/// A request that the pool allows. Call [`answered`](Self::answered) when the head of its
/// answer has come, or [`never_written`](Self::never_written) if no byte of the request was
/// written; dropped, it counts for two minutes.
#[must_use = "dropped, it counts for two minutes"]
pub struct PoolPermit {
    permits: Arc<Permits>,
    key: PoolKey,
    id: String,
    /// The time since boot when it was asked for.
    asked: Duration,
}

impl Permits {
    /// `process` is random.
    pub(super) fn new(engine: &Arc<Engine>, process: u64) -> Arc<Self> {
        Arc::new(Self {
            engine: engine.clone(),
            take: Script::new(TAKE),
            give_back: Script::new(GIVE_BACK),
            process,
            next: AtomicU64::new(0),
            counts: Mutex::default(),
        })
    }

    /// Takes a permit for a request that is ready to be written, on a connection that is
    /// ready. `pool` is this replica's [`Split::pool`]; `rest` is how long the key rests at
    /// this host as far as this replica knows, which the others learn by their next calls.
    /// Write the request at once, if the permit [is usable](PoolPermit::is_usable) still.
    ///
    /// # Errors
    /// Where the pool has none.
    pub async fn take(
        self: &Arc<Self>,
        key: &PoolKey,
        pool: Limits,
        rest: Duration,
    ) -> Result<PoolPermit, PermitDenied> {
        let permit = match self.ask(key, pool, rest).await {
            Ok(permit) if !permit.is_usable() => {
                lock(&self.counts).late += 1;
                permit.never_written();
                return Err(PermitDenied::Absent);
            }
            permit => permit,
        };
        let mut counts = lock(&self.counts);
        *match &permit {
            Ok(_) => &mut counts.granted,
            Err(PermitDenied::Spent { .. }) => &mut counts.spent,
            Err(PermitDenied::Closed { .. }) => &mut counts.closed,
            Err(PermitDenied::Resting { .. }) => &mut counts.resting,
            Err(PermitDenied::Absent) => &mut counts.absent,
        } += 1;
        permit
    }

    async fn ask(
        self: &Arc<Self>,
        key: &PoolKey,
        pool: Limits,
        rest: Duration,
    ) -> Result<PoolPermit, PermitDenied> {
        if pool.per_minute == Some(0) || pool.per_second == Some(0) {
            return Err(PermitDenied::Spent {
                retry_after: Duration::from_secs(60),
            });
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let permit = PoolPermit {
            permits: self.clone(),
            key: key.clone(),
            id: format!("{:016x}{number:x}", self.process),
            asked: self.engine.clock.since_boot(),
        };
        let limits = [pool.per_minute, pool.per_second];
        let [minute, second] = limits.map(|limit| limit.unwrap_or(u32::MAX).to_string());
        let (keys, rest) = (self.keys(key), rest_ms(rest));
        let keys = keys.each_ref().map(String::as_bytes);
        let arguments = [&permit.id, &minute, &second, &rest].map(|text| text.as_bytes());
        let answer = self.engine.call(&self.take, &keys, &arguments).await;
        let Ok((outcome, ms)): Result<(String, u64), _> = answer else {
            // It may be granted all the same, and is not used.
            permit.never_written();
            return Err(PermitDenied::Absent);
        };
        let ms = Duration::from_millis(ms);
        match &*outcome {
            "granted" => Ok(permit),
            "closed" => Err(PermitDenied::Closed { opens_in: ms }),
            "resting" => Err(PermitDenied::Resting { rest: ms }),
            _ => Err(PermitDenied::Spent { retry_after: ms }),
        }
    }

    fn keys(&self, key: &PoolKey) -> [String; 2] {
        let (prefix, digest) = (&self.engine.prefix, &key.digest);
        [
            format!("{prefix}:permits:{digest}"),
            format!("{prefix}:rest:{digest}:{}", key.host),
        ]
    }

    /// Tells the other replicas that a key rests, after a 429 to a request of the floor.
    pub fn rest(self: &Arc<Self>, key: &PoolKey, rest: Duration) {
        self.send_back(key.clone(), String::new(), "unused", rest);
    }

    /// Sends a return, and does not wait for it: one that is lost costs the pool a minute.
    fn send_back(self: &Arc<Self>, key: PoolKey, id: String, how: &'static str, rest: Duration) {
        if !self.engine.is_on() {
            return;
        }
        let permits = self.clone();
        tokio::spawn(async move {
            let (keys, rest) = (permits.keys(&key), rest_ms(rest));
            let keys = keys.each_ref().map(String::as_bytes);
            let arguments = [&*id, how, &rest].map(str::as_bytes);
            let _counted_by_the_engine: Result<(), _> = permits
                .engine
                .call(&permits.give_back, &keys, &arguments)
                .await;
        });
    }

    pub(super) fn snapshot(&self) -> PermitsSnapshot {
        *lock(&self.counts)
    }
}

#[cfg(test)]
impl PoolPermit {
    /// One that no engine has granted.
    pub(crate) fn without_engine(clock: &Clock) -> Self {
        Self {
            permits: Permits::new(&Engine::new(None, "", USABLE, clock.clone()), 0),
            key: PoolKey {
                digest: "".into(),
                host: "".into(),
            },
            id: String::new(),
            asked: clock.since_boot(),
        }
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
        self.permits.send_back(self.key, self.id, "answered", rest);
    }

    /// No byte of the request was written, and none will be.
    pub fn never_written(self) {
        self.permits
            .send_back(self.key, self.id, "unused", Duration::ZERO);
    }
}

fn rest_ms(rest: Duration) -> String {
    rest.min(LONGEST_REST).as_millis().to_string()
}
