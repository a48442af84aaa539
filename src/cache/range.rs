//! Byte ranges of complete stored responses (RFC 9110 §14, §15.3.7, §15.5.17).
//!
//! Computes which bytes of a stored 200 to send, and the text around them. The
//! total exceeds the whole body by at most the part headers of [`MAX_RANGES`]
//! parts.
//!
//! Where the RFC lets a server ignore a range (other units, malformed, too
//! many, too much overlap), the whole body is sent, since a cache must not
//! refuse what the origin would have answered.

use bytes::{BufMut, Bytes, BytesMut};
use http::{
    HeaderMap, Method, StatusCode,
    header::{self, HeaderValue},
};

use super::{
    date,
    list::{plain, trim},
    validator::{EntityTag, Representation, strong_date},
};

/// A request with more ranges than this gets the whole body.
pub const MAX_RANGES: usize = 16;

/// Ranges with a smaller gap than the header of a part are merged (§14.2).
const GAP: u64 = 80;

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

    fn near(self, other: Self, gap: u64) -> bool {
        self.first <= other.last.saturating_add(gap).saturating_add(1)
            && other.first <= self.last.saturating_add(gap).saturating_add(1)
    }

    fn overlaps(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// What to send of a representation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// The whole: respond with 200.
    Whole,
    /// One range: respond with 206.
    One(ByteRange),
    /// Several ranges: respond with 206 and [`Multipart`].
    Many(Vec<ByteRange>),
    /// No requested range exists: respond with 416.
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
        Some(asked) if if_range_holds(request, stored) => satisfy(&asked, length),
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

/// The ranges of a `Range` field; `None` if it is to be ignored.
fn parse(value: &[u8]) -> Option<Vec<Spec>> {
    let value = trim(value);
    let at = value.iter().position(|&byte| byte == b'=')?;
    if !value[..at].eq_ignore_ascii_case(b"bytes") {
        return None;
    }
    let set = &value[at + 1..];
    let mut specs = Vec::new();
    for member in plain(set) {
        if specs.len() == MAX_RANGES {
            return None;
        }
        specs.push(spec(member)?);
    }
    (!specs.is_empty()).then_some(specs)
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

fn satisfy(asked: &[Spec], length: u64) -> Selection {
    let Some(end) = length.checked_sub(1) else {
        // A suffix of an empty body is satisfiable, but cannot have a
        // Content-Range (§14.1.2, §14.4).
        let some = asked.iter().any(|spec| matches!(spec, Spec::Suffix(1..)));
        return if some {
            Selection::Whole
        } else {
            Selection::Unsatisfiable
        };
    };
    let spans: Vec<ByteRange> = asked.iter().filter_map(|&spec| within(spec, end)).collect();
    // §14.2: more than two overlapping ranges indicate a broken client or an
    // attack.
    let overlapping = (0..spans.len())
        .filter(|&one| (0..spans.len()).any(|two| one != two && spans[one].overlaps(spans[two])));
    if overlapping.count() > 2 {
        return Selection::Whole;
    }
    let spans = coalesce(spans);
    match spans.as_slice() {
        [] => Selection::Unsatisfiable,
        [only] => Selection::One(*only),
        _ => Selection::Many(spans),
    }
}

fn within(spec: Spec, end: u64) -> Option<ByteRange> {
    match spec {
        Spec::From { first, last } => (first <= end).then(|| ByteRange {
            first,
            last: last.unwrap_or(end).min(end),
        }),
        // §14.1.2: a suffix longer than the representation selects the whole of
        // it.
        Spec::Suffix(0) => None,
        Spec::Suffix(count) => Some(ByteRange {
            first: (end + 1).saturating_sub(count),
            last: end,
        }),
    }
}

/// Merges ranges that overlap or almost touch, in the order of the request
/// (§15.3.7.2).
fn coalesce(spans: Vec<ByteRange>) -> Vec<ByteRange> {
    let mut kept: Vec<ByteRange> = Vec::with_capacity(spans.len());
    for mut span in spans {
        let mut place = kept.len();
        while let Some(at) = kept.iter().position(|other| other.near(span, GAP)) {
            let other = kept.remove(at);
            span = ByteRange {
                first: span.first.min(other.first),
                last: span.last.max(other.last),
            };
            place = place.min(at);
        }
        kept.insert(place.min(kept.len()), span);
    }
    kept
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

/// The content of a 206 with several ranges (§15.3.7.2, §14.6).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Multipart {
    /// `multipart/byteranges` with its boundary.
    pub(crate) content_type: HeaderValue,
    /// The length of the whole content.
    pub length: u64,
    /// The parts in order: the text before the bytes of a range, and the range.
    pub parts: Vec<(Bytes, ByteRange)>,
    /// The text after the last part.
    pub tail: Bytes,
}

impl Multipart {
    /// Lays out the content. `boundary` must consist of at most 70 letters,
    /// digits and `-`, and must not occur in the body.
    #[must_use]
    pub fn new(
        spans: &[ByteRange],
        length: u64,
        content_type: Option<&HeaderValue>,
        boundary: &str,
    ) -> Self {
        let mut total = 0;
        let mut parts = Vec::with_capacity(spans.len());
        for span in spans {
            let mut head = BytesMut::with_capacity(160);
            head.put_slice(if parts.is_empty() { b"--" } else { b"\r\n--" });
            head.put_slice(boundary.as_bytes());
            head.put_slice(b"\r\n");
            if let Some(content_type) = content_type {
                head.put_slice(b"Content-Type: ");
                head.put_slice(content_type.as_bytes());
                head.put_slice(b"\r\n");
            }
            head.put_slice(b"Content-Range: ");
            head.put_slice(content_range(*span, length).as_bytes());
            head.put_slice(b"\r\n\r\n");
            total += head.len() as u64 + span.length();
            parts.push((head.freeze(), *span));
        }
        let tail = Bytes::from(format!("\r\n--{boundary}--\r\n"));
        let content_type = ascii(format!("multipart/byteranges; boundary={boundary}"));
        Self {
            content_type,
            length: total + tail.len() as u64,
            parts,
            tail,
        }
    }

    /// The fields of the 206: those of the stored response, with the type and
    /// length of this content and without `Content-Range` (§15.3.7.2).
    #[must_use]
    pub fn fields(&self, stored: &HeaderMap) -> HeaderMap {
        let mut fields = stored.clone();
        fields.remove(header::CONTENT_RANGE);
        fields.insert(header::CONTENT_TYPE, self.content_type.clone());
        fields.insert(header::CONTENT_LENGTH, HeaderValue::from(self.length));
        fields
    }
}

#[cfg(test)]
mod tests;
