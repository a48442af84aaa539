//! `answers.db`: stored responses, and the hashes of known blocks.
//!
//! One thread has the connection, and takes commands in the order in which they were
//! given. Look-ups, and responses to be stored, wait in a bounded queue: what does not fit
//! is a miss, or is dropped. A purge is in the database, on the disk, before it is
//! acknowledged; if it cannot be, the database is removed.

mod table;

use std::fmt::Display;
use std::fs::File;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

use rusqlite::ErrorCode;
use serde::Serialize;
use table::AnswersTable;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

use super::value::Value;
use super::{Settings, StateError, access, database};
use crate::clock::Clock;
use crate::sync::lock;

/// How long a look-up may take. In unit tests, a busy machine makes no miss of an answer.
const LOOK_UP: Duration = Duration::from_millis(if cfg!(test) { 60_000 } else { 100 });
/// How long a purge may take, or what is read once at a start.
const PURGE: Duration = Duration::from_secs(10);
/// The most bytes of bodies that wait, and what a command counts at least: of 1,024 commands.
const MOST_BYTES: usize = 16 << 20;
const LEAST_BYTES: usize = 16 << 10;

/// What a stored response is found by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowKey {
    /// The name of its route.
    pub route: Arc<str>,
    /// A digest of all that the route's answers depend on, for readers in hexadecimal.
    /// What was stored with another one is not found.
    pub config: Arc<str>,
    /// The canonical target.
    pub target: String,
}

/// A response to be stored.
#[derive(Clone, Debug)]
pub struct Row {
    /// What it is found by.
    pub key: RowKey,
    /// A digest of its tip, on a route in mode `chain`.
    pub tip: Option<Arc<str>>,
    /// When it is of no use any more, not even stale: in milliseconds since 1970.
    pub expires: u64,
    /// The number of the last purge when its request was sent. It is not stored if a
    /// purge with a later number has come.
    pub purge: u64,
    /// The response.
    pub value: Value,
}

/// What to purge. What none of these says is purged by [`All`](Self::All).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PurgeRows {
    /// Everything, known blocks too.
    All,
    /// The responses of a route whose targets lie in a range.
    Targets {
        /// The name of the route.
        route: String,
        /// The lowest canonical target, query included, and the highest.
        range: RangeInclusive<String>,
    },
    /// Responses that name a block between two heights, both included, and these blocks.
    Heights {
        /// The digest of the tip whose blocks are meant; `None` for any.
        tip: Option<Arc<str>>,
        /// The lowest height.
        from: u32,
        /// The highest height.
        to: u32,
    },
}

impl PurgeRows {
    /// The responses of a route whose targets begin so.
    pub fn below(route: String, prefix: String) -> Self {
        // No target, which is ASCII, is above this and begins so.
        let end = format!("{prefix}\u{10ffff}");
        let range = prefix..=end;
        Self::Targets { route, range }
    }
}

/// The hash of a block at a height.
pub type BlockHash = (u32, [u8; 32]);

/// The stored responses. By default nothing is stored.
#[derive(Clone, Default)]
pub struct Answers(Option<Arc<Handle>>);

struct Handle {
    jobs: mpsc::Sender<Job>,
    shown: Arc<Mutex<AnswersSnapshot>>,
    /// The bytes that may still wait.
    room: Arc<Semaphore>,
    clock: Clock,
    path: PathBuf,
}

/// What the thread does.
type Job = Box<dyn FnOnce(&mut Worker) + Send>;

/// The stored responses for `/status` and metrics.
#[derive(Clone, Debug, Default, Serialize)]
pub struct AnswersSnapshot {
    /// The bytes in use.
    pub bytes: u64,
    /// The most bytes.
    pub max_bytes: u64,
    /// Look-ups that found a response.
    pub hits: u64,
    /// Look-ups that found none in time.
    pub misses: u64,
    /// Responses that were not stored: the queue was full, or they were purged meanwhile.
    pub dropped: u64,
    /// Why the database is not used until a restart.
    pub fault: Option<String>,
}

