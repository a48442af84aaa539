//! A segment: a file that records are appended to until it is full. Then its index is
//! appended, and its name changes from `NUMBER.open` to `NUMBER.segment`.
//!
//! A file begins with a preamble:
//!
//! | bytes | what |
//! |---|---|
//! | 0..8 | `ordgseg\n` |
//! | 8..12 | version of the format |
//! | 16..24 | the segment's number |
//! | 24..32 | sequence number of the next record |
//! | 36..40 | checksum of bytes 0..36 |
//!
//! and a full one ends with the fingerprints in order, their offsets, and a trailer:
//!
//! | bytes | what |
//! |---|---|
//! | 0..8 | `ordgend\n` |
//! | 8..12 | number of entries in the index |
//! | 12..16 | checksum of the index |
//! | 16..24 | where the records end |
//! | 24..32, 32..40 | sequence numbers of the first record, and of the one after the last |
//! | 44..48 | checksum of bytes 0..44 |

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use super::index::Index;
use super::record::{self, HEADER, Header, Standing, long_number, number};
use super::{MAX_SEGMENT_BYTES, MIN_RECORD_SHARE, fingerprint};

const VERSION: u32 = 1;

/// Bytes before the first record.
pub(super) const PREAMBLE: usize = 40;

/// Bytes after the index.
const TRAILER: usize = 48;

/// Bytes of an entry in a stored index.
const INDEX_ENTRY: usize = 12;

/// Files are counted in whole blocks, as file systems store them.
const BLOCK: u64 = 4096;

/// A segment and what of it is in memory.
pub(super) struct Segment {
    pub(super) number: u64,
    pub(super) file: Arc<File>,
    pub(super) index: Index,
    /// Sequence number of the first record.
    pub(super) first: u64,
    /// Sequence number after that of the last record.
    pub(super) next: u64,
    /// Where the records end.
    pub(super) end: u64,
    /// Bytes of the file.
    pub(super) length: u64,
    /// Whether records are appended.
    pub(super) is_open: bool,
}

/// Why a file is no segment.
#[derive(Debug)]
pub(super) enum Unusable {
    /// It is empty: ordgate was killed as it made it.
    Empty,
    /// It is of another version.
    Version,
    /// Its preamble is damaged.
    Damaged,
    /// The system refuses to read it.
    Io(io::Error),
}

impl From<io::Error> for Unusable {
    fn from(error: io::Error) -> Self {
        match error.kind() == io::ErrorKind::UnexpectedEof {
            true => Self::Damaged,
            false => Self::Io(error),
        }
    }
}

/// Bytes that an index of this many entries takes in its file.
pub(super) fn index_bytes(entries: usize) -> u64 {
    (entries * INDEX_ENTRY + TRAILER) as u64
}

