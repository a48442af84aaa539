//! Client tokens and the provider's keys in texts that are shown: some client may send one
//! where none belongs.

use std::borrow::Cow;

use super::file::{LENGTH, PREFIX};
use crate::api_key::ApiKey;

/// What is shown in place of a token.
const REDACTED: &str = "og_[redacted]";
/// What is shown in place of a key of the provider; it is shorter than any that is hidden.
const KEY: &str = "[key]";

/// A target without its query. What that means is the origin's matter on a plain route: it may
/// be secret.
pub fn without_query(target: &str) -> &str {
    target.split_once('?').map_or(target, |(path, _)| path)
}

/// The first `most` bytes of a text, without client tokens, and without keys of the provider,
/// also in another case: paths are folded. A token or key that goes on beyond them is redacted
/// as a whole, which may take 13 bytes more. Texts are not searched for encodings of either.
pub fn redact(text: &str, most: usize) -> Cow<'_, str> {
    let most = text.floor_char_boundary(most);
    let keys = ApiKey::in_use();
    let bytes = text.as_bytes();
    let (mut from, mut at) = (0, 0);
    let mut redacted = String::new();
    while at < most {
        let token = token_end(bytes, at).map(|end| (end, REDACTED));
        let ends = keys.iter().filter_map(|key| key.end(bytes, at));
        match token.or_else(|| Some((ends.max()?, KEY))) {
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

/// Where the token ends that begins at a place of a text.
fn token_end(text: &[u8], at: usize) -> Option<usize> {
    let digits = text.get(at..at + LENGTH)?.strip_prefix(PREFIX.as_bytes())?;
    let is_token = digits.iter().all(u8::is_ascii_alphanumeric);
    is_token.then_some(at + LENGTH)
}

#[cfg(test)]
mod tests {
    use super::*;

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
            (&whole.replace('&', "%26"), 999, "/a?b=og_[redacted]%26c"),
            ("äöü", 3, "ä"),
            ("", 0, ""),
        ] {
            assert_eq!(redact(text, most), shown, "{most} bytes of {text}");
        }
    }

    #[test]
    fn keys_of_the_provider_are_redacted_like_tokens() {
        let key = "k3y/Of-the=Provider";
        let _keys = ApiKey::list(key).unwrap();
        let token = format!("og_{}", "aZ3".repeat(17))[..51].to_owned();
        for (text, most, shown) in [
            (format!("/a?api_key={key}&b"), 999, "/a?api_key=[key]&b"),
            (
                format!("/{key}{key}/{token}"),
                999,
                "/[key][key]/og_[redacted]",
            ),
            (key.to_lowercase(), 999, "[key]"),
            (format!("/a/{key}/b"), 4, "/a/[key]"),
            (format!("/a/{key}/b"), 3, "/a/"),
            (format!("é{}", &key[..18]), 999, "ék3y/Of-the=Provide"),
        ] {
            assert_eq!(redact(&text, most), shown, "{most} bytes of {text}");
        }
    }
}
