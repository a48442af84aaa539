//! Directives of responses. Sections are of RFC 9111 where no other is named.

use super::*;
use crate::cache::tests_table::rows;

#[test]
fn max_age_of_a_response_is_read_in_all_spellings() {
    let table = r#"
        lines                                 | max-age    | section
        max-age=3600                          | 3600       | §5.2.2.1
        MaX-aGe=3600                          | 3600       | §5.2, names in any case
        max-age=003600                        | 3600       | §1.2.2, digits
        max-age="3600"                        | 3600       | §5.2, both forms
        max-age="36\00"                       | 0          | §4.2.1, an escape is no digit
        foobar, max-age=3600                  | 3600       | §5.2.3
        foobar="x\"y", max-age=3600           | 3600       | RFC 9110 §5.6.4
        max-age=2147483647                    | 2147483647 | §1.2.2
        max-age=2147483648                    | 2147483648 | §1.2.2
        max-age=2147483649                    | 2147483648 | §1.2.2, overflow
        max-age=99999999999999999999          | 2147483648 | §1.2.2, overflow
        max-age=0                             | 0          | §5.2.2.1
        max-age=-3600                         | 0          | §4.2.1, invalid is stale
        max-age=3600.0                        | 0          | §4.2.1, invalid is stale
        max-age=a3600                         | 0          | §4.2.1, invalid is stale
        max-age=3600a                         | 0          | §4.2.1, invalid is stale
        max-age='3600'                        | 0          | §4.2.1, no quotes of HTTP
        max-age                               | 0          | §4.2.1, invalid is stale
        max-age=                              | 0          | §4.2.1, invalid is stale
        max-age=""                            | 0          | §4.2.1, invalid is stale
        max-age =3600                         | 0          | §5.2, no space within
        max-age= 3600                         | 0          | §5.2, no space within
        max-age=3600, max-age=1800            | 1800       | §4.2.1, several
        max-age=1, max-age=1800               | 1          | §4.2.1, several
        max-age=1800 & max-age=1              | 1          | §4.2.1, several lines
        max-age=1800, max-age=x               | 0          | §4.2.1, several, one invalid
        extension="max-age=3600", max-age=1   | 1          | RFC 9110 §5.6.4, text is text
        max-age=1, extension="max-age=3600"   | 1          | RFC 9110 §5.6.4, text is text
        extension="max-age=3600", max-age="1" | 1          | RFC 9110 §5.6.4, text is text
        extension="max-age=3600"              | none       | RFC 9110 §5.6.4, text is text
        extension="a & max-age=3600           | 3600       | an unclosed quote ends with its line
        x-max-age=3600                        | none       | §5.2.3
                                              | none       | §5.2
        (none)                                | none       | §5.2
    "#;
    for [text, expected, section] in rows(table) {
        let lines: Vec<_> = text.split(" & ").filter(|line| *line != "(none)").collect();
        let found = response(&lines).max_age.map(|time| time.as_secs());
        assert_eq!(found, expected.parse().ok(), "{text}: {section}");
    }
}

#[test]
fn response_directives_are_read() {
    type Row = (&'static [&'static str], fn(&mut Directives), &'static str);
    let table: &[Row] = &[
        (&["no-store"], |d| d.no_store = true, "§5.2.2.5"),
        (&["No-StOrE"], |d| d.no_store = true, "§5.2"),
        (
            &["no-store=x"],
            |d| d.no_store = true,
            "an argument takes nothing back",
        ),
        (&["no-transform"], |d| d.no_transform = true, "§5.2.2.6"),
        (
            &["must-understand"],
            |d| d.must_understand = true,
            "§5.2.2.3",
        ),
        (
            &["must-understand=1"],
            |_| {},
            "what lifts no-store must be well-formed",
        ),
        (
            &["must-revalidate"],
            |d| d.must_revalidate = true,
            "§5.2.2.2",
        ),
        (
            &["proxy-revalidate"],
            |d| d.proxy_revalidate = true,
            "§5.2.2.8",
        ),
        (&["public"], |d| d.public = true, "§5.2.2.9"),
        (&["public=yes"], |_| {}, "what permits must be well-formed"),
        (
            &["immutable"],
            |_| {},
            "RFC 8246 §2, nothing to a shared cache",
        ),
        (&["s-maxage=5"], |d| d.s_maxage = some(5), "§5.2.2.10"),
        (
            &["stale-while-revalidate=5, stale-if-error=6"],
            |d| {
                d.stale_while_revalidate = some(5);
                d.stale_if_error = some(6);
            },
            "RFC 5861 §3, §4",
        ),
        (
            &["stale-if-error=x"],
            |d| d.stale_if_error = some(0),
            "RFC 5861 §4",
        ),
        (&["no-cache"], |d| d.no_cache = true, "§5.2.2.4"),
        (
            &["no-cache=\"a, B\""],
            |d| d.no_cache = true,
            "§5.2.2.4, as without a list",
        ),
        (
            &["no-cache=\"a"],
            |d| d.no_cache = true,
            "an unclosed quote",
        ),
        (
            &["private=\"set-cookie\""],
            |d| d.private = true,
            "§5.2.2.7, as without a list",
        ),
        (&["private"], |d| d.private = true, "§5.2.2.7"),
        (
            &["no-store max-age=5"],
            |d| {
                d.no_store = true;
                d.max_age = some(0);
            },
            "a lost comma frees nothing",
        ),
        (
            &["max-age=5 no-store"],
            |d| {
                d.no_store = true;
                d.max_age = some(0);
            },
            "a lost comma frees nothing",
        ),
        (
            &["extension=\"x, no-store"],
            |d| d.no_store = true,
            "an unclosed quote hides nothing",
        ),
        (
            &["public no-transform"],
            |d| d.no_transform = true,
            "a lost comma permits nothing",
        ),
    ];
    for (lines, set, section) in table {
        let mut expected = Directives::default();
        set(&mut expected);
        assert_eq!(response(lines), expected, "{lines:?}: {section}");
    }
}
