//! The texts that reveal a key, and the search for them in what an upstream sends.

use std::sync::Arc;

use http::HeaderValue;
use zeroize::Zeroizing;

use super::api_key::{ApiKey, sealed};
use crate::hidden_keys::HiddenKeys;
use crate::log_writer::LogInterval;

impl ApiKey {
    /// The texts that reveal the key: the key itself, and how it is escaped in a JSON
    /// string (required and optional escapes), a URL and an HTML page. None for a key
    /// that is too short to search for.
    pub(crate) fn patterns(&self) -> Vec<KeyPattern> {
        let plain = self.value.as_bytes();
        if plain.len() < MIN_SEARCHED {
            return Vec::new();
        }
        let encodings = [
            escaped(plain, br#"\""#),
            escaped(plain, br#"\"/"#),
            encoded(plain, json_for_html),
            encoded(plain, |byte| percent(byte, b"0123456789ABCDEF")),
            encoded(plain, |byte| percent(byte, b"0123456789abcdef")),
            encoded(plain, |byte| html(byte, b"&#39;", b"&quot;")),
            encoded(plain, |byte| html(byte, b"&#x27;", b"&quot;")),
            encoded(plain, |byte| html(byte, b"&#39;", b"&#34;")),
        ];
        let mut forms = vec![self.value.clone()];
        for form in encodings.into_iter().filter_map(sealed) {
            if !forms.contains(&form) {
                forms.push(form);
            }
        }
        let pattern = |text| KeyPattern {
            name: self.name.clone(),
            text,
        };
        forms.into_iter().map(pattern).collect()
    }
}

/// A text that reveals a key, with the key's name.
pub(crate) struct KeyPattern {
    pub(crate) name: Arc<str>,
    text: HeaderValue,
}

impl KeyPattern {
    #[cfg(test)]
    pub(super) fn text(&self) -> &HeaderValue {
        &self.text
    }

    /// Whether a field name contains it, in any case: field names are lowercase by then.
    pub(crate) fn is_in_name(&self, name: &str) -> bool {
        let text = self.text.as_bytes();
        let mut parts = name.as_bytes().windows(text.len());
        parts.any(|part| part.eq_ignore_ascii_case(text))
    }

    /// The length of its longest proper prefix that `bytes` end with.
    pub(crate) fn prefix_at_end_of(&self, bytes: &[u8]) -> usize {
        let text = self.text.as_bytes();
        let most = bytes.len().min(text.len() - 1);
        let begins = |length: &usize| bytes.ends_with(&text[..*length]);
        (1..=most).rev().find(begins).unwrap_or(0)
    }
}

/// All texts that reveal a key of a pool. One search over a text finds any of them,
/// however many there are: the algorithm of Wu and Manber without its prefix table, in
/// which two bytes tell how far the search may skip.
#[derive(Default)]
pub(crate) struct KeyPatterns {
    all: Box<[KeyPattern]>,
    /// The length of the shortest pattern, in bytes.
    shortest: usize,
    /// By two bytes: their smallest distance from the end of the first `shortest`
    /// bytes of a pattern. Zeroed when dropped, because it is made of keys.
    shifts: Zeroizing<Box<[u8]>>,
    /// When it was last logged that a response contains one of them.
    pub(crate) echoed: LogInterval,
    /// When a compressed answer, which cannot be searched, was last logged.
    pub(crate) compressed: LogInterval,
}

impl std::ops::Deref for KeyPatterns {
    type Target = [KeyPattern];

    fn deref(&self) -> &[KeyPattern] {
        &self.all
    }
}

impl FromIterator<KeyPattern> for KeyPatterns {
    fn from_iter<T: IntoIterator<Item = KeyPattern>>(patterns: T) -> Self {
        let all: Box<[_]> = patterns.into_iter().collect();
        let Some(shortest) = all.iter().map(|pattern| pattern.text.len()).min() else {
            return Self::default();
        };
        let shift = |far: usize| u8::try_from(far).unwrap_or(u8::MAX);
        let table = vec![shift(shortest - 1); PAIRS].into_boxed_slice();
        let mut shifts = Zeroizing::new(table);
        for pattern in &all {
            let pairs = pattern.text.as_bytes()[..shortest].windows(2);
            for (at, two) in pairs.enumerate() {
                let entry = &mut shifts[pair(two[0], two[1])];
                *entry = shift(shortest - 2 - at).min(*entry);
            }
        }
        Self {
            all,
            shortest,
            shifts,
            echoed: LogInterval::default(),
            compressed: LogInterval::default(),
        }
    }
}

/// The size of the table of shifts. Pairs of bytes share entries.
const PAIRS: usize = 1 << 12;

fn pair(one: u8, two: u8) -> usize {
    (usize::from(one) ^ (usize::from(two) << 4)) & (PAIRS - 1)
}

impl KeyPatterns {
    /// Hides them in everything that is shown.
    pub(super) fn hide(&self) -> HiddenKeys {
        HiddenKeys::hide(self.all.iter().map(|pattern| pattern.text.clone()))
    }

    /// A pattern that `bytes` contain, if any.
    pub(crate) fn find(&self, bytes: &[u8]) -> Option<&KeyPattern> {
        let mut start = 0;
        while let Some(part) = bytes.get(start..start + self.shortest) {
            let [.., one, two] = part else {
                // There are no patterns.
                return None;
            };
            match self.shifts[pair(*one, *two)] {
                0 => {
                    let rest = &bytes[start..];
                    let mut all = self.all.iter();
                    let found = all.find(|pattern| rest.starts_with(pattern.text.as_bytes()));
                    if found.is_some() {
                        return found;
                    }
                    start += 1;
                }
                shift => start += usize::from(shift),
            }
        }
        None
    }
}

/// The shortest key that is searched for, in bytes: answers would contain a shorter
/// one by chance.
const MIN_SEARCHED: usize = 8;

/// A text with a backslash before each of `marks`.
fn escaped(plain: &[u8], marks: &[u8]) -> Zeroizing<Vec<u8>> {
    // Sized for the longest result: growing would leave a copy that is not zeroed.
    let mut text = Zeroizing::new(Vec::with_capacity(2 * plain.len()));
    for byte in plain {
        if marks.contains(byte) {
            text.push(b'\\');
        }
        text.push(*byte);
    }
    text
}

/// A text in which some bytes are encoded.
fn encoded(plain: &[u8], encoding: impl Fn(u8) -> Option<EncodedByte>) -> Zeroizing<Vec<u8>> {
    // Sized for the longest result, as above.
    let mut text = Zeroizing::new(Vec::with_capacity(EncodedByte::MOST * plain.len()));
    for byte in plain {
        match encoding(*byte) {
            Some(encoded) => text.extend_from_slice(encoded.bytes()),
            None => text.push(*byte),
        }
    }
    text
}

struct EncodedByte {
    bytes: [u8; Self::MOST],
    length: usize,
}

impl EncodedByte {
    const MOST: usize = 6;

    fn of(text: &[u8]) -> Option<Self> {
        let mut bytes = [0; Self::MOST];
        bytes.get_mut(..text.len())?.copy_from_slice(text);
        Some(Self {
            bytes,
            length: text.len(),
        })
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// The escapes of JSON that may be embedded in HTML, as Go's encoder writes it.
fn json_for_html(byte: u8) -> Option<EncodedByte> {
    match byte {
        b'\\' => EncodedByte::of(br"\\"),
        b'"' => EncodedByte::of(br#"\""#),
        b'<' => EncodedByte::of(br"\u003c"),
        b'>' => EncodedByte::of(br"\u003e"),
        b'&' => EncodedByte::of(br"\u0026"),
        _ => None,
    }
}

/// Percent-encoding of all but unreserved characters (RFC 3986 §2.1).
fn percent(byte: u8, digits: &[u8; 16]) -> Option<EncodedByte> {
    if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
        return None;
    }
    let digit = |four: u8| digits[usize::from(four & 15)];
    EncodedByte::of(&[b'%', digit(byte >> 4), digit(byte)])
}

/// The character references of HTML text.
fn html(byte: u8, apostrophe: &[u8], quote: &[u8]) -> Option<EncodedByte> {
    match byte {
        b'&' => EncodedByte::of(b"&amp;"),
        b'<' => EncodedByte::of(b"&lt;"),
        b'>' => EncodedByte::of(b"&gt;"),
        b'"' => EncodedByte::of(quote),
        b'\'' => EncodedByte::of(apostrophe),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        /// One search finds what a search for each key would find. The texts have
        /// many keys and parts of keys.
        #[test]
        fn one_search_finds_any_key(
            keys in proptest::collection::vec("[ab]{8,12}", 1..6),
            parts in proptest::collection::vec((0_usize..6, 1_usize..13), 0..8),
            text in "[abc]{0,24}",
        ) {
            let list = ApiKey::list(&keys.join(",")).unwrap();
            let patterns: KeyPatterns = list.iter().flat_map(ApiKey::patterns).collect();
            let mut bytes = text.into_bytes();
            for (key, length) in parts {
                let key = keys[key % keys.len()].as_bytes();
                bytes.extend_from_slice(&key[..length.min(key.len())]);
            }
            let is_in = |key: &String| bytes.windows(key.len()).any(|part| part == key.as_bytes());
            proptest::prop_assert_eq!(patterns.find(&bytes).is_some(), keys.iter().any(is_in));
        }
    }

    #[test]
    fn a_text_without_a_key_has_no_match() {
        let none: KeyPatterns = ApiKey::list("short").unwrap()[0]
            .patterns()
            .into_iter()
            .collect();
        for text in ["", "short", "a longer text"] {
            assert!(none.find(text.as_bytes()).is_none());
        }
        let long = "x".repeat(300);
        let patterns: KeyPatterns = ApiKey::list(&long).unwrap()[0]
            .patterns()
            .into_iter()
            .collect();
        assert!(patterns.find(format!("yy{long}").as_bytes()).is_some());
        assert!(patterns.find(&long.as_bytes()[1..]).is_none());
    }

    #[test]
    fn escaped_text_does_not_grow() {
        let text = escaped(br#"\\\"""//"#, br#"\"/"#);
        assert_eq!(*text, br#"\\\\\\\"\"\"\/\/"#);
        assert_eq!(text.capacity(), 16);
    }
}
