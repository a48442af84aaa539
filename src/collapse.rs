//! Request collapsing: one fetch at a time for each key, however many clients
//! and other fetches wait for it, on whichever runtime they are (RFC 9111 §4).
//!
//! The first to ask for a key leads: its fetch runs as a task of its own, so
//! that a client which disconnects takes nothing from the others. Everyone who
//! asks while it runs follows. However a leader ends, its followers learn of
//! it: from a value it announced, or from its end without one, after which the
//! next of them leads.
//!
//! Fetches may depend on each other: an answer is made of exchanges with the
//! upstream. So that no two ever wait for each other, each fetch has a level,
//! and may wait only for a lower one ([`Below`]): clients wait for answers,
//! answers for exchanges, exchanges for no other fetch. The compiler checks it:
//! who waits must show what it is, and nothing shows that an exchange may wait.
//!
//! Deliberately absent: what is fetched, and any store. Values are handed over,
//! not kept.

use std::collections::HashMap;
use std::future::Future;
use std::hash::BuildHasher;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foldhash::quality::RandomState;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

const SHARDS: usize = 16;

type Flights<V> = HashMap<Box<[u8]>, Follow<V>, RandomState>;

/// How deep a fetch lies: it may wait only for those below it.
pub trait Level: Send + Sync + 'static {
    /// Its place in [`Collapse`].
    const PLACE: usize;
}

/// Fetches for clients. They may be made of several exchanges.
#[derive(Clone, Copy, Debug)]
pub struct AnswerLevel;

/// Single requests to the upstream.
#[derive(Clone, Copy, Debug)]
pub struct ExchangeLevel;

impl Level for AnswerLevel {
    const PLACE: usize = 0;
}

impl Level for ExchangeLevel {
    const PLACE: usize = 1;
}

const LEVELS: usize = 2;

/// What may wait for fetches of a level. It is there for [`ClientLevel`] and [`WatchLevel`]
/// and for who leads one of [`AnswerLevel`], and for nobody else.
pub trait Below<L: Level> {}

/// A client, which waits for answers and for which no fetch waits.
#[derive(Clone, Copy, Debug)]
pub struct ClientLevel;

impl Below<AnswerLevel> for ClientLevel {}

/// A task that watches a tip, for which no fetch waits either.
#[derive(Clone, Copy, Debug)]
pub struct WatchLevel;

impl Below<ExchangeLevel> for WatchLevel {}

impl<V> Below<ExchangeLevel> for Lead<V, AnswerLevel> {}

/// The fetches that run now, by level and key.
pub struct Collapse<V> {
    levels: [[Mutex<Flights<V>>; SHARDS]; LEVELS],
    hasher: RandomState,
}

/// Who fetches a key.
pub enum Role<V, L: Level> {
    /// This one; all who join until it has finished wait for it.
    Lead(Lead<V, L>),
    /// Another does already.
    Follow(Follow<V>),
}

/// The duty to fetch a key. Where it is dropped before anything was announced,
/// the followers learn of it at once.
pub struct Lead<V, L: Level = AnswerLevel> {
    key: Box<[u8]>,
    sender: watch::Sender<Option<V>>,
    began: Instant,
    collapse: Arc<Collapse<V>>,
    /// Whether others still join it.
    open: bool,
    level: PhantomData<fn() -> L>,
}

/// The right to what a leader announces.
#[derive(Clone)]
pub struct Follow<V> {
    announced: watch::Receiver<Option<V>>,
    began: Instant,
}

/// How long one waits for a leader.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    /// No longer than this. It belongs to who waits, whenever the leader began.
    pub deadline: Instant,
    /// And no longer than this after the leader began: for who has something
    /// else to answer with.
    pub since_began: Option<Duration>,
}

