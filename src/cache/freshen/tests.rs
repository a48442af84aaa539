//! Tables of `freshen`. Sections are of RFC 9111 where no other is named.

use http::HeaderValue;

use super::*;
use crate::cache::tests_table::{fields, rows};

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

/// The fields of a table, in which names of days are dates.
fn dated(text: &str) -> HeaderMap {
    let text = text.replace("WEDNESDAY", WEDNESDAY);
    fields(&text.replace("MONDAY", MONDAY).replace("TUESDAY", TUESDAY))
}

#[test]
fn a_304_updates_the_response_that_it_names() {
    let table = r#"
        304                                     | stored                           | names | section
        etag: "a"                               | etag: "a"                        | true  | §4.3.4, strong
        etag: "c"                               | etag: "a"                        | false | §4.3.4
        etag: "a"                               | etag: W/"a"                      | false | §4.3.4, a weak one is not that strong one
        etag: W/"a"                             | etag: W/"a"                      | true  | §4.3.4, weak
        etag: W/"a"                             | etag: "a"                        | true  | §4.3.4, weak
        etag: W/"c"                             | etag: "a"                        | false | §4.3.4
        last-modified: MONDAY & date: WEDNESDAY | last-modified: MONDAY            | true  | §4.3.4, strong
        last-modified: MONDAY                   | etag: "a" & last-modified: MONDAY | true  | §4.3.4, weak
        last-modified: TUESDAY                  | last-modified: MONDAY            | false | §4.3.4
        etag: "c" & last-modified: MONDAY       | last-modified: MONDAY            | false | the tag is the better witness
                                                | etag: "a"                        | false | §4.3.3, it confirms it
                                                | date: MONDAY                     | false | §4.3.3
    "#;
    for [update, stored, expected, section] in rows(table) {
        let found = names(&dated(update), &dated(stored));
        assert_eq!(
            found.to_string(),
            expected,
            "{update} | {stored}: {section}"
        );
    }
}

#[test]
fn an_update_replaces_fields() {
    let table = r#"
        name             | stored     | in the update | afterwards | section
        x-test           | a          | b             | b          | §3.2
        x-kept           | a          | none          | a          | §3.2, omitted
        cache-control    | max-age=1  | max-age=9     | max-age=9  | §3.2
        content-type     | text/plain | text/html     | text/html  | §3.2
        content-location | /a         | /b            | /b         | §3.2
        set-cookie       | a=b        | a=c           | a=c        | §3.2
        expires          | MONDAY     | TUESDAY       | TUESDAY    | §3.2
        date             | MONDAY     | TUESDAY       | TUESDAY    | §3.2
        age              | 7          | none          | none       | §4.2.3, the age is that of the update
        etag             | "a"        | "b"           | "a"        | §3.2, of the bytes
        content-length   | 5          | 9             | 5          | §3.2
        content-encoding | gzip       | br            | gzip       | §3.2, of the bytes
        content-md5      | a          | b             | a          | §3.2, of the bytes
        content-range    | a          | b             | a          | §3.2
        x-hop            | a          | b             | a          | §3.1, listed in Connection
    "#;
    let mut stored = HeaderMap::new();
    let mut update = headers(&[("connection", "x-hop"), ("keep-alive", "5")]);
    for [name, before, sent, ..] in rows::<5>(table) {
        stored.extend(dated(&format!("{name}: {before}")));
        if sent != "none" {
            update.extend(dated(&format!("{name}: {sent}")));
        }
    }
    freshen(&mut stored, &update);
    for [name, _, _, after, section] in rows(table) {
        let expected = dated(&format!("{name}: {after}"));
        let expected = expected.get(name).filter(|_| after != "none");
        assert_eq!(stored.get(name), expected, "{name}: {section}");
    }
    assert!(
        !stored.contains_key("connection") && !stored.contains_key("keep-alive"),
        "§3.1"
    );
}

#[test]
fn an_update_without_a_date_or_an_age_leaves_none() {
    let mut stored = headers(&[("date", MONDAY), ("set-cookie", "a"), ("set-cookie", "b")]);
    stored.insert("age", HeaderValue::from_static("3"));
    let update = headers(&[("set-cookie", "c"), ("set-cookie", "d")]);
    freshen(&mut stored, &update);
    assert_eq!(
        stored, update,
        "RFC 9110 §6.6.1, they were of the earlier answer"
    );
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
