//! Tables of `vary`. Sections are of RFC 9111 where no other is named.

use proptest::prelude::{ProptestConfig, prop_assert, prop_assert_eq, prop_assume, proptest};

use http::HeaderValue;

use super::*;
use crate::cache::tests_table::rows;

fn headers(name: &str, lines: &[&str]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in lines {
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        headers.append(name, HeaderValue::from_bytes(line.as_bytes()).unwrap());
    }
    headers
}

fn same(vary: &str, one: &HeaderMap, two: &HeaderMap) -> bool {
    let nominated = nominated(&headers("vary", &[vary])).unwrap();
    secondary_key(&nominated, || one) == secondary_key(&nominated, || two)
}

#[test]
fn vary_nominates_field_names_or_everything() {
    type Row = (
        &'static [&'static str],
        Option<&'static [&'static str]>,
        &'static str,
    );
    let table: &[Row] = &[
        (&[], Some(&[]), "RFC 9110 §12.5.5"),
        (&[""], Some(&[]), "RFC 9110 §5.6.1.2"),
        (&["Foo"], Some(&["foo"]), "RFC 9110 §12.5.5, any case"),
        (
            &["foo, Bar", "baz,FOO"],
            Some(&["bar", "baz", "foo"]),
            "RFC 9110 §5.3, several lines",
        ),
        (&["*"], None, "§4.1"),
        (&["*, *"], None, "§4.1"),
        (&["", "*"], None, "§4.1"),
        (&[", *"], None, "§4.1"),
        (&["*, foo"], None, "§4.1"),
        (&["foo, *"], None, "§4.1"),
        (&["foo bar"], None, "no field name: nothing is sure"),
    ];
    for (lines, expected, section) in table {
        let found = nominated(&headers("vary", lines));
        let found = found
            .as_ref()
            .map(|names| names.iter().map(HeaderName::as_str));
        let found: Option<Vec<_>> = found.map(Iterator::collect);
        assert_eq!(found.as_deref(), *expected, "{lines:?}: {section}");
    }
}

#[test]
fn requests_with_the_same_meaning_have_the_same_key() {
    // Lines of a field, with `_` for a blank at an end and `\t` for a tab.
    let table = r#"
        field           | one          | two            | same  | section
        foo             | 1            | 1              | true  | §4.1
        foo             | 1            | 2              | false | §4.1
        foo             | a            | A              | false | §4.1, no case is known
        foo             | (none)       | (none)         | true  | §4.1, both absent
        foo             | (none)       | 1              | false | §4.1, one absent
        foo             | 1            | (none)         | false | §4.1, one absent
        foo             | (none)       |                | false | §4.1, empty is not absent
        foo             | 1, 2         | 1 & 2          | true  | §4.1, combined lines
        foo             | 1,2          | _1,2_          | true  | §4.1, whitespace around
        foo             | 1,2          | 1, 2           | false | §4.1, whitespace within may mean something
        cookie          | a=1, b=2     | a=1,b=2        | false | RFC 6265 §4.2.1, text
        foo             | 1, 2         | 2, 1           | false | §4.1, no order is known to mean nothing
        foo             | 1  2         | 1 2            | false | §4.1, whitespace within
        foo             | "a, b"       | "a,b"          | false | RFC 9110 §5.6.4, text
        foo             | "a, b        | "a,b           | false | an unclosed quote keeps its spaces
        accept-encoding | gzip, br     | br,gzip        | true  | RFC 9110 §12.5.3, order
        accept-encoding | gzip & br    | BR,_gzip       | true  | RFC 9110 §8.4.1, case
        accept-encoding | gzip;q=0.5   | gzip;q=0.6     | false | RFC 9110 §12.4.2
        accept-encoding | gzip;q=0     | gzip           | false | RFC 9110 §12.4.2
        accept-encoding | gzip;q=2     | gzip           | false | RFC 9110 §12.4.2, no weight
        accept-encoding |              | (none)         | false | RFC 9110 §12.5.3, empty wants identity
        accept-encoding | gzip         | gzip, br       | false | RFC 9110 §12.5.3
        accept-language | en, de       | _eN ,   De     | true  | RFC 9110 §12.5.4, case
        accept-language | en, de       | de, en         | false | RFC 9110 §12.5.4, order may be a preference
        accept-language | en-GB        | en             | false | RFC 9110 §12.5.4
        accept-encoding | gzip;q=0.2   | gzip;200       | false | RFC 9110 §12.4.2, no weight
    "#;
    let read = |name, text: &str| {
        let text = text.replace('_', " ").replace("\\t", "\t");
        let lines: Vec<_> = text.split(" & ").filter(|line| *line != "(none)").collect();
        headers(name, &lines)
    };
    for [name, one, two, expected, section] in rows(table) {
        let found = same(name, &read(name, one), &read(name, two));
        let case = format!("{name}: {one} | {two}: {section}");
        assert_eq!(found, expected == "true", "{case}");
    }
}

#[test]
fn only_nominated_fields_count() {
    let one = headers("other", &["1"]);
    let two = headers("other", &["2"]);
    assert!(same("foo", &one, &two), "§4.1");
    assert!(!same("foo, other", &one, &two), "§4.1");
}

#[test]
fn values_of_adjacent_fields_stay_apart() {
    let mut one = headers("a", &["1"]);
    one.extend(headers("b", &["2"]));
    let mut two = headers("a", &["12"]);
    two.extend(headers("b", &[""]));
    assert!(!same("a, b", &one, &two), "§4.1");
    assert!(
        !same("a, b", &headers("a", &["1"]), &headers("b", &["1"])),
        "§4.1"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Two requests whose nominated field differs in more than whitespace never share a key.
    #[test]
    fn requests_that_differ_share_nothing(
        one in "[ab\", ;=\\\\q.01-]{0,14}",
        two in "[ab\", ;=\\\\q.01-]{0,14}",
    ) {
        let bare = |text: &str| text.replace([' ', '\t'], "");
        prop_assume!(bare(&one) != bare(&two));
        prop_assert!(!same("foo", &headers("foo", &[&one]), &headers("foo", &[&two])));
    }

    /// A preference list keeps every word and every weight.
    #[test]
    fn preferences_are_not_lost(
        words in proptest::collection::vec(("[a-c]{1,2}", 0u16..=10), 0..6),
        others in proptest::collection::vec(("[a-c]{1,2}", 0u16..=10), 0..6),
    ) {
        let text = |words: &[(String, u16)]| {
            let words: Vec<_> =
                words.iter().map(|(word, tenths)| format!("{word};q={}.{}", tenths / 10, tenths % 10)).collect();
            words.join(", ")
        };
        let sorted = |mut words: Vec<(String, u16)>| { words.sort(); words };
        let one = headers("accept-encoding", &[&text(&words)]);
        let two = headers("accept-encoding", &[&text(&others)]);
        prop_assert_eq!(same("accept-encoding", &one, &two), sorted(words) == sorted(others));
    }
}
