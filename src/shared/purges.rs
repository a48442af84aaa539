//! Purges that reach all replicas.
//!
//! The engine numbers them ([`Generation`]); each replica asks every [`INTERVAL`] for those
//! that it has not applied, and says by that which it has. The rules for an engine that was
//! emptied, restarted or failed over are in `scripts/purges.lua`.
//!
//! A purge of this replica that the engine has not got yet waits here and is sent until it
//! has. Until then there is no generation, so that nothing is taken from the engine or put
//! there: it may be what was purged.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};

use super::engine::{Engine, Script};

pub(super) const SCRIPT: &str = include_str!("scripts/purges.lua");

/// How often each replica looks for purges.
const INTERVAL: Duration = Duration::from_millis(40);
/// With more that wait for the engine, all is purged instead.
const MOST_WAITING: usize = 256;

/// Which purges were applied: the first `number` of a life of the engine. Those of different
/// lives have nothing to do with each other. Kept with what is stored on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Generation {
    /// The engine's life.
    pub life: u64,
    /// The number in it.
    pub number: u64,
}

/// Who has applied a purge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Acknowledged {
    /// How many replicas have applied it, this one included.
    pub replicas: u32,
    /// How many of `shared.replicas` have not, as far as is known.
    pub missing: u32,
}

/// The purges of all replicas.
pub struct SharedPurges {
    engine: Arc<Engine>,
    keys: [String; 3],
    script: Script,
    process: u64,
    replicas: u32,
    state: watch::Sender<State>,
    wake: Notify,
}

#[derive(Default)]
struct State {
    applied: Option<Generation>,
    /// Whether the engine has answered in this process, and what it said is applied.
    is_following: bool,
    /// The purges of this process that the engine has not got, by their number here.
    waiting: VecDeque<(u64, Vec<u8>)>,
    announced: u64,
    /// The last purge of this process that the engine has.
    sent: u64,
    /// What processes have applied in this life.
    replicas: Vec<u64>,
}

type Reply = (String, u64, bool, Vec<(String, Vec<u8>)>, Vec<u64>);

impl SharedPurges {
    /// `stored` is what the disk's content has applied, if there is any.
    pub(super) fn new(
        engine: &Arc<Engine>,
        process: u64,
        replicas: u32,
        stored: Option<Generation>,
    ) -> Arc<Self> {
        Arc::new(Self {
            engine: engine.clone(),
            keys: ["state", "stream", "applied"].map(|name| format!("ordgate:purges:{name}")),
            script: Script::new(SCRIPT),
            process,
            replicas,
            state: watch::Sender::new(State {
                applied: stored,
                ..State::default()
            }),
            wake: Notify::new(),
        })
    }

    /// What is applied here now. `None` where nothing may be taken from the engine or put there.
    /// To be taken before a look-up or a fetch begins.
    pub fn generation(&self) -> Option<Generation> {
        let state = self.state.borrow();
        let is_known = state.is_following && state.waiting.is_empty();
        state.applied.filter(|_| is_known)
    }

    /// Sends a purge to all replicas, as soon as the engine answers; an empty record purges
    /// everything. Call it first, then purge here, then wait until the number that is returned
    /// is [`acknowledged`](Self::acknowledged) if need be.
    pub fn announce(&self, record: Vec<u8>) -> u64 {
        let mut number = 0;
        self.state.send_modify(|state| {
            state.announced += 1;
            number = state.announced;
            if self.engine.is_on() && state.waiting.len() < MOST_WAITING {
                state.waiting.push_back((number, record));
            } else if self.engine.is_on() {
                state.waiting = [(number, Vec::new())].into();
            }
        });
        self.wake.notify_one();
        number
    }

