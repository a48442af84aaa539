//! Client tokens in texts that are shown: some client may send one where none belongs.

use std::borrow::Cow;

/// What a client token begins with, and how many letters and digits follow.
const TOKEN: (&str, usize) = ("og_", 49);
/// What is shown in place of a token.
const REDACTED: &str = "og_[redacted]";

/// The first `most` bytes of a text, without client tokens. A token that goes on beyond
/// them is redacted as a whole, which may take 13 bytes more.
pub fn redact(text: &str, most: usize) -> Cow<'_, str> {
    let (begin, length) = TOKEN;
    let most = text.floor_char_boundary(most);
    let is_token = |rest: &str| {
        let digits = rest.bytes().skip(begin.len()).take(length);
        digits.take_while(u8::is_ascii_alphanumeric).count() == length
    };
    let searched = &text[..text.floor_char_boundary(most + begin.len())];
    let mut from = 0;
    let mut redacted = String::new();
    for (at, _) in searched.match_indices(begin) {
        if (from..most).contains(&at) && is_token(&text[at..]) {
            redacted.push_str(&text[from..at]);
            redacted.push_str(REDACTED);
            from = at + begin.len() + length;
        }
    }
    match from {
        0 => text[..most].into(),
        _ => (redacted + text.get(from..most).unwrap_or_default()).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_redacted_before_the_text_is_cut() {
        let token = format!("og_{}", "aZ3".repeat(17))[..52].to_owned();
        let whole = format!("/a?b={token}&c");
        // text, bytes, what is shown
        for (text, most, shown) in [
            (&*whole, 999, "/a?b=og_[redacted]&c"),
            (&whole, 58, "/a?b=og_[redacted]&"),
            (&whole, 57, "/a?b=og_[redacted]"),
            (&whole, 56, "/a?b=og_[redacted]"),
            (&whole, 9, "/a?b=og_[redacted]"),
            (&whole, 7, "/a?b=og_[redacted]"),
            (&whole, 5, "/a?b="),
            (&whole[..56], 999, &whole[..56]),
            ("äöü", 3, "ä"),
            ("", 0, ""),
        ] {
            assert_eq!(redact(text, most), shown, "{most} bytes of {text}");
        }
    }
}
