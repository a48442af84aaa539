//! The storage engine: values under keys of 16 bytes, in files of bounded size.
//!
//! A log of segments. Batches are appended to the newest segment; a full one gets its
//! index appended and is not written to any more, except that records which are
//! removed or replaced are marked as gone in place. When the bound is reached, the
//! oldest segment is deleted whole. So the files never exceed the bound, nothing is
//! ever compacted, and opening reads the indexes and walks the headers of one segment.
//!
//! # What holds
//!
//! - [`Engine::get`] returns the value that was put last under the key, or nothing;
//!   never an older one, and never one that was removed. Each value and header has a
//!   checksum, which is verified; a value whose checksum is wrong is absent, counted in
//!   [`Engine::unreadable`].
//! - What [`Engine::put_batch`] has written survives a kill of the process when it
//!   returns, and a crash of the machine once [`Engine::sync`] has returned. A removal
//!   survives both when [`Engine::remove_batch`] returns.
//! - The files take at most `max_bytes`, at every moment.
//! - In memory, an entry takes 12 bytes, and about 40 in the segment that is written
//!   to. A segment has at most one record for each KiB of its size, so the index never
//!   takes more than 1.2 % of `max_bytes` and the part for the newest segment.
//! - No file, however damaged, makes it panic or keeps it from opening. A segment with a
//!   bad sector where a record is to be marked as gone is deleted, if it can be.
//!
//! Keys must be as good as random in their first eight bytes, as digests are.
//!
//! All calls block. Reads take a lock only while they look into the index; writes are
//! serialized. Deliberately absent: order of keys, iteration, transactions. The
//! comparison with libraries is in benches/README.md.

mod index;
mod record;
mod recover;
mod segment;
#[cfg(test)]
mod tests;
mod write;

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::sync;
use record::{HEADER, Header, Standing};
use segment::Segment;
use write::Writer;

/// What a value is stored under: a digest.
pub type EntryKey = [u8; 16];

/// How many segments the bound is divided into, unless they would become too large.
const SEGMENTS: u64 = 128;

/// The largest segment. Offsets need the highest bit of 32 for something else.
const MAX_SEGMENT_BYTES: u64 = 1 << 30;

/// The smallest segment.
const MIN_SEGMENT_BYTES: u64 = 64 << 10;

/// A segment has at most one record for this many bytes, which bounds the memory for
/// the index.
const MIN_RECORD_SHARE: u64 = 1024;

/// Bytes that are read at first: enough for most values.
const FIRST_READ: u64 = 4096;

/// Why the engine refuses.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The file system is full.
    #[error("no room to {action} {}: {error}", path.display())]
    Full {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// The files may not be written.
    #[error("not allowed to {action} {}: {error}", path.display())]
    NotWritable {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// Any other error of the file system.
    #[error("cannot {action} {}: {error}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// The bound leaves no room for segments.
    #[error("{0} bytes are too few: at least {least} are needed", least = Engine::LEAST_BYTES)]
    TooFewBytes(u64),
    /// A value does not fit a segment. Nothing of its batch was written.
    #[error("a value of {bytes} bytes is too large: at most {most} are allowed")]
    ValueTooLarge {
        /// Its size.
        bytes: usize,
        /// What is allowed.
        most: usize,
    },
}

impl EngineError {
    fn new(action: &'static str, path: &Path, error: io::Error) -> Self {
        use io::ErrorKind::{
            FileTooLarge, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull,
        };
        let (kind, path) = (error.kind(), path.to_owned());
        if [StorageFull, QuotaExceeded, FileTooLarge].contains(&kind) {
            return Self::Full {
                action,
                path,
                error,
            };
        }
        if [ReadOnlyFilesystem, PermissionDenied].contains(&kind) {
            return Self::NotWritable {
                action,
                path,
                error,
            };
        }
        Self::Io {
            action,
            path,
            error,
        }
    }
}

/// What was found when the engine was opened.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recovered {
    /// Entries that are served. Those that were removed after their segment was full
    /// are among them.
    pub entries: u64,
    /// Segments that were found.
    pub segments: u64,
    /// Segments whose headers were walked, since their index was missing or damaged.
    /// One, after the process was killed.
    pub scanned: u64,
    /// Bytes at the end of segments that belong to no whole record.
    pub torn_bytes: u64,
    /// Files of ours that were deleted: damaged ones, and those of another version.
    pub discarded: u64,
    /// How many of them were of another version.
    pub other_version: u64,
    /// Files that are not ours. They are left alone, and do not count as bytes.
    pub foreign: u64,
    /// The name of one of them.
    pub foreign_name: Option<String>,
}

