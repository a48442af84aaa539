//! Reads: requests wait for what a few threads read.
//!
//! The reads of one key are one read. The queue is bounded, for each client as well, and
//! clients take turns in it. A request that finds no room, or waits for too long, goes on
//! as if nothing were stored.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;

use super::counts::count;
use super::{Disk, Tier};
use crate::cache::StoredResponse;
use crate::cache::key::Key;
use crate::compress::queue::{Bounds, Queue};
use crate::identify::Client;

/// The threads that read. They wait for the disk most of the time.
pub(super) const THREADS: usize = 4;

/// How long a request waits for a read.
const PATIENCE: Duration = Duration::from_secs(1);

/// The most reads that wait.
const BOUNDS: Bounds = Bounds {
    all: 8192,
    of_client: 1024,
};
use crate::sync::lock;

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

/// A read that waits or is under way.
struct Slot {
    disk: Arc<Disk>,
    key: Key,
    /// The client that wanted it first.
    client: Client,
    is_taken: AtomicBool,
    loaded: watch::Sender<Option<Loaded>>,
}

/// The reads.
pub(super) struct Reads {
    state: Mutex<State>,
    added: Condvar,
}

struct State {
    queue: Queue<Arc<Slot>>,
    slots: HashMap<Key, Arc<Slot>>,
    is_closed: bool,
}

impl Reads {
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::new(State {
                queue: Queue::new(BOUNDS),
                slots: HashMap::new(),
                is_closed: false,
            }),
            added: Condvar::new(),
        }
    }

    /// The read of a key, which waits in its client's turn; `None` if there is no room.
    fn join(&self, disk: &Arc<Disk>, key: &Key, client: Client) -> Option<Arc<Slot>> {
        let mut state = self.state();
        if let Some(slot) = state.slots.get(key).cloned() {
            // In this client's turn as well, whichever comes first.
            if slot.client != client && !slot.is_taken.load(Relaxed) {
                let _in_its_turn = state.queue.push(client, slot.clone());
            }
            return Some(slot);
        }
        let slot = Arc::new(Slot {
            disk: disk.clone(),
            key: key.clone(),
            client,
            is_taken: AtomicBool::new(false),
            loaded: watch::Sender::new(None),
        });
        if state.is_closed || state.queue.push(client, slot.clone()).is_err() {
            return None;
        }
        state.slots.insert(key.clone(), slot.clone());
        self.added.notify_one();
        Some(slot)
    }

    /// The next read; `None` once it is closed.
    fn next(&self) -> Option<Arc<Slot>> {
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

    fn finish(&self, slot: &Slot, loaded: Loaded) {
        self.state().slots.remove(&slot.key);
        slot.loaded.send_replace(Some(loaded));
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

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl Tier {
    /// Reads what is kept for a key.
    pub(super) async fn load(&self, disk: &Arc<Disk>, key: &Key, client: Client) -> Loaded {
        if !self.health.is_good() {
            return Loaded::Absent;
        }
        let Some(slot) = self.reads.join(disk, key, client) else {
            count(&self.counts.skipped);
            return Loaded::Absent;
        };
        let mut loaded = slot.loaded.subscribe();
        let read = timeout(PATIENCE, loaded.wait_for(Option::is_some)).await;
        match read {
            Ok(Ok(loaded)) => loaded.clone().unwrap_or(Loaded::Absent),
            Ok(Err(_closed)) => Loaded::Absent,
            Err(_elapsed) => {
                count(&self.counts.late);
                Loaded::Absent
            }
        }
    }

    /// Reads until the tier is closed.
    pub(super) fn run_reader(&self) {
        while let Some(slot) = self.reads.next() {
            let loaded = match self.health.is_good() {
                true => slot.disk.read(&slot.key),
                false => Loaded::Absent,
            };
            self.reads.finish(&slot, loaded);
        }
    }
}
