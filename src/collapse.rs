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
enum Role<V, L: Level> {
    /// It fetches the key; requests that join until it has finished wait for it.
    Lead(Lead<V, L>),
    /// Another fetches it.
    Follow(Follow<V>),
}

/// The duty to fetch a key. If it is dropped before it has announced a value, its
/// followers stop waiting at once.
pub(crate) struct Lead<V, L: Level = AnswerLevel> {
    key: Box<[u8]>,
    sender: watch::Sender<Option<V>>,
    began: Instant,
    leader: LeadingRequest,
    collapse: Arc<Collapse<V>>,
    /// Whether requests can still join it.
    open: bool,
    level: PhantomData<fn() -> L>,
}

/// A receiver of the value that a leader announces.
#[derive(Clone)]
struct Follow<V> {
    announced: watch::Receiver<Option<V>>,
    began: Instant,
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
    /// The leader was dropped or panicked before it announced one.
    Abandoned,
    /// The wait was over first.
    TooLate,
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
    /// fetch, which runs as a task of its own: it must announce a value or drop its
    /// [`Lead`]. After a leader without a value, one of its followers leads.
    ///
    /// # Errors
    /// Where the wait is over first, or the fetch that this request led ended without
    /// a value.
    pub(crate) async fn fetch<L: Level, F>(
        self: &Arc<Self>,
        _waiter: &impl Below<L>,
        key: &[u8],
        wait: Wait,
        lead: impl FnOnce(Lead<V, L>) -> F,
    ) -> Result<Fetched<V>, FetchError>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        loop {
            let follow = match self.join::<L>(key) {
                Role::Follow(follow) => follow,
                Role::Lead(own) => {
                    let follow = own.follow();
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
                Err(FetchError::TooLate) => return Err(FetchError::TooLate),
            }
        }
    }

    /// Waits for the fetch of a key for clients; `None` where there is none.
    ///
    /// # Errors
    /// Where the wait is over first, or the leader ended without a value.
    pub(crate) async fn follow(&self, key: &[u8], wait: Wait) -> Option<Result<V, FetchError>> {
        let follow = self.shard::<AnswerLevel>(key).get(key).cloned();
        match follow {
            Some(follow) => Some(follow.wait_beside(wait).await),
            None => None,
        }
    }

    /// Leads a key for which no client waits; `None` where a fetch is under way.
    pub(crate) fn lead(self: &Arc<Self>, key: &[u8]) -> Option<Lead<V, AnswerLevel>> {
        match self.join(key) {
            Role::Lead(lead) => Some(lead),
            Role::Follow(_) => None,
        }
    }

    /// Closes the fetch of a key for clients to later requests, if it has announced a
    /// value for which `announced` is true. Present followers keep it.
    pub(crate) fn retire(&self, key: &[u8], announced: impl FnOnce(&V) -> bool) {
        let mut flights = self.shard::<AnswerLevel>(key);
        let is_it = |follow: &Follow<V>| follow.announced.borrow().as_ref().is_some_and(announced);
        if flights.get(key).is_some_and(is_it) {
            flights.remove(key);
        }
    }

    /// Leads the fetch of a key, or follows it.
    fn join<L: Level>(self: &Arc<Self>, key: &[u8]) -> Role<V, L> {
        let mut flights = self.shard::<L>(key);
        if let Some(follow) = flights.get(key) {
            return Role::Follow(follow.clone());
        }
        let (sender, announced) = watch::channel(None);
        let (began, leader) = (Instant::now(), trace::leader());
        let follow = Follow {
            announced,
            began,
            leader: leader.clone(),
        };
        flights.insert(key.into(), follow);
        Role::Lead(Lead {
            key: key.into(),
            sender,
            began,
            leader,
            collapse: self.clone(),
            open: true,
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

impl<V: Clone, L: Level> Lead<V, L> {
    fn follow(&self) -> Follow<V> {
        Follow {
            announced: self.sender.subscribe(),
            began: self.began,
            leader: self.leader.clone(),
        }
    }

    /// Gives a value to all followers, and to those that join until the leader has
    /// finished.
    pub(crate) fn announce(&self, value: V) {
        self.sender.send_replace(Some(value));
    }

    /// Gives a value to all followers; later requests fetch again.
    pub(crate) fn finish(mut self, value: V) {
        // A follower for which the value is too old must not get it again.
        self.close();
        self.announce(value);
    }
}

impl<V, L: Level> Lead<V, L> {
    fn close(&mut self) {
        if std::mem::take(&mut self.open) {
            let hash = self.collapse.hasher.hash_one(&*self.key) as usize;
            let mut flights = lock(&self.collapse.levels[L::INDEX][hash % SHARDS]);
            // After `retire` another may lead.
            let own = self.sender.subscribe();
            let is_own = |follow: &Follow<V>| follow.announced.same_channel(&own);
            if flights.get(&self.key).is_some_and(is_own) {
                flights.remove(&self.key);
            }
        }
    }
}

impl<V, L: Level> Drop for Lead<V, L> {
    fn drop(&mut self) {
        self.close();
    }
}

impl<V: Clone> Follow<V> {
    /// Waits for what another request fetches.
    async fn wait_beside(self, wait: Wait) -> Result<V, FetchError> {
        let leader = self.leader.clone();
        let before = trace::follow(&leader);
        let value = self.wait(wait).await;
        trace::followed(&leader, before);
        value
    }

    async fn wait(mut self, wait: Wait) -> Result<V, FetchError> {
        let announced = self.announced.wait_for(Option::is_some);
        match timeout_at(wait.end(self.began), announced).await {
            Ok(Ok(value)) => value.clone().ok_or(FetchError::Abandoned),
            Ok(Err(_closed)) => Err(FetchError::Abandoned),
            Err(_elapsed) => Err(FetchError::TooLate),
        }
    }
}

#[cfg(test)]
mod tests;
