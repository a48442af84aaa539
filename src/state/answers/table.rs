//! The tables of `answers.db`, and what is asked of them.
//!
//! SQLite does not check what it reads. So each row has a CRC of all that it says, and a
//! row whose CRC is another one is a miss. After a purge the log is empty: damage to what is
//! written to it later brings nothing back.

use std::cmp::Reverse;
use std::path::Path;

use rusqlite::types::ToSql;
use rusqlite::{Connection, Error, OptionalExtension, Row as Found, ffi, params};

use super::{BlockHash, PurgeRows, Row, RowKey};
use crate::state::StateError;
use crate::state::database::{self, OpenError};
use crate::state::value::{self, Value, crc};

const TABLES: &str = "
CREATE TABLE answers (
    id INTEGER PRIMARY KEY, -- ascending: the oldest go first
    route TEXT NOT NULL, -- its name
    target TEXT NOT NULL, -- the canonical path and query
    config TEXT NOT NULL, -- a digest of what the route's answers depend on
    tip TEXT, -- a digest of the tip of a route in mode chain
    lo INTEGER, -- the lowest and the highest block that it names
    hi INTEGER,
    expires INTEGER NOT NULL, -- milliseconds since 1970
    value BLOB NOT NULL, -- a CRC of the row, postcard and zstd
    UNIQUE (route, target)
);
CREATE INDEX answers_of_heights ON answers (hi);
CREATE TABLE blocks (
    tip TEXT NOT NULL,
    height INTEGER NOT NULL,
    hash BLOB NOT NULL,
    crc INTEGER NOT NULL,
    PRIMARY KEY (tip, height)
) WITHOUT ROWID;
CREATE TABLE replicas (
    life INTEGER NOT NULL, -- of the engine
    generation INTEGER NOT NULL, -- the last purge of all replicas that was applied here
    crc INTEGER NOT NULL
);";

/// The bytes of a page of the database.
const PAGE: u64 = 4096;
/// The least that the database may have, and its log.
const LEAST_BYTES: u64 = 1 << 20;
const MOST_LOG: u64 = 8 << 20;
/// How many rows are removed at once.
const AT_ONCE: u32 = 64;
/// The most known blocks of a tip: the highest. After a start the highest is confirmed, or
/// a few below it.
const MOST_BLOCKS: u32 = 1024;
/// The longest body: what a damaged length may allocate at most.
const MOST_BODY: usize = 64 << 20;

pub(super) struct AnswersTable {
    database: Connection,
    most_pages: u64,
}

impl AnswersTable {
    /// Opens the database; begins it anew where it is absent or unusable.
    pub(super) fn open(path: &Path, most_bytes: u64) -> Result<Self, StateError> {
        let bytes = most_bytes.max(LEAST_BYTES);
        // The log has a part of the bytes, and is checkpointed when half of that is used.
        let log = (bytes / 4).min(MOST_LOG);
        let most_pages = (bytes - log) / PAGE;
        let read = |database: &mut Connection| {
            database.pragma_update(None, "synchronous", "NORMAL")?;
            database.pragma_update(None, "max_page_count", most_pages.cast_signed())?;
            database.pragma_update(None, "journal_size_limit", log.cast_signed())?;
            let checkpoint = (log / 2 / PAGE).cast_signed();
            database.pragma_update(None, "wal_autocheckpoint", checkpoint)?;
            // It may have been larger before, by another max_bytes.
            if pragma(database, "page_count")? > most_pages {
                let less = "state.max_bytes is less than it has";
                return Err(OpenError::Unusable(less.to_owned()));
            }
            Ok(())
        };
        let (database, ()) = database::open(path, read, |_| TABLES.to_owned())?;
        Ok(Self {
            database,
            most_pages,
        })
    }

    /// The bytes in use.
    pub(super) fn used(&self) -> u64 {
        self.used_pages().unwrap_or_default() * PAGE
    }

    fn used_pages(&self) -> rusqlite::Result<u64> {
        let free = pragma(&self.database, "freelist_count")?;
        Ok(pragma(&self.database, "page_count")?.saturating_sub(free))
    }