impl Answers {
    pub(super) fn open(
        settings: &Settings,
        lock: &Arc<File>,
        clock: &Clock,
    ) -> Result<Self, StateError> {
        let path = settings.path.join("answers.db");
        let table = AnswersTable::open(&path, settings.max_bytes)?;
        let (jobs, received) = mpsc::channel::<Job>();
        let shown = Arc::new(Mutex::new(AnswersSnapshot {
            bytes: table.used(),
            max_bytes: settings.max_bytes,
            ..AnswersSnapshot::default()
        }));
        let worker = Worker {
            table: Some(table),
            path: path.clone(),
            shown: shown.clone(),
            last_purge: 0,
        };
        let started = thread::Builder::new().name("answers.db".to_owned());
        let lock = lock.clone();
        let started = started.spawn(move || {
            // The database is closed first.
            let (_lock, mut worker) = (lock, worker);
            for job in received {
                worker.run(job);
            }
        });
        started.map_err(|error| access(&path, error))?;
        Ok(Self(Some(Arc::new(Handle {
            jobs,
            shown,
            room: Arc::new(Semaphore::new(MOST_BYTES)),
            clock: clock.clone(),
            path,
        }))))
    }

    /// Whether responses are stored.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// The response that is stored under a key, if it is found within 100 ms.
    pub async fn look_up(&self, key: RowKey) -> Option<Value> {
        let handle = self.0.as_deref()?;
        let now = handle.clock.wall_now();
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let found = handle.read(LOOK_UP, move |table| table.look_up(&key, now));
        let found = found.await.flatten();
        let mut shown = lock(&handle.shown);
        match found {
            Some(_) => shown.hits += 1,
            None => shown.misses += 1,
        }
        found
    }

    /// Stores a response in place of what is stored under its key, unless too many wait
    /// to be stored.
    pub fn put(&self, row: Row) {
        let Some(handle) = &self.0 else {
            return;
        };
        let shown = handle.shown.clone();
        let is_sent = handle.send(row.value.body.len(), move |table, last_purge| {
            if row.purge < last_purge || !table.put(&row)? {
                lock(&shown).dropped += 1;
            }
            Ok(())
        });
        if !is_sent {
            lock(&handle.shown).dropped += 1;
        }
    }

    /// Removes responses. Those that are to be stored and whose purge number is below
    /// `number` are not stored any more, whatever they are. It is under way when this
    /// returns, and on disk when what is returned has resolved.
    pub fn purge(
        &self,
        rows: Vec<PurgeRows>,
        number: u64,
    ) -> impl Future<Output = Result<(), StateError>> + use<> {
        let (reply, done) = oneshot::channel();
        let handle = self.0.clone();
        if let Some(handle) = &handle {
            handle.run(move |worker| {
                worker.last_purge = worker.last_purge.max(number);
                // Whoever waited may have gone.
                let _gone = reply.send(worker.purge(&rows));
            });
        }
        async move {
            let Some(handle) = handle else {
                return Ok(());
            };
            match timeout(PURGE, done).await {
                Ok(Ok(result)) => result,
                Ok(Err(_)) | Err(_) => {
                    let error = "a purge was not done within ten seconds";
                    fault(&handle.shown, error);
                    Err(not_purged(&handle.path, error))
                }
            }
        }
    }

    /// The known blocks of a tip, in ascending order. None where they cannot be read:
    /// stored responses that name a block above the highest of these are not known to
    /// stand.
    pub async fn blocks(&self, tip: &Arc<str>) -> Vec<BlockHash> {
        let (Some(handle), tip) = (&self.0, tip.clone()) else {
            return Vec::new();
        };
        let read = handle.read(PURGE, move |table| table.blocks(&tip));
        read.await.unwrap_or_default()
    }

    /// Adds known blocks of a tip, as they were known when the purge `purge` was the last.
    pub fn put_blocks(&self, tip: &Arc<str>, blocks: Vec<BlockHash>, purge: u64) {
        let (Some(handle), tip) = (&self.0, tip.clone()) else {
            return;
        };
        // Where it is not sent, what names these blocks is not known to stand.
        handle.send(size_of_val(&*blocks), move |table, last_purge| {
            match purge < last_purge {
                true => Ok(()),
                false => table.put_blocks(&tip, &blocks),
            }
        });
    }

    /// The engine's life, and the number of the last purge of all replicas that was applied
    /// here, if they are known.
    pub async fn generation(&self) -> Option<(u64, u64)> {
        let handle = self.0.as_deref()?;
        handle
            .read(PURGE, |table| table.generation())
            .await
            .flatten()
    }

    /// Sets both, once that purge is applied here.
    pub fn set_generation(&self, life: u64, number: u64) {
        if let Some(handle) = &self.0 {
            // Where it is not sent, an earlier one stays: more is purged at the next start.
            handle.send(0, move |table, _| table.set_generation((life, number)));
        }
    }

    /// For `/status` and metrics; `None` where nothing is stored.
    pub fn snapshot(&self) -> Option<AnswersSnapshot> {
        let handle = self.0.as_deref()?;
        Some(lock(&handle.shown).clone())
    }
}