impl Wait {
    /// Until a deadline.
    pub const fn until(deadline: Instant) -> Self {
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

/// What was fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetched<V> {
    /// What the leader announced.
    pub value: V,
    /// Whether another had asked already.
    pub collapsed: bool,
}

/// Why nothing was fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchError {
    /// The leader was dropped or panicked before it had announced anything.
    Abandoned,
    /// The wait was over before that.
    TooLate,
}

impl<V: Clone + Send + Sync + 'static> Collapse<V> {
    /// No fetch runs.
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            levels: std::array::from_fn(|_| std::array::from_fn(|_| Mutex::default())),
            hasher: RandomState::default(),
        })
    }

    /// Fetches a key at a level, or waits for who does already. `lead` makes
    /// the fetch, which runs as a task of its own: it must announce a value or
    /// drop its [`Lead`]. Where a leader ends without a value, one of those
    /// who wait leads.
    ///
    /// # Errors
    /// Where the wait is over first, or this one's own fetch ended without a
    /// value.
    pub async fn fetch<L: Level, F>(
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
                    tokio::spawn(lead(own));
                    let value = follow.wait(wait).await?;
                    let collapsed = false;
                    return Ok(Fetched { value, collapsed });
                }
            };
            match follow.wait(wait).await {
                Ok(value) => {
                    let collapsed = true;
                    return Ok(Fetched { value, collapsed });
                }
                Err(FetchError::Abandoned) => {}
                Err(FetchError::TooLate) => return Err(FetchError::TooLate),
            }
        }
    }

    /// Waits for who fetches a key for clients; `None` where nobody does.
    ///
    /// # Errors
    /// Where the wait is over first, or the leader ended without a value.
    pub async fn follow(&self, key: &[u8], wait: Wait) -> Option<Result<V, FetchError>> {
        let follow = self.shard::<AnswerLevel>(key).get(key).cloned();
        match follow {
            Some(follow) => Some(follow.wait(wait).await),
            None => None,
        }
    }

    /// Leads a key if nobody does; for what nobody waits for.
    pub fn lead(self: &Arc<Self>, key: &[u8]) -> Option<Lead<V, AnswerLevel>> {
        match self.join(key) {
            Role::Lead(lead) => Some(lead),
            Role::Follow(_) => None,
        }
    }

    /// Lets nobody join the fetch of a key for clients any more, where it has
    /// announced this: a value that is no answer to who comes now. Those who
    /// have joined keep it.
    pub fn retire(&self, key: &[u8], announced: impl FnOnce(&V) -> bool) {
        let mut flights = self.shard::<AnswerLevel>(key);
        let is_it = |follow: &Follow<V>| follow.announced.borrow().as_ref().is_some_and(announced);
        if flights.get(key).is_some_and(is_it) {
            flights.remove(key);
        }
    }

    /// Joins those who want a key.
    fn join<L: Level>(self: &Arc<Self>, key: &[u8]) -> Role<V, L> {
        let mut flights = self.shard::<L>(key);
        if let Some(follow) = flights.get(key) {
            return Role::Follow(follow.clone());
        }
        let (sender, announced) = watch::channel(None);
        let began = Instant::now();
        flights.insert(key.into(), Follow { announced, began });
        Role::Lead(Lead {
            key: key.into(),
            sender,
            began,
            collapse: self.clone(),
            open: true,
            level: PhantomData,
        })
    }

    /// Whether a key is being fetched for clients.
    pub fn has(&self, key: &[u8]) -> bool {
        self.shard::<AnswerLevel>(key).contains_key(key)
    }

    /// How many fetches run, of all levels.
    pub fn len(&self) -> usize {
        let lock = |shard: &Mutex<Flights<V>>| lock(shard).len();
        self.levels.iter().flatten().map(lock).sum()
    }

    /// Whether no fetch runs.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn shard<L: Level>(&self, key: &[u8]) -> MutexGuard<'_, Flights<V>> {
        lock(&self.levels[L::PLACE][self.hasher.hash_one(key) as usize % SHARDS])
    }
}

