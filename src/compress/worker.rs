//! The thread that compresses. It is started when there is a body to compress, and
//! ends when there has been none for a while.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::CompressionCounts;
use super::encode::{Effort, encode};
use super::queue::{BODIES, Job, Queue};
use crate::cache::coding::Coding;
use crate::cache::encodings::{Encoded, EncodedBody};
use crate::identify::Client;
use crate::sync::lock;

/// How much the thread yields to those that answer requests, as for `nice`.
const NICENESS: i32 = 10;

/// How long the thread waits for the next body before it ends.
const LINGER: Duration = Duration::from_secs(1);

/// Compresses stored bodies, one at a time.
pub(crate) struct Compressor {
    state: Mutex<State>,
    added: Condvar,
    counts: CompressionCounts,
    /// The bytes of all encoded bodies in memory.
    held: Arc<AtomicU64>,
    encode: Encode,
}

/// Encodes a body. Another one in tests.
type Encode = fn(&[u8], Coding, Effort) -> io::Result<Vec<u8>>;

struct State {
    queue: Queue<Job>,
    has_thread: bool,
}

impl Default for Compressor {
    fn default() -> Self {
        Self::with(encode)
    }
}

impl Default for State {
    fn default() -> Self {
        Self {
            queue: Queue::new(BODIES),
            has_thread: false,
        }
    }
}

impl Compressor {
    fn with(encode: Encode) -> Self {
        Self {
            state: Mutex::default(),
            added: Condvar::default(),
            counts: CompressionCounts::default(),
            held: Arc::default(),
            encode,
        }
    }

    /// Has a body compressed, if there is room in the queue. Never waits.
    pub(super) fn submit(self: &Arc<Self>, job: Job, client: Client) {
        let mut state = self.state();
        let refused = state.queue.push_fairly(client, job);
        self.wake(state);
        if let Some(refused) = refused {
            self.counts.skipped[refused.coding.index()].fetch_add(1, Relaxed);
        }
    }

    /// Has the thread look at the queue. Starts it where there is none.
    fn wake(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        if state.has_thread {
            self.added.notify_one();
            return;
        }
        let worker = Worker(self.clone());
        let thread = thread::Builder::new().name("ordgate-compress".to_owned());
        match thread.spawn(move || worker.run()) {
            Ok(_detached) => state.has_thread = true,
            Err(error) => {
                tracing::warn!(%error, "no thread to compress with: bodies are sent as they are");
                // The next body tries again.
                let refused = std::mem::replace(&mut state.queue, Queue::new(BODIES));
                drop(state);
                drop(refused);
            }
        }
    }

    /// What came of compressing.
    pub(crate) fn counts(&self) -> &CompressionCounts {
        &self.counts
    }

    /// The bytes of all encoded bodies in memory.
    pub(crate) fn held(&self) -> u64 {
        self.held.load(Relaxed)
    }

    /// How many bodies wait to be compressed.
    pub(crate) fn waiting(&self) -> usize {
        self.state().queue.len()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The next body; `None` where there is none for a while.
    fn next(&self) -> Option<Job> {
        let mut state = self.state();
        loop {
            if let Some(job) = state.queue.pop() {
                return Some(job);
            }
            let waited = self.added.wait_timeout(state, LINGER);
            let (again, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = again;
            if timeout.timed_out() && state.queue.len() == 0 {
                // Under the lock: whoever adds a job from here on starts a thread.
                state.has_thread = false;
                return None;
            }
        }
    }

    /// Compresses a body, and puts the result beside the stored response.
    fn compress(&self, job: &Job) {
        let at = job.coding.index();
        let Some(body) = job.store.body_of(&job.key, &job.slots) else {
            self.counts.overtaken[at].fetch_add(1, Relaxed);
            return;
        };
        let encode = || (self.encode)(&body, job.coding, job.effort);
        // A codec that panics on a body would do so each time.
        let panicked = |_payload| Err(io::Error::other("the codec panicked"));
        let encoded = match catch_unwind(AssertUnwindSafe(encode)).unwrap_or_else(panicked) {
            Ok(encoded) if encoded.len() < body.len() => {
                let bytes = encoded.into_boxed_slice();
                Encoded::Body(Arc::new(EncodedBody::new(bytes, &self.held)))
            }
            Ok(_not_smaller) => Encoded::NotWorthwhile,
            Err(error) => {
                let coding = job.coding.name();
                tracing::warn!(%error, coding, "a body could not be compressed");
                Encoded::NotWorthwhile
            }
        };
        match job.store.attach(&job.key, &job.slots, job.coding, encoded) {
            Some(Encoded::Body(encoded)) => {
                self.counts
                    .count_made(job.coding, body.len(), encoded.len());
            }
            Some(Encoded::NotWorthwhile) => {
                self.counts.not_worthwhile[at].fetch_add(1, Relaxed);
            }
            None => {
                self.counts.overtaken[at].fetch_add(1, Relaxed);
            }
        }
    }
}

/// The thread's hold on the compressor. Where it panics, the next body starts
/// another.
struct Worker(Arc<Compressor>);

impl Worker {
    fn run(&self) {
        if let Err(error) = rustix::process::nice(NICENESS) {
            tracing::debug!(%error, "the thread that compresses keeps its priority");
        }
        while let Some(job) = self.0.next() {
            self.0.compress(&job);
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.state().has_thread = false;
        }
    }
}

#[cfg(test)]
mod tests;