impl Segment {
    /// Makes the file of a new segment.
    pub(super) fn create(path: &Path, segment: u64, sequence: u64) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        // Never a file that is there, nor one that a link points to.
        options.read(true).write(true).create_new(true);
        let file = options.mode(0o600).open(path)?;
        let mut preamble = [0; PREAMBLE];
        preamble[..8].copy_from_slice(b"ordgseg\n");
        preamble[8..12].copy_from_slice(&VERSION.to_le_bytes());
        preamble[16..24].copy_from_slice(&segment.to_le_bytes());
        preamble[24..32].copy_from_slice(&sequence.to_le_bytes());
        let checksum = crc32fast::hash(&preamble[..36]);
        preamble[36..].copy_from_slice(&checksum.to_le_bytes());
        file.write_all_at(&preamble, 0)?;
        Ok(Self {
            number: segment,
            file: Arc::new(file),
            index: Index::default(),
            first: sequence,
            next: sequence,
            end: PREAMBLE as u64,
            length: PREAMBLE as u64,
            is_open: true,
        })
    }

    /// Opens a segment's file and reads its preamble. The index is still empty.
    pub(super) fn open(path: &Path, segment: u64, is_open: bool) -> Result<Self, Unusable> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let length = file.metadata()?.len();
        if length == 0 {
            return Err(Unusable::Empty);
        }
        let mut preamble = [0; PREAMBLE];
        file.read_exact_at(&mut preamble, 0)?;
        if &preamble[..8] == b"ordgseg\n" && number(&preamble, 8) != VERSION {
            return Err(Unusable::Version);
        }
        let is_whole = number(&preamble, 36) == crc32fast::hash(&preamble[..36]);
        if !is_whole || &preamble[..8] != b"ordgseg\n" || long_number(&preamble, 16) != segment {
            return Err(Unusable::Damaged);
        }
        let sequence = long_number(&preamble, 24);
        Ok(Self {
            number: segment,
            file: Arc::new(file),
            index: Index::default(),
            first: sequence,
            next: sequence,
            end: PREAMBLE as u64,
            length,
            is_open,
        })
    }

    /// Reads the stored index. False: it is missing or damaged.
    pub(super) fn load(&mut self) -> io::Result<bool> {
        let Some(at) = self.length.checked_sub(TRAILER as u64) else {
            return Ok(false);
        };
        let mut trailer = [0; TRAILER];
        self.file.read_exact_at(&mut trailer, at)?;
        let entries = number(&trailer, 8) as usize;
        let end = long_number(&trailer, 16);
        if number(&trailer, 44) != crc32fast::hash(&trailer[..44])
            || &trailer[..8] != b"ordgend\n"
            || entries > most_entries(MAX_SEGMENT_BYTES)
            || end.checked_add(index_bytes(entries)) != Some(self.length)
        {
            return Ok(false);
        }
        let mut stored = vec![0; entries * INDEX_ENTRY];
        self.file.read_exact_at(&mut stored, end)?;
        if number(&trailer, 12) != crc32fast::hash(&stored) {
            return Ok(false);
        }
        let (fingerprints, offsets) = stored.split_at(entries * 8);
        let fingerprints = fingerprints.chunks_exact(8).map(|at| long_number(at, 0));
        let offsets = offsets.chunks_exact(4).map(|at| number(at, 0));
        let Some(index) = Index::sorted(fingerprints.collect(), offsets.collect()) else {
            return Ok(false);
        };
        self.index = index;
        self.end = end;
        self.first = long_number(&trailer, 24);
        self.next = long_number(&trailer, 32);
        Ok(true)
    }

    /// Finds the records by reading their headers one after another, up to the first
    /// that is damaged or torn. Returns the offsets of records that a later one in
    /// the same segment replaces although they are not marked as gone.
    pub(super) fn scan(&mut self) -> io::Result<Vec<u32>> {
        let mut replaced = Vec::new();
        self.index = Index::default();
        self.end = PREAMBLE as u64;
        let most = self.length.min(MAX_SEGMENT_BYTES);
        let mut bytes = [0; HEADER];
        while self.end + HEADER as u64 <= most && self.index.len() < most_entries(MAX_SEGMENT_BYTES)
        {
            self.file.read_exact_at(&mut bytes, self.end)?;
            let Some(header) = Header::parse(&bytes) else {
                break;
            };
            let end = self.end + HEADER as u64 + u64::from(header.length);
            // What a write that failed has left behind the end is older.
            if end > most || header.sequence < self.next {
                break;
            }
            let (at, offset) = (fingerprint(&header.key), self.end as u32);
            match header.standing {
                Standing::Live => replaced.extend(self.index.insert(at, offset)),
                Standing::Gone | Standing::Damaged => self.index.insert_gone(at, offset),
            }
            self.next = header.sequence.saturating_add(1);
            self.end = end;
        }
        Ok(replaced)
    }

    /// The stored form of the index, with the trailer.
    pub(super) fn stored_index(&self) -> Vec<u8> {
        let entries = self.index.in_order();
        let mut stored = Vec::with_capacity(entries.len() * INDEX_ENTRY + TRAILER);
        for (fingerprint, _) in &entries {
            stored.extend_from_slice(&fingerprint.to_le_bytes());
        }
        for (_, offset) in &entries {
            stored.extend_from_slice(&offset.to_le_bytes());
        }
        let mut trailer = [0; TRAILER];
        trailer[..8].copy_from_slice(b"ordgend\n");
        trailer[8..12].copy_from_slice(&(entries.len() as u32).to_le_bytes());
        trailer[12..16].copy_from_slice(&crc32fast::hash(&stored).to_le_bytes());
        trailer[16..24].copy_from_slice(&self.end.to_le_bytes());
        trailer[24..32].copy_from_slice(&self.first.to_le_bytes());
        trailer[32..40].copy_from_slice(&self.next.to_le_bytes());
        let checksum = crc32fast::hash(&trailer[..44]);
        trailer[44..].copy_from_slice(&checksum.to_le_bytes());
        stored.extend_from_slice(&trailer);
        stored
    }

    /// Ends the appending: the index takes the form that it is stored in.
    pub(super) fn seal(&mut self, length: u64) {
        self.compact();
        self.is_open = false;
        self.length = length;
    }

    /// Brings the index into its small form; records are not appended any more.
    pub(super) fn compact(&mut self) {
        let (fingerprints, offsets) = self.index.in_order().into_iter().unzip();
        if let Some(index) = Index::sorted(fingerprints, offsets) {
            self.index = index;
        }
    }

    /// Whether a record of this size can follow what is there and what is pending.
    pub(super) fn has_room(&self, pending: usize, entries: usize, bytes: usize, most: u64) -> bool {
        let entries = self.index.len() + entries + 1;
        let end = self.end + (pending + HEADER + bytes) as u64;
        end + index_bytes(entries) <= most && entries <= most_entries(most)
    }

    /// Bytes that the file takes on disk.
    pub(super) fn disk_bytes(&self) -> u64 {
        blocks(self.length.max(self.end))
    }

    /// Overwrites the beginning of a record, so that it never counts again.
    pub(super) fn erase(file: &File, offset: u32) -> io::Result<()> {
        file.write_all_at(&record::GONE, u64::from(offset))
    }
}

/// A number of bytes, rounded up to whole blocks.
pub(super) fn blocks(bytes: u64) -> u64 {
    bytes.next_multiple_of(BLOCK)
}

/// How many records a segment of this size may have, which bounds the memory for
/// its index.
fn most_entries(bytes: u64) -> usize {
    (bytes / MIN_RECORD_SHARE).max(1) as usize
}
