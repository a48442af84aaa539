//! `answers.db`: stored responses, and the hashes of known blocks.
//!
//! One thread has the connection, and takes commands in the order in which they were
//! given. Look-ups, and responses to be stored, wait in a bounded queue: what does not fit
//! is a miss, or is dropped. A purge is in the database, on the disk, before it is
//! acknowledged; if it cannot be, the database is removed.

mod table;

use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

use rusqlite::ErrorCode;
use serde::Serialize;
use table::AnswersTable;
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::directory::{Lock, access};
use super::value::Value;
use super::{Settings, StateError, database};
use crate::clock::Clock;

/// How long a look-up may take. In unit tests, a busy machine makes no miss of an answer.
const LOOK_UP: Duration = Duration::from_millis(if cfg!(test) { 60_000 } else { 100 });
/// How long a purge may take, or what is read once at a start.
const PURGE: Duration = Duration::from_secs(10);
/// The most commands that wait, and the most bytes of bodies in them.
const MOST_COMMANDS: u64 = 1024;
const MOST_BYTES: u64 = 16 << 20;

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
    /// All responses of the route of this name.
    Route(String),
    /// One target of a route.
    Target {
        /// The name of the route.
        route: String,
        /// The canonical target, query included.
        target: String,
    },
    /// All targets of a route that begin so.
    Prefix {
        /// The name of the route.
        route: String,
        /// Their beginning.
        prefix: String,
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

/// The hash of a block at a height.
pub type BlockHash = (u32, [u8; 32]);

/// The stored responses. By default nothing is stored.
#[derive(Clone, Default)]
pub struct Answers(Option<Arc<Handle>>);

struct Handle {
    commands: mpsc::Sender<Command>,
    counts: Arc<Counts>,
    clock: Clock,
    path: PathBuf,
    max_bytes: u64,
}

/// What the callers and the thread share.
#[derive(Default)]
struct Counts {
    waiting: AtomicU64,
    waiting_bytes: AtomicU64,
    bytes: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
    dropped: AtomicU64,
    /// Why it is not used any more.
    fault: OnceLock<String>,
}

enum Command {
    LookUp(RowKey, u64, oneshot::Sender<Value>),
    Put(Box<Row>),
    Purge(Vec<PurgeRows>, u64, oneshot::Sender<Result<(), StateError>>),
    Blocks(Arc<str>, oneshot::Sender<Vec<BlockHash>>),
    PutBlocks(Arc<str>, Vec<BlockHash>, u64),
    Generation(oneshot::Sender<Option<(u64, u64)>>),
    SetGeneration((u64, u64)),
}

/// The stored responses for `/status` and metrics.
#[derive(Clone, Debug, Serialize)]
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
        clock: &Clock,
        lock: &Lock,
    ) -> Result<Self, StateError> {
        let path = settings.path.join("answers.db");
        let table = AnswersTable::open(&path, settings.max_bytes)?;
        let (commands, received) = mpsc::channel();
        let counts = Arc::new(Counts::default());
        counts.bytes.store(table.used(), Relaxed);
        let worker = Worker {
            table: Some(table),
            path: path.clone(),
            max_bytes: settings.max_bytes,
            counts: Arc::clone(&counts),
            last_purge: 0,
            _lock: Arc::clone(lock),
        };
        let started = thread::Builder::new().name("answers.db".to_owned());
        let started = started.spawn(move || worker.run(&received));
        started.map_err(|error| access(&path, error))?;
        Ok(Self(Some(Arc::new(Handle {
            commands,
            counts,
            clock: clock.clone(),
            path,
            max_bytes: settings.max_bytes,
        }))))
    }

    /// Whether responses are stored.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// The response that is stored under a key, if it is found within 100 ms.
    pub async fn look_up(&self, key: RowKey) -> Option<Value> {
        let handle = self.0.as_deref()?;
        let (reply, found) = oneshot::channel();
        let now = handle.now();
        if handle.send_if_room(Command::LookUp(key, now, reply), 0) {
            let found = timeout(LOOK_UP, found).await;
            if let Some(value) = found.ok().and_then(Result::ok) {
                handle.counts.hits.fetch_add(1, Relaxed);
                return Some(value);
            }
        }
        handle.counts.misses.fetch_add(1, Relaxed);
        None
    }

    /// Stores a response in place of what is stored under its key, unless too many wait
    /// to be stored.
    pub fn put(&self, row: Row) {
        if let Some(handle) = &self.0 {
            let bytes = row.value.body.len() as u64;
            if !handle.send_if_room(Command::Put(Box::new(row)), bytes) {
                handle.counts.dropped.fetch_add(1, Relaxed);
            }
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
            handle.send(Command::Purge(rows, number, reply));
        }
        async move {
            let Some(handle) = handle else {
                return Ok(());
            };
            match timeout(PURGE, done).await {
                Ok(Ok(result)) => result,
                Ok(Err(_)) | Err(_) => {
                    let error = "a purge was not done within ten seconds".to_owned();
                    fault(&handle.counts, error.clone());
                    let path = handle.path.clone();
                    Err(StateError::Purge { path, error })
                }
            }
        }
    }

    /// The known blocks of a tip, in ascending order. None where they cannot be read:
    /// stored responses that name a block above the highest of these are not known to
    /// stand.
    pub async fn blocks(&self, tip: &Arc<str>) -> Vec<BlockHash> {
        let read = self.read(|reply| Command::Blocks(Arc::clone(tip), reply));
        read.await.unwrap_or_default()
    }

    /// Adds known blocks of a tip, as they were known when the purge `purge` was the last.
    pub fn put_blocks(&self, tip: &Arc<str>, blocks: Vec<BlockHash>, purge: u64) {
        if let Some(handle) = &self.0 {
            let bytes = (blocks.len() * size_of::<BlockHash>()) as u64;
            handle.send_if_room(Command::PutBlocks(Arc::clone(tip), blocks, purge), bytes);
        }
    }

    /// The engine's life, and the number of the last purge of all replicas that was applied
    /// here, if they are known.
    pub async fn generation(&self) -> Option<(u64, u64)> {
        self.read(Command::Generation).await.flatten()
    }

    /// Sets both, once that purge is applied here.
    pub fn set_generation(&self, life: u64, number: u64) {
        if let Some(handle) = &self.0 {
            handle.send(Command::SetGeneration((life, number)));
        }
    }

    async fn read<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Option<T> {
        let (reply, read) = oneshot::channel();
        self.0.as_deref()?.send(command(reply));
        timeout(PURGE, read).await.ok()?.ok()
    }

    /// For `/status` and metrics; `None` where nothing is stored.
    pub fn snapshot(&self) -> Option<AnswersSnapshot> {
        let handle = self.0.as_deref()?;
        let counts = &*handle.counts;
        Some(AnswersSnapshot {
            bytes: counts.bytes.load(Relaxed),
            max_bytes: handle.max_bytes,
            hits: counts.hits.load(Relaxed),
            misses: counts.misses.load(Relaxed),
            dropped: counts.dropped.load(Relaxed),
            fault: counts.fault.get().cloned(),
        })
    }
}

