//! The script `sync.lua` in Rust, for simulations. A differential test runs both.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::shared::allowance::ProcessId;
use crate::shared::journal::position::{Generation, RecordNumber};
use crate::shared::journal::record::RecordUid;
use crate::shared::journal::rules::{JournalRule, has};
use crate::shared::journal::sync::{MOST_AT_ONCE, ReplicaRow, RowChange, SyncReply, SyncRequest};

/// How many uids are remembered.
const MOST_UIDS: usize = 16_384;
/// The most records that the engine keeps.
pub(super) const MOST_RECORDS: usize = 8192;

/// By how much the engine's clock may be set back, in milliseconds.
const MOST_BACK: u64 = 1000;

/// The journal in the engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModelJournal {
    pub(crate) generation: Generation,
    /// The run id and replication id of the server that began it.
    pub(crate) life: Arc<str>,
    /// The number of the last record.
    pub(crate) count: RecordNumber,
    /// The latest time of the engine in this generation, in milliseconds.
    pub(crate) clock: u64,
    pub(crate) records: VecDeque<(RecordUid, Vec<u8>)>,
    /// Oldest first.
    pub(crate) uids: VecDeque<RecordUid>,
    /// Sequence number, applied record and name.
    pub(crate) rows: BTreeMap<ProcessId, (u64, RecordNumber, Arc<str>)>,
}

/// Answers a sync request. `time` is that of the server, in microseconds.
pub(crate) fn sync(
    stored: &mut Option<ModelJournal>,
    (life, time): (&str, u64),
    request: &SyncRequest,
) -> SyncReply {
    let journal = current(stored, (life, time), request);
    let followed = request.followed;
    let followed = followed.filter(|followed| followed.generation == journal.generation);
    let (read, applied) = followed.map_or((0, 0), |followed| (followed.read, followed.applied));
    for (process, sequence) in &request.forget {
        if journal
            .rows
            .get(process)
            .is_some_and(|row| row.0 == *sequence)
        {
            journal.rows.remove(process);
        }
    }
    let own = journal.rows.get(&request.process);
    let is_here = request.followed.is_none() || followed.is_some();
    if own.is_none_or(|own| own.0 < request.sequence) {
        match request.row {
            RowChange::Remove => drop(journal.rows.remove(&request.process)),
            RowChange::Write if is_here => {
                let row = (request.sequence, applied, request.name.clone());
                journal.rows.insert(request.process, row);
            }
            RowChange::Write | RowChange::Keep => {}
        }
    }
    for (uid, record) in &request.records {
        if !journal.uids.contains(uid) {
            journal.count += 1;
            journal.uids.push_back(*uid);
            journal.records.push_back((*uid, record.to_vec()));
        }
    }
    let excess = |have: usize, most: usize| 0..have.saturating_sub(most);
    drop(journal.uids.drain(excess(journal.uids.len(), MOST_UIDS)));
    drop(
        journal
            .records
            .drain(excess(journal.records.len(), MOST_RECORDS)),
    );
    let first = first(journal);
    let numbered = (first..).zip(&journal.records);
    let later = numbered.filter(|(number, _)| *number > read);
    let records = later.take(MOST_AT_ONCE);
    let row =
        |(process, (sequence, applied, name)): (&ProcessId, &(u64, u64, Arc<str>))| ReplicaRow {
            process: *process,
            sequence: *sequence,
            applied: *applied,
            name: name.clone(),
        };
    SyncReply {
        generation: journal.generation,
        tail: journal.count,
        first,
        records: records
            .map(|(number, (uid, record))| (number, *uid, record.clone()))
            .collect(),
        rows: request.list.then(|| journal.rows.iter().map(row).collect()),
        now_ms: time / 1000,
    }
}

/// The number of the first record that is still there.
fn first(journal: &ModelJournal) -> RecordNumber {
    journal.count - journal.records.len() as u64 + 1
}

fn current<'t>(
    stored: &'t mut Option<ModelJournal>,
    (life, time): (&str, u64),
    request: &SyncRequest,
) -> &'t mut ModelJournal {
    let is_current = |journal: &ModelJournal| {
        let forgotten = journal.count - journal.uids.len() as u64;
        let knows_more = request.followed.is_some_and(|followed| {
            let is_other = |last| match journal.uids.iter().position(|uid| *uid == last) {
                Some(at) => forgotten + at as u64 + 1 != followed.applied,
                None => followed.applied > forgotten,
            };
            followed.generation == journal.generation
                && (followed.applied > journal.count || followed.last.is_some_and(is_other))
        });
        let is_of_life = *journal.life == *life || !has(JournalRule::LifeOfEngine);
        let is_set_back = time / 1000 + MOST_BACK < journal.clock;
        is_of_life && !is_set_back && !(knows_more && has(JournalRule::LostRecordsBeginAnew))
    };
    let current = stored.take().filter(is_current);
    let begin = || {
        let seconds = u128::from(time / 1_000_000);
        let micros = u128::from(time % 1_000_000);
        let name = u128::from(request.nonce()) << 64 | seconds << 24 | micros;
        ModelJournal {
            generation: Generation(name.to_be_bytes()),
            life: life.into(),
            count: 0,
            clock: 0,
            records: VecDeque::new(),
            uids: VecDeque::new(),
            rows: BTreeMap::new(),
        }
    };
    let current = stored.insert(current.unwrap_or_else(begin));
    current.clock = current.clock.max(time / 1000);
    current
}
