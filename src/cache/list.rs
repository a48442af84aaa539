//! Comma-separated lists (RFC 9110 §5.6.1), including malformed ones.
//!
//! Lists are bytes, because field values may hold obs-text. Empty members are
//! skipped, and members are trimmed of optional whitespace.

/// A member of a list whose members may hold quoted-strings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Member<'a> {
    /// The member's text, trimmed.
    pub(super) text: &'a [u8],
    /// Whether every quoted-string up to its end is closed. If one is not, the
    /// commas after its opening quote separate members again: a missing quote
    /// must not hide a `no-store` that follows.
    pub(super) sound: bool,
}

/// The members of a list. A comma within a quoted-string does not separate
/// members (RFC 9110 §5.6.4).
pub(super) fn members(value: &[u8]) -> Members<'_> {
    Members {
        rest: value,
        sound: true,
    }
}

/// The members of a list that cannot hold quoted-strings (`Connection`, `Vary`).
pub(super) fn plain(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value
        .split(|&byte| byte == b',')
        .map(trim)
        .filter(|member| !member.is_empty())
}

/// The iterator of [`members`].
#[derive(Debug)]
pub(super) struct Members<'a> {
    rest: &'a [u8],
    sound: bool,
}

impl<'a> Iterator for Members<'a> {
    type Item = Member<'a>;

    fn next(&mut self) -> Option<Member<'a>> {
        while !self.rest.is_empty() {
            let end = if self.sound {
                end_of_member(self.rest)
            } else {
                None
            };
            let end = end.unwrap_or_else(|| {
                self.sound = false;
                self.rest
                    .iter()
                    .position(|&byte| byte == b',')
                    .unwrap_or(self.rest.len())
            });
            let text = trim(&self.rest[..end]);
            self.rest = self.rest.get(end + 1..).unwrap_or_default();
            if !text.is_empty() {
                return Some(Member {
                    text,
                    sound: self.sound,
                });
            }
        }
        None
    }
}

/// Where the first member ends; `None` if it has a quoted-string that is never
/// closed.
fn end_of_member(value: &[u8]) -> Option<usize> {
    let mut quoted = false;
    let mut escaped = false;
    for (at, &byte) in value.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b',' if !quoted => return Some(at),
            _ => {}
        }
    }
    (!quoted).then_some(value.len())
}

/// The text without surrounding optional whitespace (RFC 9110 §5.6.3).
pub(super) fn trim(text: &[u8]) -> &[u8] {
    let start = text
        .iter()
        .position(|&byte| !is_whitespace(byte))
        .unwrap_or(text.len());
    let end = text
        .iter()
        .rposition(|&byte| !is_whitespace(byte))
        .map_or(start, |last| last + 1);
    &text[start..end]
}

/// Whether the byte is optional whitespace.
pub(super) fn is_whitespace(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

/// Whether the text is a token (RFC 9110 §5.6.2).
pub(super) fn is_token(text: &[u8]) -> bool {
    !text.is_empty()
        && text
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte))
}

/// A word and its weight in thousandths.
pub(super) fn weighted(member: &[u8]) -> Option<(&[u8], u16)> {
    let (word, weight) = match member.iter().position(|&byte| byte == b';') {
        None => (member, 1000),
        Some(at) => (trim(&member[..at]), weight(trim(&member[at + 1..]))?),
    };
    is_token(word).then_some((word, weight))
}

fn weight(parameter: &[u8]) -> Option<u16> {
    let value = parameter
        .strip_prefix(b"q=")
        .or_else(|| parameter.strip_prefix(b"Q="))?;
    let (whole, fraction) = match value {
        [whole @ (b'0' | b'1')] | [whole @ (b'0' | b'1'), b'.'] => (whole, &[][..]),
        [whole @ (b'0' | b'1'), b'.', fraction @ ..] if fraction.len() <= 3 => (whole, fraction),
        _ => return None,
    };
    let mut thousandths = u16::from(whole - b'0') * 1000;
    for (digit, unit) in fraction.iter().zip([100, 10, 1]) {
        thousandths += u16::from(Some(digit).filter(|digit| digit.is_ascii_digit())? - b'0') * unit;
    }
    (thousandths <= 1000).then_some(thousandths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_within_quotes_do_not_separate_members() {
        type Members = &'static [(&'static str, bool)];
        let table: &[(&str, Members, &str)] = &[
            ("a, b", &[("a", true), ("b", true)], "RFC 9110 §5.6.1"),
            (
                " , a ,, b,\t",
                &[("a", true), ("b", true)],
                "RFC 9110 §5.6.1.2, empty members",
            ),
            (
                "x=\"a, b\", c",
                &[("x=\"a, b\"", true), ("c", true)],
                "RFC 9110 §5.6.4",
            ),
            (
                "x=\"a\\\", b\", c",
                &[("x=\"a\\\", b\"", true), ("c", true)],
                "RFC 9110 §5.6.4",
            ),
            (
                "a, x=\"b, c",
                &[("a", true), ("x=\"b", false), ("c", false)],
                "an unclosed quote hides nothing",
            ),
            ("", &[], "RFC 9110 §5.6.1.2"),
        ];
        for (value, expected, section) in table {
            let found: Vec<_> = members(value.as_bytes())
                .map(|member| (std::str::from_utf8(member.text).unwrap(), member.sound))
                .collect();
            assert_eq!(&found, expected, "{value:?}: {section}");
        }
    }
}
