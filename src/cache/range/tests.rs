//! Tables of `range`. Sections are of RFC 9110 where no other is named.

use std::time::SystemTime;

use http::header::HeaderName;
use proptest::prelude::{ProptestConfig, prop_assert, prop_assert_eq, proptest};

use super::*;
use crate::cache::tests_table::{fields, rows};

fn headers(fields: &[(HeaderName, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        headers.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
    }
    headers
}

fn span(first: u64, last: u64) -> ByteRange {
    ByteRange { first, last }
}

/// A response with these fields.
fn stored(status: StatusCode, headers: &HeaderMap, is_encoded: bool) -> Representation<'_> {
    Representation {
        status,
        headers,
        received: SystemTime::UNIX_EPOCH,
        is_encoded,
    }
}

fn asked(range: &str, length: u64) -> Selection {
    let request = headers(&[(header::RANGE, range)]);
    let none = HeaderMap::new();
    let stored = stored(StatusCode::OK, &none, true);
    select(&Method::GET, &request, &stored, length)
}

#[test]
fn satisfiable_ranges_are_selected() {
    let table = r#"
        range                           | length | selection                        | section
        bytes=0-499                     | 10000  | One 0-499                        | §14.1.2
        bytes=500-999                   | 10000  | One 500-999                      | §14.1.2
        bytes=-500                      | 10000  | One 9500-9999                    | §14.1.2
        bytes=9500-                     | 10000  | One 9500-9999                    | §14.1.2
        bytes=0-0,-1                    | 10000  | Many 0-0, 9999-9999              | §14.1.2
        bytes= 0-999, 4500-5499, -1000  | 10000  | Many 0-999, 4500-5499, 9000-9999 | §14.1.2
        bytes=500-600,601-999           | 10000  | One 500-999                      | §14.1.2
        bytes=500-700,601-999           | 10000  | One 500-999                      | §14.1.2
        bytes=0-0,50-60                 | 10000  | One 0-60                         | §14.2, a small gap
        bytes=9000-9001,0-1,9002-9003   | 10000  | Many 9000-9003, 0-1              | §15.3.7.2, order
        BYTES=0-1                       | 10     | One 0-1                          | §14.1, any case
        bytes=0-99999999999999999999999 | 10     | One 0-9                          | §14.1.2, overflow
        bytes=-20                       | 10     | One 0-9                          | §14.1.2, a long suffix
        bytes=0-                        | 10     | One 0-9                          | §14.1.2
        bytes=10-                       | 10     | Unsatisfiable                    | §14.1.2
        bytes=10-20, -0                 | 10     | Unsatisfiable                    | §14.1.2
        bytes=10-20, 3-4                | 10     | One 3-4                          | §14.2, one that exists
        bytes=0-                        | 0      | Unsatisfiable                    | §14.1.2, nothing there
        bytes=-1                        | 0      | Whole                            | §14.1.2, a suffix of nothing
        bytes=5-4                       | 10     | Whole                            | §14.1.1, invalid
        bytes=0-1, 5-4                  | 10     | Whole                            | §14.1.1, invalid
        bytes=                          | 10     | Whole                            | §14.1.1, invalid
        bytes=-                         | 10     | Whole                            | §14.1.1, invalid
        bytes=a-b                       | 10     | Whole                            | §14.1.1, invalid
        bytes=1 - 2                     | 10     | Whole                            | §14.1.1, invalid
        bytes =0-1                      | 10     | Whole                            | §14.1.1, invalid
        bytes                           | 10     | Whole                            | §14.1.1, invalid
        items=0-1                       | 10     | Whole                            | §14.2, another unit
        bytes=0-9,1-9,2-9               | 10000  | Whole                            | §14.2, overlap
        bytes=0-,0-,0-,0-               | 10000  | Whole                            | §14.2, overlap
    "#;
    for [range, length, expected, section] in rows(table) {
        let found = match asked(range, length.parse().unwrap()) {
            Selection::One(one) => format!("One {}-{}", one.first, one.last),
            Selection::Many(all) => {
                let all = all.iter().map(|one| format!("{}-{}", one.first, one.last));
                format!("Many {}", all.collect::<Vec<_>>().join(", "))
            }
            none @ (Selection::Whole | Selection::Unsatisfiable) => format!("{none:?}"),
        };
        assert_eq!(found, expected, "{range} of {length}: {section}");
    }
    let many = (0..17)
        .map(|at| format!("{0}-{0}", at * 1000))
        .collect::<Vec<_>>()
        .join(",");
    let found = asked(&format!("bytes={many}"), 100_000);
    assert_eq!(found, Selection::Whole, "§14.2, too many");
}

#[test]
fn ranges_are_for_get_of_a_200() {
    let none = HeaderMap::new();
    let once = headers(&[(header::RANGE, "bytes=0-1")]);
    let twice = headers(&[(header::RANGE, "bytes=0-1"), (header::RANGE, "bytes=2-3")]);
    for (method, request, status, section) in [
        (Method::HEAD, &once, StatusCode::OK, "§14.2"),
        (Method::GET, &once, StatusCode::NOT_FOUND, "§14.2"),
        (Method::GET, &twice, StatusCode::OK, "§5.3"),
    ] {
        let found = select(&method, request, &stored(status, &none, false), 9);
        assert_eq!(found, Selection::Whole, "{section}");
    }
}

