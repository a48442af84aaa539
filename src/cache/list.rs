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
pub(super) fn members(value: &[u8]) -> impl Iterator<Item = Member<'_>> {
    let (mut rest, mut sound) = (Some(value), true);
    let all = std::iter::from_fn(move || {
        let here = rest?;
        let end = end_of_member(here).filter(|_| sound);
        let end = end.unwrap_or_else(|| {
            sound = false;
            let comma = here.iter().position(|&byte| byte == b',');
            comma.unwrap_or(here.len())
        });
        rest = here.get(end + 1..);
        let text = trim(&here[..end]);
        Some(Member { text, sound })
    });
    all.filter(|member| !member.text.is_empty())
}

/// The members of a list that cannot hold quoted-strings (`Connection`, `Vary`).
pub(super) fn plain(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value
        .split(|&byte| byte == b',')
        .map(trim)
        .filter(|member| !member.is_empty())
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
    let value = std::str::from_utf8(parameter)
        .ok()?
        .strip_prefix(['q', 'Q'])?
        .strip_prefix('=')?;
    let (whole, fraction) = value.split_once('.').unwrap_or((value, ""));
    // At most three digits are allowed after the point; missing ones are zeros.
    let is_valid = matches!(whole, "0" | "1") && fraction.len() <= 3;
    let digits = format!("{whole}{fraction:0<3}");
    let thousandths = digits
        .bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| digits.parse().ok())?;
    thousandths.filter(|thousandths| is_valid && *thousandths <= 1000)
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
