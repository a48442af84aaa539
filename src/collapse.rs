//! One upstream request for one cold key, however many ask for it, on whichever
//! runtime they are (RFC 9111 §4, "collapsed requests").
//!
//! The first to join a key leads; the others follow. A leader's work belongs to
//! no client's connection, so that a disconnect harms nobody. However a leader
//! ends, its followers learn of it: a value, or [`Abandoned`] where it was
//! dropped or panicked. What is too slow is the follower's own deadline's
//! business.
//!
//! Deliberately absent: what is fetched, and any store. Values are handed over,
//! not kept.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::quality::RandomState;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::cache::key::Key;

const SHARDS: usize = 16;

type Flights<V> = HashMap<Box<[u8]>, Follow<V>, RandomState>;

/// The keys under way.
pub struct Collapse<V> {
    shards: [Mutex<Flights<V>>; SHARDS],
    hasher: RandomState,
}

/// Whose turn it is to ask the upstream.
pub enum Turn<V> {
    /// This one's; all who join until it is done wait for it.
    Lead(Lead<V>),
    /// Another has asked already.
    Follow(Follow<V>),
}

/// The duty to finish a key. Dropping it unfinished abandons the followers,
/// who learn of it at once.
pub struct Lead<V> {
    key: Box<[u8]>,
    sender: watch::Sender<Option<V>>,
    began: Instant,
    collapse: Arc<Collapse<V>>,
    /// Whether others still join it.
    open: bool,
}

/// The right to what a leader finds.
#[derive(Clone)]
pub struct Follow<V> {
    found: watch::Receiver<Option<V>>,
    began: Instant,
}

/// The leader was dropped or panicked before it had found anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abandoned;

impl<V: Clone + Send + Sync> Collapse<V> {
    /// No key under way.
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            hasher: RandomState::default(),
        })
    }

    /// Joins those who want a key.
    pub fn join(self: &Arc<Self>, key: &Key) -> Turn<V> {
        let key = key.as_bytes();
        let mut flights = self.shard(key);
        if let Some(follow) = flights.get(key) {
            return Turn::Follow(follow.clone());
        }
        let (sender, found) = watch::channel(None);
        let began = Instant::now();
        flights.insert(key.into(), Follow { found, began });
        Turn::Lead(Lead {
            key: key.into(),
            sender,
            began,
            collapse: self.clone(),
            open: true,
        })
    }

    /// Whether a key is under way.
    pub fn has(&self, key: &Key) -> bool {
        self.shard(key.as_bytes()).contains_key(key.as_bytes())
    }

    /// How many keys are under way.
    pub fn len(&self) -> usize {
        let lock = |shard: &Mutex<Flights<V>>| lock(shard).len();
        self.shards.iter().map(lock).sum()
    }

    /// Whether no key is under way.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn shard(&self, key: &[u8]) -> MutexGuard<'_, Flights<V>> {
        lock(&self.shards[self.hasher.hash_one(key) as usize % SHARDS])
    }
}

/// A map is whole after each of its operations, so a panic elsewhere while the
/// lock was held has spoilt nothing.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<V: Clone> Lead<V> {
    /// The leader's own right to what it finds.
    pub fn follow(&self) -> Follow<V> {
        Follow {
            found: self.sender.subscribe(),
            began: self.began,
        }
    }

    /// Hands the value to all who wait; later ones begin anew.
    pub fn finish(mut self, value: V) {
        // Who finds the value too old for it must not come upon it again.
        self.close();
        self.sender.send_replace(Some(value));
    }
}

impl<V> Lead<V> {
    fn close(&mut self) {
        if std::mem::take(&mut self.open) {
            let hash = self.collapse.hasher.hash_one(&*self.key) as usize;
            lock(&self.collapse.shards[hash % SHARDS]).remove(&self.key);
        }
    }
}

impl<V> Drop for Lead<V> {
    fn drop(&mut self) {
        self.close();
    }
}

impl<V: Clone> Follow<V> {
    /// When the leader began.
    pub fn began(&self) -> Instant {
        self.began
    }

    /// Waits for the leader.
    ///
    /// # Errors
    /// Where the leader was dropped or panicked.
    pub async fn wait(mut self) -> Result<V, Abandoned> {
        match self.found.wait_for(Option::is_some).await {
            Ok(value) => value.clone().ok_or(Abandoned),
            Err(_closed) => Err(Abandoned),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(target: &str) -> Key {
        let mut key = Key::begin(0);
        key.buffer().extend_from_slice(target.as_bytes());
        key
    }

    fn lead(collapse: &Arc<Collapse<u32>>, target: &str) -> Lead<u32> {
        match collapse.join(&key(target)) {
            Turn::Lead(lead) => lead,
            Turn::Follow(_) => panic!("another leads"),
        }
    }

    fn follow(collapse: &Arc<Collapse<u32>>, target: &str) -> Follow<u32> {
        match collapse.join(&key(target)) {
            Turn::Lead(_) => panic!("nobody leads"),
            Turn::Follow(follow) => follow,
        }
    }

    #[tokio::test]
    async fn all_who_join_get_what_the_leader_finds() {
        let collapse = Collapse::new();
        let leader = lead(&collapse, "/a");
        let own = leader.follow();
        let followers: Vec<_> = (0..100).map(|_| follow(&collapse, "/a")).collect();
        let other = lead(&collapse, "/b");
        assert_eq!(collapse.len(), 2);
        leader.finish(7);
        assert_eq!(own.wait().await, Ok(7));
        for follower in followers {
            assert_eq!(follower.wait().await, Ok(7));
        }
        drop(other);
        assert!(collapse.is_empty());
        drop(lead(&collapse, "/a"));
    }

    #[test]
    fn who_has_the_value_does_not_come_upon_it_again() {
        for _ in 0..200 {
            let collapse = Collapse::new();
            let leader = lead(&collapse, "/a");
            let follower = follow(&collapse, "/a");
            let joining = collapse.clone();
            let thread = std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .build()
                    .unwrap();
                assert_eq!(runtime.block_on(follower.wait()), Ok(7));
                drop(lead(&joining, "/a"));
            });
            leader.finish(7);
            thread.join().unwrap();
        }
    }

    #[tokio::test]
    async fn a_leader_that_vanishes_leaves_nobody_waiting() {
        let collapse = Collapse::new();
        let leader = lead(&collapse, "/a");
        let follower = follow(&collapse, "/a");
        drop(leader);
        assert_eq!(follower.wait().await, Err(Abandoned));

        let leader = lead(&collapse, "/a");
        let follower = follow(&collapse, "/a");
        let panicked = tokio::spawn(async move {
            let _duty = leader;
            panic!("as a bug would");
        });
        assert_eq!(follower.wait().await, Err(Abandoned));
        assert!(panicked.await.is_err());
        assert!(collapse.is_empty());
    }

    #[test]
    fn followers_of_another_runtime_are_served() {
        let collapse = Collapse::new();
        let leader = lead(&collapse, "/a");
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let follower = follow(&collapse, "/a");
                std::thread::spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread()
                        .build()
                        .unwrap();
                    runtime.block_on(follower.wait())
                })
            })
            .collect();
        leader.finish(9);
        for thread in threads {
            assert_eq!(thread.join().unwrap(), Ok(9));
        }
    }
}