impl Handle {
    fn run(&self, job: impl FnOnce(&mut Worker) + Send + 'static) {
        // The thread ends when this is dropped.
        let _sent = self.jobs.send(Box::new(job));
    }

    /// Gives the thread something to do with the tables, and with the number of the last purge;
    /// it keeps so many bytes until it is done. `false` if too much waits, or the database is
    /// not used any more.
    fn send(
        &self,
        bytes: usize,
        act: impl FnOnce(&mut AnswersTable, u64) -> rusqlite::Result<()> + Send + 'static,
    ) -> bool {
        let bytes = u32::try_from(bytes.max(LEAST_BYTES)).unwrap_or(u32::MAX);
        let room = self.room.clone().try_acquire_many_owned(bytes);
        let Some(room) = room.ok().filter(|_| lock(&self.shown).fault.is_none()) else {
            return false;
        };
        self.run(move |worker| {
            let done = match &mut worker.table {
                Some(table) => act(table, worker.last_purge),
                None => Ok(()),
            };
            if let Err(error) = done {
                worker.mend(&error);
            }
            drop(room);
        });
        true
    }

    /// What is read within a time.
    async fn read<T: Send + 'static>(
        &self,
        limit: Duration,
        read: impl FnOnce(&mut AnswersTable) -> rusqlite::Result<T> + Send + 'static,
    ) -> Option<T> {
        let (reply, found) = oneshot::channel();
        let is_sent = self.send(0, move |table, _| {
            if !reply.is_closed() {
                // Whoever waited may have gone.
                let _gone = reply.send(read(table)?);
            }
            Ok(())
        });
        match is_sent {
            true => timeout(limit, found).await.ok()?.ok(),
            false => None,
        }
    }
}

/// What was purged may come back after a restart.
fn not_purged(path: &Path, error: impl Display) -> StateError {
    StateError(format!(
        "the purge is not on disk: {error}; stop ordgate and delete {}",
        path.display()
    ))
}

/// From now on the database is not used.
fn fault(shown: &Mutex<AnswersSnapshot>, error: &str) {
    let mut shown = lock(shown);
    if shown.fault.is_none() {
        shown.fault = Some(error.to_owned());
        tracing::error!(
            error,
            "nothing is stored on disk until ordgate is restarted: answers.db cannot be used"
        );
    }
}

/// The thread.
struct Worker {
    /// The database, until an error.
    table: Option<AnswersTable>,
    path: PathBuf,
    shown: Arc<Mutex<AnswersSnapshot>>,
    last_purge: u64,
}

impl Worker {
    fn run(&mut self, job: Job) {
        if lock(&self.shown).fault.is_some() {
            self.table = None;
        }
        job(self);
        let used = self.table.as_ref().map_or(0, AnswersTable::used);
        lock(&self.shown).bytes = used;
    }

    /// Begins a damaged database anew; after any other error it is not used any more.
    fn mend(&mut self, error: &rusqlite::Error) {
        let damage = [ErrorCode::DatabaseCorrupt, ErrorCode::NotADatabase];
        let code = error.sqlite_error_code();
        if code.is_some_and(|code| damage.contains(&code)) && self.renew().is_ok() {
            tracing::error!(%error, "answers.db is damaged, and is begun anew");
            return;
        }
        fault(&self.shown, &error.to_string());
        self.table = None;
        // If it stays, each purge tries again, and says if that fails.
        let _removed = database::remove(&self.path);
    }

    /// Deletes rows, or else all: a database that is not used any more is removed.
    fn purge(&mut self, rows: &[PurgeRows]) -> Result<(), StateError> {
        let purged = match &mut self.table {
            Some(table) if !rows.contains(&PurgeRows::All) => {
                table.purge(rows).map_err(|error| error.to_string())
            }
            _ => self.renew(),
        };
        let Err(error) = purged else {
            return Ok(());
        };
        fault(&self.shown, &error);
        self.table = None;
        database::remove(&self.path).map_err(|error| not_purged(&self.path, error))
    }

    /// Begins the database anew. If it is not used any more, it is only removed.
    fn renew(&mut self) -> Result<(), String> {
        let was_used = self.table.take().is_some();
        database::remove(&self.path).map_err(|error| error.to_string())?;
        if was_used {
            let most = lock(&self.shown).max_bytes;
            let table = AnswersTable::open(&self.path, most);
            self.table = Some(table.map_err(|error| error.to_string())?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
