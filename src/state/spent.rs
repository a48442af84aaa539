//! `spent.db`: what each provider key has spent of its budget.
//!
//! A request is sent after its row is committed, so that a process which is killed has
//! sent nothing that the next one does not know of. The log is not synced: the system has
//! what was committed, unless the machine stops. Then the boot is another one, and the
//! next process waits a window out, as after damage.
//!
//! Not covered: a disk on which a commit hangs until the process is killed, and which the
//! next process can use within a window.

mod journal;

use std::fs::File;
use std::path::Path;
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use journal::{Found, Journal};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::{StateError, access};
use crate::clock::Clock;

/// A digest of a provider key.
pub type KeyDigest = [u8; 32];

/// The longest time in milliseconds that a request counts: it may be under way for two minutes,
/// and counts for a window afterwards.
const LONGEST: i64 = 121_000;
/// What is waited out where it is not known what was spent, in milliseconds: a minute, and a
/// second for requests on their way when the last process ended.
const WINDOW: i64 = 61_000;
/// How long a commit may take.
const COMMIT: Duration = Duration::from_secs(1);
/// The most commands that wait.
const MOST_WAITING: usize = 4096;

/// What earlier processes have spent of a key's budget.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Earlier {
    /// How long ago the window of each request began. That of a request which was under
    /// way began when this process started.
    pub ages: Vec<Duration>,
    /// How long it is still not known what was spent; zero if it is known.
    pub unknown_for: Duration,
}

/// A request whose spending is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpentId {
    /// A random one.
    number: i64,
    key: KeyDigest,
}

/// What was spent. By default nothing is recorded.
#[derive(Clone, Default)]
pub struct Spent(Option<Arc<Handle>>);

struct Handle {
    commands: SyncSender<Command>,
    clock: Clock,
    earlier: Found,
    fault: Arc<Fault>,
    /// Also after a fault, when its thread has ended.
    _lock: Arc<File>,
}

/// Why it is not used any more.
type Fault = OnceLock<String>;

enum Command {
    /// A request is about to be sent; or its window begins, so many milliseconds after the
    /// boot. Who waits until that is committed, or the thread has stopped.
    Put(SpentId, Option<i64>, Option<oneshot::Sender<()>>),
    /// It was not sent.
    Remove(SpentId),
}

impl Spent {
    pub(super) fn open(path: &Path, lock: &Arc<File>, clock: &Clock) -> Result<Self, StateError> {
        let (journal, earlier) = Journal::open(path, &boot_id(), now(clock))?;
        let (commands, received) = mpsc::sync_channel(MOST_WAITING);
        let fault = Arc::new(Fault::new());
        let (own, clock_of_thread) = (Arc::clone(&fault), clock.clone());
        let started = thread::Builder::new().name("spent.db".to_owned());
        let lock_of_thread = lock.clone();
        let started = started.spawn(move || {
            let _lock = lock_of_thread;
            run(journal, &received, &own, &clock_of_thread);
        });
        started.map_err(|error| access(path, error))?;
        Ok(Self(Some(Arc::new(Handle {
            commands,
            clock: clock.clone(),
            earlier,
            fault,
            _lock: lock.clone(),
        }))))
    }

    /// What processes before this one have spent of a key's budget, as of now.
    pub fn earlier(&self, key: &KeyDigest) -> Earlier {
        let Some(handle) = &self.0 else {
            return Earlier::default();
        };
        let now = now(&handle.clock);
        let ended = handle.earlier.0.iter().filter(|(id, _)| id.key == *key);
        let ages = ended.map(|(_, at)| now - at);
        Earlier {
            ages: ages.filter(|age| *age < LONGEST).map(millis).collect(),
            unknown_for: handle.unknown_for(),
        }
    }

    /// Records that a request is about to be sent. It may be sent when the future has resolved,
    /// which takes a second at most; after that nothing is recorded any more. [`cancel`](Self::cancel)
    /// it if it is not sent.
    pub fn begin(&self, key: KeyDigest) -> (SpentId, impl Future<Output = ()> + use<>) {
        let handle = self.0.clone();
        let number = fastrand::i64(..);
        let id = SpentId { number, key };
        let (reply, committed) = oneshot::channel();
        self.send(Command::Put(id, None, Some(reply)));
        let committed = async move {
            let fault = handle.as_ref().map(|handle| &handle.fault);
            let fault = fault.filter(|fault| fault.get().is_none());
            if let Some(fault) = fault
                && timeout(COMMIT, committed).await.is_err()
            {
                stop_recording(fault, "a commit took more than a second");
            }
        };
        (id, committed)
    }

    /// The window of a request begins now: with the head of its answer, or with its end if
    /// none came.
    pub fn end(&self, id: SpentId) {
        let now = self.0.as_ref().map(|handle| now(&handle.clock));
        self.send(Command::Put(id, now, None));
    }

    /// A request was never sent.
    pub fn cancel(&self, id: SpentId) {
        self.send(Command::Remove(id));
    }

    /// Also after a fault: whatever comes next wakes the thread, which then ends.
    fn send(&self, command: Command) {
        if let Some(handle) = &self.0
            && let Err(TrySendError::Full(_)) = handle.commands.try_send(command)
        {
            stop_recording(&handle.fault, "its queue is full");
        }
    }

    /// For `/status` and metrics: for how many seconds it is still not known what was spent
    /// before the start, and why nothing is recorded until a restart.
    pub fn snapshot(&self) -> Option<Value> {
        let handle = self.0.as_deref()?;
        Some(json!({
            "unknown_seconds": handle.unknown_for().as_secs_f64(),
            "fault": handle.fault.get(),
        }))
    }
}

impl Handle {
    fn unknown_for(&self) -> Duration {
        millis(self.earlier.1 - now(&self.clock))
    }
}

fn stop_recording(fault: &Fault, error: impl ToString) {
    let error = error.to_string();
    if fault.set(error.clone()).is_ok() {
        tracing::error!(
            error,
            "spent.db is not written until ordgate is restarted; after that it waits a window before it sends requests"
        );
    }
}

/// Milliseconds since the boot.
fn now(clock: &Clock) -> i64 {
    i64::try_from(clock.since_boot().as_millis()).unwrap_or(i64::MAX)
}

/// So many milliseconds, if any.
fn millis(time: i64) -> Duration {
    Duration::from_millis(u64::try_from(time).unwrap_or(0))
}

/// The id of the machine's present boot. Where it cannot be read, each process has one of
/// its own.
fn boot_id() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    id.unwrap_or_else(|error| {
        tracing::warn!(%error, "the boot id cannot be read: after each start ordgate waits a window before it sends requests");
        format!("{:x}", fastrand::u128(..))
    })
    .trim()
    .to_owned()
}

/// The thread.
fn run(mut journal: Journal, commands: &Receiver<Command>, fault: &Fault, clock: &Clock) {
    for command in commands {
        if let Err(error) = journal.write(&command, now(clock)) {
            stop_recording(fault, error);
        }
        if fault.get().is_some() {
            if let Err(error) = journal.spoil() {
                tracing::error!(%error, "spent.db cannot be marked either: do not restart ordgate within a minute");
            }
            return;
        }
        if let Command::Put(_, _, Some(committed)) = command {
            // Whoever waited may have gone.
            let _gone = committed.send(());
        }
    }
}

#[cfg(test)]
mod tests;
