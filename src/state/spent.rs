//! `spent.db`: what each provider key has spent of its budget.
//!
//! A request is sent after its row is committed, so that a process which is killed has
//! sent nothing that the next one does not know of. The log is not synced: the system has
//! what was committed, unless the machine stops. Then the boot is another one, and the
//! next process waits a window out, as after damage.
//!
//! Damage must not make a request uncounted. Each row has a CRC, SQLite checks the
//! structure when the database is opened, and the log must have as many frames as its
//! length says. To know that length, the log is only ever emptied, never begun anew in its
//! place.
//!
//! Not covered: a disk on which a commit hangs until the process is killed, and which the
//! next process can use within a window; a log that someone removes, or cuts where a
//! transaction ends, without restarting the machine.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, params};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::database::{self, OpenError};
use super::value::crc;
use super::{StateError, access};
use crate::clock::Clock;

/// A digest of a provider key.
pub type KeyDigest = [u8; 32];

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
        let (own, clock_of_thread) = (fault.clone(), clock.clone());
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
            ages: ages.filter(|age| *age < WINDOW).map(millis).collect(),
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
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id");
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

const TABLES: &str = "
CREATE TABLE run (
    boot TEXT NOT NULL, -- the boot id of the machine
    unknown_until INTEGER NOT NULL, -- until then it is not known what was spent before
    crc INTEGER NOT NULL
);
CREATE TABLE spent (
    id INTEGER PRIMARY KEY,
    key BLOB NOT NULL, -- a digest of the provider key
    at INTEGER, -- when its window began, in milliseconds since the boot; NULL while it is under way
    crc INTEGER NOT NULL
);";

/// The most transactions in the log before it is emptied.
const MOST_WRITTEN: u64 = 128;
/// The bytes of a frame of the log, and of what precedes all.
const FRAME: u64 = 24 + 4096;
const LOG_HEAD: u64 = 32;

struct Journal {
    database: Connection,
    path: PathBuf,
    /// How many transactions are in the log.
    written: u64,
}

/// What was read at the start, in milliseconds since the boot: when windows began, in ascending
/// order, and until when it is not known what was spent.
type Found = (Vec<(SpentId, i64)>, i64);

impl Journal {
    /// Opens the database; begins it anew where it is absent or unusable.
    fn open(path: &Path, boot: &str, now: i64) -> Result<(Self, Found), StateError> {
        let check = |database: &mut Connection| {
            database.pragma_update(None, "synchronous", "OFF")?;
            database.pragma_update(None, "wal_autocheckpoint", 0)?;
            // Its length while nobody else has it open, and nothing is written yet.
            let log = fs::metadata(database::with_suffix(path, "-wal"));
            let log = log.map_or(0, |log| log.len());
            let checkpoint = "PRAGMA wal_checkpoint(PASSIVE)";
            let frames: u32 = database.query_row(checkpoint, [], |row| row.get(1))?;
            let is_whole = log == 0 || u64::from(frames) * FRAME + LOG_HEAD == log;
            if !is_whole {
                return Err(unusable("its log is damaged"));
            }
            let check: String =
                database.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
            if check != "ok" {
                return Err(unusable(&check));
            }
            let found = read(database, boot, now)?;
            database::empty_log(database)?;
            Ok(found)
        };
        let new = |was_there: bool| {
            let unknown_until = if was_there { now + WINDOW } else { 0 };
            if was_there {
                tracing::warn!(
                    "it is not known what was spent before: no request is sent to an upstream with a budget for {} s",
                    WINDOW / 1000
                );
            }
            let crc = crc_of_run(boot, unknown_until);
            format!("{TABLES} INSERT INTO run VALUES ('{boot}', {unknown_until}, {crc})")
        };
        let (database, found) = database::open(path, check, new)?;
        let journal = Self {
            database,
            path: path.into(),
            written: 0,
        };
        Ok((journal, found))
    }

    /// Writes a command; it is committed when this returns.
    fn write(&mut self, command: &Command, now: i64) -> rusqlite::Result<()> {
        match command {
            Command::Put(id, at, _) => put(&self.database, *id, *at)?,
            Command::Remove(id) => {
                let delete = "DELETE FROM spent WHERE id = ?1";
                let mut delete = self.database.prepare_cached(delete)?;
                delete.execute([id.number])?;
            }
        }
        self.written += 1;
        if self.written >= MOST_WRITTEN {
            self.written = 0;
            let old = now - WINDOW;
            self.database
                .execute("DELETE FROM spent WHERE at < ?1", [old])?;
            database::empty_log(&self.database)?;
        }
        Ok(())
    }

    /// Leaves the database unreadable: it is not known what is spent from now on.
    fn spoil(self) -> io::Result<()> {
        // Closing it must not write the log into the file then.
        let no_checkpoint = DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE;
        let is_set = self.database.set_db_config(no_checkpoint, true);
        is_set.map_err(io::Error::other)?;
        database::spoil(&self.path)
    }
}

fn unusable(why: &str) -> OpenError {
    OpenError::Unusable(why.to_owned())
}

/// Records a request: under way, or since when its window has run.
fn put(database: &Connection, id: SpentId, at: Option<i64>) -> rusqlite::Result<()> {
    let put = "INSERT OR REPLACE INTO spent VALUES (?1, ?2, ?3, ?4)";
    let mut put = database.prepare_cached(put)?;
    put.execute(params![id.number, id.key, at, crc_of(id, at)])?;
    Ok(())
}

/// Reads what was spent, and writes it as the next process is to find it.
fn read(database: &mut Connection, boot: &str, now: i64) -> Result<Found, OpenError> {
    let transaction = database.transaction()?;
    let select = "SELECT boot, unknown_until, crc FROM run";
    let run = transaction.query_row(select, [], |row| row.try_into());
    let (boot_of_run, unknown_until, crc): (String, i64, u32) = run?;
    let mut select = transaction.prepare("SELECT id, key, at, crc FROM spent")?;
    let rows = select.query_map([], |row| {
        let (number, key) = (row.get(0)?, row.get(1)?);
        Ok((SpentId { number, key }, row.get(2)?, row.get(3)?))
    })?;
    let rows: Vec<(SpentId, Option<i64>, u32)> = rows.collect::<Result<_, _>>()?;
    drop(select);
    let mut are_whole = rows.iter().map(|(id, at, crc)| *crc == crc_of(*id, *at));
    if !are_whole.all(|is_whole| is_whole) || crc != crc_of_run(&boot_of_run, unknown_until) {
        return Err(unusable("a row is damaged"));
    }
    if boot_of_run != boot && (unknown_until > 0 || !rows.is_empty()) {
        return Err(unusable("it is of before the machine was started"));
    }
    let run = "UPDATE run SET boot = ?1, crc = ?2";
    transaction.execute(run, params![boot, crc_of_run(boot, unknown_until)])?;
    let mut ended = Vec::new();
    for (id, at, _) in rows {
        // Whoever sent one that was under way has ended.
        let began = at.unwrap_or(now);
        ended.push((id, began));
        put(&transaction, id, Some(began))?;
    }
    ended.sort_unstable_by_key(|(_, began)| *began);
    transaction.commit()?;
    Ok((ended, unknown_until))
}

fn crc_of(id: SpentId, at: Option<i64>) -> u32 {
    let at = at.unwrap_or(-1).to_le_bytes();
    crc(&[&id.number.to_le_bytes(), &id.key, &at])
}

fn crc_of_run(boot: &str, unknown_until: i64) -> u32 {
    crc(&[boot.as_bytes(), &unknown_until.to_le_bytes()])
}

#[cfg(test)]
mod tests;
