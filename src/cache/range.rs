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

use super::list::only;
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
    let selected = only(request, &RANGE).and_then(|line| parse(line, length));
    let selected = selected.filter(|_| if_range_holds(request, stored));
    selected.unwrap_or(Selection::Whole)
}

/// §13.1.5: whether `If-Range` is absent, or names the stored response by a strong entity tag.
/// A date counts as one that does not match: few are strong validators (§8.8.2.2).
#[must_use]
pub fn if_range_holds(request: &HeaderMap, stored: &HeaderMap) -> bool {
    let asked = only(request, &IF_RANGE).and_then(EntityTag::parse);
    let tags = asked.zip(EntityTag::of(stored));
    !request.contains_key(IF_RANGE) || tags.is_some_and(|(asked, own)| asked.equals_strongly(&own))
}

/// What a `Range` field selects (§14.1.2); `None` if the field is to be ignored.
fn parse(value: &[u8], length: u64) -> Option<Selection> {
    let text = std::str::from_utf8(value.trim_ascii()).ok()?;
    let (unit, range) = text.split_once('=')?;
    // Several ranges are no range either: none has a comma.
    let (first, last) = range.trim_matches([' ', '\t']).split_once('-')?;
    let is_number = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit());
    if !unit.eq_ignore_ascii_case("bytes") || !is_number(first) || !is_number(last) {
        return None;
    }
    // More than fits is more than any length.
    let number = |digits: &str| digits.parse().unwrap_or(u64::MAX);
    let part = match (first, last) {
        ("", "") => return None,
        // A suffix of an empty body is satisfiable, but cannot have a Content-Range
        // (§14.1.2, §14.4).
        ("", count) if length == 0 && number(count) > 0 => return None,
        // A suffix longer than the representation selects the whole of it.
        ("", count) => length.saturating_sub(number(count))..length,
        (first, "") => number(first)..length,
        (first, last) if number(first) > number(last) => return None,
        (first, last) => number(first)..number(last).saturating_add(1).min(length),
    };
    Some(match part.is_empty() {
        true => Selection::Unsatisfiable,
        false => Selection::Part(part),
    })
}

#[cfg(test)]
mod tests;
