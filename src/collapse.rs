//! Request collapsing: one fetch at a time for each key, however many clients and
//! other fetches wait for it, on any runtime (RFC 9111 §4).
//!
//! The first request for a key leads: its fetch runs as a task of its own, so that a
//! client's disconnect does not cancel it for others. Requests that arrive while it
//! runs follow. When a leader ends without a value, one of its followers leads.
//!
//! Fetches may depend on each other: an answer is made of exchanges with the upstream.
//! So that no two wait for each other, each fetch has a level, and may wait only for
//! a lower one ([`Below`]): clients wait for answers, answers for exchanges, exchanges
//! for no other fetch. The compiler checks it: a waiter passes a value that proves its
//! level, and an exchange has none.
//!
//! Deliberately absent: what is fetched, and any store. Values are passed on, not kept.

use std::collections::HashMap;
use std::future::Future;
use std::hash::BuildHasher;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use foldhash::quality::RandomState;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::sync::lock;
use crate::trace;
use crate::trace::LeadingRequest;

const SHARDS: usize = 16;

type Flights<V> = HashMap<Box<[u8]>, Follow<V>, RandomState>;

/// The level of a fetch: it may wait only for those of a lower one.
pub(crate) trait Level: Send + Sync + 'static {
    /// Its index in [`Collapse`].
    const INDEX: usize;
}

/// Fetches for clients, each made of one or more exchanges.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnswerLevel;

/// Single requests to the upstream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExchangeLevel;

impl Level for AnswerLevel {
    const INDEX: usize = 0;
}

impl Level for ExchangeLevel {
    const INDEX: usize = 1;
}

const LEVELS: usize = 2;

/// Proof that a waiter may wait for fetches of a level. [`ClientLevel`], [`WatchLevel`]
/// and leaders of [`AnswerLevel`] have it, and nothing else.
pub(crate) trait Below<L: Level> {}

/// A client, which waits for answers; no fetch waits for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientLevel;

impl Below<AnswerLevel> for ClientLevel {}

/// A task that watches a tip; no fetch waits for it either.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WatchLevel;

impl Below<ExchangeLevel> for WatchLevel {}

impl<V> Below<ExchangeLevel> for Lead<V, AnswerLevel> {}

/// The fetches under way, by level and key.
pub struct Collapse<V> {
    levels: [[Mutex<Flights<V>>; SHARDS]; LEVELS],
    hasher: RandomState,
}

/// The role of a request for a key.
pub(crate) enum Role<V, L: Level> {
    /// It fetches the key; requests that join until it has finished wait for it.
    Lead(Lead<V, L>),
    /// Another fetches it.
    Follow(Follow<V>),
}

/// The duty to fetch a key. If it is dropped without a value, its followers stop
/// waiting at once.
pub(crate) struct Lead<V, L: Level = AnswerLevel> {
    key: Box<[u8]>,
    sender: watch::Sender<Progress<V>>,
    follow: Follow<V>,
    collapse: Arc<Collapse<V>>,
    level: PhantomData<fn() -> L>,
}

/// How far a fetch is.
#[derive(Clone)]
enum Progress<V> {
    /// Nothing has come.
    Fetching,
    /// Since then the leader's own client is receiving what will be the value.
    Coming(Instant),
    /// This is the value.
    Done(V),
}

/// How long the others wait for a value that the leader's client receives already.
const COMING: Duration = Duration::from_secs(5);

/// A receiver of the leader's value.
#[derive(Clone)]
pub(crate) struct Follow<V> {
    progress: watch::Receiver<Progress<V>>,
    began: Instant,
    /// The number of the last purge when the fetch began.
    purges: u64,
    /// The request that leads.
    leader: LeadingRequest,
}

/// How long a request waits for a leader.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    /// Until this, whenever the leader began.
    pub(crate) deadline: Instant,
    /// And no longer than this after the leader began, if there is another answer to
    /// give.
    pub(crate) since_began: Option<Duration>,
}

impl Wait {
    /// A wait until a deadline.
    pub(crate) const fn until(deadline: Instant) -> Self {
        Self {
            deadline,
            since_began: None,
        }
    }

    fn end(&self, began: Instant) -> Instant {
        let end = self.since_began.map(|wait| began + wait);
        end.map_or(self.deadline, |end| end.min(self.deadline))
    }
}

/// The result of a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fetched<V> {
    /// The leader's value.
    pub(crate) value: V,
    /// Whether another request led.
    pub(crate) collapsed: bool,
}

/// Why there is no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FetchError {
    /// The leader was dropped or panicked before it had one.
    Abandoned,
    /// The wait was over first.
    TooLate,
    /// The leader's client has been receiving it for five seconds.
    NotSoon,
}