/// How large things may be.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// All files.
    max_bytes: u64,
    segment_bytes: u64,
    segments: usize,
}

impl Limits {
    fn new(max_bytes: u64) -> Result<Self, EngineError> {
        if max_bytes < Engine::LEAST_BYTES {
            return Err(EngineError::TooFewBytes(max_bytes));
        }
        let segment_bytes = (max_bytes / SEGMENTS).clamp(MIN_SEGMENT_BYTES, MAX_SEGMENT_BYTES);
        Ok(Self {
            max_bytes,
            // Whole blocks, so that segments fit as often as they should.
            segment_bytes: segment_bytes / 4096 * 4096,
            segments: usize::try_from(max_bytes / segment_bytes).unwrap_or(usize::MAX),
        })
    }
}

/// The storage engine.
pub struct Engine {
    directory: PathBuf,
    limits: Limits,
    state: RwLock<Segments>,
    writer: Mutex<Writer>,
    /// How many entries were evicted since the engine was opened.
    evicted: AtomicU64,
    /// How many values were found damaged, or dropped with a segment that was, since the
    /// engine was opened.
    unreadable: AtomicU64,
}

/// All segments, the oldest first. Only the last one is written to.
type Segments = VecDeque<Segment>;

impl Engine {
    /// The least that `max_bytes` may be.
    pub const LEAST_BYTES: u64 = 4 * MIN_SEGMENT_BYTES;

    /// Opens the engine in a directory of its own, which is created if it is missing.
    /// Only one engine may use a directory at a time: the caller sees to that.
    ///
    /// # Errors
    ///
    /// The directory cannot be read or written. Damaged files are no errors.
    pub fn open(directory: &Path, max_bytes: u64) -> Result<(Self, Recovered), EngineError> {
        let limits = Limits::new(max_bytes)?;
        let (segments, writer, mut recovered) = recover::recover(directory)?;
        let engine = Self {
            directory: directory.to_owned(),
            limits,
            state: RwLock::new(segments),
            writer: Mutex::new(writer),
            evicted: AtomicU64::new(0),
            unreadable: AtomicU64::new(0),
        };
        // The bound may be lower than in the last run.
        let room = match engine.read().back() {
            Some(newest) if newest.is_open => limits.segment_bytes.saturating_sub(newest.end),
            _ => 0,
        };
        engine.evict(room, limits.segments)?;
        recovered.segments = engine.read().len() as u64;
        recovered.entries = engine.entries();
        Ok((engine, recovered))
    }

    /// The value under a key.
    ///
    /// # Errors
    ///
    /// The system refuses to read it.
    pub fn get(&self, key: &EntryKey) -> Result<Option<Vec<u8>>, EngineError> {
        let Some((number, file, offset, room)) = self.find(key) else {
            return Ok(None);
        };
        let read = read_record(&file, offset, room, key);
        match read {
            Ok(Read::Value(value)) => Ok(Some(value)),
            Ok(Read::Absent) => Ok(None),
            Ok(Read::Damaged) => {
                self.unreadable.fetch_add(1, Relaxed);
                Ok(None)
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                self.unreadable.fetch_add(1, Relaxed);
                Ok(None)
            }
            Err(error) => {
                let path = recover::path(&self.directory, number, false);
                Err(EngineError::new("read", &path, error))
            }
        }
    }

    /// Where a record is: the segment's number and file, the record's offset, and how
    /// many bytes it can have.
    fn find(&self, key: &EntryKey) -> Option<(u64, Arc<File>, u64, u64)> {
        let segments = self.read();
        let fingerprint = fingerprint(key);
        let found = segments.iter().rev().find_map(|segment| {
            let offset = segment.index.find(fingerprint)?;
            Some((segment, offset))
        });
        let (segment, offset) = found?;
        let offset = u64::from(offset?);
        let room = segment.end.saturating_sub(offset);
        Some((segment.number, segment.file.clone(), offset, room))
    }

