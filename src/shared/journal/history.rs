//! The records of the present generation that this process still remembers.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use super::position::RecordNumber;
use super::record::{JournalRecord, RecordUid};

/// The most records. The engine keeps twice as many, so that no replica misses one when
/// several send what they remember to a new generation.
pub(crate) const MOST_RECORDS: usize = 4096;
/// The most bytes of all records.
const MOST_BYTES: usize = 1 << 20;
/// How many records of all generations are known to have been applied.
const MOST_SEEN: usize = 4 * MOST_RECORDS;

/// The newest records of a generation, without a gap.
#[derive(Debug, Default)]
pub(super) struct JournalHistory {
    /// The number before that of the first record.
    floor: RecordNumber,
    records: VecDeque<(RecordUid, JournalRecord)>,
    bytes: usize,
    /// When a record was forgotten or missed last, in any generation.
    forgot: Option<Duration>,
}

impl JournalHistory {
    /// The number before that of the first record: of later ones, all are known.
    #[cfg(test)]
    const fn floor(&self) -> RecordNumber {
        self.floor
    }

    /// Begins anew after a number. Returns what was remembered.
    pub(super) fn begin(&mut self, floor: RecordNumber) -> VecDeque<(RecordUid, JournalRecord)> {
        self.floor = floor;
        self.bytes = 0;
        std::mem::take(&mut self.records)
    }

    /// There were records that this process has not read, and cannot send again.
    pub(super) fn miss(&mut self, now: Duration) {
        self.forgot = Some(now);
    }

    /// How long ago a record was forgotten or missed.
    pub(super) fn since_forgotten(&self, now: Duration) -> Option<Duration> {
        Some(now.saturating_sub(self.forgot?))
    }

    /// Adds the next record.
    pub(super) fn push(&mut self, now: Duration, uid: RecordUid, record: JournalRecord) {
        self.bytes += record.weight();
        self.records.push_back((uid, record));
        while self.records.len() > MOST_RECORDS || self.bytes > MOST_BYTES {
            let Some((_, oldest)) = self.records.pop_front() else {
                return;
            };
            self.bytes -= oldest.weight();
            self.floor += 1;
            if oldest.outlives_generations() {
                self.forgot = Some(now);
            }
        }
    }

    /// The records after a number, newest first; `None` if some of them are forgotten.
    pub(super) fn since(
        &self,
        number: RecordNumber,
    ) -> Option<impl Iterator<Item = &JournalRecord>> {
        let before = number.checked_sub(self.floor)?;
        let later = (self.records.len() as u64).saturating_sub(before);
        let later = usize::try_from(later).unwrap_or(usize::MAX);
        let newest = self.records.iter().rev();
        Some(newest.take(later).map(|(_, record)| record))
    }

    /// The number of a record.
    pub(super) fn number_of(&self, uid: RecordUid) -> Option<RecordNumber> {
        let at = self.records.iter().rposition(|(known, _)| *known == uid)?;
        Some(self.floor + at as u64 + 1)
    }
}

/// Which records were applied, whatever their generation.
#[derive(Debug, Default)]
pub(super) struct SeenRecords {
    all: HashSet<RecordUid>,
    order: VecDeque<RecordUid>,
}

impl SeenRecords {
    /// Adds a record. Returns whether it is new, or forgotten.
    pub(super) fn insert(&mut self, uid: RecordUid) -> bool {
        let is_new = self.all.insert(uid);
        if is_new {
            self.order.push_back(uid);
        }
        if self.order.len() > MOST_SEEN
            && let Some(oldest) = self.order.pop_front()
        {
            self.all.remove(&oldest);
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::purge::Purge;
    use crate::portable::purge::LoggedPurge;
    use crate::shared::allowance::ProcessId;

    fn uid(number: u64) -> RecordUid {
        let process = ProcessId(1);
        RecordUid { process, number }
    }

    fn text(length: usize) -> JournalRecord {
        let purge = Purge::Text("x".repeat(length).into());
        JournalRecord::Purge(LoggedPurge::new(&purge, None, None))
    }

    #[test]
    fn later_records_are_known_up_to_the_floor() {
        let mut history = JournalHistory::default();
        history.begin(10);
        for number in 11..=13 {
            history.push(Duration::ZERO, uid(number), text(number as usize));
        }
        let count = |number| Some(history.since(number)?.count());
        let counts = [9, 10, 11, 13, 14].map(count);
        assert_eq!(counts, [None, Some(3), Some(2), Some(0), Some(0)]);
        assert_eq!(history.since(12).unwrap().next(), Some(&text(13)));
        assert_eq!(history.number_of(uid(12)), Some(12));
        assert_eq!(history.number_of(uid(14)), None);
    }

    #[test]
    fn too_many_records_and_too_many_bytes_raise_the_floor() {
        let mut history = JournalHistory::default();
        for number in 1..=MOST_RECORDS as u64 + 5 {
            history.push(Duration::ZERO, uid(number), JournalRecord::Unknown);
        }
        assert_eq!(history.floor(), 5);
        let mut history = JournalHistory::default();
        for number in 1..=2000 {
            history.push(Duration::ZERO, uid(number), text(900));
        }
        let kept = 2000 - history.floor();
        assert!((MOST_BYTES as u64 / 1200..MOST_BYTES as u64 / 900).contains(&kept));
        assert_eq!(history.begin(0).len() as u64, kept);
    }

    #[test]
    fn a_record_is_new_once() {
        let mut seen = SeenRecords::default();
        assert!(seen.insert(uid(1)) && !seen.insert(uid(1)));
        for number in 2..=MOST_SEEN as u64 + 1 {
            assert!(seen.insert(uid(number)));
        }
        assert!(seen.insert(uid(1)), "forgotten");
    }
}
