//! Byte ranges of complete stored responses (RFC 9110 §14, §15.3.7, §15.5.17).
//!
//! Computes which bytes of a stored 200 to send. A request with several ranges gets
//! the whole body.
//!
//! Where the RFC lets a server ignore a range (other units, malformed, several),
//! the whole body is sent, since a cache must not refuse what the origin would have
//! answered.

use std::ops::Range;

use http::HeaderMap;
use http::header::{IF_RANGE, RANGE};

use super::list::trim;
use super::validator::EntityTag;

/// What to send of a representation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// The whole: respond with 200.
    Whole,
    /// These bytes, at least one: respond with 206.
    Part(Range<u64>),
    /// The requested range does not exist: respond with 416.
    Unsatisfiable,
}

/// What a GET selects of a stored 200 with a body of `length` bytes. Its preconditions must have
/// been evaluated before (§13.2.2).
#[must_use]
pub fn select(request: &HeaderMap, stored: &HeaderMap, length: u64) -> Selection {
    let mut lines = request.get_all(RANGE).iter();
    let (Some(line), None) = (lines.next(), lines.next()) else {
        return Selection::Whole;
    };
    match parse(line.as_bytes()) {
        Some(asked) if if_range_holds(request, stored) => satisfy(asked, length),
        Some(_) | None => Selection::Whole,
    }
}

/// §13.1.5: whether `If-Range` is absent, or names the stored response by a strong entity tag.
/// A date counts as one that does not match: few are strong validators (§8.8.2.2).
#[must_use]
pub fn if_range_holds(request: &HeaderMap, stored: &HeaderMap) -> bool {
    let mut lines = request.get_all(IF_RANGE).iter();
    match (lines.next(), lines.next()) {
        (None, _) => true,
        (Some(line), None) => {
            let tags = EntityTag::parse(line.as_bytes()).zip(EntityTag::of(stored));
            tags.is_some_and(|(asked, own)| asked.equals_strongly(&own))
        }
        (Some(_), Some(_)) => false,
    }
}

/// The positions before and after the dash of a `Range` field (§14.1.2), one of them at
/// least; `None` if the field is to be ignored.
fn parse(value: &[u8]) -> Option<(Option<u64>, Option<u64>)> {
    let text = std::str::from_utf8(trim(value)).ok()?;
    let (unit, range) = text.split_once('=')?;
    // Several ranges are no range either: none has a comma.
    let (first, last) = range.trim_matches([' ', '\t']).split_once('-')?;
    let number = |digits: &str| match digits.bytes().all(|byte| byte.is_ascii_digit()) {
        // More than fits is more than any length.
        true => Some((!digits.is_empty()).then(|| digits.parse().unwrap_or(u64::MAX))),
        false => None,
    };
    let (first, last) = (number(first)?, number(last)?);
    let is_valid = match (first, last) {
        (None, None) => false,
        (Some(first), Some(last)) => first <= last,
        (Some(_), None) | (None, Some(_)) => true,
    };
    (is_valid && unit.eq_ignore_ascii_case("bytes")).then_some((first, last))
}

fn satisfy((first, last): (Option<u64>, Option<u64>), length: u64) -> Selection {
    let part = match (first, last) {
        // A suffix of an empty body is satisfiable, but cannot have a Content-Range
        // (§14.1.2, §14.4).
        (None, Some(1..)) if length == 0 => return Selection::Whole,
        // A suffix longer than the representation selects the whole of it.
        (None, count) => length.saturating_sub(count.unwrap_or(0))..length,
        (Some(first), last) => {
            first..last.map_or(length, |last| last.saturating_add(1).min(length))
        }
    };
    match part.is_empty() {
        true => Selection::Unsatisfiable,
        false => Selection::Part(part),
    }
}

#[cfg(test)]
mod tests;
