//! The form in which stored responses are kept outside the process: in `answers.db`, and
//! in the engine of replicas.
//!
//! A CRC, which covers what the response is found by too; a version, the fields by postcard,
//! and the body, which is compressed with zstd where that makes it smaller. Any bytes give a
//! response or `None`.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use serde::{Deserialize, Serialize};

use super::crc;
use crate::chain::Class;

/// Grows with each change of the form. Values of another version are absent.
const VERSION: u8 = 3;
/// The level of compression: a final answer of 10 kB takes some 50 µs.
const LEVEL: i32 = 3;

/// A response of a route in mode `chain` or `override`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Value {
    /// The upstream's status.
    #[serde(with = "status")]
    pub status: StatusCode,
    /// Its content type.
    #[serde(with = "field")]
    pub content_type: HeaderValue,
    /// ordgate's ETag of the body.
    #[serde(with = "field")]
    pub etag: HeaderValue,
    /// When it was received, in milliseconds since 1970.
    pub received: u64,
    /// The process that received it, by a random number.
    pub run: u64,
    /// How long it is fresh.
    pub lifetime: Duration,
    /// How long the upstream took.
    pub took: Duration,
    /// Whether its body may be compressed for clients.
    pub is_encodable: bool,
    /// Its finality class when it was stored, in mode `chain`.
    pub class: Option<Class>,
    /// The lowest and the highest block that it names.
    pub heights: Option<(u32, u32)>,
    /// The upstream's body.
    #[serde(skip)]
    pub body: Bytes,
}

/// What precedes the body.
#[derive(Serialize, Deserialize)]
struct Head<T> {
    value: T,
    /// The length of the body before compression.
    length: u32,
    is_compressed: bool,
}

/// The bytes of a response that is found by `name`.
pub fn encode(value: &Value, name: &[u8]) -> Vec<u8> {
    let compressed = zstd::bulk::compress(&value.body, LEVEL);
    let compressed = compressed
        .ok()
        .filter(|small| small.len() < value.body.len());
    let head = Head {
        value,
        length: u32::try_from(value.body.len()).unwrap_or(u32::MAX),
        is_compressed: compressed.is_some(),
    };
    let begun = vec![0, 0, 0, 0, VERSION];
    // It cannot fail in memory; what is empty would be no response.
    let mut bytes = postcard::to_extend(&head, begun).unwrap_or_default();
    bytes.extend_from_slice(compressed.as_deref().unwrap_or(&value.body));
    if let Some((sum, content)) = bytes.split_first_chunk_mut::<4>() {
        *sum = crc(&[name, content]).to_le_bytes();
    }
    bytes
}

/// The response that these bytes are, if they were encoded with the same name, and its body
/// has at most so many.
pub fn decode(bytes: &[u8], name: &[u8], most_body: usize) -> Option<Value> {
    let (sum, content) = bytes.split_first_chunk::<4>()?;
    if *sum != crc(&[name, content]).to_le_bytes() {
        return None;
    }
    decode_content(content, most_body)
}

/// What follows the CRC.
pub fn decode_content(content: &[u8], most_body: usize) -> Option<Value> {
    let rest = content.strip_prefix(&[VERSION])?;
    let (head, rest) = postcard::take_from_bytes::<Head<Value>>(rest).ok()?;
    let length = usize::try_from(head.length).ok()?;
    if length > most_body || head.value.heights.is_some_and(|(low, high)| low > high) {
        return None;
    }
    let body = if head.is_compressed {
        zstd::bulk::decompress(rest, length).ok()?
    } else {
        rest.to_vec()
    };
    if body.len() != length {
        return None;
    }
    Some(Value {
        // A boxed slice has no spare capacity, which the store's bound would not count.
        body: body.into_boxed_slice().into(),
        ..head.value
    })
}

mod status {
    use http::StatusCode;
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(status: &StatusCode, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u16(status.as_u16())
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<StatusCode, D::Error> {
        StatusCode::from_u16(u16::deserialize(from)?).map_err(de::Error::custom)
    }
}

mod field {
    use http::HeaderValue;
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(value: &HeaderValue, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_bytes(value.as_bytes())
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<HeaderValue, D::Error> {
        HeaderValue::from_bytes(<&[u8]>::deserialize(from)?).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(body: &'static str) -> Value {
        Value {
            status: StatusCode::NOT_FOUND,
            content_type: HeaderValue::from_bytes(b"text/plain; a=\"\xe9\"").unwrap(),
            etag: HeaderValue::from_static("\"e\""),
            received: 1_700_000_000_123,
            run: u64::MAX,
            lifetime: Duration::from_millis(30_001),
            took: Duration::from_nanos(1),
            is_encodable: false,
            class: Some(Class::Final),
            heights: Some((3, u32::MAX)),
            body: body.into(),
        }
    }

    const BODIES: [&str; 3] = [
        "",
        "{}",
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    ];

    #[test]
    fn a_response_comes_back_as_it_was() {
        for body in BODIES {
            let value = value(body);
            let bytes = encode(&value, b"name");
            assert_eq!(decode(&bytes, b"other", body.len()), None);
            assert_eq!(decode(&bytes, b"name", body.len()), Some(value), "{body}");
            assert_eq!(
                decode(&bytes, b"name", body.len().wrapping_sub(1) & 0xff),
                None.or_else(|| {
                    // No body is shorter than none.
                    body.is_empty().then(|| self::value(body))
                })
            );
        }
        assert!(encode(&value(BODIES[2]), b"").len() < encode(&value(BODIES[1]), b"").len() + 50);
    }

    #[test]
    fn damaged_bytes_are_no_response() {
        for body in BODIES {
            let bytes = encode(&value(body), b"");
            for at in 0..bytes.len() {
                assert_eq!(decode(&bytes[..at], b"", 1 << 20), None, "cut at {at}");
                let mut damaged = bytes.clone();
                damaged[at] ^= 0x20;
                assert_eq!(decode(&damaged, b"", 1 << 20), None, "byte {at}");
                // Without the CRC it may be another response, of a bounded length.
                let other = decode_content(&damaged[4..], 60);
                assert!(other.is_none_or(|other| other.body.len() <= 60));
            }
        }
    }
}
