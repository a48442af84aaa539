//! Positions in the journal.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use super::record::RecordUid;
use crate::portable::bytes::Reader;
use crate::portable::codec::CheckedPosition;
use crate::shared::allowance::ProcessId;

/// The name of one state of the journal in the engine. After the engine has lost records,
/// the journal begins anew with another name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Generation(pub(crate) [u8; 16]);

impl Generation {
    /// Its 32 hexadecimal digits.
    pub(crate) fn hex(self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Reads the digits.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let is_hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u128::from_str_radix(text, 16).ok().filter(|_| is_hex)?;
        Some(Self(number.to_be_bytes()))
    }
}

impl fmt::Debug for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.hex())
    }
}

/// The number of a record in its generation. The first one is 1, and no number is left
/// out.
pub(crate) type RecordNumber = u64;

/// Where a reader of the journal stands: it has applied all records up to this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JournalPosition {
    pub(crate) generation: Generation,
    /// 0 before the first record.
    pub(crate) record: RecordNumber,
}

/// How far a process has applied the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AppliedPosition {
    pub(crate) position: JournalPosition,
    /// The uid of that record, if it is known.
    pub(crate) last: Option<RecordUid>,
    /// The other processes that were there.
    pub(crate) others: BTreeSet<ProcessId>,
}

/// What an earlier run had applied, and how long ago it knew that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SavedPosition {
    pub(crate) applied: AppliedPosition,
    pub(crate) age: Duration,
}

impl CheckedPosition for JournalPosition {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.generation.0);
        out.extend_from_slice(&self.record.to_le_bytes());
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            generation: Generation(from.array()?),
            record: from.u64()?,
        })
    }
}
