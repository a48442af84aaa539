//! The tables of `spent.db`.
//!
//! Damage must not make a request uncounted. Each row has a CRC, SQLite checks the
//! structure when the database is opened, and the log must have as many frames as its
//! length says. To know that length, the log is only ever emptied, never begun anew in its
//! place. Not covered: a log that someone removes, or cuts where a transaction ends,
//! without restarting the machine.

use std::path::{Path, PathBuf};
use std::{fs, io};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, params};

use super::{Command, LONGEST, SpentId, WINDOW};
use crate::state::StateError;
use crate::state::database::{self, OpenError};
use crate::state::value::crc;

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
    /// How many transactions are in the log.
    written: u64,
}

/// What was read at the start, in milliseconds since the boot: when windows began, in ascending
/// order, and until when it is not known what was spent.
pub(super) type Found = (Vec<(SpentId, i64)>, i64);

impl Journal {
    /// Opens the database; begins it anew where it is absent or unusable.
    pub(super) fn open(path: &Path, boot: &str, now: i64) -> Result<(Self, Found), StateError> {
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
    pub(super) fn write(&mut self, command: &Command, now: i64) -> rusqlite::Result<()> {
        match command {
            Command::Put(id, at, _) => put(&self.database, *id, *at)?,
            Command::Remove(id) => {
                let delete = "DELETE FROM spent WHERE id = ?1";
                let mut delete = self.database.prepare_cached(delete)?;
                delete.execute([id.number])?;
            }
        }
        self.written += 1;
        // A transaction has at least a frame.
        if self.written >= MOST_FRAMES / 8 {
            self.written = 0;
            let old = now - LONGEST;
            self.database
                .execute("DELETE FROM spent WHERE at < ?1", [old])?;
            database::empty_log(&self.database)?;
        }
        Ok(())
    }

    /// Leaves the database unreadable: it is not known what is spent from now on.
    pub(super) fn spoil(self) -> io::Result<()> {
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
