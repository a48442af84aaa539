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
    /// Records that are not in the file yet.
    pub(super) queued: Vec<u8>,
    /// Whether there is no file, or it lacks records that are not queued either: then it
    /// is to be written anew.
    pub(super) is_behind: bool,
    /// How many records there have been.
    pub(super) pushed: u64,
    /// The length of the file.
    pub(super) len: u64,
    /// The numbers up to which the file survives the machine's end.
    pub(super) durable: (u64, u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogStanding {
    /// All records are in memory, and there is a file with them or none at all.
    Recording(LogId),
    /// Nothing that is on disk may be used.
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

    /// The number of the last purge, and that of the next removal.
    pub(super) fn position(&self) -> (u64, u64) {
        (self.records.last_purge, self.records.next_removal)
    }

    /// Has a record written. Where too many wait, the file is written anew instead.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.pushed += 1;
        if self.queued.len() + bytes.len() > MOST_QUEUED {
            self.fall_behind();
        }
        if !self.is_behind && self.standing != LogStanding::Lost {
            self.queued.extend_from_slice(bytes);
        }
    }

    /// The file lacks records from now on.
    pub(super) fn fall_behind(&mut self) {
        self.queued = Vec::new();
        self.is_behind = true;
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
