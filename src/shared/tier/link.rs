//! What the second tier keeps across reloads: its connections, its queues and its counts.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::client_waits::{ClientWait, ClientWaits, Waiting};
use super::counts::{TierCounts, TierSnapshot, count};
use super::invalidated::InvalidatedKeys;
use super::puts::{PutJob, PutQueue};
use crate::clock::{Clock, Moment};
use crate::shared::engine::entries::{EntryName, SharedEntries};
use crate::shared::journal::Journal;

/// The connections: two, so that one long value does not delay all others.
pub(crate) const CONNECTIONS: usize = 2;

/// The most look-ups of a process that wait for another replica's fetch, since each of
/// them makes calls. More go on without the lock.
const MOST_FOLLOWERS: usize = 64;
/// The most of one client.
const MOST_FOLLOWERS_OF_CLIENT: usize = 8;

/// The most queued requests of a process for which it is looked up again, twice a second,
/// whether another replica has fetched the response. The others only wait in the queue.
const MOST_QUEUED: usize = 128;
/// The most of one client.
const MOST_QUEUED_OF_CLIENT: usize = 16;

/// How many long values are opened at once, each on a thread of its own for up to some 20
/// ms; and the bytes of those that wait for that or are being opened, in all and of one
/// client. Look-ups beyond that go on without their values.
const OPENERS: usize = 4;
const MOST_OPENING: usize = 32 << 20;
const MOST_OPENING_OF_CLIENT: usize = 8 << 20;

/// The longest that a look-up waits for one of those threads.
const OPENING_WAIT: Duration = Duration::from_secs(1);

/// How much longer a lock lasts than others wait for it: a leader that was killed delays
/// requests only once.
const LOCK_MARGIN: Duration = Duration::from_secs(1);

/// What the second tier keeps across reloads.
pub(crate) struct TierLink {
    prefix: String,
    engines: OnceLock<[Arc<dyn SharedEntries>; CONNECTIONS]>,
    journal: Arc<Journal>,
    /// How long others wait for a fetch, in milliseconds; 0 if fetches are not locked.
    fill_wait: AtomicU64,
    /// How long a call may take, in milliseconds.
    timeout: AtomicU64,
    followers: Arc<ClientWaits>,
    queued: Arc<ClientWaits>,
    opening: Arc<ClientWaits>,
    openers: Arc<Semaphore>,
    queues: [PutQueue; CONNECTIONS],
    /// The bytes of all queues.
    waiting: AtomicUsize,
    counts: TierCounts,
    invalidated: InvalidatedKeys,
    clock: Clock,
}

/// Lets a look-up open a long value, for as long as it exists. The thread that opens it has
/// it: the look-up may be given up meanwhile.
pub(super) struct LongValuePermit {
    _permit: OwnedSemaphorePermit,
    _wait: ClientWait,
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

impl TierLink {
    /// A link that leads nowhere yet. Its keys begin with `prefix`.
    pub(crate) fn new(prefix: &str, journal: Arc<Journal>, clock: Clock) -> Arc<Self> {
        Arc::new(Self {
            prefix: prefix.to_owned(),
            engines: OnceLock::new(),
            journal,
            fill_wait: AtomicU64::new(0),
            timeout: AtomicU64::new(0),
            followers: ClientWaits::new(MOST_FOLLOWERS, MOST_FOLLOWERS_OF_CLIENT),
            queued: ClientWaits::new(MOST_QUEUED, MOST_QUEUED_OF_CLIENT),
            opening: ClientWaits::new(MOST_OPENING, MOST_OPENING_OF_CLIENT),
            openers: Arc::new(Semaphore::new(OPENERS)),
            queues: std::array::from_fn(|_| PutQueue::new()),
            waiting: AtomicUsize::new(0),
            counts: TierCounts::default(),
            invalidated: InvalidatedKeys::default(),
            clock,
        })
    }

    /// Sets how long others wait for a fetch, and how long a call may take.
    pub(crate) fn set_waits(&self, fill_wait: Duration, timeout: Duration) {
        self.fill_wait.store(millis(fill_wait), Relaxed);
        self.timeout.store(millis(timeout), Relaxed);
    }

