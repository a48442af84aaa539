//! Characters that a terminal does not show as themselves: control characters, and those
//! that break lines or change the order of what is shown. A line of a log has them escaped.

use std::borrow::Cow;
use std::fmt::Write;

/// Whether a character is one of them.
pub(crate) fn is_hidden(character: char) -> bool {
    matches!(
        character,
        '\0'..='\u{1f}'
            | '\u{7f}'..='\u{9f}'
            | '\u{ad}'
            | '\u{61c}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}'
    )
}

/// A line of JSON, with these characters escaped, but for ASCII: JSON has no raw control
/// characters within strings, and no others outside of them.
pub(crate) fn escape_json(line: &[u8]) -> Cow<'_, [u8]> {
    if line.is_ascii() {
        return Cow::Borrowed(line);
    }
    let text = String::from_utf8_lossy(line);
    let is_escaped = |character: char| !character.is_ascii() && is_hidden(character);
    if !text.contains(is_escaped) {
        return Cow::Borrowed(line);
    }
    let mut escaped = String::with_capacity(line.len() + 64);
    for character in text.chars() {
        if !is_escaped(character) {
            escaped.push(character);
            continue;
        }
        for unit in character.encode_utf16(&mut [0; 2]) {
            // Writing to a string does not fail.
            let _ = write!(escaped, "\\u{unit:04x}");
        }
    }
    Cow::Owned(escaped.into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_json_has_no_hidden_characters_and_means_the_same() {
        for (text, is_escaped) in [
            ("plain", false),
            ("ä, 漢 and 😀", false),
            ("\u{9b}31m", true),
            ("a\u{85}b", true),
            ("a\u{2028}b", true),
            ("a\u{202e}b", true),
            ("tag \u{e0041}", true),
        ] {
            let line = format!("{{\"path\":\"{text}\"}}\n");
            let escaped = escape_json(line.as_bytes());
            assert_eq!(matches!(escaped, Cow::Owned(_)), is_escaped, "{text:?}");
            let shown = std::str::from_utf8(&escaped).unwrap();
            assert!(!shown.trim_end().contains(is_hidden), "{shown:?}");
            let read: serde_json::Value = serde_json::from_slice(&escaped).unwrap();
            assert_eq!(read["path"], text);
        }
    }
}
