//! Reads: requests wait for what a few threads read.
//!
//! The reads of one key are one read. The queue is bounded, for each client as well, and
//! clients take turns in it. In a full queue, a client with few reads takes the place of
//! one with many. A request that finds no room, or waits for too long, goes on as if
//! nothing were stored.

use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::counts::count;
use super::{Disk, Tier};
use crate::cache::StoredResponse;
use crate::cache::key::Key;
use crate::cache::sequence::PurgeSequence;
use crate::compress::queue::{Bounds, Queue};
use crate::identify::Client;
use crate::sync::lock;

/// The threads that read. They wait for the disk most of the time.
pub(super) const THREADS: usize = 4;

/// How long a request waits for its reads.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// Until when a request waits for all its reads together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadDeadline {
    until: Instant,
    /// The reads that had ended when it began to wait.
    ended: u64,
}

/// What came of waiting for a read.
#[derive(Debug)]
enum Waited {
    Loaded(Loaded),
    /// Nothing in time. If no other read has ended meanwhile either, the disk hangs;
    /// otherwise there are only many.
    Late {
        hangs: bool,
    },
}

/// The most reads that wait.
const BOUNDS: Bounds = Bounds {
    all: 8192,
    of_client: 1024,
};

/// In how many clients' turns one read waits at most, so that one key does not fill the
/// queue.
const MOST_TURNS: usize = 16;

/// What was read for a key.
#[derive(Clone, Debug)]
pub(crate) enum Loaded {
    /// Nothing that may be used.
    Absent,
    /// A response, which is in memory again if its blocks stand.
    Response {
        /// The response.
        stored: Arc<StoredResponse>,
        /// Whether the blocks that it names are known to stand. If not, it is stale.
        stands: bool,
        /// The purges and removals that it was checked against.
        checked: PurgeSequence,
    },
    /// The variants of a target, which are in memory again.
    Variants,
}

impl Loaded {
    /// Whether there is something.
    pub(crate) const fn is_some(&self) -> bool {
        !matches!(self, Self::Absent)
    }
}

/// A read that waits or is under way, by a configuration.
struct Slot<D> {
    disk: D,
    key: Key,
    /// The client that wanted it first.
    client: Client,
    is_taken: AtomicBool,
    /// In how many clients' turns it waits.
    turns: AtomicUsize,
    loaded: watch::Sender<Option<Loaded>>,
}

/// The reads.
pub(super) struct Reads<D> {
    state: Mutex<State<D>>,
    added: Condvar,
    /// How many have ended.
    ended: AtomicU64,
}

struct State<D> {
    queue: Queue<Arc<Slot<D>>>,
    slots: HashMap<Key, Arc<Slot<D>>>,
    is_closed: bool,
}

impl<D> State<D> {
    /// Lets a read wait in a client's turn, if there is room. In a full queue, the client
    /// with the most reads loses its newest one.
    fn enqueue(&mut self, client: Client, slot: &Arc<Slot<D>>) -> bool {
        slot.turns.fetch_add(1, Relaxed);
        let displaced = self.queue.push_fairly(client, slot.clone());
        if let Some(displaced) = &displaced
            && displaced.turns.fetch_sub(1, Relaxed) == 1
            && !displaced.is_taken.load(Relaxed)
        {
            self.slots.remove(&displaced.key);
            displaced.loaded.send_replace(Some(Loaded::Absent));
        }
        displaced.is_none_or(|displaced| !Arc::ptr_eq(&displaced, slot))
    }
}

