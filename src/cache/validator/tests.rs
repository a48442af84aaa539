//! Tables of `validator`. Sections are of RFC 9110 where no other is named.

use http::header::HeaderName;
use proptest::prelude::{ProptestConfig, prop_assert_eq, proptest};

use super::*;
use crate::cache::tests_table::{fields, rows};

const MONDAY: &str = "Mon, 01 Jan 2024 00:00:00 GMT";
const TUESDAY: &str = "Tue, 02 Jan 2024 00:00:00 GMT";
const WEDNESDAY: &str = "Wed, 03 Jan 2024 00:00:00 GMT";

fn headers(fields: &[(HeaderName, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        headers.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
    }
    headers
}

#[test]
fn entity_tags_are_parsed_strictly() {
    let strong = |opaque: &'static str| {
        Some(EntityTag {
            weak: false,
            opaque: opaque.as_bytes(),
        })
    };
    let weak = |opaque: &'static str| {
        Some(EntityTag {
            weak: true,
            opaque: opaque.as_bytes(),
        })
    };
    let table = [
        ("\"xyzzy\"", strong("xyzzy"), "§8.8.3"),
        ("W/\"xyzzy\"", weak("xyzzy"), "§8.8.3"),
        ("\"\"", strong(""), "§8.8.3"),
        ("\"a,b\\\"", strong("a,b\\"), "§8.8.3, no escapes"),
        ("\"\u{fc}\"", strong("\u{fc}"), "§8.8.3, obs-text"),
        ("w/\"xyzzy\"", None, "§8.8.3, W has case"),
        ("W\"xyzzy\"", None, "§8.8.3"),
        ("xyzzy", None, "§8.8.3, unquoted"),
        ("\"a b\"", None, "§8.8.3, no space"),
        ("\"a\", \"b\"", None, "§8.8.3, one only"),
        ("\"a", None, "§8.8.3"),
        ("", None, "§8.8.3"),
    ];
    for (value, expected, section) in table {
        assert_eq!(
            EntityTag::parse(value.as_bytes()),
            expected,
            "{value:?}: {section}"
        );
    }
}

#[test]
fn strong_comparison_rejects_weak_tags() {
    let table = [
        ("W/\"1\"", "W/\"1\"", false),
        ("W/\"1\"", "\"1\"", false),
        ("\"1\"", "\"2\"", false),
        ("\"1\"", "\"1\"", true),
    ];
    for (one, two, strongly) in table {
        let one = EntityTag::parse(one.as_bytes()).unwrap();
        let two = EntityTag::parse(two.as_bytes()).unwrap();
        assert_eq!(one.equals_strongly(&two), strongly, "§8.8.3.2");
    }
}

#[test]
fn preconditions_are_evaluated_in_order() {
    // TAG: an entity tag "a", and modified on TUESDAY.
    let table = r#"
        request                                                 | stored                 | 304    | section
                                                                | TAG                    | false  | §13.2.2
        if-none-match: "a"                                      | TAG                    | true   | §13.1.2
        if-none-match: W/"a"                                    | TAG                    | true   | §13.1.2, weak comparison
        if-none-match: "a"                                      | etag: W/"a"            | true   | §13.1.2, weak comparison
        if-none-match: "b"                                      | TAG                    | false  | §13.1.2
        if-none-match: "b", "a"                                 | TAG                    | true   | §13.1.2, a list
        if-none-match: "b" & if-none-match: "a"                 | TAG                    | true   | §5.3, lines
        if-none-match: "x,"a"                                   | TAG                    | false  | §8.8.3, commas are etagc
        if-none-match: "x,y","a"                                | TAG                    | true   | §8.8.3, commas are etagc
        if-none-match: "A"                                      | TAG                    | false  | §8.8.3.2
        if-none-match: "aa"                                     | TAG                    | false  | §8.8.3.2
        if-none-match: "a                                       | TAG                    | false  | §8.8.3
        if-none-match: ,, ,"a"                                  | TAG                    | true   | §5.6.1
        if-none-match: w/"a"                                    | TAG                    | false  | §8.8.3, W has case
        if-none-match: b, "a"                                   | TAG                    | true   | a member that is no tag is passed over
        if-none-match: "a"b                                     | TAG                    | false  | a member that is no tag is passed over
        if-none-match: a                                        | TAG                    | false  | §8.8.3, unquoted
        if-none-match: a                                        | etag: a                | false  | §8.8.3, unquoted
        if-none-match: *                                        | TAG                    | true   | §13.1.2, any
        if-none-match: *                                        |                        | true   | §13.1.2, any
        if-none-match:                                          | TAG                    | false  | §13.1.2
        if-none-match: "a" & if-modified-since: MONDAY          | TAG                    | true   | §13.2.2, precedence
        if-none-match: "b" & if-modified-since: WEDNESDAY       | TAG                    | false  | §13.1.3, ignored
        if-none-match: b & if-modified-since: WEDNESDAY         | TAG                    | false  | §13.1.3, ignored
        if-none-match: "a"                                      | last-modified: TUESDAY | false  | §13.1.2
        if-modified-since: TUESDAY                              | TAG                    | true   | §13.1.3
        if-modified-since: WEDNESDAY                            | TAG                    | true   | §13.1.3
        if-modified-since: MONDAY                               | TAG                    | false  | §13.1.3
        if-modified-since: Tuesday, 02-Jan-24 00:00:00 GMT      | TAG                    | true   | §5.6.7
        if-modified-since: yesterday                            | TAG                    | false  | §13.1.3, ignored
        if-modified-since: TUESDAY & if-modified-since: TUESDAY | TAG                    | false  | §13.1.3, one member
        if-modified-since: WEDNESDAY                            | date: TUESDAY          | true   | RFC 9111 §4.3.2, Date
        if-modified-since: MONDAY                               | date: TUESDAY          | false  | RFC 9111 §4.3.2, Date
        if-modified-since: TUESDAY                              | date: yesterday        | false  | RFC 9111 §4.3.2, Date
        if-match: "a"                                           | TAG                    | false  | RFC 9111 §4.3.2
        if-unmodified-since: MONDAY                             | TAG                    | false  | RFC 9111 §4.3.2
        if-match: "a" & if-none-match: "a"                      | TAG                    | false  | §13.2.2
    "#;
    let read = |text: &str| {
        let dates = [
            ("MONDAY", MONDAY),
            ("TUESDAY", TUESDAY),
            ("WEDNESDAY", WEDNESDAY),
        ];
        let text = text.replace("TAG", "etag: \"a\" & last-modified: TUESDAY");
        let text = dates
            .iter()
            .rev()
            .fold(text, |text, (day, date)| text.replace(day, date));
        fields(&text)
    };
    for [request, stored, expected, section] in rows(table) {
        let case = format!("{request} | {stored}: {section}");
        let (request, stored) = (read(request), read(stored));
        let found = is_not_modified(&request, &stored, false);
        assert_eq!(found.to_string(), expected, "{case}");
    }
}