/// A map is whole after each of its operations, so a panic elsewhere while the
/// lock was held has spoilt nothing.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<V: Clone, L: Level> Lead<V, L> {
    fn follow(&self) -> Follow<V> {
        Follow {
            announced: self.sender.subscribe(),
            began: self.began,
        }
    }

    /// Hands a value to all who wait, and to those who join until the leader
    /// has finished.
    pub fn announce(&self, value: V) {
        self.sender.send_replace(Some(value));
    }

    /// Hands a value to all who wait; later ones begin anew.
    pub fn finish(mut self, value: V) {
        // Who finds the value too old for it must not be given it again.
        self.close();
        self.announce(value);
    }
}

impl<V, L: Level> Lead<V, L> {
    fn close(&mut self) {
        if std::mem::take(&mut self.open) {
            let hash = self.collapse.hasher.hash_one(&*self.key) as usize;
            let mut flights = lock(&self.collapse.levels[L::PLACE][hash % SHARDS]);
            // Another may lead by now, where this fetch was retired.
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
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use super::*;

    const LONG: Duration = Duration::from_secs(5);

    fn long() -> Wait {
        Wait::until(Instant::now() + LONG)
    }

    fn lead(collapse: &Arc<Collapse<u32>>, target: &str) -> Lead<u32> {
        let lead = collapse.lead(target.as_bytes());
        lead.unwrap_or_else(|| panic!("another leads"))
    }

    fn follow(collapse: &Arc<Collapse<u32>>, target: &str) -> Follow<u32> {
        match collapse.join::<AnswerLevel>(target.as_bytes()) {
            Role::Lead(_) => panic!("nobody leads"),
            Role::Follow(follow) => follow,
        }
    }

    #[tokio::test]
    async fn all_who_join_get_what_the_leader_finds() {
        let collapse = Collapse::new();
        let leader = lead(&collapse, "/a");
        let followers: Vec<_> = (0..100).map(|_| follow(&collapse, "/a")).collect();
        let other = lead(&collapse, "/b");
        assert_eq!(collapse.len(), 2);
        leader.finish(7);
        for follower in followers {
            assert_eq!(follower.wait(long()).await, Ok(7));
        }
        drop(other);
        assert!(collapse.is_empty());
        drop(lead(&collapse, "/a"));
    }

    #[tokio::test]
    async fn what_is_announced_is_given_to_those_who_come_later() {
        let collapse = Collapse::new();
        let leader = lead(&collapse, "/a");
        let before = follow(&collapse, "/a");
        leader.announce(1);
        assert_eq!(before.wait(long()).await, Ok(1));
        assert_eq!(follow(&collapse, "/a").wait(long()).await, Ok(1));
        drop(leader);
        assert!(collapse.is_empty());
    }

    #[tokio::test]
    async fn a_fetch_that_is_retired_leaves_its_place_to_another() {
        let collapse = Collapse::new();
        let first = lead(&collapse, "/a");
        let joined = follow(&collapse, "/a");
        collapse.retire(b"/a", |_| true);
        drop(follow(&collapse, "/a"));
        first.announce(1);
        collapse.retire(b"/a", |value| *value == 2);
        drop(follow(&collapse, "/a"));
        collapse.retire(b"/a", |value| *value == 1);
        let second = lead(&collapse, "/a");
        // The end of the first is not the end of the second.
        drop(first);
        let later = follow(&collapse, "/a");
        second.finish(2);
        assert_eq!(joined.wait(long()).await, Ok(1));
        assert_eq!(later.wait(long()).await, Ok(2));
        assert!(collapse.is_empty());
    }

    #[test]
    fn who_has_the_value_is_not_given_it_again() {
        for _ in 0..200 {
            let collapse = Collapse::new();
            let leader = lead(&collapse, "/a");
            let follower = follow(&collapse, "/a");
            let joining = collapse.clone();
            let thread = std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_time()
                    .build()
                    .unwrap();
                runtime.block_on(async {
                    assert_eq!(follower.wait(long()).await, Ok(7));
                });
                drop(lead(&joining, "/a"));
            });
            leader.finish(7);
            thread.join().unwrap();
        }
    }

