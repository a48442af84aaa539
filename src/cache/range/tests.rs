//! Tables of `range`. Sections are of RFC 9110 where no other is named.

use http::header::{ETAG, HeaderName, HeaderValue, LAST_MODIFIED};
use proptest::prelude::{ProptestConfig, prop_assert, prop_assert_eq, proptest};

use super::*;
use crate::cache::tests_table::rows;

fn headers(fields: &[(HeaderName, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        headers.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
    }
    headers
}

fn asked(range: &str, length: u64) -> Selection {
    let request = headers(&[(RANGE, range)]);
    select(&request, &HeaderMap::new(), length)
}

#[test]
fn satisfiable_ranges_are_selected() {
    let table = r#"
        range                           | length | selection        | section
        bytes=0-499                     | 10000  | Part 0-499        | §14.1.2
        bytes=500-999                   | 10000  | Part 500-999      | §14.1.2
        bytes=-500                      | 10000  | Part 9500-9999    | §14.1.2
        bytes=9500-                     | 10000  | Part 9500-9999    | §14.1.2
        bytes=0-0,-1                    | 10000  | Whole            | §14.2, several
        bytes=0-1,                      | 10000  | Whole            | §14.2, several
        BYTES=0-1                       | 10     | Part 0-1          | §14.1, any case
        bytes=0-99999999999999999999999 | 10     | Part 0-9          | §14.1.2, overflow
        bytes=-20                       | 10     | Part 0-9          | §14.1.2, a long suffix
        bytes=0-                        | 10     | Part 0-9          | §14.1.2
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
            Selection::Part(part) => format!("Part {}-{}", part.start, part.end - 1),
            none @ (Selection::Whole | Selection::Unsatisfiable) => format!("{none:?}"),
        };
        assert_eq!(found, expected, "{range} of {length}: {section}");
    }
}

#[test]
fn two_lines_are_no_range() {
    let twice = headers(&[(RANGE, "bytes=0-1"), (RANGE, "bytes=2-3")]);
    let found = select(&twice, &HeaderMap::new(), 9);
    assert_eq!(found, Selection::Whole, "§5.3");
}

#[test]
fn if_range_needs_a_strong_entity_tag_that_matches() {
    let table = r#"
        etag | if-range                      | holds | section
        "a"  | "a"                           | true  | §13.1.5
        "a"  | "b"                           | false | §13.1.5
        W/"a"| W/"a"                         | false | §13.1.5, strong comparison
        "a"  | W/"a"                         | false | §13.1.5, strong comparison
        "a"  | a                             | false | §13.1.5, neither
        x    | "a"                           | false | §13.1.5
        "a"  | Mon, 01 Jan 2024 00:00:00 GMT | false | §8.8.2.2, seldom strong
    "#;
    for [tag, value, holds, section] in rows(table) {
        let request = headers(&[(RANGE, "bytes=0-1"), (IF_RANGE, value)]);
        let kept = headers(&[(ETAG, tag), (LAST_MODIFIED, value)]);
        let case = format!("{tag} | {value}: {section}");
        assert_eq!(if_range_holds(&request, &kept), holds == "true", "{case}");
        let is_part = select(&request, &kept, 9) == Selection::Part(0..2);
        assert_eq!(is_part, holds == "true", "{case}");
    }
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
            Selection::Part(part) => {
                prop_assert_eq!((part.start, part.end - part.start), (first, exists));
            }
            Selection::Whole => prop_assert!(false, "{first} {more} {length}"),
        }
    }

    #[test]
    fn any_range_can_be_read(line in proptest::collection::vec(0x20u8..=0xff, 0..40), length in 0u64..) {
        let line = [b"bytes=".as_slice(), &line].concat();
        if let Some(Selection::Part(part)) = parse(&line, length) {
            prop_assert!(part.start < part.end && part.end <= length);
        }
    }
}
