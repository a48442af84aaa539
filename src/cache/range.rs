//! Byte ranges of complete stored responses (RFC 9110 §14, §15.3.7, §15.5.17).
//!
//! Computes which bytes of a stored 200 to send. A request with several ranges gets
//! the whole body.
//!
//! Where the RFC lets a server ignore a range (other units, malformed, several),
//! the whole body is sent, since a cache must not refuse what the origin would have
//! answered.

use bytes::Bytes;
use http::{
    HeaderMap, Method, StatusCode,
    header::{self, HeaderValue},
};

use super::{
    date,
    list::trim,
    validator::{EntityTag, Representation, strong_date},
};

/// A range of bytes, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange {
    /// The offset of the first byte.
    pub first: u64,
    /// The offset of the last byte.
    pub last: u64,
}

impl ByteRange {
    /// The number of bytes, at least 1.
    #[must_use]
    pub fn length(self) -> u64 {
        self.last.saturating_sub(self.first).saturating_add(1)
    }
}

/// What to send of a representation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// The whole: respond with 200.
    Whole,
    /// One range: respond with 206.
    One(ByteRange),
    /// The requested range does not exist: respond with 416.
    Unsatisfiable,
}

/// What a request selects of a stored response with a body of `length` bytes.
/// Its preconditions must have been evaluated before (§13.2.2).
#[must_use]
pub fn select(
    method: &Method,
    request: &HeaderMap,
    stored: &Representation<'_>,
    length: u64,
) -> Selection {
    let mut lines = request.get_all(header::RANGE).iter();
    let Some(line) = lines.next() else {
        return Selection::Whole;
    };
    // §14.2: ranges apply to GET, and only where the response would be 200.
    if lines.next().is_some() || *method != Method::GET || stored.status != StatusCode::OK {
        return Selection::Whole;
    }
    match parse(line.as_bytes()) {
        Some(asked) if if_range_holds(request, stored) => satisfy(asked, length),
        Some(_) | None => Selection::Whole,
    }
}

/// §13.1.5: whether `If-Range` is absent, or names the stored response by a
/// strong validator.
#[must_use]
pub fn if_range_holds(request: &HeaderMap, stored: &Representation<'_>) -> bool {
    let mut lines = request.get_all(header::IF_RANGE).iter();
    let Some(line) = lines.next() else {
        return true;
    };
    let value = trim(line.as_bytes());
    if lines.next().is_some() {
        return false;
    }
    if value.iter().take(3).any(|&byte| byte == b'"') {
        let (Some(asked), Some(own)) = (EntityTag::parse(value), EntityTag::of(stored.headers))
        else {
            return false;
        };
        return asked.equals_strongly(&own);
    }
    // The date must match exactly, and be a strong validator. It is the same for all
    // codings, so the client's part may be of another one than these bytes.
    !stored.is_encoded
        && date::parse(value).is_some_and(|asked| strong_date(stored.headers) == Some(asked))
}

/// A requested range (§14.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spec {
    From { first: u64, last: Option<u64> },
    Suffix(u64),
}

/// The range of a `Range` field; `None` if the field is to be ignored.
fn parse(value: &[u8]) -> Option<Spec> {
    let value = trim(value);
    let at = value.iter().position(|&byte| byte == b'=')?;
    if !value[..at].eq_ignore_ascii_case(b"bytes") {
        return None;
    }
    // Several ranges are no range either: none has a comma.
    spec(trim(&value[at + 1..]))
}

fn spec(member: &[u8]) -> Option<Spec> {
    let dash = member.iter().position(|&byte| byte == b'-')?;
    let (first, last) = (&member[..dash], &member[dash + 1..]);
    match (first.is_empty(), last.is_empty()) {
        (true, _) => Some(Spec::Suffix(number(last)?)),
        (false, true) => Some(Spec::From {
            first: number(first)?,
            last: None,
        }),
        (false, false) => {
            let (first, last) = (number(first)?, number(last)?);
            // §14.1.1: a last position before the first makes the whole set
            // invalid.
            (first <= last).then_some(Spec::From {
                first,
                last: Some(last),
            })
        }
    }
}

fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let add = |sum: u64, digit: &u8| {
        sum.saturating_mul(10)
            .saturating_add(u64::from(digit - b'0'))
    };
    Some(digits.iter().fold(0, add))
}

fn satisfy(asked: Spec, length: u64) -> Selection {
    let Some(end) = length.checked_sub(1) else {
        // A suffix of an empty body is satisfiable, but cannot have a
        // Content-Range (§14.1.2, §14.4).
        return if matches!(asked, Spec::Suffix(1..)) {
            Selection::Whole
        } else {
            Selection::Unsatisfiable
        };
    };
    match asked {
        Spec::From { first, last } if first <= end => Selection::One(ByteRange {
            first,
            last: last.unwrap_or(end).min(end),
        }),
        Spec::From { .. } | Spec::Suffix(0) => Selection::Unsatisfiable,
        // §14.1.2: a suffix longer than the representation selects the whole of
        // it.
        Spec::Suffix(count) => Selection::One(ByteRange {
            first: (end + 1).saturating_sub(count),
            last: end,
        }),
    }
}

/// The `Content-Range` of a single range (§14.4).
#[must_use]
pub(crate) fn content_range(span: ByteRange, length: u64) -> HeaderValue {
    ascii(format!("bytes {}-{}/{length}", span.first, span.last))
}

/// The `Content-Range` of a 416 (§15.5.17).
#[must_use]
pub(crate) fn unsatisfied_range(length: u64) -> HeaderValue {
    ascii(format!("bytes */{length}"))
}

fn ascii(text: String) -> HeaderValue {
    HeaderValue::from_maybe_shared(Bytes::from(text)).expect("numbers and words are visible ASCII")
}

/// The fields of a 206 with one range (§15.3.7.1): those of the stored
/// response, with the position and length of the range.
#[must_use]
pub fn single_fields(stored: &HeaderMap, span: ByteRange, length: u64) -> HeaderMap {
    let mut fields = stored.clone();
    fields.insert(header::CONTENT_RANGE, content_range(span, length));
    fields.insert(header::CONTENT_LENGTH, HeaderValue::from(span.length()));
    fields
}

#[cfg(test)]
mod tests;
