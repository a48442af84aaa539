//! Whom a process awaits in a new generation of the journal.
//!
//! What one process has purged while another one was away is known to those who were
//! there, and they send it to a new generation. If one of them has ended meanwhile, nobody
//! else may know what it had purged last. So a process purges everything unless all that
//! it knew in the generation before come to the new one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::position::RecordNumber;
use super::rules::{JournalRule, has};
use crate::shared::allowance::ProcessId;

/// How long they have to come. All follow the journal, and try the engine again within
/// about two seconds, if its nodes do not answer at all.
const PATIENCE: Duration = Duration::from_secs(3);

/// The same while purges are being sent again, which comes first.
const LONGEST_PATIENCE: Duration = Duration::from_secs(10);

/// The most time between two lists that counts.
const MOST_UNSEEN: Duration = Duration::from_secs(1);

/// The most that are known. More replicas are not supported.
const MOST_KNOWN: usize = 4096;

/// The processes that were there when all of the journal was known last, and those that
/// are awaited.
#[derive(Debug, Default)]
pub(super) struct AwaitedReplicas {
    /// With the numbers of their last sync requests then. A request that arrives late, after
    /// its process has ended, has no higher one.
    known: BTreeMap<ProcessId, u64>,
    awaited: BTreeMap<ProcessId, u64>,
    /// How long they have been awaited since the first list, in all and while the journal
    /// did not grow.
    waited: Option<[Duration; 2]>,
    /// Whether the next list is the first one of the generation: what was before it was a
    /// pause of the engine.
    is_first: bool,
    /// The last record at the last list.
    tail: RecordNumber,
}

impl AwaitedReplicas {
    /// For a process whose earlier run knew these.
    pub(super) fn after(known: BTreeSet<ProcessId>) -> Self {
        // Each of them had sent one request at least.
        Self {
            known: known.into_iter().map(|process| (process, 1)).collect(),
            ..Self::default()
        }
    }

    /// Those that are known.
    pub(super) fn known(&self) -> BTreeSet<ProcessId> {
        self.known.keys().copied().collect()
    }

    /// A new generation begins: all that are known are awaited in it.
    pub(super) fn begin_generation(&mut self) {
        if has(JournalRule::MissingPurgesEverything) {
            self.is_first = true;
            // Of an engine that keeps losing its keys, all generations count together.
            if self.awaited.is_empty() {
                self.waited = None;
            }
            self.awaited.append(&mut self.known);
        }
    }

    /// Whether somebody is awaited.
    pub(super) fn is_any(&self) -> bool {
        !self.awaited.is_empty()
    }

    /// Nobody is awaited: everything was purged.
    pub(super) fn clear(&mut self) {
        self.awaited.clear();
    }

    /// Takes in a list of who is there, with the number of the last sync request of each, this
    /// long after the list before. `read` is the last record that was read, `tail` the last one
    /// of the journal: if they are the same, all records of those are known that are no longer
    /// there. Returns whether some that are awaited have not come in time.
    #[must_use]
    pub(super) fn listed(
        &mut self,
        here: impl Iterator<Item = (ProcessId, u64)>,
        since: Duration,
        (read, tail): (RecordNumber, RecordNumber),
    ) -> bool {
        if read == tail {
            self.known.clear();
        }
        for (process, sequence) in here.take(MOST_KNOWN) {
            if self
                .awaited
                .get(&process)
                .is_some_and(|last| sequence <= *last)
            {
                continue;
            }
            self.awaited.remove(&process);
            self.known.insert(process, sequence);
        }
        let has_grown = std::mem::replace(&mut self.tail, tail) != tail;
        let since = since.min(MOST_UNSEEN);
        let is_first = std::mem::take(&mut self.is_first);
        let quiet = match has_grown || is_first {
            true => Duration::ZERO,
            false => since,
        };
        let [all, quiet] = match self.waited {
            Some(waited) => [waited[0] + since, waited[1] + quiet],
            None => [Duration::ZERO; 2],
        };
        self.waited = Some([all, quiet]);
        let is_late = !self.awaited.is_empty() && (quiet >= PATIENCE || all >= LONGEST_PATIENCE);
        if is_late {
            self.awaited.clear();
        }
        is_late
    }
}
