//! A sync request of a process to the engine, and the reply (`engine/scripts/sync.lua`).

use std::sync::Arc;

use super::position::{Generation, RecordNumber};
use super::record::RecordUid;
use crate::shared::allowance::ProcessId;
use crate::shared::engine::EngineValue;

/// The most records of one reply, and of one sync request.
pub(crate) const MOST_AT_ONCE: usize = 64;

/// What a process reports, and what it adds to the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SyncRequest {
    /// The process.
    pub(crate) process: ProcessId,
    /// Its name, for people.
    pub(crate) name: Arc<str>,
    /// Its number among the sync requests of this process.
    pub(crate) sequence: u64,
    /// What the process follows; `None` before its first reply.
    pub(crate) followed: Option<ReadUpTo>,
    /// Whether the reply is to list all rows.
    pub(crate) list: bool,
    /// What becomes of the process's row, if it follows this generation or none yet.
    pub(crate) row: RowChange,
    /// Rows of silent processes to remove, each with its last sequence number.
    pub(crate) forget: Vec<(ProcessId, u64)>,
    /// Records to append, if the journal does not have them.
    pub(crate) records: Vec<(RecordUid, Arc<[u8]>)>,
}

/// What a sync request does to the row of its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowChange {
    /// It is written: others see that the process is there, and how far it has applied the
    /// journal.
    Write = 0,
    /// It is removed: the process is about to end.
    Remove = 1,
    /// It stays as it is: others would take the process for one that has already sent this
    /// generation what it remembers.
    Keep = 2,
}

/// The generation that a process follows, and how far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadUpTo {
    /// The generation.
    pub(crate) generation: Generation,
    /// The last record that was read.
    pub(crate) read: RecordNumber,
    /// The last record that is in force: after a restart, more may be than was read.
    pub(crate) applied: RecordNumber,
    /// The uid of that one, if it is known.
    pub(crate) last: Option<RecordUid>,
}

impl SyncRequest {
    /// A part of the name of a generation that this sync request begins; the time is the other.
    pub(crate) fn nonce(&self) -> u64 {
        let process = self.process.0;
        (process >> 64) as u64 ^ process as u64 ^ self.sequence
    }

    /// The arguments of the script.
    pub(crate) fn arguments(&self) -> Vec<Vec<u8>> {
        let followed = self.followed;
        let generation = followed.map(|followed| followed.generation.hex());
        let numbers = followed.map_or([0; 2], |followed| [followed.read, followed.applied]);
        let last = followed.and_then(|followed| followed.last);
        let mut all: Vec<Vec<u8>> = vec![
            self.process.hex().into(),
            self.name.as_bytes().into(),
            self.sequence.to_string().into(),
            generation.unwrap_or_default().into(),
            numbers[0].to_string().into(),
            numbers[1].to_string().into(),
            last.map_or_else(String::new, RecordUid::text).into(),
            format!("{:016x}", self.nonce()).into(),
            u8::from(self.list).to_string().into(),
            (self.row as u8).to_string().into(),
            self.forget.len().to_string().into(),
        ];
        for (process, sequence) in &self.forget {
            all.push(process.hex().into());
            all.push(sequence.to_string().into());
        }
        for (uid, record) in &self.records {
            all.push(uid.text().into());
            all.push(record.to_vec());
        }
        all
    }
}

/// The engine's reply to a sync request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SyncReply {
    /// The present generation.
    pub(crate) generation: Generation,
    /// The number of its last record.
    pub(crate) tail: RecordNumber,
    /// The number of the first record that the engine still has; one more than the last if
    /// there is none.
    pub(crate) first: RecordNumber,
    /// The next records after what was read, or from the beginning if another generation
    /// was followed; with number, uid and content.
    pub(crate) records: Vec<(RecordNumber, RecordUid, Vec<u8>)>,
    /// All rows, where the sync request asked for them.
    pub(crate) rows: Option<Vec<ReplicaRow>>,
    /// The time by the engine's clock, in milliseconds.
    pub(crate) now_ms: u64,
}

/// The row of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReplicaRow {
    /// The process.
    pub(crate) process: ProcessId,
    /// The number of its last sync request.
    pub(crate) sequence: u64,
    /// The last record of the generation that it has applied.
    pub(crate) applied: RecordNumber,
    /// Its name.
    pub(crate) name: Arc<str>,
}

impl SyncReply {
    /// Reads the reply of the script; `None` if it is not one.
    pub(crate) fn read(reply: &EngineValue) -> Option<Self> {
        let [generation, tail, first, records, rows, now] = reply.list()? else {
            return None;
        };
        let records = records.list()?.iter().map(|record| {
            let [number, uid, content] = record.list()? else {
                return None;
            };
            let uid = RecordUid::parse(uid.text()?)?;
            Some((number.number()?, uid, content.bytes()?.to_vec()))
        });
        let row = |row: &EngineValue| {
            let [process, row] = row.list()? else {
                return None;
            };
            let mut fields = row.text()?.splitn(3, ',');
            Some(ReplicaRow {
                process: ProcessId(u128::from_str_radix(process.text()?, 16).ok()?),
                sequence: fields.next()?.parse().ok()?,
                applied: fields.next()?.parse().ok()?,
                name: fields.next()?.into(),
            })
        };
        Some(Self {
            generation: Generation::parse(generation.text()?)?,
            tail: tail.number()?,
            first: first.number()?,
            records: records.collect::<Option<_>>()?,
            rows: match *rows == EngineValue::Nothing {
                true => None,
                // Another version may have rows of another form.
                false => Some(rows.list()?.iter().filter_map(row).collect()),
            },
            now_ms: now.number()?,
        })
    }
}
