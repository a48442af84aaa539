//! The form in which stored responses are kept outside the process.
//!
//! ```text
//! version, position                what it was checked against
//! route, target                    what it answers, compared when it is read
//! kind                             one response, or the variants of a target
//! ...
//! body                             compressed with zstd where that makes it smaller
//! ```
//!
//! The position, and the clock of the times, are those of whoever keeps it. Decoding is
//! total: any bytes give a response or `None`. The value's checksum was checked before; what is checked here is only that a value has a meaning.

use bytes::Bytes;
use http::{HeaderValue, StatusCode};

use super::bytes::{Reader, put_bytes};
use super::digest::MeaningDigest;
use super::variants::{self, KeptVariant};
use crate::cache::metadata::ClientFreshness;
use crate::chain::finality::Class;
use std::time::Duration;

/// Grows with each change of the form. Values of another version are absent.
const VERSION: u8 = 1;

/// The level of compression: a final answer of 10 kB takes some 50 µs.
const LEVEL: i32 = 3;

/// The longest body that is kept: what a damaged length may allocate at most.
pub(crate) const MOST_BODY: usize = 64 << 20;

const ONE: u8 = 0;
const VARIANTS: u8 = 1;

/// The purges and removals that a value was checked against, as whoever keeps it counts
/// them.
pub(crate) trait CheckedPosition: Sized {
    fn write(&self, out: &mut Vec<u8>);
    fn read(from: &mut Reader<'_>) -> Option<Self>;
}

/// What a value answers, and what it was checked against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head<'v, C> {
    pub(crate) checked: C,
    pub(crate) route: MeaningDigest,
    pub(crate) target: &'v str,
}

/// What is kept under a key.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kept {
    /// A response of a route in mode `chain` or `override`.
    One(Box<KeptResponse>),
    /// The responses of a target of a route in mode `respect`.
    Variants(Vec<KeptVariant>),
}

/// A response of a route in mode `chain` or `override`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct KeptResponse {
    pub(crate) status: StatusCode,
    pub(crate) content_type: HeaderValue,
    pub(crate) client_freshness: ClientFreshness,
    pub(crate) etag: HeaderValue,
    /// When it was received.
    pub(crate) received: u64,
    pub(crate) lifetime: Duration,
    pub(crate) took: Duration,
    /// Whether its body may be encoded for clients.
    pub(crate) is_encodable: bool,
    pub(crate) stamp: Option<KeptStamp>,
    pub(crate) body: Bytes,
}

/// The chain stamp of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeptStamp {
    /// The state of the tip by which it was stored: its epoch means something only
    /// there.
    pub(crate) state: u64,
    pub(crate) epoch: u64,
    pub(crate) class: Class,
    pub(crate) heights: Option<(u32, u32)>,
}

/// The value of a stored response.
pub(crate) fn encode<C: CheckedPosition>(head: &Head<'_, C>, kept: &Kept) -> Vec<u8> {
    let mut out = vec![VERSION];
    head.checked.write(&mut out);
    out.extend_from_slice(&head.route.0);
    put_bytes(&mut out, head.target.as_bytes());
    match kept {
        Kept::One(one) => {
            out.push(ONE);
            one.write(&mut out);
        }
        Kept::Variants(variants) => {
            out.push(VARIANTS);
            variants::write(variants, &mut out);
        }
    }
    out
}

/// The head of a value, and the rest of it.
pub(crate) fn decode_head<C: CheckedPosition>(value: &[u8]) -> Option<(Head<'_, C>, Reader<'_>)> {
    let mut from = Reader(value);
    if from.u8()? != VERSION {
        return None;
    }
    let head = Head {
        checked: C::read(&mut from)?,
        route: MeaningDigest(from.array()?),
        target: from.text()?,
    };
    Some((head, from))
}

/// What is kept, after its head.
pub(crate) fn decode_rest(mut from: Reader<'_>) -> Option<Kept> {
    let kept = match from.u8()? {
        ONE => Kept::One(Box::new(KeptResponse::read(&mut from, MOST_BODY)?)),
        VARIANTS => Kept::Variants(variants::read(&mut from)?),
        _ => return None,
    };
    from.is_at_end().then_some(kept)
}

/// What is kept, after its head, if it is one response whose body has at most so many
/// bytes.
pub(crate) fn decode_one(mut from: Reader<'_>, most_body: usize) -> Option<KeptResponse> {
    if from.u8()? != ONE {
        return None;
    }
    let kept = KeptResponse::read(&mut from, most_body)?;
    from.is_at_end().then_some(kept)
}

/// When the response was received that is kept, after its head, if it is one response.
pub(crate) fn decode_received(mut from: Reader<'_>) -> Option<u64> {
    if from.u8()? != ONE {
        return None;
    }
    Some(KeptResponse::read_fields(&mut from)?.received)
}

