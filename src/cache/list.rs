//! Comma-separated lists (RFC 9110 §5.6.1), including malformed ones.
//!
//! Lists are bytes, because field values may hold obs-text. Empty members are
//! skipped, and members are trimmed of optional whitespace, which is all of the white space
//! that a field value may hold.

use http::{HeaderMap, HeaderName};

/// The members of a list. A comma within a quoted-string does not separate members
/// (RFC 9110 §5.6.4). After a quote that is never closed, the rest of the list is one member.
pub(super) fn members(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let (mut quoted, mut escaped) = (false, false);
    let is_comma = move |&byte: &u8| {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            _ => {}
        }
        byte == b',' && !quoted
    };
    let members = value.split(is_comma).map(<[u8]>::trim_ascii);
    members.filter(|member| !member.is_empty())
}

/// The value of a field that has exactly one line.
pub(super) fn only<'h>(fields: &'h HeaderMap, name: &HeaderName) -> Option<&'h [u8]> {
    let mut lines = fields.get_all(name).iter();
    let first = lines.next()?.as_bytes();
    lines.next().is_none().then_some(first)
}

/// The members of a list that cannot hold quoted-strings (`Connection`, `Vary`).
pub(super) fn plain(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let members = value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii);
    members.filter(|member| !member.is_empty())
}

/// Whether the text is a token (RFC 9110 §5.6.2).
pub(super) fn is_token(text: &[u8]) -> bool {
    !text.is_empty()
        && text
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_within_quotes_do_not_separate_members() {
        let table: &[(&str, &[&str], &str)] = &[
            ("a, b", &["a", "b"], "RFC 9110 §5.6.1"),
            (" , a ,, b,\t", &["a", "b"], "RFC 9110 §5.6.1.2"),
            ("x=\"a, b\", c", &["x=\"a, b\"", "c"], "RFC 9110 §5.6.4"),
            (
                "x=\"a\\\", b\", c",
                &["x=\"a\\\", b\"", "c"],
                "RFC 9110 §5.6.4",
            ),
            ("a, x=\"b, c", &["a", "x=\"b, c"], "an unclosed quote"),
            ("", &[], "RFC 9110 §5.6.1.2"),
        ];
        for (value, expected, section) in table {
            let found: Vec<_> = members(value.as_bytes())
                .map(|member| std::str::from_utf8(member).unwrap())
                .collect();
            assert_eq!(&found, expected, "{value:?}: {section}");
        }
    }
}
