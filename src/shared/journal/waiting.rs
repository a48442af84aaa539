//! The records that this process has to bring into the journal.

use std::collections::VecDeque;
use std::sync::Arc;

use super::history;
use super::record::{JournalRecord, RecordUid};
use super::rules::{JournalRule, has};

/// The records that wait until they are read in the journal.
#[derive(Debug, Default)]
pub(super) struct WaitingRecords {
    /// Those of this process, oldest first.
    own: VecDeque<WaitingRecord>,
    /// Those that were read in earlier generations and may not be in the present one.
    resend: VecDeque<WaitingRecord>,
}

#[derive(Clone, Debug)]
struct WaitingRecord {
    uid: RecordUid,
    record: JournalRecord,
    encoded: Arc<[u8]>,
    sent: SentRecord,
}

/// What is known of a record in this generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SentRecord {
    No,
    /// A sync request with it was answered.
    Once,
    /// It was not in the journal even so: the engine has lost it since.
    Lost,
    /// A second sync request with it was answered.
    Twice,
}

impl WaitingRecord {
    fn new(uid: RecordUid, record: JournalRecord) -> Self {
        Self {
            uid,
            encoded: record.encode(),
            record,
            sent: SentRecord::No,
        }
    }

    fn is_sent(&self) -> bool {
        matches!(self.sent, SentRecord::Once | SentRecord::Twice)
    }
}

impl WaitingRecords {
    /// Adds a record of this process.
    pub(super) fn push(&mut self, uid: RecordUid, record: JournalRecord) {
        self.own.push_back(WaitingRecord::new(uid, record));
    }

    /// Forgets those of this process.
    pub(super) fn clear_own(&mut self) {
        self.own.clear();
    }

    /// Another generation has begun, which may lack all that is known. Returns whether
    /// there was too much to send it all again.
    #[must_use]
    pub(super) fn begin_generation(&mut self, known: VecDeque<(RecordUid, JournalRecord)>) -> bool {
        for waiting in self.own.iter_mut().chain(&mut self.resend) {
            waiting.sent = SentRecord::No;
        }
        if !has(JournalRule::SentAgain) {
            return false;
        }
        let known = known
            .into_iter()
            .filter(|(_, record)| record.outlives_generations());
        self.resend
            .extend(known.map(|(uid, record)| WaitingRecord::new(uid, record)));
        // More than one history, if the generation before was not read to its end.
        let excess = self.resend.len().saturating_sub(history::MOST_RECORDS);
        drop(self.resend.drain(..excess));
        excess > 0
    }

    /// The records for the next sync request, of at most so many bytes. Those of an earlier
    /// generation come first, so that the order stays; but other replicas may have those too,
    /// and nobody else has the records of a process that ends.
    pub(super) fn next(&self, most: usize, most_bytes: usize, ends: bool) -> Vec<SentContent> {
        let (first, then) = match ends {
            false => (&self.resend, &self.own),
            true => (&self.own, &self.resend),
        };
        let mut bytes = 0;
        let unsent = first.iter().chain(then).filter(|next| !next.is_sent());
        let fitting = unsent.take_while(|next| {
            bytes += next.encoded.len();
            bytes <= most_bytes
        });
        let records = fitting.take(most);
        records
            .map(|waiting| (waiting.uid, waiting.encoded.clone()))
            .collect()
    }

    /// The sync request with these records was answered.
    pub(super) fn confirm(&mut self, records: &[RecordUid]) {
        for waiting in self.own.iter_mut().chain(&mut self.resend) {
            if records.contains(&waiting.uid) {
                waiting.sent = match waiting.sent {
                    SentRecord::No | SentRecord::Once => SentRecord::Once,
                    SentRecord::Lost | SentRecord::Twice => SentRecord::Twice,
                };
            }
        }
        if !has(JournalRule::KeptUntilRead) {
            self.own.retain(|waiting| !waiting.is_sent());
        }
    }

    /// A record was read in the journal. Returns whether it is one of this process that was
    /// waiting.
    pub(super) fn read(&mut self, uid: RecordUid) -> bool {
        let before = self.own.len();
        self.own.retain(|waiting| waiting.uid != uid);
        self.resend.retain(|waiting| waiting.uid != uid);
        self.own.len() < before
    }

    /// All of the journal was read, and what was sent and is still waiting was not there.
    /// If the engine has older rows again, it has lost it: it is sent once more. What is not
    /// there even then was trimmed before it could be read, or lost again: that is forgotten.
    /// Returns whether something was.
    #[must_use]
    pub(super) fn read_all(&mut self) -> bool {
        let before = self.len();
        for all in [&mut self.own, &mut self.resend] {
            all.retain(|waiting| waiting.sent != SentRecord::Twice);
            for waiting in all.iter_mut().filter(|waiting| waiting.is_sent()) {
                waiting.sent = SentRecord::Lost;
            }
        }
        self.len() < before
    }

    /// Whether there are some of earlier generations that were not read in this one.
    pub(super) fn resends(&self) -> bool {
        !self.resend.is_empty()
    }

    /// Whether there are some that no answered sync request had.
    pub(super) fn has_unsent(&self) -> bool {
        let mut waiting = self.own.iter().chain(&self.resend);
        waiting.any(|waiting| !waiting.is_sent())
    }

    /// How many of this process the engine does not have.
    pub(super) fn unsent_own(&self) -> usize {
        self.own.iter().filter(|waiting| !waiting.is_sent()).count()
    }

    /// Those of this process.
    pub(super) fn own(&self) -> impl ExactSizeIterator<Item = &JournalRecord> {
        self.own.iter().map(|waiting| &waiting.record)
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.own.len() + self.resend.len()
    }
}

/// A record as a sync request has it.
pub(super) type SentContent = (RecordUid, Arc<[u8]>);
