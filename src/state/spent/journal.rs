//! The tables of `spent.db`.
//!
//! Damage must not make a request uncounted. Each row has a CRC, SQLite checks the
//! structure when the database is opened, and the log must have as many frames as its
//! length says. To know that length, the log is only ever emptied, never begun anew in its
//! place. Not covered: a log that someone removes, or cuts where a transaction ends,
//! without restarting the machine.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, params};
use tokio::sync::oneshot;

use super::{Command, KeyDigest, LONGEST, WINDOW, millis};
use crate::state::StateError;
use crate::state::database::{self, OpenError};

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

/// The most frames of the log before it is emptied, and the bytes of a frame and of what
/// precedes all.
const MOST_FRAMES: u64 = 1024;
const FRAME: u64 = 24 + 4096;
const LOG_HEAD: u64 = 32;

pub(super) struct Journal {
    database: Connection,
    path: PathBuf,
    /// The keys of the requests under way.
    keys: HashMap<u64, KeyDigest>,
    written: u64,
}

/// What was read at the start.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Found {
    /// By key: when windows began, in milliseconds since the boot.
    pub(super) ended: HashMap<KeyDigest, Vec<u64>>,
    pub(super) unknown_until: u64,
    /// The next id.
    pub(super) next: u64,
}

impl Journal {
    /// Opens the database; begins it anew where it is absent or unusable.
    pub(super) fn open(path: &Path, boot: &str, now: u64) -> Result<(Self, Found), StateError> {
        let unknown_until = match Self::open_existing(path, boot, now) {
            Ok(opened) => return Ok(opened),
            Err(OpenError::InUse) => return Err(StateError::InUse { path: path.into() }),
            Err(OpenError::Absent) => 0,
            Err(OpenError::Unusable(error)) => {
                let (path, window) = (path.display(), WINDOW.as_secs());
                tracing::warn!(%path, error, "it is not known what was spent before: no request is sent to an upstream with a budget for {window} s");
                now + millis(WINDOW)
            }
        };
        let failed = |error: &dyn ToString| super::access(path, error.to_string());
        // Whoever is killed from here on leaves a file that is no database.
        if unknown_until > 0 {
            database::spoil(path).map_err(|error| failed(&error))?;
        }
        let crc = crc_of_run(boot, unknown_until);
        let run = format!("INSERT INTO run VALUES ('{boot}', {unknown_until}, {crc})");
        database::create(path, &format!("{TABLES} {run}"))?;
        Self::open_existing(path, boot, now).map_err(|error| match error {
            OpenError::InUse => StateError::InUse { path: path.into() },
            OpenError::Absent => failed(&"it was removed"),
            OpenError::Unusable(error) => failed(&error),
        })
    }

    fn open_existing(path: &Path, boot: &str, now: u64) -> Result<(Self, Found), OpenError> {
        let log = fs::metadata(database::with_suffix(path, "-wal"));
        let log = log.map_or(0, |log| log.len());
        let mut database = database::open(path)?;
        database.pragma_update(None, "synchronous", "OFF")?;
        database.pragma_update(None, "wal_autocheckpoint", 0)?;
        let checkpoint = "PRAGMA wal_checkpoint(PASSIVE)";
        let frames: u32 = database.query_row(checkpoint, [], |row| row.get(1))?;
        let is_whole = log == 0 || u64::from(frames) * FRAME + LOG_HEAD == log;
        if !is_whole {
            return Err(unusable("its log is damaged"));
        }
        let check: String = database.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
        if check != "ok" {
            return Err(unusable(&check));
        }
        let found = read(&mut database, boot, now)?;
        let mut journal = Self {
            database,
            path: path.into(),
            keys: HashMap::new(),
            written: 0,
        };
        journal.empty_log()?;
        Ok((journal, found))
    }

