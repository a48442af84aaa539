//! A token in a form that ordgate does not take: under another scheme, without one,
//! quoted, or as a user or password of `Basic`. Clients send one by mistake, and the
//! origin must not get it either.

use http::HeaderValue;
use zeroize::Zeroizing;

use crate::client_tokens::token;

/// Whether a value that is no token has a well-formed one anywhere.
#[cold]
#[inline(never)]
pub(super) fn has_token(value: &HeaderValue) -> bool {
    let text = value.as_bytes();
    // Nearly all such values are another service's: one search for the prefix passes them.
    let begins = |text: &[u8]| memchr::memmem::find(text, token::PREFIX);
    let has_one = |text: &[u8]| {
        let first = begins(text).map_or(&[][..], |at| &text[at..]);
        first.windows(token::LENGTH).any(token::is_well_formed)
    };
    has_one(text) || basic(text).is_some_and(|text| has_one(&text))
}

/// The user and the password of `Basic` credentials (RFC 7617 §2), up to the first
/// byte that is not base64.
fn basic(text: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let (scheme, encoded) = text.split_at_checked("Basic ".len())?;
    if !scheme.trim_ascii().eq_ignore_ascii_case(b"Basic") {
        return None;
    }
    let encoded = encoded.trim_ascii_start();
    let mut decoded = Zeroizing::new(Vec::with_capacity(encoded.len()));
    let (mut bits, mut count) = (0_u32, 0);
    for byte in encoded {
        let digit = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            _ => break,
        };
        bits = bits << 6 | u32::from(digit);
        count += 6;
        if count >= 8 {
            count -= 8;
            decoded.push((bits >> count) as u8);
        }
    }
    Some(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_found_wherever_it_is() {
        let new = token::generate().unwrap();
        let text = &**new.text;
        let typo = format!(
            "{}{}",
            &text[..51],
            if text.ends_with('x') { 'y' } else { 'x' }
        );
        for (value, expected) in [
            (text.to_owned(), true),
            (format!("Token {text}"), true),
            (format!("Bearer\t{text}"), true),
            (format!("Bearer \"{text}\""), true),
            (format!("Digest a=\"og_\", b={text}og_, c"), true),
            (format!("og_{text}0"), true),
            (format!("Token {typo}"), false),
            (format!("Token {}", &text[1..]), false),
            ("Token abc".to_owned(), false),
            (String::new(), false),
        ] {
            let value = HeaderValue::try_from(value).unwrap();
            assert_eq!(has_token(&value), expected, "{value:?}");
        }
    }
}
