//! Targeted cache control (RFC 9213): `CDN-Cache-Control`, which is for caches like this one.
//!
//! Applied when a response arrives, before the other rules: it replaces `Cache-Control` and
//! `Expires`. All fields are forwarded unchanged to the next cache.

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use sfv::{BareItem, Dictionary, ListEntry, Parser};

use super::directives::ResponseDirectives;

const CDN: HeaderName = HeaderName::from_static("cdn-cache-control");

/// The directives that govern a response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Governing {
    /// The directives.
    pub directives: ResponseDirectives,
    /// Whether they came from a targeted field, so that `Expires` is ignored.
    pub targeted: bool,
}

impl Governing {
    /// Those of `CDN-Cache-Control` where it is valid and not empty (RFC 9213 §2.2), else of
    /// `Cache-Control`.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Self {
        let found = targeted(headers);
        Self {
            targeted: found.is_some(),
            directives: found.unwrap_or_else(|| ResponseDirectives::of(headers)),
        }
    }
}

fn targeted(headers: &HeaderMap) -> Option<ResponseDirectives> {
    let mut lines = headers.get_all(CDN).iter().map(HeaderValue::as_bytes);
    let first = lines.next()?;
    let value = lines.fold(first.to_vec(), |mut value, line| {
        // RFC 9651 §4.2: lines are combined before they are parsed.
        value.extend_from_slice(b", ");
        value.extend_from_slice(line);
        value
    });
    let dictionary: Dictionary = Parser::new(&value).parse().ok()?;
    if dictionary.is_empty() {
        return None;
    }
    let mut directives = ResponseDirectives::default();
    for (key, entry) in &dictionary {
        let item = match entry {
            ListEntry::Item(item) => Some(&item.bare_item),
            ListEntry::InnerList(_) => None,
        };
        let argument = match item {
            Some(BareItem::Boolean(true)) => None,
            Some(BareItem::Integer(number)) => Some(i64::from(*number).to_string()),
            // §2.1: a value of another type is ignored. The directive then counts like a
            // malformed one in `Cache-Control`: it may restrict, and never permits.
            _ => Some(String::new()),
        };
        let argument = argument.as_deref().map(str::as_bytes);
        directives.apply(key.as_str().as_bytes(), argument);
    }
    Some(directives)
}

#[cfg(test)]
mod tests {
    //! Sections are of RFC 9213 where no other is named.

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
            let governing = Governing::of(&fields(text));
            let found = governing.directives.max_age.map(|time| time.as_secs());
            assert_eq!(found, max_age.parse().ok(), "{text}: {section}");
            let is_targeted = targeted == "true";
            assert_eq!(governing.targeted, is_targeted, "{text}: {section}");
        }
    }

    #[test]
    fn restrictions_of_another_type_still_restrict() {
        let of = |value: &str| {
            let response = fields(&format!("cdn-cache-control: {value}"));
            Governing::of(&response).directives
        };
        assert!(of("no-store").no_store, "RFC 9111 §5.2.2.5");
        assert!(of("no-store=?0").no_store, "§2.1");
        assert!(!of("public=?0").public, "§2.1");
        assert!(!of("public=1").public, "§2.1");
        assert!(of("private").private, "RFC 9111 §5.2.2.7");
        assert!(of("private=\"a\"").private, "RFC 9111 §5.2.2.7");
        assert!(of("no-cache=5").no_cache, "§2.1");
    }
}
