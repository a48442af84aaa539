//! Which field governs a response. Sections are of RFC 9213 where no other is named.

use super::*;
use crate::cache::tests_table::{fields, rows};

#[test]
fn a_valid_target_governs() {
    // What governs: its max-age, and whether it was targeted.
    let table = r#"
        fields                                                           | max-age    | targeted | section
        cache-control: max-age=1 & cdn-cache-control: max-age=60         | 60         | true     | §2.2
        cache-control: no-store & cdn-cache-control: max-age=60          | 60         | true     | §2.2
        cache-control: max-age=1 & cdn-cache-control:                    | 1          | false    | §2.2 empty
        cache-control: max-age=1 & cdn-cache-control: max-age=60, &&&    | 1          | false    | §2.2 invalid
        cache-control: max-age=1 & cdn-cache-control: max-age =60        | 1          | false    | RFC 9651 §4.2.2
        cache-control: max-age=1 & cdn-cache-control: max-age= 60        | 1          | false    | RFC 9651 §4.2.2
        cache-control: max-age=1 & cdn-cache-control: MAX-AGE=60         | 1          | false    | RFC 9651 §3.1.2, keys are lower-case
        cache-control: max-age=1 & cdn-cache-control: max-age=60,        | 1          | false    | RFC 9651 §4.2.2, trailing comma
        cache-control: max-age=1 & cdn-cache-control: none               | none       | true     | §3.1, unknown is not empty
        cdn-cache-control: max-age=60;foo=bar                            | 60         | true     | §2.1, parameters are ignored
        cdn-cache-control: max-age=60, max-age=5                         | 5          | true     | RFC 9651 §4.2.2, the last wins
        cdn-cache-control: max-age=5, max-age=60                         | 60         | true     | RFC 9651 §4.2.2, the last wins
        cdn-cache-control: max-age="60"                                  | 0          | true     | §2.1, another type
        cdn-cache-control: max-age=60.5                                  | 0          | true     | §2.1, another type
        cdn-cache-control: max-age=-1                                    | 0          | true     | RFC 9111 §4.2.1
        cdn-cache-control: max-age                                       | 0          | true     | RFC 9111 §4.2.1
        cdn-cache-control: max-age=(60)                                  | 0          | true     | §2.1, another type
        cdn-cache-control: max-age=99999999999                           | 2147483648 | true     | RFC 9111 §1.2.2
        cdn-cache-control: foo & cdn-cache-control: max-age=60           | 60         | true     | RFC 9651 §4.2, several lines
    "#;
    for [text, max_age, targeted, section] in rows(table) {
        let governing = Directives::governing(&fields(text));
        let found = governing.max_age.map(|time| time.as_secs());
        assert_eq!(found, max_age.parse().ok(), "{text}: {section}");
        let is_targeted = targeted == "true";
        assert_eq!(governing.is_targeted, is_targeted, "{text}: {section}");
    }
}

#[test]
fn restrictions_of_another_type_still_restrict() {
    let of = |value: &str| {
        let response = fields(&format!("cdn-cache-control: {value}"));
        Directives::governing(&response)
    };
    assert!(of("no-store").no_store, "RFC 9111 §5.2.2.5");
    assert!(of("no-store=?0").no_store, "§2.1");
    assert!(!of("public=?0").public, "§2.1");
    assert!(!of("public=1").public, "§2.1");
    assert!(of("private").private, "RFC 9111 §5.2.2.7");
    assert!(of("private=\"a\"").private, "RFC 9111 §5.2.2.7");
    assert!(of("no-cache=5").no_cache, "§2.1");
}