impl<D: Clone> Reads<D> {
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::new(State {
                queue: Queue::new(BOUNDS),
                slots: HashMap::new(),
                is_closed: false,
            }),
            added: Condvar::new(),
            ended: AtomicU64::new(0),
        }
    }

    /// The read of a key, which waits in its client's turn; `None` if there is no room.
    fn join(&self, disk: &D, key: &Key, client: Client) -> Option<Arc<Slot<D>>> {
        let mut state = self.state();
        if let Some(slot) = state.slots.get(key).cloned() {
            // In this client's turn as well, whichever comes first.
            let may_wait = slot.turns.load(Relaxed) < MOST_TURNS;
            if may_wait && slot.client != client && !slot.is_taken.load(Relaxed) {
                let _in_its_turn = state.enqueue(client, &slot);
            }
            return Some(slot);
        }
        let slot = Arc::new(Slot {
            disk: disk.clone(),
            key: key.clone(),
            client,
            is_taken: AtomicBool::new(false),
            turns: AtomicUsize::new(0),
            loaded: watch::Sender::new(None),
        });
        if state.is_closed || !state.enqueue(client, &slot) {
            return None;
        }
        state.slots.insert(key.clone(), slot.clone());
        self.added.notify_one();
        Some(slot)
    }

    /// The next read; `None` once it is closed.
    fn next(&self) -> Option<Arc<Slot<D>>> {
        let mut state = self.state();
        loop {
            if state.is_closed {
                return None;
            }
            while let Some(slot) = state.queue.pop() {
                if !slot.is_taken.swap(true, Relaxed) {
                    return Some(slot);
                }
            }
            let waited = self.added.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn finish(&self, slot: &Slot<D>, loaded: Loaded) {
        self.state().slots.remove(&slot.key);
        self.ended.fetch_add(1, Relaxed);
        slot.loaded.send_replace(Some(loaded));
    }

    /// Waits for a read.
    async fn wait(&self, slot: &Slot<D>, deadline: ReadDeadline) -> Waited {
        let mut loaded = slot.loaded.subscribe();
        match timeout_at(deadline.until, loaded.wait_for(Option::is_some)).await {
            Ok(Ok(loaded)) => Waited::Loaded(loaded.clone().unwrap_or(Loaded::Absent)),
            Ok(Err(_closed)) => Waited::Loaded(Loaded::Absent),
            Err(_elapsed) => Waited::Late {
                hangs: self.ended.load(Relaxed) == deadline.ended,
            },
        }
    }

    /// Until when a request waits that begins to wait now.
    fn deadline(&self) -> ReadDeadline {
        ReadDeadline {
            until: Instant::now() + PATIENCE,
            ended: self.ended.load(Relaxed),
        }
    }

    /// Ends the threads. Requests that wait go on as if nothing were stored.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        let waiting = std::mem::take(&mut state.slots);
        drop(state);
        for slot in waiting.into_values() {
            slot.loaded.send_replace(Some(Loaded::Absent));
        }
        self.added.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State<D>> {
        lock(&self.state)
    }
}

impl Tier {
    /// Until when a request waits that begins to wait now.
    pub(super) fn read_deadline(&self) -> ReadDeadline {
        self.reads.deadline()
    }

    /// Reads what is kept for a key, until a deadline at most.
    pub(super) async fn load(
        &self,
        disk: &Arc<Disk>,
        key: &Key,
        client: Client,
        deadline: ReadDeadline,
    ) -> Loaded {
        if !self.reading.is_good() {
            return Loaded::Absent;
        }
        let Some(slot) = self.reads.join(disk, key, client) else {
            count(&self.counts.skipped);
            return Loaded::Absent;
        };
        match self.reads.wait(&slot, deadline).await {
            Waited::Loaded(loaded) => loaded,
            Waited::Late { hangs } => {
                count(&self.counts.late);
                if hangs {
                    let what = "stored responses cannot be read from disk";
                    self.reading.fail(what, &"no read has ended in time");
                }
                Loaded::Absent
            }
        }
    }

    /// Reads until the tier is closed.
    pub(super) fn run_reader(&self) {
        while let Some(slot) = self.reads.next() {
            let loaded = match self.reading.is_good() {
                true => slot.disk.read(&slot.key),
                false => Loaded::Absent,
            };
            self.reads.finish(&slot, loaded);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: Client = Client::V4(1);
    const HONEST: Client = Client::V4(2);

    fn key(target: u32) -> Key {
        let mut key = Key::begin(1);
        key.buffer()
            .extend_from_slice(target.to_string().as_bytes());
        key
    }

    /// The targets that are read next.
    fn next(reads: &Reads<()>, count: usize) -> Vec<String> {
        let mut targets = Vec::new();
        for _ in 0..count {
            let slot = reads.next().unwrap();
            targets.push(slot.key.target().to_owned());
            reads.finish(&slot, Loaded::Absent);
        }
        targets
    }

    #[test]
    fn the_reads_of_one_key_are_one() {
        let reads = Reads::new();
        let first = reads.join(&(), &key(7), HOSTILE).unwrap();
        for n in 0..10_000 {
            let joined = reads.join(&(), &key(7), Client::V4(n)).unwrap();
            assert!(Arc::ptr_eq(&joined, &first));
        }
        reads.join(&(), &key(8), HONEST).unwrap();
        let mut read = next(&reads, 2);
        read.sort_unstable();
        assert_eq!(read, ["7", "8"]);
        reads.close();
        assert!(reads.next().is_none(), "nothing is read twice");
    }

    #[test]
    fn no_client_delays_another_or_fills_the_queue() {
        let reads = Reads::new();
        let flood = 0..10_000;
        let taken = flood.filter(|n| reads.join(&(), &key(*n), HOSTILE).is_some());
        assert_eq!(taken.count(), BOUNDS.of_client);
        reads.join(&(), &key(20_000), HONEST).unwrap();
        // What the other waits for already is read in its own turn as well.
        reads.join(&(), &key(900), HONEST).unwrap();
        let read = next(&reads, 4);
        assert_eq!(read, ["0", "20000", "1", "900"]);
    }

    #[tokio::test]
    async fn clients_that_fill_the_queue_make_room_for_one_with_few_reads() {
        let reads = Reads::new();
        let hostile = (10..10 + BOUNDS.all / BOUNDS.of_client).map(|n| Client::V4(n as u32));
        let mut targets = 0..;
        for client in hostile {
            for target in targets.by_ref().take(BOUNDS.of_client) {
                assert!(reads.join(&(), &key(target), client).is_some());
            }
        }
        let all: Vec<_> = reads.state().slots.values().cloned().collect();
        let of_honest = reads.join(&(), &key(20_000), HONEST).unwrap();
        // Also in its own turn, behind another's thousand reads.
        reads.join(&(), &key(500), HONEST).unwrap();
        assert!(reads.join(&(), &key(30_000), Client::V4(10)).is_none());
        let read = next(&reads, 18);
        assert_eq!([&*read[8], &*read[17]], ["20000", "500"]);
        assert!(of_honest.loaded.borrow().is_some());
        // Two others were displaced; who waits for them goes on.
        next(&reads, BOUNDS.all - 1 - 18);
        assert!(reads.state().slots.is_empty());
        for slot in all {
            let waited = reads.wait(&slot, reads.deadline()).await;
            assert!(matches!(waited, Waited::Loaded(_)), "{waited:?}");
        }
    }

    #[test]
    fn the_queue_is_bounded_for_all_clients_together() {
        let reads = Reads::new();
        let each = (0..20_000).map(|n| reads.join(&(), &key(n), Client::V4(n)));
        assert_eq!(each.flatten().count(), BOUNDS.all);
    }

    #[tokio::test]
    async fn whoever_waits_when_it_is_closed_goes_on() {
        let reads = Reads::new();
        let slot = reads.join(&(), &key(1), HONEST).unwrap();
        let mut loaded = slot.loaded.subscribe();
        reads.close();
        let loaded = loaded.wait_for(Option::is_some).await.unwrap().clone();
        assert!(matches!(loaded, Some(Loaded::Absent)));
        assert!(reads.join(&(), &key(2), HONEST).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn reads_that_take_too_long_are_a_fault_if_none_ends() {
        let reads = Reads::new();
        let one = reads.join(&(), &key(1), HONEST).unwrap();
        let other = reads.join(&(), &key(2), HONEST).unwrap();
        let (begin, deadline) = (Instant::now(), reads.deadline());
        let waited = reads.wait(&one, deadline).await;
        assert!(matches!(waited, Waited::Late { hangs: true }), "{waited:?}");
        assert_eq!(begin.elapsed(), PATIENCE);
        // All reads of a request have one deadline.
        let waited = reads.wait(&other, deadline).await;
        assert!(matches!(waited, Waited::Late { hangs: true }), "{waited:?}");
        assert_eq!(begin.elapsed(), PATIENCE);
        // Others end.
        let deadline = reads.deadline();
        reads.finish(&other, Loaded::Absent);
        let waited = reads.wait(&one, deadline).await;
        assert!(
            matches!(waited, Waited::Late { hangs: false }),
            "{waited:?}"
        );
        reads.finish(&one, Loaded::Variants);
        let waited = reads.wait(&one, reads.deadline()).await;
        assert!(
            matches!(waited, Waited::Loaded(Loaded::Variants)),
            "{waited:?}"
        );
    }
}
