//! Ranges: within the body, and what was asked. An input is a length, then `name: value` lines: the request's fields,
//! and after an empty line those of the stored response.

#![no_main]

use http::header::{CONTENT_LENGTH, RANGE};
use http::{Method, StatusCode};
use ordgate::cache::range::{ByteRange, Selection, if_range_holds, select, single_fields};
use ordgate::cache::validator::Representation;
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
    // The length's lowest bit decides whether the body may be sent in codings.
    let of = |status| Representation {
        status,
        headers: &stored,
        is_encoded: length & 1 == 1,
    };
    let ask = |method, status| select(method, &request, &of(status), length);
    let selection = ask(&Method::GET, StatusCode::OK);
    for other in [
        ask(&Method::HEAD, StatusCode::OK),
        ask(&Method::POST, StatusCode::OK),
        ask(&Method::GET, StatusCode::NOT_FOUND),
    ] {
        assert_eq!(other, Selection::Whole);
    }
    if !request.contains_key(RANGE) || !if_range_holds(&request, &of(StatusCode::OK)) {
        assert_eq!(selection, Selection::Whole);
    }
    let span = match selection {
        Selection::Whole => return,
        Selection::Unsatisfiable => None,
        Selection::One(span) => Some(span),
    };
    asked(request[RANGE].as_bytes(), length, span);
    if let Some(span) = span {
        assert!(span.first <= span.last && span.last < length, "{span:?}");
        let fields = single_fields(&stored, span, length);
        assert_eq!(fields[CONTENT_LENGTH], *span.length().to_string());
    }
});

/// Reads the range for itself: all that exists of it is sent, and nothing else.
fn asked(value: &[u8], length: u64, span: Option<ByteRange>) {
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
    let exists = (first < end).then(|| (first, end - 1));
    assert_eq!(span.map(|span| (span.first, span.last)), exists);
}
