//! Ranges: within the body, and what was asked. An input is a length, then `name: value` lines: the request's fields,
//! and after an empty line those of the stored response.

#![no_main]

use std::ops::Range;

use http::header::RANGE;
use ordgate::cache::range::{Selection, if_range_holds, select};
use ordgate_fuzz::{fields, lines};

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let mut lines = lines(input);
    let length = lines.next().and_then(|line| str::from_utf8(line).ok());
    let Some(length) = length.and_then(|text| text.parse::<u64>().ok()) else {
        return;
    };
    // No body in memory is longer.
    let length = length.min(1 << 62);
    let request = fields(lines.by_ref().take_while(|line| !line.is_empty()));
    let stored = fields(lines);
    let selection = select(&request, &stored, length);
    if !request.contains_key(RANGE) || !if_range_holds(&request, &stored) {
        assert_eq!(selection, Selection::Whole);
    }
    let part = match selection {
        Selection::Whole => return,
        Selection::Unsatisfiable => None,
        Selection::Part(part) => Some(part),
    };
    if let Some(part) = &part {
        assert!(part.start < part.end && part.end <= length, "{part:?}");
    }
    asked(request[RANGE].as_bytes(), length, part);
});

/// Reads the range for itself: all that exists of it is sent, and nothing else.
fn asked(value: &[u8], length: u64, part: Option<Range<u64>>) {
    let text = str::from_utf8(value).expect("a range is ASCII");
    let (_, range) = text.split_once('=').expect("a range has a unit");
    let (first, last) = range.trim().split_once('-').expect("a range has a dash");
    // More than u64 is more than any length.
    let number = |digits: &str| {
        assert!(!digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()));
        digits.parse().unwrap_or(u64::MAX)
    };
    let (first, end) = match (first, last) {
        ("", count) => (length - number(count).min(length), length),
        (first, "") => (number(first), length),
        (first, last) => (number(first), number(last).saturating_add(1).min(length)),
    };
    assert_eq!(part, (first < end).then_some(first..end));
}