    #[tokio::test]
    async fn where_a_leader_ends_without_a_value_the_next_one_leads() {
        let collapse = Collapse::<u32>::new();
        let led = Arc::new(AtomicUsize::new(0));
        let fetch = || {
            let (collapse, led) = (collapse.clone(), led.clone());
            async move {
                let lead = |lead: Lead<u32>| async move {
                    tokio::task::yield_now().await;
                    match led.fetch_add(1, SeqCst) {
                        0 => panic!("as a bug would"),
                        1 => drop(lead),
                        _ => lead.finish(3),
                    }
                };
                collapse.fetch(&ClientLevel, b"/a", long(), lead).await
            }
        };
        let got = futures_util::future::join_all((0..10).map(|_| fetch())).await;
        let value = |n| move |got: &&Result<Fetched<u32>, FetchError>| **got == n;
        let abandoned = got.iter().filter(value(Err(FetchError::Abandoned))).count();
        assert_eq!(abandoned, 2, "those whose own fetch ended so: {got:?}");
        let led_well = Fetched {
            value: 3,
            collapsed: false,
        };
        assert_eq!(got.iter().filter(value(Ok(led_well))).count(), 1);
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
                        .enable_time()
                        .build()
                        .unwrap();
                    runtime.block_on(async { follower.wait(long()).await })
                })
            })
            .collect();
        leader.finish(9);
        for thread in threads {
            assert_eq!(thread.join().unwrap(), Ok(9));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_follower_has_a_wait_of_its_own() {
        let collapse = Collapse::new();
        let leader = lead(&collapse, "/a");
        tokio::time::advance(LONG * 3).await;
        let late = tokio::spawn(follow(&collapse, "/a").wait(long()));
        let elsewhere = Wait {
            since_began: Some(LONG),
            ..long()
        };
        // It has something else to answer with.
        let at_once = follow(&collapse, "/a").wait(elsewhere).await;
        assert_eq!(at_once, Err(FetchError::TooLate));
        tokio::time::advance(LONG / 2).await;
        leader.finish(4);
        assert_eq!(late.await.unwrap(), Ok(4));

        let _leader = lead(&collapse, "/a");
        let began = Instant::now();
        let never = follow(&collapse, "/a").wait(long()).await;
        assert_eq!(never, Err(FetchError::TooLate));
        assert_eq!(began.elapsed(), LONG);
    }

    #[tokio::test]
    async fn an_answer_is_made_of_exchanges_and_shares_them() {
        // Two answers, each of which needs the exchange that the other's key
        // names as well: with one level they would wait for each other.
        let collapse = Collapse::<u32>::new();
        let exchanged = Arc::new(AtomicUsize::new(0));
        let answer = |own: &'static [u8], other: &'static [u8]| {
            let (collapse, exchanged) = (collapse.clone(), exchanged.clone());
            async move {
                let all = collapse.clone();
                let lead = move |lead: Lead<u32>| async move {
                    let mut sum = 0;
                    for key in [other, own] {
                        let exchanged = exchanged.clone();
                        let send = move |lead: Lead<u32, ExchangeLevel>| async move {
                            tokio::task::yield_now().await;
                            exchanged.fetch_add(1, SeqCst);
                            lead.finish(1);
                        };
                        sum += all.fetch(&lead, key, long(), send).await.unwrap().value;
                    }
                    lead.finish(sum);
                };
                collapse.fetch(&ClientLevel, own, long(), lead).await
            }
        };
        let (one, other) = tokio::join!(answer(b"/a", b"/b"), answer(b"/b", b"/a"));
        assert_eq!((one.unwrap().value, other.unwrap().value), (2, 2));
        assert_eq!(exchanged.load(SeqCst), 4, "one after another, not beside");
        assert!(collapse.is_empty());
    }
}
