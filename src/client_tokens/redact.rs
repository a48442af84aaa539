//! Client tokens and the provider's keys in texts that are shown: some client may send one
//! where none belongs.

use std::borrow::Cow;

use super::file::PREFIX;
use crate::hidden_keys::{HiddenTexts, decoded, hidden};

/// How many letters and digits of a client token follow its prefix.
const DIGITS: usize = 48;
/// What is shown in place of a token.
const REDACTED: &str = "og_[redacted]";
/// What is shown in place of a key of the provider; it is shorter than any that is hidden.
const KEY: &str = "[key]";

/// The most bytes of a path in a log message.
const MOST_PATH: usize = 1024;

/// A target as messages of the log show it: its path, of which the first KiB, without
/// client tokens and keys. What a query means is the origin's matter on a plain route: it may be
/// secret.
pub fn shown_path(target: &str) -> Cow<'_, str> {
    redact(without_query(target), MOST_PATH)
}

/// A target without its query.
pub fn without_query(target: &str) -> &str {
    target.split_once('?').map_or(target, |(path, _)| path)
}

/// The first `most` bytes of a text, without client tokens and keys of the provider, also
/// percent-encoded ones, and without keys in another case: paths are folded. A token or key
/// that goes on beyond them is redacted as a whole, which may take 13 bytes more.
pub fn redact(text: &str, most: usize) -> Cow<'_, str> {
    let most = text.floor_char_boundary(most);
    let hidden = hidden();
    let hidden = hidden.as_deref();
    let bytes = text.as_bytes();
    let (mut from, mut at) = (0, 0);
    let mut redacted = String::new();
    while let Some(next) = bytes[at..most]
        .iter()
        .position(|byte| begins(*byte, hidden))
    {
        at += next;
        let token = token_end(bytes, at).map(|end| (end, REDACTED));
        let key = || Some((hidden?.end(bytes, at)?, KEY));
        match token.or_else(key) {
            None => at += 1,
            Some((end, shown)) => {
                redacted.push_str(&text[from..at]);
                redacted.push_str(shown);
                (from, at) = (end, end.min(most));
            }
        }
    }
    match from {
        0 => text[..most].into(),
        _ => (redacted + text.get(from..most).unwrap_or_default()).into(),
    }
}

/// Whether a token or a key may begin with a byte: a token with an `o`, either with one
/// that is percent-encoded.
fn begins(byte: u8, hidden: Option<&HiddenTexts>) -> bool {
    byte == b'o' || byte == b'%' || hidden.is_some_and(|hidden| hidden.begins_with(byte))
}

/// Where the token ends that begins at a place of a text.
fn token_end(text: &[u8], at: usize) -> Option<usize> {
    let mut end = at;
    for place in 0..PREFIX.len() + DIGITS {
        let (byte, next) = decoded(text, end)?;
        let fits = match PREFIX.as_bytes().get(place) {
            Some(expected) => byte == *expected,
            None => byte.is_ascii_alphanumeric(),
        };
        if !fits {
            return None;
        }
        end = next;
    }
    Some(end)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use crate::hidden_keys::HiddenKeys;

    #[test]
    fn a_token_is_redacted_before_the_text_is_cut() {
        let token = format!("og_{}", "aZ3".repeat(17))[..51].to_owned();
        let whole = format!("/a?b={token}&c");
        // text, bytes, what is shown
        for (text, most, shown) in [
            (&*whole, 999, "/a?b=og_[redacted]&c"),
            (&whole, 57, "/a?b=og_[redacted]&"),
            (&whole, 56, "/a?b=og_[redacted]"),
            (&whole, 55, "/a?b=og_[redacted]"),
            (&whole, 9, "/a?b=og_[redacted]"),
            (&whole, 7, "/a?b=og_[redacted]"),
            (&whole, 5, "/a?b="),
            (&whole[..55], 999, &whole[..55]),
            (&whole.replace("og_", "%6fg_"), 999, "/a?b=og_[redacted]&c"),
            (
                &whole.replace("og_a", "o%67%5F%61"),
                999,
                "/a?b=og_[redacted]&c",
            ),
            (&whole.replace("og_", "%4fg_"), 8, "/a?b=%4f"),
            (&whole.replace('&', "%26"), 999, "/a?b=og_[redacted]%26c"),
            ("%6fg_%", 999, "%6fg_%"),
            ("o%", 999, "o%"),
            ("äöü", 3, "ä"),
            ("", 0, ""),
        ] {
            assert_eq!(redact(text, most), shown, "{most} bytes of {text}");
        }
    }

    #[test]
    fn messages_show_neither_queries_nor_tokens() {
        let token = format!("og_{}", "aZ3".repeat(17))[..51].to_owned();
        let long = format!("/{}", "x".repeat(2000));
        for (target, shown) in [
            ("/a/b", "/a/b"),
            ("/a?b=c?d", "/a"),
            ("/a?", "/a"),
            ("", ""),
            (&*format!("/{token}/b?c={token}"), "/og_[redacted]/b"),
            (&*long, &long[..1024]),
        ] {
            assert_eq!(shown_path(target), shown, "{target}");
        }
    }

    #[test]
    fn keys_of_the_provider_are_redacted_like_tokens() {
        let key = "k3y/Of-the=Provider";
        let _hidden = HiddenKeys::hide([HeaderValue::from_static(key)]);
        let token = format!("og_{}", "aZ3".repeat(17))[..51].to_owned();
        for (text, most, shown) in [
            (format!("/a?api_key={key}&b"), 999, "/a?api_key=[key]&b"),
            (
                format!("/{key}{key}/{token}"),
                999,
                "/[key][key]/og_[redacted]",
            ),
            (key.to_lowercase(), 999, "[key]"),
            ("/k3y%2fOf%2Dthe%3dProvide%72/é".to_owned(), 999, "/[key]/é"),
            (format!("/a/{key}/b"), 4, "/a/[key]"),
            (format!("/a/{key}/b"), 3, "/a/"),
            (format!("é{}", &key[..18]), 999, "ék3y/Of-the=Provide"),
        ] {
            assert_eq!(redact(&text, most), shown, "{most} bytes of {text}");
        }
    }
}
