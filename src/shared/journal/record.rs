//! The records of the journal, and their form in the engine.
//!
//! ```text
//! version, kind, length of the content, content
//! ```
//!
//! Decoding is total. A record of an unknown kind is skipped if its kind is at least
//! [`MAY_SKIP`]. Any other that cannot be read counts as a purge of everything: it may be
//! the purge of a newer version, and no purge may be lost while replicas are updated.

use std::sync::Arc;

use super::cooldown::CooldownRecord;
use crate::cache::purge::Purge;
use crate::portable::bytes::{Reader, put_bytes};
use crate::portable::purge::LoggedPurge;
use crate::shared::allowance::ProcessId;

const VERSION: u8 = 1;

/// The longest record, in bytes. A longer purge becomes one of its whole route.
pub(crate) const MOST_RECORD: usize = 1024;

/// Kinds from here on may be skipped by those who do not know them.
const MAY_SKIP: u8 = 128;

const PURGE: u8 = 0;
/// May be skipped: it only saves requests.
const COOLDOWN: u8 = 129;

/// Identifies a record, in whichever generation it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RecordUid {
    /// The process that has made it.
    pub(crate) process: ProcessId,
    /// Its number among the records of that process.
    pub(crate) number: u64,
}

impl RecordUid {
    /// Its text in the engine.
    pub(crate) fn text(self) -> String {
        format!("{}{:016x}", self.process.hex(), self.number)
    }

    /// Reads the text.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let is_hex = text.len() == 48 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let (process, number) = text.split_at_checked(32).filter(|_| is_hex)?;
        Some(Self {
            process: ProcessId(u128::from_str_radix(process, 16).ok()?),
            number: u64::from_str_radix(number, 16).ok()?,
        })
    }
}

/// What one replica tells all others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum JournalRecord {
    /// Something was purged.
    Purge(LoggedPurge),
    /// A key is not to be used for a while.
    Cooldown(CooldownRecord),
    /// A record that this version does not know, and may skip.
    Unknown,
}

impl JournalRecord {
    /// A purge of everything.
    pub(crate) fn purge_all() -> Self {
        Self::Purge(LoggedPurge::new(&Purge::All, None, None))
    }

    /// Its form in the engine, of at most [`MOST_RECORD`] bytes.
    pub(crate) fn encode(&self) -> Arc<[u8]> {
        let mut content = Vec::new();
        let kind = match self {
            Self::Purge(purge) => {
                purge.write(&mut content);
                PURGE
            }
            Self::Cooldown(cooldown) => {
                cooldown.write(&mut content);
                COOLDOWN
            }
            Self::Unknown => MAY_SKIP,
        };
        let mut out = vec![VERSION, kind];
        put_bytes(&mut out, &content);
        match self {
            Self::Purge(purge) if out.len() > MOST_RECORD => {
                Self::Purge(purge.of_whole_route()).encode()
            }
            Self::Purge(_) | Self::Cooldown(_) | Self::Unknown => out.into(),
        }
    }

    /// Reads a record.
    pub(crate) fn decode(bytes: &[u8]) -> Self {
        let mut from = Reader(bytes);
        let head = (from.u8(), from.u8());
        let content = from.bytes().filter(|_| from.is_at_end());
        let known = match (head, content) {
            ((Some(VERSION), Some(PURGE)), Some(content)) => {
                let mut from = Reader(content);
                let purge = LoggedPurge::read(&mut from).filter(|_| from.is_at_end());
                purge.map(Self::Purge)
            }
            ((Some(VERSION), Some(COOLDOWN)), Some(content)) => {
                let mut from = Reader(content);
                let cooldown = CooldownRecord::read(&mut from).filter(|_| from.is_at_end());
                Some(cooldown.map_or(Self::Unknown, Self::Cooldown))
            }
            ((_, Some(MAY_SKIP..)), _) => Some(Self::Unknown),
            _ => None,
        };
        known.unwrap_or_else(Self::purge_all)
    }

    /// Whether it is to be in each generation: what was purged stays purged, but what is
    /// new in one moment is not in the next.
    pub(crate) fn outlives_generations(&self) -> bool {
        matches!(self, Self::Purge(_))
    }

    /// The bytes that it takes in memory, about.
    pub(super) fn weight(&self) -> usize {
        match self {
            Self::Purge(purge) => purge.weight(),
            Self::Cooldown(cooldown) => size_of_val(cooldown),
            Self::Unknown => 0,
        }
    }
}

/// Decodes any bytes: for the fuzz target.
pub(crate) fn decode_any(bytes: &[u8]) -> bool {
    let record = JournalRecord::decode(bytes);
    let encoded = record.encode();
    assert!(encoded.len() <= MOST_RECORD, "a record is too long");
    if bytes.len() <= MOST_RECORD {
        let same = JournalRecord::decode(&encoded);
        assert!(same == record, "a record changes its meaning");
    }
    *encoded == *bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::portable::digest::MeaningDigest;

    fn target(length: usize) -> JournalRecord {
        let purge = Purge::Target {
            route: 3,
            target: "a".repeat(length).into(),
        };
        let route = Some(MeaningDigest([7; 32]));
        JournalRecord::Purge(LoggedPurge::new(&purge, route, None))
    }

    #[test]
    fn a_record_is_read_as_it_was_written_and_a_long_one_becomes_one_of_its_route() {
        let short = target(100);
        assert_eq!(JournalRecord::decode(&short.encode()), short);
        let long = target(2000).encode();
        assert!(long.len() <= MOST_RECORD);
        let route = LoggedPurge::new(&Purge::Route(0), Some(MeaningDigest([7; 32])), None);
        assert_eq!(JournalRecord::decode(&long), JournalRecord::Purge(route));
        let text = Purge::Text("b".repeat(2000).into());
        let text = JournalRecord::Purge(LoggedPurge::new(&text, None, None));
        let all = JournalRecord::decode(&text.encode());
        assert_eq!(all, JournalRecord::purge_all());
    }

    #[test]
    fn what_cannot_be_read_purges_everything_unless_it_may_be_skipped() {
        let whole = target(10).encode();
        for len in 0..whole.len() {
            let read = JournalRecord::decode(&whole[..len]);
            assert_eq!(read, JournalRecord::purge_all(), "{len}");
        }
        for (bytes, expected) in [
            (&[1, 127, 0, 0, 0, 0][..], JournalRecord::purge_all()),
            (&[2, 0, 0, 0, 0, 0], JournalRecord::purge_all()),
            (&[1, 128, 0, 0, 0, 0], JournalRecord::Unknown),
            (&[9, 255, 1], JournalRecord::Unknown),
        ] {
            assert_eq!(JournalRecord::decode(bytes), expected, "{bytes:?}");
        }
    }

    #[test]
    fn a_uid_is_read_as_it_was_written() {
        let uid = RecordUid {
            process: ProcessId(u128::MAX - 5),
            number: 77,
        };
        assert_eq!(RecordUid::parse(&uid.text()), Some(uid));
        for wrong in ["", "+f", &"é".repeat(24), &"0".repeat(49)] {
            assert_eq!(RecordUid::parse(wrong), None, "{wrong}");
        }
    }
}