impl Handle {
    /// Milliseconds since 1970.
    fn now(&self) -> u64 {
        let now = self.clock.wall(self.clock.now());
        let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    fn send(&self, command: Command) {
        self.counts.waiting.fetch_add(1, Relaxed);
        // The thread ends when this is dropped.
        let _sent = self.commands.send(command);
    }

    fn send_if_room(&self, command: Command, bytes: u64) -> bool {
        let counts = &*self.counts;
        let is_full = counts.waiting.load(Relaxed) >= MOST_COMMANDS
            || counts.waiting_bytes.load(Relaxed) + bytes > MOST_BYTES;
        if is_full || counts.fault.get().is_some() {
            return false;
        }
        counts.waiting_bytes.fetch_add(bytes, Relaxed);
        self.send(command);
        true
    }
}

/// From now on the database is not used.
fn fault(counts: &Counts, error: String) {
    if counts.fault.set(error.clone()).is_ok() {
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
    max_bytes: u64,
    counts: Arc<Counts>,
    last_purge: u64,
    /// Until the connection is closed.
    _lock: Lock,
}

impl Worker {
    fn run(mut self, commands: &Receiver<Command>) {
        while let Ok(command) = commands.recv() {
            self.counts.waiting.fetch_sub(1, Relaxed);
            if self.counts.fault.get().is_some() && self.table.is_some() {
                self.give_up();
            }
            let done = match (command, &mut self.table) {
                (Command::Purge(rows, number, reply), _) => {
                    self.last_purge = self.last_purge.max(number);
                    // Whoever waited may have gone, here and below.
                    let _gone = reply.send(self.purge(&rows));
                    Ok(())
                }
                (command, Some(table)) => apply(table, command, self.last_purge, &self.counts),
                (_, None) => Ok(()),
            };
            if let Err(error) = done {
                self.mend(&error);
            }
            let used = self.table.as_ref().map_or(0, AnswersTable::used);
            self.counts.bytes.store(used, Relaxed);
        }
    }

    /// Begins a damaged database anew; after any other error it is not used any more.
    fn mend(&mut self, error: &rusqlite::Error) {
        let damage = [ErrorCode::DatabaseCorrupt, ErrorCode::NotADatabase];
        let is_damaged = error
            .sqlite_error_code()
            .is_some_and(|code| damage.contains(&code));
        if is_damaged && self.renew().is_ok() {
            tracing::error!(%error, "answers.db is damaged, and is begun anew");
        } else {
            fault(&self.counts, error.to_string());
            self.give_up();
        }
    }

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
        fault(&self.counts, error);
        self.give_up();
        database::remove(&self.path).map_err(|error| StateError::Purge {
            path: self.path.clone(),
            error: error.to_string(),
        })
    }

    /// Begins the database anew. If it is not used any more, it is only removed.
    fn renew(&mut self) -> Result<(), String> {
        let was_used = self.table.take().is_some();
        database::remove(&self.path).map_err(|error| error.to_string())?;
        if was_used {
            let table = AnswersTable::open(&self.path, self.max_bytes);
            self.table = Some(table.map_err(|error| error.to_string())?);
        }
        Ok(())
    }

    fn give_up(&mut self) {
        self.table = None;
        // If it stays, each purge tries again, and says if that fails.
        let _removed = database::remove(&self.path);
    }
}

fn apply(
    table: &mut AnswersTable,
    command: Command,
    last_purge: u64,
    counts: &Counts,
) -> rusqlite::Result<()> {
    match command {
        Command::LookUp(key, now, reply) => {
            if !reply.is_closed()
                && let Some(value) = table.look_up(&key, now)?
            {
                let _gone = reply.send(value);
            }
        }
        Command::Put(row) => {
            let bytes = row.value.body.len() as u64;
            counts.waiting_bytes.fetch_sub(bytes, Relaxed);
            if row.purge < last_purge || !table.put(&row)? {
                counts.dropped.fetch_add(1, Relaxed);
            }
        }
        Command::Blocks(tip, reply) => {
            let _gone = reply.send(table.blocks(&tip)?);
        }
        Command::PutBlocks(tip, blocks, purge) => {
            let bytes = (blocks.len() * size_of::<BlockHash>()) as u64;
            counts.waiting_bytes.fetch_sub(bytes, Relaxed);
            if purge >= last_purge {
                table.put_blocks(&tip, &blocks)?;
            }
        }
        Command::Generation(reply) => {
            let _gone = reply.send(table.generation()?);
        }
        Command::SetGeneration(generation) => table.set_generation(generation)?,
        Command::Purge(..) => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests;
