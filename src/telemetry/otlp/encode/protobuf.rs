//! OTLP in protocol buffers. Each function names its message; numbers are those of the
//! fields in opentelemetry-proto. Fields with their default value are left out.

use super::{STATUS_ERROR, flags, kind, link_flags, nanos};
use crate::clock::Clock;
use crate::trace::span::{AttributeValue, SpanRecord};

/// The wire types of protocol buffers.
const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const LENGTH: u32 = 2;
const FIXED32: u32 = 5;

/// A message that is being written.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push((number & 0x7f) as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    fn tag(&mut self, field: u32, wire: u32) {
        self.varint(u64::from(field << 3 | wire));
    }

    fn number(&mut self, field: u32, number: u64) {
        self.tag(field, VARINT);
        self.varint(number);
    }

    fn bytes(&mut self, field: u32, bytes: &[u8]) {
        self.tag(field, LENGTH);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn fixed64(&mut self, field: u32, number: u64) {
        self.tag(field, FIXED64);
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn fixed32(&mut self, field: u32, number: u32) {
        self.tag(field, FIXED32);
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn message(&mut self, field: u32, write: impl FnOnce(&mut Self)) {
        let mut inner = Self::default();
        write(&mut inner);
        self.bytes(field, &inner.0);
    }
}

/// `ExportTraceServiceRequest`.
pub(super) fn request(
    resource: &[(String, String)],
    spans: &[SpanRecord],
    clock: &Clock,
) -> Vec<u8> {
    let mut request = Message::default();
    // ResourceSpans
    request.message(1, |group| {
        group.message(1, |to| {
            for (key, value) in resource {
                to.message(1, |to| {
                    to.bytes(1, key.as_bytes());
                    to.message(2, |to| to.bytes(1, value.as_bytes()));
                });
            }
        });
        // ScopeSpans
        group.message(2, |to| {
            to.message(1, |to| {
                to.bytes(1, b"ordgate");
                to.bytes(2, env!("CARGO_PKG_VERSION").as_bytes());
            });
            for one in spans {
                to.message(2, |to| span(one, clock, to));
            }
        });
    });
    request.0
}

/// `Span`.
fn span(span: &SpanRecord, clock: &Clock, to: &mut Message) {
    to.bytes(1, &span.context.trace.bytes());
    to.bytes(2, &span.context.span.bytes());
    if let Some(state) = &span.state {
        to.bytes(3, state.as_bytes());
    }
    if let Some(parent) = span.parent {
        to.bytes(4, &parent.bytes());
    }
    to.bytes(5, span.name.as_bytes());
    to.number(6, kind(span.kind).into());
    to.fixed64(7, nanos(clock, span.began));
    to.fixed64(8, nanos(clock, span.ended));
    for (key, value) in &span.attributes {
        // KeyValue, with an AnyValue
        to.message(9, |to| {
            to.bytes(1, key.as_bytes());
            to.message(2, |to| match value {
                AttributeValue::Text(text) => to.bytes(1, text.as_bytes()),
                AttributeValue::Flag(flag) => to.number(2, (*flag).into()),
                AttributeValue::Number(number) => to.number(3, number.cast_unsigned()),
            });
        });
    }
    for link in &span.links {
        to.message(13, |to| {
            to.bytes(1, &link.trace.bytes());
            to.bytes(2, &link.span.bytes());
            to.fixed32(6, link_flags(link));
        });
    }
    if span.failed {
        to.message(15, |to| to.number(3, STATUS_ERROR.into()));
    }
    to.fixed32(16, flags(span));
}

/// `rejected_spans` (1) of `partial_success` (1) in an `ExportTraceServiceResponse`;
/// 0 where there is none.
pub(super) fn rejected(body: &[u8]) -> u64 {
    let partial = fields(body).find_map(|(field, value)| match value {
        FieldValue::Bytes(bytes) if field == 1 => Some(bytes),
        FieldValue::Bytes(_) | FieldValue::Number(_) => None,
    });
    let rejected = fields(partial.unwrap_or_default()).find_map(|(field, value)| match value {
        FieldValue::Number(number) if field == 1 => Some(number),
        FieldValue::Bytes(_) | FieldValue::Number(_) => None,
    });
    rejected.unwrap_or_default()
}

/// A field of a message that is read.
pub(super) enum FieldValue<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The fields of a message, until one is malformed.
pub(super) fn fields(mut rest: &[u8]) -> impl Iterator<Item = (u32, FieldValue<'_>)> {
    std::iter::from_fn(move || {
        let tag = varint(&mut rest)?;
        let field = u32::try_from(tag >> 3).ok()?;
        let mut take = |count: usize| {
            let (taken, left) = rest.split_at_checked(count)?;
            rest = left;
            Some(taken)
        };
        let value = match (tag & 7) as u32 {
            VARINT => FieldValue::Number(varint(&mut rest)?),
            FIXED64 => FieldValue::Number(u64::from_le_bytes(take(8)?.try_into().ok()?)),
            FIXED32 => FieldValue::Number(u32::from_le_bytes(take(4)?.try_into().ok()?).into()),
            LENGTH => {
                let length = usize::try_from(varint(&mut rest)?).ok()?;
                let (taken, left) = rest.split_at_checked(length)?;
                rest = left;
                FieldValue::Bytes(taken)
            }
            _ => return None,
        };
        Some((field, value))
    })
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, left) = rest.split_first()?;
        *rest = left;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}