    /// Uses these engines from now on.
    pub(crate) fn open(&self, engines: [Arc<dyn SharedEntries>; CONNECTIONS]) {
        // The first ones stay.
        let _is_first = self.engines.set(engines);
    }

    /// Stores what is in the queues until it is dropped; for ever without an engine.
    pub(crate) async fn run(&self) {
        let Some([one, other]) = self.engines.get() else {
            return std::future::pending().await;
        };
        let run = |at: usize, engine| {
            let engine: &Arc<dyn SharedEntries> = engine;
            self.queues[at].run(&**engine, &self.waiting, &self.counts, &self.clock)
        };
        let ((), ()) = futures_util::future::join(run(0, one), run(1, other)).await;
    }

    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    pub(super) fn journal(&self) -> &Journal {
        &self.journal
    }

    pub(super) const fn invalidated(&self) -> &InvalidatedKeys {
        &self.invalidated
    }

    pub(super) const fn counts(&self) -> &TierCounts {
        &self.counts
    }

    pub(super) const fn clock(&self) -> &Clock {
        &self.clock
    }

    pub(super) fn now(&self) -> Moment {
        self.clock.now()
    }

    /// Whether responses are looked up now: not while the replica is not in sync with the journal.
    pub(super) fn is_used(&self) -> bool {
        self.engines.get().is_some() && self.journal.is_in_sync()
    }

    /// The connection for an entry.
    pub(super) fn engine(&self, name: &EntryName) -> Option<&dyn SharedEntries> {
        let engines = self.engines.get()?;
        Some(&*engines[connection_of(name)])
    }

    pub(super) fn fill_wait(&self) -> Duration {
        Duration::from_millis(self.fill_wait.load(Relaxed))
    }

    /// How long a lock lasts, in milliseconds; 0 if fetches are not locked.
    pub(super) fn lock_ms(&self) -> u64 {
        match self.fill_wait() {
            Duration::ZERO => 0,
            wait => millis(wait + LOCK_MARGIN),
        }
    }

    /// The longest time that a look-up may take: the wait, one call before its end, and
    /// the opening of long values.
    pub(super) fn longest_wait(&self) -> Duration {
        let call = Duration::from_millis(self.timeout.load(Relaxed));
        self.fill_wait() + (call + OPENING_WAIT) * 5
    }

    /// Lets a request of a client wait for another replica's fetch, unless too many do.
    pub(super) fn follow(&self, client: Waiting) -> Option<ClientWait> {
        self.followers.begin(client, 1)
    }

    /// Lets it be looked up again for a queued request of a client, unless that is so for
    /// too many.
    pub(super) fn watch_queued(&self, client: Waiting) -> Option<ClientWait> {
        self.queued.begin(client, 1)
    }

    /// Waits until a value of so many bytes may be opened for a client; `None` if too many
    /// bytes wait, or for too long.
    pub(super) async fn open_long(&self, client: Waiting, bytes: usize) -> Option<LongValuePermit> {
        let wait = self.opening.begin(client, bytes)?;
        let permit = timeout(OPENING_WAIT, self.openers.clone().acquire_owned()).await;
        Some(LongValuePermit {
            _permit: permit.ok()?.ok()?,
            _wait: wait,
        })
    }

    /// Adds a job to the queue of its connection. Returns whether there was room.
    pub(super) fn submit(&self, job: PutJob) -> bool {
        let is_put = matches!(job, PutJob::Put(_));
        let queue = &self.queues[connection_of(job.name())];
        let has_room = queue.push(job, &self.waiting);
        if is_put && !has_room {
            count(&self.counts.dropped);
        }
        has_room
    }

    /// The tier now.
    pub(crate) fn snapshot(&self) -> TierSnapshot {
        let queued: usize = self.queues.iter().map(PutQueue::len).sum();
        self.counts.snapshot(self.is_used(), queued as u64)
    }
}

/// The number of the connection for an entry, by the last digit of its digest.
fn connection_of(name: &EntryName) -> usize {
    let digest = name.value.trim_end_matches('}');
    usize::from(digest.bytes().last().unwrap_or_default()) % CONNECTIONS
}
