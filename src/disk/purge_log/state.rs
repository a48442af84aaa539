//! What is known of the log in memory.

use super::LogId;
use super::records::PurgeRecords;

/// The most bytes of records that wait to be written.
const MOST_QUEUED: usize = 2 << 20;

/// What is known in memory.
#[derive(Debug)]
pub(super) struct State {
    pub(super) standing: LogStanding,
    pub(super) records: PurgeRecords,
    /// PurgeRecords that are not in the file yet.
    pub(super) queued: Vec<u8>,
    /// How many records there have been.
    pub(super) pushed: u64,
    /// The length of the file.
    pub(super) len: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogStanding {
    /// The file has all records but those that are queued.
    Recording(LogId),
    /// A record is missing. Nothing that is on disk may be used.
    Lost,
    /// A new file is being written.
    Beginning,
}

/// How far the file is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LogProgress {
    /// The records that no later run can lack.
    pub(super) recorded: u64,
    /// Whether nobody waits: the disk has taken too long.
    pub(super) is_late: bool,
}

impl State {
    pub(super) fn id(&self) -> Option<LogId> {
        match self.standing {
            LogStanding::Recording(id) => Some(id),
            LogStanding::Lost | LogStanding::Beginning => None,
        }
    }

    /// Has a record written. Returns whether it is the first that cannot be.
    pub(super) fn push(&mut self, bytes: &[u8]) -> bool {
        self.pushed += 1;
        let is_lost = self.queued.len() + bytes.len() > MOST_QUEUED && self.lose();
        if self.standing != LogStanding::Lost {
            self.queued.extend_from_slice(bytes);
        }
        is_lost
    }

    /// What waits to be written, and the number of the last record.
    pub(super) fn take_queued(&mut self) -> (Vec<u8>, u64) {
        (std::mem::take(&mut self.queued), self.pushed)
    }

    /// From now on nothing that is on disk may be used, and nothing is kept. Returns
    /// whether that is new.
    pub(super) fn lose(&mut self) -> bool {
        self.queued = Vec::new();
        std::mem::replace(&mut self.standing, LogStanding::Lost) != LogStanding::Lost
    }
}
