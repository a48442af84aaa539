//! The layout of a record: a header, then the value.
//!
//! | bytes | what |
//! |---|---|
//! | 0..4 | `live`, or `gone` once it is removed or replaced |
//! | 4..8 | checksum of bytes 8..40 |
//! | 8..12 | length of the value |
//! | 12..16 | checksum of the value |
//! | 16..32 | key |
//! | 32..40 | sequence number |
//!
//! Numbers are little-endian; checksums are CRC-32. The first four bytes have no
//! checksum, so that a record is removed by overwriting them alone.

use super::EntryKey;

/// Bytes of a header.
pub(super) const HEADER: usize = 40;

const LIVE: [u8; 4] = *b"live";

/// What the first bytes of a removed record are overwritten with.
pub(super) const GONE: [u8; 4] = *b"gone";

/// A header whose checksum is right.
pub(super) struct Header {
    pub(super) standing: Standing,
    pub(super) key: EntryKey,
    pub(super) sequence: u64,
    /// Bytes of the value.
    pub(super) length: u32,
    value_checksum: u32,
}

/// Whether a record counts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Standing {
    Live,
    Gone,
    /// The first bytes are neither.
    Damaged,
}

/// Appends a record to a buffer. The value's length must fit 32 bits.
pub(super) fn append(buffer: &mut Vec<u8>, key: &EntryKey, sequence: u64, value: &[u8]) {
    let start = buffer.len();
    let length = u32::try_from(value.len()).unwrap_or(u32::MAX);
    buffer.extend_from_slice(&LIVE);
    buffer.extend_from_slice(&[0; 4]);
    buffer.extend_from_slice(&length.to_le_bytes());
    buffer.extend_from_slice(&crc32fast::hash(value).to_le_bytes());
    buffer.extend_from_slice(key);
    buffer.extend_from_slice(&sequence.to_le_bytes());
    let checksum = crc32fast::hash(&buffer[start + 8..]);
    buffer[start + 4..start + 8].copy_from_slice(&checksum.to_le_bytes());
    buffer.extend_from_slice(value);
}

impl Header {
    /// Reads a header; `None` if its checksum is wrong.
    pub(super) fn parse(bytes: &[u8; HEADER]) -> Option<Self> {
        if number(bytes, 4) != crc32fast::hash(&bytes[8..]) {
            return None;
        }
        let mut key = EntryKey::default();
        key.copy_from_slice(&bytes[16..32]);
        Some(Self {
            standing: match bytes[..4] == LIVE {
                true => Standing::Live,
                false if bytes[..4] == GONE => Standing::Gone,
                false => Standing::Damaged,
            },
            key,
            sequence: long_number(bytes, 32),
            length: number(bytes, 8),
            value_checksum: number(bytes, 12),
        })
    }

    /// Whether these are the bytes that were stored.
    pub(super) fn verifies(&self, value: &[u8]) -> bool {
        value.len() == self.length as usize && crc32fast::hash(value) == self.value_checksum
    }
}

/// The 32 bits at a place, which must lie within the bytes.
pub(super) fn number(bytes: &[u8], at: usize) -> u32 {
    let mut four = [0; 4];
    four.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(four)
}

/// The 64 bits at a place, which must lie within the bytes.
pub(super) fn long_number(bytes: &[u8], at: usize) -> u64 {
    let mut eight = [0; 8];
    eight.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(eight)
}
