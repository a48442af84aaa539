//! What waits to be stored in the engine. No answer to a client waits for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tokio::sync::{Mutex, mpsc};

use super::counts::{TierCounts, count};
use super::value::{MOST_VALUE, SharedPosition, write};
use crate::cache::StoredResponse;
use crate::clock::Clock;
use crate::portable::codec::Head;
use crate::portable::digest::MeaningDigest;
use crate::shared::engine::entries::{EntryName, FillToken, PutEntry, SharedEntries};

/// The most responses that wait on each connection, and the most bytes of their bodies on
/// both. What comes beyond is dropped: it is only fetched again.
const MOST_WAITING: usize = 512;
const MOST_BYTES: usize = 64 << 20;

/// A body that is longer is compressed on a thread of its own: it would delay what else
/// this runtime does by more than a millisecond.
const LONG: usize = 64 << 10;

/// A response to be stored.
pub(super) struct ToPut {
    pub(super) name: EntryName,
    pub(super) token: FillToken,
    pub(super) route: MeaningDigest,
    pub(super) target: Box<str>,
    pub(super) position: SharedPosition,
    pub(super) received_ms: u64,
    pub(super) stored: Arc<StoredResponse>,
}

/// What the engine is to be told.
pub(super) enum PutJob {
    Put(ToPut),
    GiveUp { name: EntryName, token: FillToken },
}

impl PutJob {
    pub(super) const fn name(&self) -> &EntryName {
        match self {
            Self::Put(to_put) => &to_put.name,
            Self::GiveUp { name, .. } => name,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Put(to_put) => to_put.stored.body.len(),
            Self::GiveUp { .. } => 0,
        }
    }
}

/// The queue of one connection.
pub(super) struct PutQueue {
    sender: mpsc::Sender<PutJob>,
    receiver: Mutex<mpsc::Receiver<PutJob>>,
}

impl PutQueue {
    pub(super) fn new() -> Self {
        let (sender, receiver) = mpsc::channel(MOST_WAITING);
        let receiver = Mutex::new(receiver);
        Self { sender, receiver }
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        MOST_WAITING - self.sender.capacity()
    }

    /// Adds a job, if there is room. `waiting` are the bytes of all queues.
    pub(super) fn push(&self, job: PutJob, waiting: &AtomicUsize) -> bool {
        let bytes = job.bytes();
        if waiting.fetch_add(bytes, Relaxed) + bytes <= MOST_BYTES
            && self.sender.try_send(job).is_ok()
        {
            return true;
        }
        waiting.fetch_sub(bytes, Relaxed);
        false
    }

    /// Does what is in the queue, one after another, until it is dropped.
    pub(super) async fn run(
        &self,
        engine: &dyn SharedEntries,
        waiting: &AtomicUsize,
        counts: &TierCounts,
        clock: &Clock,
    ) {
        let mut receiver = self.receiver.lock().await;
        while let Some(job) = receiver.recv().await {
            let bytes = job.bytes();
            match job {
                PutJob::Put(to_put) => put(engine, to_put, counts, clock).await,
                PutJob::GiveUp { name, token } => {
                    // Otherwise it expires.
                    let _is_given_up = engine.give_up(&name, token).await;
                }
            }
            waiting.fetch_sub(bytes, Relaxed);
        }
    }
}

async fn put(engine: &dyn SharedEntries, to_put: ToPut, counts: &TierCounts, clock: &Clock) {
    let (name, token) = (to_put.name.clone(), to_put.token);
    let stored = to_put.stored.clone();
    let entry = match stored.body.len() > LONG {
        true => tokio::task::spawn_blocking(move || entry(to_put))
            .await
            .ok(),
        false => Some(entry(to_put)),
    };
    let age = clock.now().since(stored.received);
    let left = stored.lifetime.saturating_sub(age).as_millis();
    let stay_ms = u64::try_from(left).unwrap_or(u64::MAX);
    let entry = entry.map(|entry| PutEntry { stay_ms, ..entry });
    let entry = match entry {
        Some(entry) if entry.value.len() > MOST_VALUE => {
            count(&counts.too_large);
            None
        }
        entry => entry.filter(|_| stay_ms > 0),
    };
    let Some(entry) = entry else {
        let _is_given_up = engine.give_up(&name, token).await;
        return;
    };
    match engine.put(&name, &entry).await {
        Ok(true) => count(&counts.stored),
        Ok(false) => count(&counts.overtaken),
        Err(_) => count(&counts.unstored),
    }
}

fn entry(to_put: ToPut) -> PutEntry {
    let head = Head {
        checked: to_put.position,
        route: to_put.route,
        target: &to_put.target,
    };
    let journal = to_put.position.journal;
    PutEntry {
        token: to_put.token,
        generation: journal.generation.hex(),
        // As long for each number, so that later is greater.
        record: format!("{:020}", journal.record),
        received_ms: to_put.received_ms,
        stay_ms: 0,
        value: write(&head, &to_put.stored, to_put.received_ms),
    }
}
