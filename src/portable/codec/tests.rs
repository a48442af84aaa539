//! Values are decoded as they were encoded, and anything else gives nothing.

use http::HeaderMap;
use http::header::{HeaderName, VARY};
use proptest::prelude::*;

use super::*;
use crate::cache::vary::{Nominated, SecondaryKey};

/// As long as what the state on disk writes.
type Position = [u8; 32];

impl CheckedPosition for Position {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        from.array()
    }
}

fn head(target: &str) -> Head<'_, Position> {
    Head {
        checked: [7; 32],
        route: MeaningDigest([9; 32]),
        target,
    }
}

fn response(body: &[u8], stamp: Option<KeptStamp>) -> KeptResponse {
    KeptResponse {
        status: StatusCode::NOT_FOUND,
        content_type: HeaderValue::from_static("application/json"),
        client_freshness: ClientFreshness::Immutable(Duration::from_secs(9)),
        etag: HeaderValue::from_static("\"e\""),
        received: 1_700_000_000_123,
        lifetime: Duration::from_secs(30 * 86_400),
        took: Duration::from_millis(12),
        is_encodable: true,
        stamp,
        body: Bytes::copy_from_slice(body),
    }
}

fn stamp(class: Class, heights: Option<(u32, u32)>) -> KeptStamp {
    KeptStamp {
        state: 5,
        epoch: 6,
        class,
        heights,
    }
}

fn variant(body: &[u8]) -> KeptVariant {
    let mut vary = HeaderMap::new();
    vary.insert(VARY, HeaderValue::from_static("accept-language, accept"));
    let nominated = Nominated::of(&vary);
    let mut request = HeaderMap::new();
    request.insert("accept", HeaderValue::from_static("text/html"));
    let secondary = nominated.key(&request).unwrap();
    let mut fields = HeaderMap::new();
    for value in ["a", "b, c", "\u{e9}"] {
        let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
        fields.append(HeaderName::from_static("x-many"), value);
    }
    KeptVariant {
        status: StatusCode::OK,
        fields,
        nominated,
        secondary,
        received: 1_700_000_000_456,
        initial_age: Duration::from_secs(3),
        is_encodable: false,
        body: Bytes::copy_from_slice(body),
    }
}

fn all() -> Vec<Kept> {
    let long = "the same again ".repeat(500);
    let one = |body: &[u8], stamp| Kept::One(Box::new(response(body, stamp)));
    vec![
        one(b"", None),
        one(b"{}", Some(stamp(Class::Final, Some((0, u32::MAX))))),
        one(long.as_bytes(), Some(stamp(Class::Recent, None))),
        Kept::Variants(Vec::new()),
        Kept::Variants(vec![variant(b"x"), variant(long.as_bytes())]),
        Kept::Variants(vec![KeptVariant {
            nominated: Nominated::Everything,
            secondary: SecondaryKey::default(),
            ..variant(b"y")
        }]),
    ]
}

fn decode(value: &[u8]) -> Option<(Head<'_, Position>, Kept)> {
    let (head, rest) = decode_head(value)?;
    Some((head, decode_rest(rest)?))
}

#[test]
fn what_was_encoded_is_decoded() {
    for kept in all() {
        let value = encode(&head("/a?b=c"), &kept);
        assert_eq!(decode(&value), Some((head("/a?b=c"), kept)));
        assert!(decode_any::<Position>(&value));
    }
}

#[test]
fn a_long_body_is_compressed_and_takes_no_more_memory_than_it_has_bytes() {
    let long = "the same again ".repeat(500);
    let value = encode(
        &head("/"),
        &Kept::One(Box::new(response(long.as_bytes(), None))),
    );
    assert!(value.len() < 500, "{}", value.len());
}

#[test]
fn a_torn_or_longer_value_is_absent() {
    for kept in all() {
        let value = encode(&head("/a"), &kept);
        for len in 0..value.len() {
            assert_eq!(decode(&value[..len]), None, "{len} of {}", value.len());
        }
        let longer = [&value[..], b"x"].concat();
        assert_eq!(decode(&longer), None);
    }
}

#[test]
fn the_seeds_of_the_fuzz_target_are_values() {
    for seed in [
        &include_bytes!("../../../fuzz/corpus/stored_value/response")[..],
        include_bytes!("../../../fuzz/corpus/stored_value/variants"),
    ] {
        assert!(decode_any::<Position>(seed));
    }
}

#[test]
fn another_version_is_absent() {
    let kept = Kept::One(Box::new(response(b"{}", None)));
    let mut value = encode(&head("/a"), &kept);
    value[0] += 1;
    assert_eq!(decode(&value), None);
}

proptest! {
    /// The engine would notice: this is for what it does not.
    #[test]
    fn damaged_values_never_panic(which in 0..6_usize, flips in prop::collection::vec((any::<prop::sample::Index>(), 1..=255_u8), 1..4)) {
        let mut value = encode(&head("/a"), &all()[which]);
        for (at, bits) in flips {
            let at = at.index(value.len());
            value[at] ^= bits;
        }
        decode_any::<Position>(&value);
    }

    #[test]
    fn any_bytes_give_a_response_or_nothing(value in prop::collection::vec(any::<u8>(), 0..400)) {
        decode_any::<Position>(&value);
    }
}
