//! The file of the purge log.
//!
//! ```text
//! head     version, the log's id, and from where on its records are complete
//! record   ...
//! mark     the last numbers; the next record overwrites it
//! ```

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use super::record::Record;
use super::records::PurgeRecords;
use super::{LogId, MOST_BYTES};
use crate::disk::files::replace;
use crate::portable::bytes::{Reader, put_record, take_record};

const HEAD: &[u8; 16] = b"ordgate-purges-1";
const MARK: &[u8; 16] = b"ordgate-log-ends";

/// An open log.
#[derive(Debug)]
pub(super) struct LogFile {
    file: File,
    /// Where the mark begins.
    end: u64,
    len: u64,
}

impl LogFile {
    /// Writes a new file in place of the one there is, and makes it durable.
    pub(super) fn create(path: &Path, (bytes, end): (Vec<u8>, u64)) -> io::Result<Self> {
        let file = replace(path, &bytes, true)?;
        Ok(Self {
            file,
            end,
            len: bytes.len() as u64,
        })
    }

    /// Appends records, if any, and the mark after them.
    pub(super) fn append(&mut self, records: &[u8], mark: &[u8]) -> io::Result<()> {
        if records.is_empty() {
            return Ok(());
        }
        if self.len + records.len() as u64 > 2 * MOST_BYTES {
            return Err(io::Error::other("the file is too long"));
        }
        self.file
            .write_all_at(&[records, mark].concat(), self.end)?;
        self.end += records.len() as u64;
        self.len = self.end + mark.len() as u64;
        Ok(())
    }

    /// Another handle of the file.
    pub(super) fn handle(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Whether this is the file at a path.
    pub(super) fn is_at(&self, path: &Path) -> bool {
        let own = self.file.metadata();
        let there = std::fs::metadata(path);
        own.is_ok_and(|own| {
            there.is_ok_and(|there| (own.ino(), own.dev()) == (there.ino(), there.dev()))
        })
    }

    /// Makes the file unreadable.
    pub(super) fn empty(self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.sync_data()
    }

    /// Replaces the handle.
    #[cfg(test)]
    pub(super) fn set_handle(&mut self, file: File) {
        self.file = file;
    }

    pub(super) const fn len(&self) -> u64 {
        self.len
    }
}

/// A whole file, and where its mark begins.
pub(super) fn to_bytes(id: LogId, records: &PurgeRecords) -> (Vec<u8>, u64) {
    let mut bytes = Vec::new();
    let mut head = HEAD.to_vec();
    head.extend_from_slice(&id.0);
    head.extend_from_slice(&records.purges_from.to_le_bytes());
    head.extend_from_slice(&records.removals_from.to_le_bytes());
    put_record(&mut bytes, &head);
    for record in records.iter() {
        put_record(&mut bytes, &record.to_bytes());
    }
    let end = bytes.len() as u64;
    bytes.extend_from_slice(&mark(records));
    (bytes, end)
}

/// The mark after these records.
pub(super) fn mark(records: &PurgeRecords) -> Vec<u8> {
    let mut mark = MARK.to_vec();
    mark.extend_from_slice(&records.last_purge.to_le_bytes());
    mark.extend_from_slice(&records.next_removal.to_le_bytes());
    let mut bytes = Vec::new();
    put_record(&mut bytes, &mark);
    bytes
}

/// Reads any bytes: for the fuzz target.
pub(in crate::disk) fn parse_any(bytes: &[u8]) -> bool {
    let Ok((id, records)) = parse(bytes) else {
        return false;
    };
    // What was read means the same when it is written again.
    let again = parse(&to_bytes(id, &records).0);
    let is_same = again.is_ok_and(|(same, again)| {
        same == id && again.purges == records.purges && again.removals == records.removals
    });
    assert!(is_same, "a log changes its meaning");
    true
}

/// Reads a file, or says what is wrong with it.
pub(super) fn parse(bytes: &[u8]) -> Result<(LogId, PurgeRecords), &'static str> {
    const TORN: &str = "it is torn or damaged";
    let mut from = Reader(bytes);
    let head = take_record(&mut from).ok_or(TORN)?;
    let (id, mut records) = read_head(head).ok_or("it is of another version")?;
    loop {
        let content = take_record(&mut from).ok_or(TORN)?;
        if let Some((last_purge, next_removal)) = read_mark(content) {
            if !from.is_at_end() || last_purge < records.last_purge {
                return Err(TORN);
            }
            records.last_purge = last_purge;
            records.next_removal = next_removal;
            return Ok((id, records));
        }
        let record = Record::read(content);
        records.apply(record.ok_or("it has a record of another version")?);
    }
}

fn read_head(content: &[u8]) -> Option<(LogId, PurgeRecords)> {
    let mut from = Reader(content);
    if from.array()? != *HEAD {
        return None;
    }
    let id = LogId(from.array()?);
    let from_where = (from.u64()?, from.u64()?);
    let records = PurgeRecords::begin(from_where, Vec::new());
    from.is_at_end().then_some((id, records))
}

fn read_mark(content: &[u8]) -> Option<(u64, u64)> {
    let mut from = Reader(content);
    if from.array()? != *MARK {
        return None;
    }
    let numbers = (from.u64()?, from.u64()?);
    from.is_at_end().then_some(numbers)
}
