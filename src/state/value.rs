//! The form in which stored responses are kept outside the process: in `answers.db`, and
//! in the engine of replicas.
//!
//! A CRC, which covers what the response is found by too; a version, the fields by postcard,
//! and the body by zstd. Any bytes give a response or `None`.

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::chain::Class;

/// Grows with each change of the form. Values of another version are absent.
const VERSION: u8 = 4;
/// The level of compression: a final answer of 10 kB takes some 50 µs.
const LEVEL: i32 = 3;

/// A response of a route in mode `chain` or `override`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Value {
    /// The upstream's status.
    pub status: u16,
    /// Its content type.
    pub content_type: Vec<u8>,
    /// When it was received, in milliseconds since 1970.
    pub received: u64,
    /// The process that received it, by a random number.
    pub run: u64,
    /// How long it is fresh.
    pub lifetime: Duration,
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

/// A CRC of several parts.
pub(super) fn crc(parts: &[&[u8]]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    for part in parts {
        // Where one ends and the next begins counts too.
        crc.update(&(part.len() as u64).to_le_bytes());
        crc.update(part);
    }
    crc.finalize()
}

/// The bytes of a response that is found by `name`.
pub fn encode(value: &Value, name: &[u8]) -> Vec<u8> {
    let length = u32::try_from(value.body.len()).unwrap_or(u32::MAX);
    let begun = vec![0, 0, 0, 0, VERSION];
    // Neither can fail in memory; what is empty would be no response.
    let mut bytes = postcard::to_extend(&(value, length), begun).unwrap_or_default();
    bytes.extend(zstd::bulk::compress(&value.body, LEVEL).unwrap_or_default());
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
    let ((value, length), rest) = postcard::take_from_bytes::<(Value, u32)>(rest).ok()?;
    let length = usize::try_from(length).ok()?;
    if length > most_body || value.heights.is_some_and(|(low, high)| low > high) {
        return None;
    }
    let body = zstd::bulk::decompress(rest, length).ok()?;
    if body.len() != length {
        return None;
    }
    Some(Value {
        // A boxed slice has no spare capacity, which the store's bound would not count.
        body: body.into_boxed_slice().into(),
        ..value
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(body: &'static str) -> Value {
        Value {
            status: 404,
            content_type: b"text/plain".to_vec(),
            received: 1_700_000_000_123,
            run: u64::MAX,
            lifetime: Duration::from_millis(30_001),
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