/// Decodes any bytes: for the fuzz target.
pub(crate) fn decode_any<C: CheckedPosition>(value: &[u8]) -> bool {
    let decoded = decode_head::<C>(value).and_then(|(head, rest)| Some((head, decode_rest(rest)?)));
    let Some((head, kept)) = decoded else {
        return false;
    };
    // What was decoded means the same when it is written again.
    let again = encode(&head, &kept);
    let same = decode_head::<C>(&again).and_then(|(_, rest)| decode_rest(rest));
    assert!(same == Some(kept), "a value changes its meaning");
    true
}

impl KeptResponse {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.status.as_u16().to_le_bytes());
        put_bytes(out, self.content_type.as_bytes());
        let (kind, span) = match self.client_freshness {
            ClientFreshness::Nothing => (0, Duration::ZERO),
            ClientFreshness::For(span) => (1, span),
            ClientFreshness::Immutable(span) => (2, span),
        };
        out.push(kind);
        put_span(out, span);
        put_bytes(out, self.etag.as_bytes());
        out.extend_from_slice(&self.received.to_le_bytes());
        put_span(out, self.lifetime);
        put_span(out, self.took);
        out.push(u8::from(self.is_encodable));
        match &self.stamp {
            None => out.push(0),
            Some(stamp) => {
                out.push(1);
                stamp.write(out);
            }
        }
        put_body(out, &self.body);
    }

    fn read(from: &mut Reader<'_>, most_body: usize) -> Option<Self> {
        let fields = Self::read_fields(from)?;
        let body = body(from, most_body)?;
        Some(Self { body, ..fields })
    }

    /// All but the body.
    fn read_fields(from: &mut Reader<'_>) -> Option<Self> {
        Some(Self {
            status: StatusCode::from_u16(from.u16()?).ok()?,
            content_type: HeaderValue::from_bytes(from.bytes()?).ok()?,
            client_freshness: match (from.u8()?, span(from)?) {
                (0, Duration::ZERO) => ClientFreshness::Nothing,
                (1, span) => ClientFreshness::For(span),
                (2, span) => ClientFreshness::Immutable(span),
                _ => return None,
            },
            etag: HeaderValue::from_bytes(from.bytes()?).ok()?,
            received: from.u64()?,
            lifetime: span(from)?,
            took: span(from)?,
            is_encodable: from.bool()?,
            stamp: match from.bool()? {
                true => Some(KeptStamp::read(from)?),
                false => None,
            },
            body: Bytes::new(),
        })
    }
}

impl KeptStamp {
    fn write(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.state.to_le_bytes());
        out.extend_from_slice(&self.epoch.to_le_bytes());
        out.push(match self.class {
            Class::Absent => 0,
            Class::Live => 1,
            Class::Recent => 2,
            Class::Final => 3,
        });
        out.push(u8::from(self.heights.is_some()));
        let (lowest, highest) = self.heights.unwrap_or_default();
        out.extend_from_slice(&lowest.to_le_bytes());
        out.extend_from_slice(&highest.to_le_bytes());
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        let (state, epoch) = (from.u64()?, from.u64()?);
        let class = match from.u8()? {
            0 => Class::Absent,
            1 => Class::Live,
            2 => Class::Recent,
            3 => Class::Final,
            _ => return None,
        };
        let has_heights = from.bool()?;
        let heights = (from.u32()?, from.u32()?);
        if heights.0 > heights.1 || !has_heights && heights != (0, 0) {
            return None;
        }
        Some(Self {
            state,
            epoch,
            class,
            heights: has_heights.then_some(heights),
        })
    }
}

/// Writes a span in milliseconds.
pub(crate) fn put_span(out: &mut Vec<u8>, span: Duration) {
    let millis = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    out.extend_from_slice(&millis.to_le_bytes());
}

/// Reads a span.
pub(crate) fn span(from: &mut Reader<'_>) -> Option<Duration> {
    from.u64().map(Duration::from_millis)
}

/// Writes a body: its length, and itself, compressed where that makes it smaller.
pub(crate) fn put_body(out: &mut Vec<u8>, body: &[u8]) {
    let compressed = zstd::bulk::compress(body, LEVEL);
    let compressed = compressed.ok().filter(|small| small.len() < body.len());
    let len = u32::try_from(body.len()).unwrap_or(u32::MAX);
    out.extend_from_slice(&len.to_le_bytes());
    out.push(u8::from(compressed.is_some()));
    put_bytes(out, compressed.as_deref().unwrap_or(body));
}

/// Reads a body of at most so many bytes.
pub(crate) fn body(from: &mut Reader<'_>, most: usize) -> Option<Bytes> {
    let len = usize::try_from(from.u32()?).ok()?;
    let is_compressed = from.bool()?;
    let bytes = from.bytes()?;
    if len > most {
        return None;
    }
    let body = match is_compressed {
        true => zstd::bulk::decompress(bytes, len).ok()?,
        false => bytes.to_vec(),
    };
    // A boxed slice has no spare capacity, which the store's bound would not count.
    (body.len() == len).then(|| body.into_boxed_slice().into())
}

#[cfg(test)]
mod tests;