    /// Stores values; each replaces what is under its key. What does not fit the bound
    /// any more is evicted, the oldest first.
    ///
    /// # Errors
    ///
    /// The files cannot be written, or a value is larger than
    /// [`Engine::max_value_bytes`]. After an error of the file system each value of the
    /// batch may be stored or not; what it replaces may be gone.
    pub fn put_batch(&self, batch: &[(EntryKey, Vec<u8>)]) -> Result<(), EngineError> {
        self.writer().put_batch(self, batch)
    }

    /// Removes what is under a key, as [`Engine::remove_batch`] does.
    ///
    /// # Errors
    ///
    /// The same.
    pub fn remove(&self, key: &EntryKey) -> Result<(), EngineError> {
        self.remove_batch(std::slice::from_ref(key))
    }

    /// Removes what is under keys. When this returns, it is gone for good, and what was
    /// put before survives a crash of the machine.
    ///
    /// # Errors
    ///
    /// The files cannot be written: it is absent, but may be back after a restart.
    pub fn remove_batch(&self, keys: &[EntryKey]) -> Result<(), EngineError> {
        self.writer().remove_batch(self, keys)
    }

    /// Waits until what was put survives a crash of the machine.
    ///
    /// # Errors
    ///
    /// The files cannot be written.
    pub fn sync(&self) -> Result<(), EngineError> {
        self.writer().sync(self)
    }

    /// Whether all that was put survives a crash of the machine.
    #[cfg(test)]
    pub(super) fn is_durable(&self) -> bool {
        self.writer().unsynced.is_empty()
    }

    /// Bytes that the files take, in whole blocks.
    pub fn bytes(&self) -> u64 {
        self.read().iter().map(Segment::disk_bytes).sum()
    }

    /// How many entries there are. After a restart, those that were removed since their
    /// segment was full are counted until it is evicted.
    pub fn entries(&self) -> u64 {
        self.read().iter().map(|at| at.index.live() as u64).sum()
    }

    /// How many entries were evicted since the engine was opened.
    pub fn evicted(&self) -> u64 {
        self.evicted.load(Relaxed)
    }

    /// How many values were found damaged, or dropped with a segment that was, since the
    /// engine was opened.
    pub fn unreadable(&self) -> u64 {
        self.unreadable.load(Relaxed)
    }

    /// No entry has a lower sequence number. Puts are numbered, one after another.
    pub fn oldest_sequence(&self) -> u64 {
        let segments = self.read();
        let oldest = segments.front().map(|segment| segment.first);
        drop(segments);
        oldest.unwrap_or_else(|| self.next_sequence())
    }

    /// The sequence number of the next entry. Higher than that of all that are stored,
    /// also after a restart.
    pub fn next_sequence(&self) -> u64 {
        self.writer().next_sequence()
    }

    /// The largest value that can be stored.
    pub fn max_value_bytes(&self) -> usize {
        let around = (segment::PREAMBLE + HEADER) as u64 + segment::index_bytes(1);
        usize::try_from(self.limits.segment_bytes - around).unwrap_or(usize::MAX)
    }

    fn read(&self) -> RwLockReadGuard<'_, Segments> {
        sync::read(&self.state)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Segments> {
        sync::write(&self.state)
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        sync::lock(&self.writer)
    }
}

/// What came of reading a record.
enum Read {
    Value(Vec<u8>),
    Absent,
    Damaged,
}

/// Reads the record at an offset, which has at most `room` bytes.
fn read_record(file: &File, offset: u64, room: u64, key: &EntryKey) -> io::Result<Read> {
    let mut bytes = vec![0; room.min(FIRST_READ) as usize];
    file.read_exact_at(&mut bytes, offset)?;
    let Some(header) = bytes.first_chunk::<HEADER>().and_then(Header::parse) else {
        return Ok(Read::Damaged);
    };
    // Gone since the index was looked at, or since the index was stored. Another key
    // has the same fingerprint.
    if header.standing == Standing::Gone || header.key != *key {
        return Ok(Read::Absent);
    }
    let whole = HEADER + header.length as usize;
    if header.standing == Standing::Damaged || whole as u64 > room {
        return Ok(Read::Damaged);
    }
    let first = bytes.len();
    bytes.resize(whole, 0);
    if whole > first {
        file.read_exact_at(&mut bytes[first..], offset + first as u64)?;
    }
    let value = bytes.split_off(HEADER);
    Ok(match header.verifies(&value) {
        true => Read::Value(value),
        false => Read::Damaged,
    })
}

/// What the index knows of a key.
fn fingerprint(key: &EntryKey) -> u64 {
    record::long_number(key, 0)
}