#[test]
fn only_a_stored_200_is_validated() {
    for (status, expected, section) in [
        (200, true, "§15.4.5"),
        (203, false, "§15.4.5"),
        (204, false, "§15.4.5"),
        (301, false, "§13.2.1"),
        (404, false, "§13.2.1"),
        (410, false, "§13.2.1"),
        (500, false, "§13.2.1"),
        (502, false, "§13.2.1"),
        (503, false, "§13.2.1"),
    ] {
        let status = StatusCode::from_u16(status).unwrap();
        assert_eq!(can_be_validated(status), expected, "{status}: {section}");
    }
}

#[test]
fn stored_validators_replace_the_clients_conditions() {
    let asked = |stored: &[(HeaderName, &str)]| {
        let mut request = headers(&[
            (IF_NONE_MATCH, "\"client\""),
            (header::IF_MODIFIED_SINCE, MONDAY),
            (header::RANGE, "bytes=0-1"),
            (header::IF_RANGE, "\"client\""),
            (header::ACCEPT, "*/*"),
        ]);
        let conditional = make_conditional(&mut request, Some(&headers(stored)));
        request.remove(header::ACCEPT).unwrap();
        let line = |name| {
            request
                .get(name)
                .map(|value| value.to_str().unwrap().to_owned())
        };
        let conditions = (line(IF_NONE_MATCH), line(header::IF_MODIFIED_SINCE));
        assert_eq!(conditional, !request.is_empty(), "RFC 9111 §4.3.1");
        assert!(!request.contains_key(header::RANGE) && !request.contains_key(header::IF_RANGE));
        conditions
    };
    let some = |text: &str| Some(text.to_owned());
    let tag = (header::ETAG, "\"a\"");
    let modified = (header::LAST_MODIFIED, TUESDAY);
    assert_eq!(
        asked(std::slice::from_ref(&tag)),
        (some("\"a\""), None),
        "RFC 9111 §4.3.1"
    );
    assert_eq!(
        asked(&[(header::ETAG, "W/\"a\"")]),
        (some("W/\"a\""), None),
        "RFC 9111 §4.3.1"
    );
    assert_eq!(
        asked(&[tag.clone(), modified.clone()]),
        (some("\"a\""), some(TUESDAY)),
        "RFC 9111 §4.3.1"
    );
    assert_eq!(asked(&[modified]), (None, some(TUESDAY)), "RFC 9111 §4.3.1");
    assert_eq!(
        asked(&[]),
        (None, None),
        "RFC 9111 §4.3.1, nothing to validate by"
    );
    assert_eq!(
        asked(&[(header::ETAG, "a")]),
        (None, None),
        "§8.8.3, no tag"
    );
    assert_eq!(
        asked(&[(header::LAST_MODIFIED, "x")]),
        (None, None),
        "§8.8.2, no date"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_list_can_be_read(line in proptest::collection::vec(0x20u8..=0xff, 0..40)) {
        let _ = members(&line).filter_map(EntityTag::parse).count();
    }

    #[test]
    fn a_written_list_is_read_back(opaque in proptest::collection::vec("[!#-Z^-~]{0,8}", 1..8)) {
        let line = opaque.iter().map(|opaque| format!("\"{opaque}\"")).collect::<Vec<_>>().join(" , ");
        let tags = members(line.as_bytes()).filter_map(EntityTag::parse);
        let found: Vec<_> = tags.map(|tag| String::from_utf8(tag.opaque.to_vec()).unwrap()).collect();
        prop_assert_eq!(found, opaque);
    }
}