    /// The response under a key, at a time in milliseconds since 1970. Not one that has
    /// expired, or was received later: the clock has gone back.
    pub(super) fn look_up(&mut self, key: &RowKey, now: u64) -> rusqlite::Result<Option<Value>> {
        const SQL: &str = "SELECT tip, lo, hi, expires, value FROM answers
            WHERE route = ?1 AND target = ?2 AND config = ?3 AND expires > ?4";
        let mut select = self.database.prepare_cached(SQL)?;
        let now_signed = now.cast_signed();
        let values = params![&*key.route, key.target, &*key.config, now_signed];
        let found = select.query_row(values, |row| Ok(read(key, row)));
        let value = found.optional()?.flatten();
        Ok(value.filter(|value| value.received <= now))
    }

    /// Stores a response; `false` if it is too large.
    pub(super) fn put(&mut self, row: &Row) -> rusqlite::Result<bool> {
        const SQL: &str = "INSERT OR REPLACE INTO answers
            (route, target, config, tip, lo, hi, expires, value)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";
        let (key, tip, (lo, hi)) = (&row.key, row.tip.as_deref(), row.value.heights.unzip());
        let expires = row.expires.cast_signed();
        let value = value::encode(&row.value, name(key, tip, (lo, hi), expires).as_bytes());
        if row.value.body.len() > MOST_BODY || value.len() as u64 > self.most_pages * PAGE / 16 {
            return Ok(false);
        }
        self.make_room()?;
        let (route, config) = (&*key.route, &*key.config);
        let mut insert = self.database.prepare_cached(SQL)?;
        insert.execute(params![
            route, key.target, config, tip, lo, hi, expires, value
        ])?;
        Ok(true)
    }

