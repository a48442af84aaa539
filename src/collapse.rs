//! Request collapsing: one fetch at a time for each key, however many clients and
//! other fetches wait for it, on any runtime (RFC 9111 §4).
//!
//! The first request for a key leads: its fetch runs as a task of its own, so that a
//! client's disconnect does not cancel it for others. Requests that arrive while it
//! runs follow. When a leader ends without a value, one of its followers leads.
//!
//! No fetch waits for another. What is made of several (`fill::pages`) waits for each of
//! them, and is no fetch.
//!
//! Deliberately absent: what is fetched, and any store. Values are passed on, not kept.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use foldhash::quality::RandomState;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::sync::lock;

type Flights<V> = HashMap<Box<[u8]>, Follow<V>, RandomState>;

/// The fetches under way, by key.
pub struct Collapse<V> {
    flights: Mutex<Flights<V>>,
}

/// A position in the order of purges and epochs. Whoever joins a fetch compares that at
/// which it began with the present one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The number of the last purge.
    pub(crate) purges: u64,
    /// The epoch of the key's tip, if it has one.
    pub(crate) epoch: u64,
}

/// The role of a request for a key.
pub(crate) enum Role<V> {
    /// It fetches the key; requests that join until it has finished wait for it.
    Lead(Lead<V>),
    /// Another fetches it.
    Follow(Follow<V>),
}

/// The duty to fetch a key. If it is dropped without a value, its followers stop
/// waiting at once.
pub(crate) struct Lead<V> {
    key: Box<[u8]>,
    sender: watch::Sender<Progress<V>>,
    follow: Follow<V>,
    collapse: Arc<Collapse<V>>,
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
    /// When the fetch began.
    pub(crate) mark: Mark,
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

impl<V> Collapse<V> {
    /// No fetches.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            flights: Mutex::default(),
        })
    }

    /// Closes a fetch to later requests. Present followers keep it.
    pub(crate) fn retire(&self, key: &[u8], fetch: &Follow<V>) {
        let mut flights = lock(&self.flights);
        // It may be closed already, and another lead.
        let is_it = |found: &Follow<V>| found.progress.same_channel(&fetch.progress);
        if flights.get(key).is_some_and(is_it) {
            flights.remove(key);
        }
    }

    /// Whether a key is being fetched.
    pub(crate) fn has(&self, key: &[u8]) -> bool {
        lock(&self.flights).contains_key(key)
    }

    /// The number of fetches under way.
    pub fn len(&self) -> usize {
        lock(&self.flights).len()
    }

    /// Whether no fetch is under way.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<V: Clone> Collapse<V> {
    /// Leads the fetch of a key, or follows it. `mark` is the present one.
    pub(crate) fn join(self: &Arc<Self>, key: &[u8], mark: Mark) -> Role<V> {
        let mut flights = lock(&self.flights);
        if let Some(follow) = flights.get(key) {
            return Role::Follow(follow.clone());
        }
        let (sender, progress) = watch::channel(Progress::Fetching);
        let follow = Follow {
            progress,
            began: Instant::now(),
            mark,
        };
        flights.insert(key.into(), follow.clone());
        Role::Lead(Lead {
            key: key.into(),
            sender,
            follow,
            collapse: self.clone(),
        })
    }
}

impl<V> Lead<V> {
    /// The leader's client is receiving what will be the value.
    pub(crate) fn coming(&self) {
        self.sender.send_replace(Progress::Coming(Instant::now()));
    }

    /// Gives a value to all followers; later requests fetch again.
    pub(crate) fn finish(self, value: V) {
        // A follower for which the value is too old must not get it again.
        self.collapse.retire(&self.key, &self.follow);
        self.sender.send_replace(Progress::Done(value));
    }
}

impl<V> Drop for Lead<V> {
    fn drop(&mut self) {
        self.collapse.retire(&self.key, &self.follow);
    }
}

impl<V: Clone> Follow<V> {
    /// Waits for what another request fetches.
    pub(crate) async fn wait(mut self, wait: Wait) -> Result<V, FetchError> {
        let shortest = wait.since_began.map(|wait| self.began + wait);
        let mut end = shortest.map_or(wait.deadline, |end| end.min(wait.deadline));
        let mut late = FetchError::TooLate;
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
