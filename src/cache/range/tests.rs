//! Tables of `range`. Sections are of RFC 9110 where no other is named.

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
        range                           | length | selection        | section
        bytes=0-499                     | 10000  | One 0-499        | §14.1.2
        bytes=500-999                   | 10000  | One 500-999      | §14.1.2
        bytes=-500                      | 10000  | One 9500-9999    | §14.1.2
        bytes=9500-                     | 10000  | One 9500-9999    | §14.1.2
        bytes=0-0,-1                    | 10000  | Whole            | §14.2, several
        bytes=0-1,                      | 10000  | Whole            | §14.2, several
        BYTES=0-1                       | 10     | One 0-1          | §14.1, any case
        bytes=0-99999999999999999999999 | 10     | One 0-9          | §14.1.2, overflow
        bytes=-20                       | 10     | One 0-9          | §14.1.2, a long suffix
        bytes=0-                        | 10     | One 0-9          | §14.1.2
        bytes=10-                       | 10     | Unsatisfiable    | §14.1.2
        bytes=0-                        | 0      | Unsatisfiable    | §14.1.2, nothing there
        bytes=-1                        | 0      | Whole            | §14.1.2, a suffix of nothing
        bytes=5-4                       | 10     | Whole            | §14.1.1, invalid
        bytes=                          | 10     | Whole            | §14.1.1, invalid
        bytes=-                         | 10     | Whole            | §14.1.1, invalid
        bytes=a-b                       | 10     | Whole            | §14.1.1, invalid
        bytes=1 - 2                     | 10     | Whole            | §14.1.1, invalid
        bytes =0-1                      | 10     | Whole            | §14.1.1, invalid
        bytes                           | 10     | Whole            | §14.1.1, invalid
        items=0-1                       | 10     | Whole            | §14.2, another unit
    "#;
    for [range, length, expected, section] in rows(table) {
        let found = match asked(range, length.parse().unwrap()) {
            Selection::One(one) => format!("One {}-{}", one.first, one.last),
            none @ (Selection::Whole | Selection::Unsatisfiable) => format!("{none:?}"),
        };
        assert_eq!(found, expected, "{range} of {length}: {section}");
    }
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// What is sent is what was asked, as far as it exists.
    #[test]
    fn what_exists_is_sent(first in 0u64..3000, more in 0u64..600, length in 0u64..2500) {
        let selection = asked(&format!("bytes={first}-{}", first + more), length);
        let exists = (first + 1..=length.min(first + more + 1)).count() as u64;
        match selection {
            Selection::Unsatisfiable => prop_assert_eq!(exists, 0),
            Selection::One(only) => {
                prop_assert_eq!((only.first, only.length()), (first, exists));
            }
            Selection::Whole => prop_assert!(false, "{first} {more} {length}"),
        }
    }

    #[test]
    fn any_range_can_be_read(line in proptest::collection::vec(0x20u8..=0xff, 0..40), length in 0u64..) {
        let line = [b"bytes=".as_slice(), &line].concat();
        if let Some(spec) = parse(&line)
            && let Selection::One(one) = satisfy(spec, length)
        {
            prop_assert!(one.first <= one.last && one.last < length);
        }
        prop_assert_eq!(parse(&[]), None);
    }
}