    /// Writes commands, in one transaction. Returns who waits for it.
    pub(super) fn write(
        &mut self,
        commands: impl Iterator<Item = Command>,
        now: u64,
    ) -> rusqlite::Result<Vec<(u64, oneshot::Sender<()>)>> {
        let mut committed = Vec::new();
        let transaction = self.database.transaction()?;
        for command in commands {
            match command {
                Command::Begin(id, key, reply) => {
                    // Whoever waits no more sends no request.
                    if !reply.is_closed() {
                        let insert = "INSERT INTO spent VALUES (?1, ?2, NULL, ?3)";
                        let crc = crc_of(id, &key, None);
                        let mut insert = transaction.prepare_cached(insert)?;
                        insert.execute(params![id.cast_signed(), key, crc])?;
                        self.keys.insert(id, key);
                        committed.push((id, reply));
                    }
                }
                Command::End(id, at) => {
                    if let Some(key) = self.keys.remove(&id) {
                        let update = "UPDATE spent SET at = ?2, crc = ?3 WHERE id = ?1";
                        let crc = crc_of(id, &key, Some(at));
                        let mut update = transaction.prepare_cached(update)?;
                        update.execute(params![id.cast_signed(), at.cast_signed(), crc])?;
                    }
                }
                Command::Cancel(id) => {
                    self.keys.remove(&id);
                    let delete = "DELETE FROM spent WHERE id = ?1";
                    transaction
                        .prepare_cached(delete)?
                        .execute([id.cast_signed()])?;
                }
                Command::Close => {}
            }
        }
        transaction.commit()?;
        self.written += 1;
        // A transaction has at least a frame.
        if self.written >= MOST_FRAMES / 8 {
            let old = now.saturating_sub(millis(LONGEST)).cast_signed();
            self.database
                .execute("DELETE FROM spent WHERE at < ?1", [old])?;
            self.empty_log()?;
        }
        Ok(committed)
    }

    fn empty_log(&mut self) -> rusqlite::Result<()> {
        self.written = 0;
        let empty = "PRAGMA wal_checkpoint(TRUNCATE)";
        self.database.query_row(empty, [], |_| Ok(()))
    }

    /// Leaves the database unreadable: it is not known what is spent from now on.
    pub(super) fn spoil(self) -> std::io::Result<()> {
        drop(self.database);
        database::spoil(&self.path)
    }
}

fn unusable(why: &str) -> OpenError {
    OpenError::Unusable(why.to_owned())
}

/// Reads what was spent, and writes it as the next process is to find it.
fn read(database: &mut Connection, boot: &str, now: u64) -> Result<Found, OpenError> {
    let transaction = database.transaction()?;
    let select = "SELECT boot, unknown_until, crc FROM run";
    let run = transaction.query_row(select, [], |row| {
        let until: i64 = row.get(1)?;
        Ok((row.get(0)?, until.cast_unsigned(), row.get(2)?))
    });
    let (boot_of_run, unknown_until, crc): (String, u64, u32) = run?;
    let mut select = transaction.prepare("SELECT id, key, at, crc FROM spent")?;
    let rows = select.query_map([], |row| {
        let (id, at): (i64, Option<i64>) = (row.get(0)?, row.get(2)?);
        let at = at.map(i64::cast_unsigned);
        Ok((id.cast_unsigned(), row.get(1)?, at, row.get(3)?))
    })?;
    let rows: Vec<(u64, KeyDigest, Option<u64>, u32)> = rows.collect::<Result<_, _>>()?;
    drop(select);
    let are_whole = rows
        .iter()
        .all(|(id, key, at, crc)| *crc == crc_of(*id, key, *at));
    if !are_whole || crc != crc_of_run(&boot_of_run, unknown_until) {
        return Err(unusable("a row is damaged"));
    }
    if boot_of_run != boot && (unknown_until > 0 || !rows.is_empty()) {
        return Err(unusable("it is of before the machine was started"));
    }
    let run = "UPDATE run SET boot = ?1, crc = ?2";
    transaction.execute(run, params![boot, crc_of_run(boot, unknown_until)])?;
    let mut found = Found {
        unknown_until,
        next: 1,
        ..Found::default()
    };
    for (id, key, at, _) in rows {
        found.next = found.next.max(id.saturating_add(1));
        let began = at.unwrap_or(now);
        found.ended.entry(key).or_default().push(began);
        if at.is_none() {
            // Whoever sent it has ended.
            let update = "UPDATE spent SET at = ?2, crc = ?3 WHERE id = ?1";
            let crc = crc_of(id, &key, Some(now));
            let mut update = transaction.prepare_cached(update)?;
            update.execute(params![id.cast_signed(), now.cast_signed(), crc])?;
        }
    }
    transaction.commit()?;
    Ok(found)
}

fn crc_of(id: u64, key: &KeyDigest, at: Option<u64>) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&id.to_le_bytes());
    crc.update(key);
    crc.update(&at.map_or([0xff; 8], u64::to_le_bytes));
    crc.finalize()
}

fn crc_of_run(boot: &str, unknown_until: u64) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(boot.as_bytes());
    crc.update(&unknown_until.to_le_bytes());
    crc.finalize()
}
