//! Tables of `freshen`: each row cites its section.

use http::HeaderValue;

use super::*;

const MONDAY: &str = "Mon, 01 Jan 2024 00:00:00 GMT";
const TUESDAY: &str = "Tue, 02 Jan 2024 00:00:00 GMT";
const WEDNESDAY: &str = "Wed, 03 Jan 2024 00:00:00 GMT";

fn headers(fields: &[(&'static str, &'static str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        headers.append(*name, HeaderValue::from_static(value));
    }
    headers
}

#[test]
fn a_304_is_about_what_it_names() {
    type Fields = &'static [(&'static str, &'static str)];
    const A: Fields = &[("etag", "\"a\""), ("date", MONDAY)];
    const A_LATER: Fields = &[("etag", "W/\"a\""), ("date", TUESDAY)];
    const B: Fields = &[("etag", "\"b\""), ("date", TUESDAY)];
    const OLD: Fields = &[("last-modified", MONDAY), ("date", TUESDAY)];
    const BARE: Fields = &[("date", MONDAY)];
    enum Expected {
        These(&'static [usize]),
        Unnamed,
        Other,
    }
    type Row = (Fields, &'static [Fields], Expected, &'static str);
    let table: &[Row] = &[
        (
            &[("etag", "\"a\"")],
            &[A],
            Expected::These(&[0]),
            "RFC 9111 §4.3.4, strong",
        ),
        (
            &[("etag", "\"a\"")],
            &[B, A, A],
            Expected::These(&[1, 2]),
            "RFC 9111 §4.3.4, all with that strong validator",
        ),
        (
            &[("etag", "\"c\"")],
            &[A, B],
            Expected::Other,
            "RFC 9111 §4.3.4, none has it",
        ),
        (
            &[("etag", "\"a\"")],
            &[A_LATER],
            Expected::Other,
            "RFC 9111 §4.3.4, a weak one is not that strong one",
        ),
        (
            &[("etag", "W/\"a\"")],
            &[A_LATER, A, B],
            Expected::These(&[0]),
            "RFC 9111 §4.3.4, the most recent with that weak one",
        ),
        (
            &[("etag", "W/\"c\"")],
            &[A],
            Expected::Other,
            "RFC 9111 §4.3.4, none has it",
        ),
        (
            &[("last-modified", MONDAY), ("date", WEDNESDAY)],
            &[OLD, A, OLD],
            Expected::These(&[0, 2]),
            "RFC 9110 §8.8.2.2, strong",
        ),
        (
            &[("last-modified", MONDAY)],
            &[OLD],
            Expected::These(&[0]),
            "RFC 9111 §4.3.4, weak",
        ),
        (
            &[("last-modified", TUESDAY)],
            &[OLD],
            Expected::Other,
            "RFC 9111 §4.3.4, none has it",
        ),
        (
            &[("etag", "\"c\""), ("last-modified", MONDAY)],
            &[OLD],
            Expected::Other,
            "the tag is the better witness",
        ),
        (
            &[],
            &[BARE],
            Expected::These(&[0]),
            "RFC 9111 §4.3.4, no validator on either side",
        ),
        (
            &[],
            &[BARE, BARE],
            Expected::Other,
            "RFC 9111 §4.3.4, more than one",
        ),
        (
            &[],
            &[A],
            Expected::Unnamed,
            "RFC 9111 §4.3.3, the stored one has a validator",
        ),
        (&[], &[], Expected::Other, "RFC 9111 §4.3.4"),
    ];
    for (row, (update, initial, expected, section)) in table.iter().enumerate() {
        let initial: Vec<_> = initial.iter().map(|fields| headers(fields)).collect();
        let initial: Vec<_> = initial.iter().collect();
        let expected = match expected {
            Expected::These(places) => Identified::Stored(places.to_vec()),
            Expected::Unnamed => Identified::Unnamed,
            Expected::Other => Identified::Other,
        };
        assert_eq!(
            identify(&headers(update), &initial),
            expected,
            "row {row}: {section}"
        );
    }
}

#[test]
fn an_update_replaces_fields() {
    // name, stored, in the update, afterwards
    type Row = (
        &'static str,
        &'static str,
        Option<&'static str>,
        Option<&'static str>,
        &'static str,
    );
    let table: &[Row] = &[
        ("x-test", "a", Some("b"), Some("b"), "RFC 9111 §3.2"),
        ("x-kept", "a", None, Some("a"), "RFC 9111 §3.2, omitted"),
        (
            "cache-control",
            "max-age=1",
            Some("max-age=9"),
            Some("max-age=9"),
            "RFC 9111 §3.2",
        ),
        (
            "content-type",
            "text/plain",
            Some("text/html"),
            Some("text/html"),
            "RFC 9111 §3.2",
        ),
        (
            "content-location",
            "/a",
            Some("/b"),
            Some("/b"),
            "RFC 9111 §3.2",
        ),
        (
            "set-cookie",
            "a=b",
            Some("a=c"),
            Some("a=c"),
            "RFC 9111 §3.2",
        ),
        (
            "expires",
            MONDAY,
            Some(TUESDAY),
            Some(TUESDAY),
            "RFC 9111 §3.2",
        ),
        (
            "date",
            MONDAY,
            Some(TUESDAY),
            Some(TUESDAY),
            "RFC 9111 §3.2",
        ),
        (
            "age",
            "7",
            None,
            None,
            "RFC 9111 §4.2.3, the age is that of the update",
        ),
        (
            "etag",
            "\"a\"",
            Some("\"b\""),
            Some("\"a\""),
            "RFC 9111 §3.2, of the bytes",
        ),
        ("content-length", "5", Some("9"), Some("5"), "RFC 9111 §3.2"),
        (
            "content-encoding",
            "gzip",
            Some("br"),
            Some("gzip"),
            "RFC 9111 §3.2, of the bytes",
        ),
        (
            "content-md5",
            "a",
            Some("b"),
            Some("a"),
            "RFC 9111 §3.2, of the bytes",
        ),
        ("content-range", "a", Some("b"), Some("a"), "RFC 9111 §3.2"),
        (
            "x-hop",
            "a",
            Some("b"),
            Some("a"),
            "RFC 9111 §3.1, listed in Connection",
        ),
    ];
    let mut stored = HeaderMap::new();
    let mut update = headers(&[("connection", "x-hop"), ("keep-alive", "5")]);
    for (name, before, sent, ..) in table {
        stored.append(*name, HeaderValue::from_static(before));
        if let Some(sent) = sent {
            update.append(*name, HeaderValue::from_static(sent));
        }
    }
    let received = date::parse(WEDNESDAY.as_bytes()).unwrap();
    freshen(&mut stored, &update, received);
    for (name, _, _, after, section) in table {
        assert_eq!(
            stored.get(*name).map(|value| value.to_str().unwrap()),
            *after,
            "{name}: {section}"
        );
    }
    assert!(
        !stored.contains_key("connection") && !stored.contains_key("keep-alive"),
        "RFC 9111 §3.1"
    );
}

#[test]
fn an_update_without_a_date_gets_that_of_its_receipt() {
    let mut stored = headers(&[("date", MONDAY), ("set-cookie", "a"), ("set-cookie", "b")]);
    let update = headers(&[("set-cookie", "c"), ("set-cookie", "d"), ("age", "3")]);
    freshen(
        &mut stored,
        &update,
        date::parse(WEDNESDAY.as_bytes()).unwrap(),
    );
    assert_eq!(
        stored,
        headers(&[
            ("date", WEDNESDAY),
            ("set-cookie", "c"),
            ("set-cookie", "d"),
            ("age", "3")
        ])
    );
}

#[test]
fn a_head_freshens_or_makes_stale() {
    use HeadEffect::{Freshen, Stale};
    type Fields = &'static [(&'static str, &'static str)];
    const STORED: Fields = &[("etag", "\"a\""), ("last-modified", MONDAY)];
    let table: &[(Fields, Fields, HeadEffect)] = &[
        (STORED, &[], Freshen),
        (
            STORED,
            &[("etag", "\"a\""), ("content-length", "5")],
            Freshen,
        ),
        (
            STORED,
            &[("etag", "\"a\""), ("last-modified", MONDAY)],
            Freshen,
        ),
        (STORED, &[("etag", "\"b\"")], Stale),
        (
            STORED,
            &[("etag", "\"a\""), ("last-modified", TUESDAY)],
            Stale,
        ),
        (STORED, &[("content-length", "6")], Stale),
        (STORED, &[("content-length", "x")], Stale),
        (&[], &[("etag", "\"a\"")], Stale),
        (&[], &[], Freshen),
    ];
    for (row, (stored, head, expected)) in table.iter().enumerate() {
        let effect = head_effect(&headers(stored), 5, &headers(head));
        assert_eq!(effect, *expected, "row {row}: RFC 9111 §4.3.5");
    }
}

#[test]
fn a_304_of_our_own() {
    let table: &[(&str, &str, bool)] = &[
        ("cache-control", "max-age=1", true),
        ("content-location", "/a", true),
        ("date", MONDAY, true),
        ("etag", "\"a\"", true),
        ("expires", MONDAY, true),
        ("vary", "foo", true),
        ("access-control-allow-origin", "*", true),
        ("last-modified", MONDAY, false),
        ("content-type", "text/plain", false),
        ("content-length", "5", false),
        ("content-encoding", "gzip", false),
        ("content-language", "de", false),
    ];
    let mut stored = HeaderMap::new();
    for (name, value, _) in table {
        stored.append(*name, HeaderValue::from_static(value));
    }
    let fields = not_modified_fields(&stored);
    for (name, _, kept) in table {
        assert_eq!(
            fields.contains_key(*name),
            *kept,
            "{name}: RFC 9110 §15.4.5"
        );
    }
    stored.remove("etag");
    assert!(
        not_modified_fields(&stored).contains_key("last-modified"),
        "RFC 9110 §15.4.5, the only validator"
    );
}