#[test]
fn if_range_needs_a_strong_validator_that_matches() {
    const MONDAY: &str = "Mon, 01 Jan 2024 00:00:00 GMT";
    const TUESDAY: &str = "Tue, 02 Jan 2024 00:00:00 GMT";
    // `coded`: whether it holds where the body may be sent in codings.
    let table = r#"
        stored                                | if-range | holds | coded | section
        etag: "a"                             | "a"      | true  | true  | §13.1.5
        etag: "a"                             | "b"      | false | false | §13.1.5
        etag: W/"a"                           | W/"a"    | false | false | §13.1.5, strong comparison
        etag: "a"                             | W/"a"    | false | false | §13.1.5, strong comparison
        etag: "a"                             | a        | false | false | §13.1.5, neither
                                              | "a"      | false | false | §13.1.5
        last-modified: MONDAY & date: TUESDAY | MONDAY   | true  | false | §13.1.5
        last-modified: MONDAY & date: TUESDAY | TUESDAY  | false | false | §13.1.5, exactly
        last-modified: MONDAY & date: MONDAY  | MONDAY   | false | false | §8.8.2.2, weak
        last-modified: MONDAY                 | MONDAY   | false | false | §8.8.2.2, weak
    "#;
    let dated = |text: &str| text.replace("MONDAY", MONDAY).replace("TUESDAY", TUESDAY);
    for [kept, value, holds, coded, section] in rows(table) {
        let case = format!("{kept} | {value}: {section}");
        let value = &dated(value);
        let request = headers(&[(header::RANGE, "bytes=0-1"), (header::IF_RANGE, value)]);
        let kept = fields(&dated(kept));
        for (is_encoded, holds) in [(false, holds == "true"), (true, coded == "true")] {
            let stored = stored(StatusCode::OK, &kept, is_encoded);
            assert_eq!(if_range_holds(&request, &stored), holds, "{case}");
            let selection = select(&Method::GET, &request, &stored, 9);
            assert_eq!(selection == Selection::One(span(0, 1)), holds, "{case}");
        }
    }
}

#[test]
fn a_206_says_what_it_holds() {
    let stored = headers(&[
        (header::CONTENT_TYPE, "text/plain"),
        (header::CONTENT_LENGTH, "11"),
        (header::ETAG, "\"a\""),
    ]);
    let fields = single_fields(&stored, span(2, 4), 11);
    assert_eq!(fields[header::CONTENT_RANGE], "bytes 2-4/11", "§14.4");
    assert_eq!(fields[header::CONTENT_LENGTH], "3", "§8.6");
    assert_eq!(fields[header::ETAG], "\"a\"", "§15.3.7");
    assert_eq!(unsatisfied_range(11), "bytes */11", "§15.5.17");
}

#[test]
fn several_ranges_become_a_multipart_body() {
    let content_type = HeaderValue::from_static("text/plain");
    let multipart = Multipart::new(
        &[span(0, 1), span(100, 102)],
        200,
        Some(&content_type),
        "SEP",
    );
    let mut content = Vec::new();
    for (head, span) in &multipart.parts {
        content.extend_from_slice(head);
        content.extend(std::iter::repeat_n(
            b'x',
            usize::try_from(span.length()).unwrap(),
        ));
    }
    content.extend_from_slice(&multipart.tail);
    let expected = "--SEP\r\nContent-Type: text/plain\r\nContent-Range: bytes 0-1/200\r\n\r\nxx\r\n\
        --SEP\r\nContent-Type: text/plain\r\nContent-Range: bytes 100-102/200\r\n\r\nxxx\r\n--SEP--\r\n";
    assert_eq!(String::from_utf8(content).unwrap(), expected, "§14.6");
    assert_eq!(multipart.length, expected.len() as u64, "§8.6");
    let fields = multipart.fields(&headers(&[
        (header::CONTENT_TYPE, "text/plain"),
        (header::CONTENT_RANGE, "x"),
    ]));
    assert_eq!(
        fields[header::CONTENT_TYPE],
        "multipart/byteranges; boundary=SEP",
        "§14.6"
    );
    assert!(!fields.contains_key(header::CONTENT_RANGE), "§15.3.7.2");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// What is sent is within the representation, never twice, and covers what was asked.
    #[test]
    fn nothing_is_sent_twice(asks in proptest::collection::vec((0u64..3000, 0u64..600), 1..20), length in 0u64..2500) {
        let specs: Vec<_> = asks.iter().map(|(first, more)| format!("{first}-{}", first + more)).collect();
        match asked(&format!("bytes={}", specs.join(",")), length) {
            Selection::Whole => {}
            Selection::Unsatisfiable => prop_assert!(asks.iter().all(|(first, _)| *first >= length)),
            Selection::One(only) => prop_assert!(only.first <= only.last && only.last < length),
            Selection::Many(spans) => {
                prop_assert!(spans.len() > 1 && spans.len() <= MAX_RANGES);
                for (at, one) in spans.iter().enumerate() {
                    prop_assert!(one.first <= one.last && one.last < length);
                    prop_assert!(spans[..at].iter().all(|two| !one.near(*two, GAP)));
                }
                for (first, more) in asks.iter().filter(|(first, _)| *first < length) {
                    let last = (first + more).min(length - 1);
                    prop_assert!(spans.iter().any(|span| span.first <= *first && last <= span.last));
                }
                prop_assert!(spans.iter().map(|span| span.length()).sum::<u64>() <= length);
            }
        }
    }

    #[test]
    fn any_range_can_be_read(line in proptest::collection::vec(0x20u8..=0xff, 0..40), length in 0u64..) {
        let line = [b"bytes=".as_slice(), &line].concat();
        if let Some(specs) = parse(&line) {
            let _ = satisfy(&specs, length);
        }
        prop_assert_eq!(parse(&[]), None);
    }
}