impl<V: Clone + Send + Sync + 'static> Collapse<V> {
    /// No fetches.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            levels: std::array::from_fn(|_| std::array::from_fn(|_| Mutex::default())),
            hasher: RandomState::default(),
        })
    }

    /// Fetches a key at a level, or waits for the fetch under way. `lead` makes the
    /// fetch, which runs as a task of its own: it must finish with a value or drop its
    /// [`Lead`]. After a leader without a value, one of its followers leads.
    ///
    /// # Errors
    /// Where the wait is over first, or the fetch that this request led ended without
    /// a value.
    pub(crate) async fn fetch<L: Level, F>(
        self: &Arc<Self>,
        waiter: &impl Below<L>,
        key: &[u8],
        wait: Wait,
        lead: impl FnOnce(Lead<V, L>) -> F,
    ) -> Result<Fetched<V>, FetchError>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        loop {
            let follow = match self.join::<L>(waiter, key, 0) {
                Role::Follow(follow) => follow,
                Role::Lead(own) => {
                    let follow = own.follow.clone();
                    tokio::spawn(trace::inherit(lead(own)));
                    let value = follow.wait(wait).await?;
                    let collapsed = false;
                    return Ok(Fetched { value, collapsed });
                }
            };
            match follow.wait_beside(wait).await {
                Ok(value) => {
                    let collapsed = true;
                    return Ok(Fetched { value, collapsed });
                }
                Err(FetchError::Abandoned) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Leads a key for which no client waits; `None` where a fetch is under way.
    pub(crate) fn lead(self: &Arc<Self>, key: &[u8]) -> Option<Lead<V, AnswerLevel>> {
        match self.join(&ClientLevel, key, 0) {
            Role::Lead(lead) => Some(lead),
            Role::Follow(_) => None,
        }
    }

    /// Closes a fetch to later requests. Present followers keep it.
    pub(crate) fn retire(&self, key: &[u8], fetch: &Follow<V>) {
        let mut flights = self.shard::<AnswerLevel>(key);
        // Another may lead by now.
        let is_it = |found: &Follow<V>| found.progress.same_channel(&fetch.progress);
        if flights.get(key).is_some_and(is_it) {
            flights.remove(key);
        }
    }

    /// Leads the fetch of a key, or follows it. `purges` is the number of the last
    /// purge.
    pub(crate) fn join<L: Level>(
        self: &Arc<Self>,
        _waiter: &impl Below<L>,
        key: &[u8],
        purges: u64,
    ) -> Role<V, L> {
        let mut flights = self.shard::<L>(key);
        if let Some(follow) = flights.get(key) {
            return Role::Follow(follow.clone());
        }
        let (sender, progress) = watch::channel(Progress::Fetching);
        let follow = Follow {
            progress,
            began: Instant::now(),
            purges,
            leader: trace::leader(),
        };
        flights.insert(key.into(), follow.clone());
        Role::Lead(Lead {
            key: key.into(),
            sender,
            follow,
            collapse: self.clone(),
            level: PhantomData,
        })
    }

    /// Whether a key is being fetched for clients.
    pub(crate) fn has(&self, key: &[u8]) -> bool {
        self.shard::<AnswerLevel>(key).contains_key(key)
    }

    /// The number of fetches under way, of all levels.
    pub fn len(&self) -> usize {
        let lock = |shard: &Mutex<Flights<V>>| lock(shard).len();
        self.levels.iter().flatten().map(lock).sum()
    }

    /// Whether no fetch is under way.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn shard<L: Level>(&self, key: &[u8]) -> MutexGuard<'_, Flights<V>> {
        lock(&self.levels[L::INDEX][self.hasher.hash_one(key) as usize % SHARDS])
    }
}

impl<V, L: Level> Lead<V, L> {
    /// The leader's client is receiving what will be the value.
    pub(crate) fn coming(&self) {
        self.sender.send_replace(Progress::Coming(Instant::now()));
    }

    /// Gives a value to all followers; later requests fetch again.
    pub(crate) fn finish(self, value: V) {
        // A follower for which the value is too old must not get it again.
        self.close();
        self.sender.send_replace(Progress::Done(value));
    }

    fn close(&self) {
        let hash = self.collapse.hasher.hash_one(&*self.key) as usize;
        let mut flights = lock(&self.collapse.levels[L::INDEX][hash % SHARDS]);
        // After `retire` another may lead.
        let is_own = |found: &Follow<V>| found.progress.same_channel(&self.follow.progress);
        if flights.get(&self.key).is_some_and(is_own) {
            flights.remove(&self.key);
        }
    }
}

impl<V, L: Level> Drop for Lead<V, L> {
    fn drop(&mut self) {
        self.close();
    }
}

impl<V: Clone> Follow<V> {
    /// The number of the last purge when the fetch began.
    pub(crate) fn purges(&self) -> u64 {
        self.purges
    }

    /// Waits for what another request fetches.
    pub(crate) async fn wait_beside(self, wait: Wait) -> Result<V, FetchError> {
        let leader = self.leader.clone();
        let before = trace::follow(&leader);
        let value = self.wait(wait).await;
        trace::followed(&leader, before);
        value
    }

    async fn wait(mut self, wait: Wait) -> Result<V, FetchError> {
        let (mut end, mut late) = (wait.end(self.began), FetchError::TooLate);
        loop {
            match &*self.progress.borrow_and_update() {
                Progress::Fetching => {}
                Progress::Coming(since) if *since + COMING < end => {
                    (end, late) = (*since + COMING, FetchError::NotSoon);
                }
                Progress::Coming(_) => {}
                Progress::Done(value) => return Ok(value.clone()),
            }
            match timeout_at(end, self.progress.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_closed)) => return Err(FetchError::Abandoned),
                Err(_elapsed) => return Err(late),
            }
        }
    }
}

#[cfg(test)]
mod tests;