    /// Removes the oldest rows until a tenth of the pages is free.
    fn make_room(&mut self) -> rusqlite::Result<()> {
        while self.used_pages()? > self.most_pages / 10 * 9 {
            let oldest = "DELETE FROM answers WHERE id IN
                (SELECT id FROM answers ORDER BY id LIMIT ?1)";
            if self.database.prepare_cached(oldest)?.execute([AT_ONCE])? == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Removes rows, all but [`PurgeRows::All`]; on disk when it returns.
    pub(super) fn purge(&mut self, rows: &[PurgeRows]) -> rusqlite::Result<()> {
        for rows in rows {
            match rows {
                PurgeRows::All => {}
                PurgeRows::Targets { route, range } => {
                    let within = "route = ?1 AND target BETWEEN ?2 AND ?3";
                    self.delete(within, &[route, range.start(), range.end()])?;
                }
                PurgeRows::Heights { tip, from, to } => {
                    let tip = tip.as_deref();
                    let named = "hi >= ?2 AND lo <= ?3 AND tip = ifnull(?1, tip)";
                    self.delete(named, &[&tip, from, to])?;
                    let blocks = "DELETE FROM blocks
                        WHERE height BETWEEN ?2 AND ?3 AND tip = ifnull(?1, tip)";
                    self.database.execute(blocks, params![tip, from, to])?;
                }
            }
        }
        // This syncs the log and then the database.
        database::empty_log(&self.database)
    }

    /// Removes the rows for which a condition holds, a few at once, so that the log stays
    /// short.
    fn delete(&self, condition: &str, values: &[&dyn ToSql]) -> rusqlite::Result<()> {
        let sql = format!(
            "DELETE FROM answers WHERE id IN
                (SELECT id FROM answers WHERE {condition} LIMIT 1024)"
        );
        while self.database.prepare_cached(&sql)?.execute(values)? > 0 {}
        Ok(())
    }

    /// The known blocks of a tip, in ascending order. An error if one is damaged.
    pub(super) fn blocks(&self, tip: &str) -> rusqlite::Result<Vec<BlockHash>> {
        let all = "SELECT height, hash, crc FROM blocks WHERE tip = ?1 ORDER BY height";
        let mut select = self.database.prepare_cached(all)?;
        let found = select.query_map([tip], |row| {
            let block = (row.get(0)?, row.get(1)?);
            if row.get::<_, u32>(2)? != crc_of_block(tip, &block) {
                return Err(damaged("a known block is damaged"));
            }
            Ok(block)
        })?;
        found.collect()
    }

    /// Adds known blocks of a tip.
    pub(super) fn put_blocks(&mut self, tip: &str, blocks: &[BlockHash]) -> rusqlite::Result<()> {
        let transaction = self.database.transaction()?;
        let mut highest: Vec<_> = blocks.iter().collect();
        highest.sort_unstable_by_key(|(height, _)| Reverse(*height));
        for block in highest.into_iter().take(MOST_BLOCKS as usize) {
            let insert = "INSERT OR REPLACE INTO blocks VALUES (?1, ?2, ?3, ?4)";
            let crc = crc_of_block(tip, block);
            let mut insert = transaction.prepare_cached(insert)?;
            insert.execute(params![tip, block.0, block.1, crc])?;
        }
        let lowest = "DELETE FROM blocks WHERE tip = ?1 AND height <= (SELECT height FROM
            blocks WHERE tip = ?1 ORDER BY height DESC LIMIT 1 OFFSET ?2)";
        transaction.execute(lowest, params![tip, MOST_BLOCKS])?;
        transaction.commit()
    }

    /// The engine's life and the last purge of all replicas, if they are known.
    pub(super) fn generation(&self) -> rusqlite::Result<Option<(u64, u64)>> {
        let select = "SELECT life, generation, crc FROM replicas";
        let found = self.database.query_row(select, [], |row| {
            let (life, generation): (i64, i64) = (row.get(0)?, row.get(1)?);
            let both = (life.cast_unsigned(), generation.cast_unsigned());
            let is_whole = row.get::<_, u32>(2)? == crc_of_generation(both);
            Ok(is_whole.then_some(both))
        });
        Ok(found.optional()?.flatten())
    }

    pub(super) fn set_generation(&mut self, both: (u64, u64)) -> rusqlite::Result<()> {
        let (life, generation) = (both.0.cast_signed(), both.1.cast_signed());
        let transaction = self.database.transaction()?;
        transaction.execute("DELETE FROM replicas", [])?;
        let insert = "INSERT INTO replicas VALUES (?1, ?2, ?3)";
        transaction.execute(insert, params![life, generation, crc_of_generation(both)])?;
        transaction.commit()
    }
}

fn pragma(database: &Connection, name: &str) -> rusqlite::Result<u64> {
    let mut pragma = database.prepare_cached(&format!("PRAGMA {name}"))?;
    pragma.query_row([], |row| row.get::<_, i64>(0).map(i64::cast_unsigned))
}

fn damaged(what: &str) -> Error {
    let code = ffi::Error::new(ffi::SQLITE_CORRUPT);
    Error::SqliteFailure(code, Some(what.to_owned()))
}

/// Reads a row; `None` if it is damaged.
fn read(key: &RowKey, row: &Found<'_>) -> Option<Value> {
    let tip: Option<String> = row.get(0).ok()?;
    let heights = (row.get(1).ok()?, row.get(2).ok()?);
    let name = name(key, tip.as_deref(), heights, row.get(3).ok()?);
    let value = row.get_ref(4).ok()?.as_blob().ok()?;
    value::decode(value, name.as_bytes(), MOST_BODY)
}

/// What a row says beside its value.
fn name(
    key: &RowKey,
    tip: Option<&str>,
    heights: (Option<u32>, Option<u32>),
    expires: i64,
) -> String {
    format!("{key:?} {tip:?} {heights:?} {expires}")
}

fn crc_of_block(tip: &str, (height, hash): &BlockHash) -> u32 {
    crc(&[tip.as_bytes(), &height.to_le_bytes(), hash])
}

fn crc_of_generation((life, generation): (u64, u64)) -> u32 {
    crc(&[&life.to_le_bytes(), &generation.to_le_bytes()])
}