    /// Waits until all replicas have applied a purge, for at most `limit`.
    pub async fn acknowledged(&self, number: u64, limit: Duration) -> Acknowledged {
        let (mut generation, mut count) = (None, 0);
        let is_acknowledged = |state: &State| {
            if generation.is_none() && state.sent >= number {
                generation = state.applied;
            }
            count = match (generation, state.applied) {
                (Some(own), Some(now)) if own.life == now.life => {
                    let has = |applied: &&u64| **applied >= own.number;
                    state.replicas.iter().filter(has).count()
                }
                _ => 0,
            };
            count >= self.replicas as usize
        };
        if self.engine.is_on() {
            let mut news = self.state.subscribe();
            let _in_time = tokio::time::timeout(limit, news.wait_for(is_acknowledged)).await;
        }
        // This replica has applied it, whether the engine knows or not.
        let replicas = u32::try_from(count).unwrap_or(u32::MAX).max(1);
        Acknowledged {
            replicas,
            missing: self.replicas.saturating_sub(replicas),
        }
    }

    /// Waits until the purges of others are known.
    pub async fn first_heard(&self) {
        let mut news = self.state.subscribe();
        let _never_closed = news.wait_for(|state| state.is_following).await;
    }

    /// Follows the purges until it is dropped. `apply` purges what was heard, here and on
    /// disk, and keeps the generation on disk; other replicas count it as applied when it
    /// returns. It gets the records that others have announced: an empty one where a purge may
    /// have been missed.
    pub(super) async fn run(&self, apply: impl AsyncFn(Vec<Vec<u8>>, Generation)) {
        loop {
            // Whoever has news says so at once, by the next call.
            if !matches!(self.follow(&apply).await, Ok(true)) {
                let _woken = tokio::time::timeout(INTERVAL, self.wake.notified()).await;
            }
        }
    }

    /// One call. Returns whether something is new.
    async fn follow(&self, apply: &impl AsyncFn(Vec<Vec<u8>>, Generation)) -> Result<bool, String> {
        let (before, waiting) = {
            let state = self.state.borrow();
            (state.applied, state.waiting.clone())
        };
        let process = format!("{:016x}", self.process);
        let follows = before.map_or_else(String::new, |own| format!("{:016x}", own.life));
        let own = before.map_or_else(String::new, |own| own.number.to_string());
        let new_life = format!("{:016x}", fastrand::u64(1..));
        let mut arguments = [&process, &follows, &own, &new_life]
            .map(String::as_bytes)
            .to_vec();
        arguments.extend(waiting.iter().map(|(_, record)| &**record));
        let reply = self.engine.call(&self.script, &self.keys, &arguments);
        let (life, number, must_drop, purges, replicas): Reply = reply.await?;
        let life = u64::from_str_radix(&life, 16)
            .map_err(|_foreign| "the purges in the engine are not ordgate's".to_owned())?;
        let others = purges.into_iter().filter(|(sender, _)| *sender != process);
        let heard = match must_drop {
            true => vec![Vec::new()],
            false => others.map(|(_, record)| record).collect(),
        };
        let reached = Generation { life, number };
        let is_new = before != Some(reached);
        if is_new {
            // Until it is applied on disk too, there is no generation: what the engine has may
            // be what is purged.
            self.state.send_modify(|state| state.is_following = false);
            apply(heard, reached).await;
        }
        self.state.send_modify(|state| {
            state.applied = Some(reached);
            state.is_following = true;
            state.replicas = replicas;
            if let Some((last, _)) = waiting.back() {
                state.sent = *last;
                state.waiting.retain(|(number, _)| number > last);
            }
        });
        Ok(is_new)
    }

    /// For `/status` and metrics.
    pub(super) fn snapshot(&self) -> Value {
        let state = self.state.borrow();
        let own = state.applied.map_or(0, |own| own.number);
        let replicas = state.replicas.iter().filter(|applied| **applied >= own);
        json!({
            // Those that this replica has applied; `null` before the engine has answered.
            "applied": state.applied.filter(|_| state.is_following),
            // How many of this replica wait for the engine.
            "waiting": state.waiting.len(),
            // How many replicas have applied all that this one has.
            "replicas": replicas.count(),
        })
    }
}
