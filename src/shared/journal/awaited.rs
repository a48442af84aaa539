//! Whom a process awaits in a new generation of the journal.
//!
//! What one process has purged while another one was away is known to those who were
//! there, and they send it to a new generation. If one of them has ended meanwhile, nobody
//! else may know what it had purged last. So a process purges everything unless all that
//! it knew in the generation before come to the new one.

use std::collections::BTreeSet;
use std::time::Duration;

use super::rules::{JournalRule, has};
use crate::shared::allowance::ProcessId;

/// How long they have to come. All follow the journal, and try the engine again at least
/// once a second.
const PATIENCE: Duration = Duration::from_secs(2);

/// The most time between two lists that counts.
const MOST_UNSEEN: Duration = Duration::from_secs(1);

/// The most that are known. More replicas are not supported.
const MOST_KNOWN: usize = 4096;

/// The processes that were there when all of the journal was known last, and those that
/// are awaited.
#[derive(Debug, Default)]
pub(super) struct AwaitedReplicas {
    known: BTreeSet<ProcessId>,
    awaited: BTreeSet<ProcessId>,
    /// How long they have been awaited, since the first list of the generation.
    waited: Option<Duration>,
}

impl AwaitedReplicas {
    /// For a process whose earlier run knew these.
    pub(super) fn after(known: BTreeSet<ProcessId>) -> Self {
        Self {
            known,
            ..Self::default()
        }
    }

    /// Those that are known.
    pub(super) const fn known(&self) -> &BTreeSet<ProcessId> {
        &self.known
    }

    /// A new generation begins: all that are known are awaited in it.
    pub(super) fn begin_generation(&mut self) {
        if has(JournalRule::MissingPurgesEverything) {
            self.awaited.append(&mut self.known);
            self.waited = None;
        }
    }

    /// Nobody is awaited: everything was purged.
    pub(super) fn clear(&mut self) {
        self.awaited.clear();
    }

    /// Takes in who is there, this long after the last list, and whether all records are
    /// known that those have sent who are not there any more. Returns whether some that are
    /// awaited have not come in time.
    #[must_use]
    pub(super) fn listed(
        &mut self,
        here: impl Iterator<Item = ProcessId>,
        since: Duration,
        is_all_read: bool,
    ) -> bool {
        if is_all_read {
            self.known.clear();
        }
        for process in here.take(MOST_KNOWN) {
            self.awaited.remove(&process);
            self.known.insert(process);
        }
        let waited = self
            .waited
            .map_or(Duration::ZERO, |waited| waited + since.min(MOST_UNSEEN));
        self.waited = Some(waited);
        let is_late = !self.awaited.is_empty() && waited >= PATIENCE;
        if is_late {
            self.awaited.clear();
        }
        is_late
    }
}
