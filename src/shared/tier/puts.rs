//! What waits to be stored in the engine. No answer to a client waits for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tokio::sync::{Mutex, mpsc};

use super::counts::{TierCounts, count};
use super::value::{LONG, MOST_VALUE, SharedPosition, write};
use crate::cache::StoredResponse;
use crate::clock::Clock;
use crate::portable::codec::Head;
use crate::portable::digest::MeaningDigest;
use crate::shared::engine::entries::{EntryName, FillToken, GivenUp, PutEntry, SharedEntries};

/// The most responses that wait on each connection, and the most bytes of their bodies on
/// both. What comes beyond is dropped: it is only fetched again.
const MOST_WAITING: usize = 512;
const MOST_BYTES: usize = 64 << 20;

/// For how long others fetch without the lock, after a response that is not stored: the
/// next one would most likely not be stored either, and they would wait for one another.
pub(super) const UNLOCKED_MS: u64 = 1000;

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
    GiveUp(EntryName, GivenUp),
}

impl PutJob {
    pub(super) const fn name(&self) -> &EntryName {
        match self {
            Self::Put(to_put) => &to_put.name,
            Self::GiveUp(name, _) => name,
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Put(to_put) => to_put.stored.body.len(),
            Self::GiveUp(..) => 0,
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
                PutJob::GiveUp(name, given_up) => {
                    // Otherwise it expires.
                    let _is_given_up = engine.give_up(&name, given_up).await;
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
        let given_up = GivenUp {
            token,
            unlocked_ms: UNLOCKED_MS,
        };
        let _is_given_up = engine.give_up(&name, given_up).await;
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::shared::engine::entries::model::ModelEntries;
    use crate::shared::engine::entries::{FoundEntry, LookUp};
    use crate::shared::tier::tests::{position, stored};

    fn name(number: u8) -> EntryName {
        EntryName::new("test", [number; 16])
    }

    fn to_put(number: u8, body: &[u8], clock: &Clock) -> PutJob {
        let stored = StoredResponse {
            received: clock.now(),
            ..stored(body, None)
        };
        PutJob::Put(ToPut {
            name: name(number),
            token: FillToken(number.into()),
            route: MeaningDigest([4; 32]),
            target: "/a".into(),
            position: position(None),
            received_ms: 1,
            stored: Arc::new(stored),
        })
    }

    async fn find(engine: &ModelEntries, number: u8, lock_ms: u64) -> FoundEntry {
        let look_up = LookUp {
            unusable: None,
            token: FillToken(number.into()),
            lock_ms,
        };
        let reply = engine.look_up(&name(number), &look_up).await;
        reply.unwrap().found
    }

    #[tokio::test]
    async fn what_is_queued_is_stored_and_its_lock_given_up() {
        let clock = Clock::manual();
        let (engine, queue) = (ModelEntries::new(clock.clone()), PutQueue::new());
        let (waiting, counts) = (AtomicUsize::new(0), TierCounts::default());
        for number in 1..=4 {
            assert_eq!(find(&engine, number, 9000).await, FoundEntry::Lead);
        }
        // It does not get small by compression.
        let long: Vec<u8> = (0..3 << 20).map(|_| fastrand::u8(..)).collect();
        for (number, body) in [(1, &b"{}"[..]), (2, &[b'a'; 1 << 20]), (3, &long)] {
            assert!(queue.push(to_put(number, body, &clock), &waiting));
        }
        let given_up = GivenUp {
            token: FillToken(4),
            unlocked_ms: 0,
        };
        assert!(queue.push(PutJob::GiveUp(name(4), given_up), &waiting));
        assert_eq!((queue.len(), waiting.load(Relaxed) > 4 << 20), (4, true));
        let run = queue.run(&engine, &waiting, &counts, &clock);
        let done = async {
            while counts.snapshot(true, 0).too_large == 0 || waiting.load(Relaxed) > 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::select! {
            () = run => {}
            () = done => {}
        }
        for number in [1, 2] {
            let found = find(&engine, number, 0).await;
            assert!(matches!(found, FoundEntry::Have { .. }), "{number}");
        }
        assert_eq!(find(&engine, 3, 9000).await, FoundEntry::None, "too large");
        assert_eq!(find(&engine, 4, 9000).await, FoundEntry::Lead, "given up");
        let counted = counts.snapshot(true, 0);
        assert_eq!((counted.stored, counted.too_large), (2, 1));
        clock.advance(Duration::from_millis(UNLOCKED_MS));
        assert_eq!(find(&engine, 3, 9000).await, FoundEntry::Lead, "later");
        // It stays as long as it is fresh.
        clock.advance(Duration::from_secs(9));
        assert_eq!(find(&engine, 1, 0).await, FoundEntry::None);
    }

    #[tokio::test]
    async fn the_queue_is_bounded_by_number_and_by_bytes() {
        let (clock, queue) = (Clock::manual(), PutQueue::new());
        let waiting = AtomicUsize::new(0);
        for _ in 0..MOST_WAITING {
            assert!(queue.push(to_put(1, b"{}", &clock), &waiting));
        }
        assert!(!queue.push(to_put(1, b"{}", &clock), &waiting));
        assert_eq!(waiting.load(Relaxed), 2 * MOST_WAITING);
        let queue = PutQueue::new();
        waiting.store(MOST_BYTES - 3, Relaxed);
        assert!(!queue.push(to_put(1, b"four", &clock), &waiting));
        assert!(queue.push(to_put(1, b"two", &clock), &waiting));
        assert_eq!(waiting.load(Relaxed), MOST_BYTES);
    }

    #[tokio::test]
    async fn an_engine_that_does_not_answer_is_counted() {
        let clock = Clock::manual();
        let engine = ModelEntries::new(clock.clone());
        engine.set_absent(true);
        let counts = TierCounts::default();
        let PutJob::Put(job) = to_put(1, b"{}", &clock) else {
            panic!("a response");
        };
        put(&engine, job, &counts, &clock).await;
        assert_eq!(counts.snapshot(true, 0).unstored, 1);
    }
}
