//! The other replicas, as their rows in the engine show them.
//!
//! A replica is silent while its row does not change. Time in which this process could not
//! see the rows does not count: it would forget all others if it were cut off itself.

use std::sync::Arc;
use std::time::Duration;

use super::machine::ByProcess;
use super::position::{Generation, RecordNumber};
use super::rules::{JournalRule, has};
use super::word::{MOST_AT_ONCE, ReplicaRow};
use crate::shared::allowance::ProcessId;

/// A purge does not wait for a replica that was silent for longer.
pub(crate) const SILENT: Duration = Duration::from_secs(2);

/// A replica that was silent for longer is forgotten.
const FORGOTTEN: Duration = Duration::from_secs(600);

/// The most time between two lists that counts.
const MOST_UNSEEN: Duration = Duration::from_secs(2);

/// The other replicas.
#[derive(Debug, Default)]
pub(crate) struct OtherReplicas {
    all: ByProcess<OtherReplica>,
    /// The last record that the journal had when they were listed.
    listed_at: Option<(Generation, RecordNumber)>,
    /// A process that has certainly ended.
    ended: Option<ProcessId>,
}

/// Another replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OtherReplica {
    pub(crate) name: Arc<str>,
    beat: u64,
    /// The generation in which it was listed last.
    generation: Generation,
    /// The last record of that generation that it has applied.
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
    /// Takes in the rows of all others, this long after those before. The journal has
    /// records up to a number.
    pub(super) fn listed(
        &mut self,
        (generation, last): (Generation, RecordNumber),
        rows: impl Iterator<Item = ReplicaRow>,
        since: Duration,
    ) {
        self.listed_at = Some((generation, last));
        let mut rows: ByProcess<_> = rows.map(|row| (row.process, row)).collect();
        self.all.retain(|process, known| {
            let Some(row) = rows.remove(process) else {
                known.silent += since.min(MOST_UNSEEN);
                // One that was here in this generation has left. Others may not have been
                // heard yet since the journal has begun anew.
                return known.generation != generation && known.silent < FORGOTTEN;
            };
            match row.beat == known.beat {
                true => known.silent += since.min(MOST_UNSEEN),
                false => known.silent = Duration::ZERO,
            }
            known.beat = row.beat;
            known.applied = row.applied;
            known.generation = generation;
            true
        });
        let new = rows.into_iter().map(|(process, row)| {
            let new = OtherReplica {
                name: row.name,
                beat: row.beat,
                generation,
                applied: row.applied,
                silent: Duration::ZERO,
            };
            (process, new)
        });
        self.all.extend(new);
    }

    /// Removes the row of a process that has certainly ended.
    pub(super) fn set_ended(&mut self, process: Option<ProcessId>) {
        self.ended = process;
    }

    /// Rows to remove, with their last beats.
    pub(super) fn forgotten(&self) -> Vec<(ProcessId, u64)> {
        let silent = self
            .all
            .iter()
            .filter(|(process, other)| other.silent >= FORGOTTEN || Some(**process) == self.ended);
        let rows = silent.map(|(process, other)| (*process, other.beat));
        rows.take(MOST_AT_ONCE).collect()
    }

    /// Which of them have applied a record of a generation; `None` if it is not recorded.
    pub(super) fn reach(&self, record: Option<(Generation, RecordNumber)>) -> Reach {
        let mut reach = Reach {
            is_recorded: record.is_some(),
            is_listed: record.zip(self.listed_at).is_some_and(
                |((generation, number), (listed_in, last))| {
                    generation == listed_in && number <= last
                },
            ),
            ..Reach::default()
        };
        for other in self.all.values() {
            let has_applied = record.is_some_and(|(generation, number)| {
                let counts =
                    other.generation == generation || !has(JournalRule::AppliedInGeneration);
                counts && other.applied >= number
            });
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
