//! Ranges: within the body, no more than was asked and little more than the
//! body. An input is a length, then `name: value` lines: the request's fields,
//! and after an empty line those of the stored response.

#![no_main]

use std::time::UNIX_EPOCH;

use http::header::{CONTENT_LENGTH, CONTENT_TYPE, RANGE};
use http::{Method, StatusCode};
use ordgate::cache::range::{
    MAX_RANGES, Multipart, Selection, ByteRange, if_range_holds, select, single_fields,
};
use ordgate::cache::validator::Representation;
use ordgate_fuzz::{fields, lines};

/// What stands between two ranges that are sent as one.
const GAP: u64 = 80;

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
        received: UNIX_EPOCH,
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
    let spans = match selection {
        Selection::Whole => return,
        Selection::Unsatisfiable => Vec::new(),
        Selection::One(span) => vec![span],
        Selection::Many(spans) => {
            assert!(spans.len() > 1 && spans.len() <= MAX_RANGES);
            spans
        }
    };
    for span in &spans {
        assert!(
            span.first <= span.last && span.last < length,
            "{span:?} of {length}"
        );
        assert_eq!(span.length(), span.last - span.first + 1);
    }
    let mut ordered = spans.clone();
    ordered.sort_by_key(|span| span.first);
    for pair in ordered.windows(2) {
        assert!(pair[1].first > pair[0].last + GAP, "{pair:?}");
    }
    let total: u64 = spans.iter().map(|span| span.length()).sum();
    assert!(total <= length);
    asked(request[RANGE].as_bytes(), length, &spans);

    match spans[..] {
        [] => {}
        [span] => {
            let fields = single_fields(&stored, span, length);
            assert_eq!(fields[CONTENT_LENGTH], *total.to_string());
        }
        _ => {
            let content_type = stored.get(CONTENT_TYPE);
            let layout = Multipart::new(&spans, length, content_type, "boundary");
            let heads: usize = layout.parts.iter().map(|(head, _)| head.len()).sum();
            assert_eq!(layout.length, total + (heads + layout.tail.len()) as u64);
            let most = 160 + content_type.map_or(0, |value| value.len());
            assert!(heads + layout.tail.len() <= MAX_RANGES * most);
            assert_eq!(
                layout.fields(&stored)[CONTENT_LENGTH],
                *layout.length.to_string()
            );
        }
    }
});

/// Reads a set of ranges for itself: all that exists of it is sent, and what is
/// sent beside stands between two that were asked.
fn asked(value: &[u8], length: u64, spans: &[ByteRange]) {
    let text = str::from_utf8(value).expect("a range is ASCII");
    let (_, set) = text.split_once('=').expect("a range has a unit");
    let mut wanted: Vec<(u64, u64)> = Vec::new();
    for spec in set.split(',').map(|spec| spec.trim_matches([' ', '\t'])) {
        let Some((first, last)) = spec.split_once('-') else {
            assert!(spec.is_empty(), "{spec:?} is no range");
            continue;
        };
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
        if first < end {
            wanted.push((first, end - 1));
        }
    }
    assert_eq!(wanted.is_empty(), spans.is_empty());
    let within = |(first, last): &(u64, u64)| {
        spans
            .iter()
            .any(|span| span.first <= *first && *last <= span.last)
    };
    assert!(wanted.iter().all(within), "{wanted:?} {spans:?}");
    wanted.sort_unstable();
    for span in spans {
        let mut reached = span.first;
        let inside = wanted
            .iter()
            .filter(|(first, last)| span.first <= *first && *last <= span.last);
        for (first, last) in inside {
            assert!(*first <= reached + GAP + 1, "{wanted:?} {span:?}");
            assert!(*first >= span.first);
            reached = reached.max(*last);
        }
        assert_eq!(reached, span.last, "{wanted:?} {span:?}");
        assert!(wanted.iter().any(|(first, _)| *first == span.first));
    }
}
