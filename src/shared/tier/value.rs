//! The form of a value in the engine.
//!
//! It is a record with a checksum ([`put_record`]); in it the response as it is kept
//! anywhere ([`codec`]), with the position in the journal and the
//! tip at which it was fetched. Its time is that of the engine's clock, in milliseconds.

use crate::cache::StoredResponse;
use crate::chain::TipMark;
use crate::portable::bytes::{Reader, put_record, take_record};
use crate::portable::codec::{
    self, CheckedPosition, Head, Kept, KeptResponse, KeptStamp, decode_head, decode_one,
    decode_received, encode,
};
use crate::shared::journal::JournalPosition;

/// The longest value. A longer one would delay all others on its connection.
pub(super) const MOST_VALUE: usize = 1 << 20;

/// The longest body of a value before it is compressed: what takes this process some
/// milliseconds to compress, and a reader to index.
pub(super) const MOST_PLAIN: usize = 8 << 20;

/// A body that is longer is compressed and opened on a thread of its own: it would delay
/// what else the thread of a request does by more than a millisecond.
pub(super) const LONG: usize = 64 << 10;

/// What a shared response was checked against, and the tip by which it was fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SharedPosition {
    /// The records of the journal that it was checked against.
    pub(super) journal: JournalPosition,
    /// The tip by which it was fetched, where that is known.
    pub(super) mark: Option<TipMark>,
}

impl CheckedPosition for SharedPosition {
    fn write(&self, out: &mut Vec<u8>) {
        self.journal.write(out);
        let (kind, height, tag) = match self.mark {
            None => (0, 0, [0; 32]),
            Some(mark) => (1 + u8::from(mark.is_hash), mark.height, mark.tag),
        };
        out.push(kind);
        out.extend_from_slice(&height.to_le_bytes());
        out.extend_from_slice(&tag);
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        let journal = JournalPosition::read(from)?;
        let (kind, height, tag) = (from.u8()?, from.u32()?, from.array()?);
        let mark = match kind {
            0 if (height, tag) == (0, [0; 32]) => None,
            1 | 2 => Some(TipMark {
                height,
                tag,
                is_hash: kind == 2,
            }),
            _ => return None,
        };
        Some(Self { journal, mark })
    }
}

/// The value of a response that was received at a time of the engine.
pub(super) fn write(
    head: &Head<'_, SharedPosition>,
    stored: &StoredResponse,
    received_ms: u64,
) -> Vec<u8> {
    // The numbers of its epoch and its state mean nothing in another process.
    let stamp = stored.stamp().map(|stamp| KeptStamp {
        state: 0,
        epoch: 0,
        class: stamp.class,
        heights: stamp.heights(),
    });
    let kept = KeptResponse::of(stored, received_ms, stamp);
    let mut value = Vec::new();
    put_record(&mut value, &encode(head, &Kept::One(Box::new(kept))));
    value
}

/// Reads a value whose body has at most so many bytes: any bytes give a response or `None`.
pub(super) fn read(
    value: &[u8],
    most_body: usize,
) -> Option<(Head<'_, SharedPosition>, KeptResponse)> {
    let (head, rest) = decode_head(content(value)?)?;
    Some((head, decode_one(rest, most_body)?))
}

/// When the response of a value was received, by the clock of the engine.
pub(super) fn received_of(value: &[u8]) -> Option<u64> {
    let (_, rest) = decode_head::<SharedPosition>(content(value)?)?;
    decode_received(rest)
}

/// What the record of a value has, if it is whole.
fn content(value: &[u8]) -> Option<&[u8]> {
    if value.len() > MOST_VALUE {
        return None;
    }
    let mut record = Reader(value);
    take_record(&mut record).filter(|_| record.is_at_end())
}

/// Decodes any bytes, as a value and as the content of one: for the fuzz target.
pub(crate) fn decode_any(bytes: &[u8]) -> bool {
    let is_value = read(bytes, LONG).is_some();
    is_value | codec::decode_any::<SharedPosition>(bytes)
}
