//! The other replicas, as their rows in the engine show them.
//!
//! A replica is silent while its row does not change. Time in which this process could not
//! see the rows does not count: it would forget all others if it were cut off itself.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::position::RecordNumber;
use super::rules::{JournalRule, has};
use super::sync::{MOST_AT_ONCE, ReplicaRow};
use crate::shared::allowance::ProcessId;

/// A purge does not wait for a replica that was silent for longer.
pub(crate) const SILENT: Duration = Duration::from_secs(2);

/// A replica that was silent for longer has ended, and all that it could send is known.
const LONG_SILENT: Duration = Duration::from_secs(10);

/// A replica that was silent for longer is forgotten.
const FORGOTTEN: Duration = Duration::from_secs(600);

/// The most time between two lists that counts.
const MOST_UNSEEN: Duration = Duration::from_secs(2);

/// The rows of other processes, by their ids.
type ByProcess<T> = BTreeMap<ProcessId, T>;

/// The other replicas.
#[derive(Debug, Default)]
pub(crate) struct OtherReplicas {
    all: ByProcess<OtherReplica>,
    /// The last record that this process had read when they were listed, if they were in
    /// this generation.
    listed_at: Option<RecordNumber>,
    /// A process that has certainly ended.
    ended: Option<ProcessId>,
}

/// Another replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OtherReplica {
    pub(crate) name: Arc<str>,
    sequence: u64,
    /// Whether it was listed in this generation.
    is_here: bool,
    /// The last record of this generation that it has applied, as far as is known.
    pub(crate) applied: RecordNumber,
    pub(crate) silent: Duration,
}

/// Which replicas have applied a record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reach {
    /// The names of those that have.
    pub(crate) applied: Vec<Arc<str>>,
    /// Those that have not, but may soon.
    pub(crate) waiting: Vec<Arc<str>>,
    /// Those that have not, and were silent for a while.
    pub(crate) silent: Vec<Arc<str>>,
    /// Whether the record is in the journal.
    pub(crate) is_recorded: bool,
    /// Whether the replicas were listed since: another may have come before it.
    pub(crate) is_listed: bool,
}

impl OtherReplicas {
    /// Another generation begins, or an earlier one again: how far others have applied the
    /// one before says nothing about it.
    pub(super) fn begin_generation(&mut self) {
        if !has(JournalRule::AppliedInGeneration) {
            return;
        }
        self.listed_at = None;
        for other in self.all.values_mut() {
            (other.is_here, other.applied) = (false, 0);
        }
    }

    /// Takes in the rows of all others, this long after those before. This process has
    /// read the journal up to a number, and what others say of later records does not count.
    pub(super) fn listed(
        &mut self,
        last: RecordNumber,
        rows: impl Iterator<Item = ReplicaRow>,
        since: Duration,
    ) {
        self.listed_at = Some(last);
        let mut rows: ByProcess<_> = rows.map(|row| (row.process, row)).collect();
        self.all.retain(|process, known| {
            let Some(row) = rows.remove(process) else {
                known.silent += since.min(MOST_UNSEEN);
                // One that was here in this generation has left. Others may not have
                // reached it yet since the journal has begun anew.
                return !known.is_here && known.silent < FORGOTTEN;
            };
            match row.sequence == known.sequence {
                true => known.silent += since.min(MOST_UNSEEN),
                false => known.silent = Duration::ZERO,
            }
            known.sequence = row.sequence;
            known.applied = row.applied.min(last);
            known.is_here = true;
            true
        });
        let new = rows.into_iter().map(|(process, row)| {
            let new = OtherReplica {
                name: row.name,
                sequence: row.sequence,
                is_here: true,
                applied: row.applied.min(last),
                silent: Duration::ZERO,
            };
            (process, new)
        });
        self.all.extend(new);
    }

    /// The processes that are listed in this generation, and were not silent for long, with
    /// the number of the last sync request of each.
    pub(super) fn present(&self) -> impl Iterator<Item = (ProcessId, u64)> {
        let all = self.all.iter();
        let present = all.filter(|(process, other)| {
            other.is_here && other.silent < LONG_SILENT && Some(**process) != self.ended
        });
        present.map(|(process, other)| (*process, other.sequence))
    }

    /// Removes the row of a process that has certainly ended.
    pub(super) fn set_ended(&mut self, process: Option<ProcessId>) {
        self.ended = process;
    }

    /// Rows to remove, with their last sequence numbers.
    pub(super) fn forgotten(&self) -> Vec<(ProcessId, u64)> {
        let silent = self
            .all
            .iter()
            .filter(|(process, other)| other.silent >= FORGOTTEN || Some(**process) == self.ended);
        let rows = silent.map(|(process, other)| (*process, other.sequence));
        rows.take(MOST_AT_ONCE).collect()
    }

    /// Which of them have applied a record; `None` if it is not recorded.
    pub(super) fn reach(&self, record: Option<RecordNumber>) -> Reach {
        let mut reach = Reach {
            is_recorded: record.is_some(),
            is_listed: record
                .zip(self.listed_at)
                .is_some_and(|(number, last)| number <= last),
            ..Reach::default()
        };
        for other in self.all.values() {
            let has_applied = record.is_some_and(|number| other.applied >= number);
            let list = match (has_applied, other.silent > SILENT) {
                (true, _) => &mut reach.applied,
                (false, true) => &mut reach.silent,
                (false, false) => &mut reach.waiting,
            };
            list.push(other.name.clone());
        }
        reach
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &OtherReplica> {
        self.all.values()
    }
}
