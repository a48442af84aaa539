//! A key of the provider: how a list of them is read, and what gives one away.
//!
//! Invariants: no byte of a key leaves the process but in the upstream request's
//! header. An [`ApiKey`] has no `Display`, its `Debug` says its name alone, and
//! its header value is marked sensitive. And a key's bytes are in one place in
//! memory, which whoever uses the key shares, and which is zeroed when the last
//! of them lets go.
//!
//! What is beyond our reach: hyper copies the key into the buffer of each
//! request that it writes, and the kernel into those of its sockets. Neither
//! zeroes them.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::HeaderValue;
use zeroize::{Zeroize, Zeroizing};

/// A key of the provider.
#[derive(Clone)]
pub struct ApiKey {
    name: Arc<str>,
    pub(crate) value: HeaderValue,
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} [redacted]", self.name)
    }
}

/// Why a list of keys cannot be used. Says which one, never what it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadKeys {
    /// A key that no header field can carry.
    #[error(
        "API key number {0} has a character that a header field cannot carry: visible ASCII is allowed"
    )]
    Character(usize),
    /// The list is there, but has no key in it.
    #[error("there is no API key in it: give one or more, separated by commas or line ends")]
    Empty,
}

impl ApiKey {
    /// Reads a list of keys, separated by commas or line ends. One that comes
    /// twice is one key: the provider counts it once, and so must its budget.
    ///
    /// # Errors
    /// Where there is none, or one has characters that it cannot have.
    pub fn list(text: &str) -> Result<Vec<Self>, BadKeys> {
        let parts = text.split([',', '\n', '\r']).map(str::trim);
        let mut keys: Vec<Self> = Vec::new();
        for (at, part) in parts.filter(|part| !part.is_empty()).enumerate() {
            let visible = part.bytes().all(|b| b.is_ascii_graphic());
            let bytes = Zeroizing::new(part.as_bytes().to_vec());
            let value = sealed(bytes).filter(|_| visible);
            let value = value.ok_or(BadKeys::Character(at + 1))?;
            if keys.iter().any(|key| key.value == value) {
                continue;
            }
            keys.push(Self {
                name: format!("key-{}", at + 1).into(),
                value,
            });
        }
        match keys.is_empty() {
            true => Err(BadKeys::Empty),
            false => Ok(keys),
        }
    }

    /// What it is called in logs and metrics.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What gives it away: itself, and as others spell it. A JSON string has the
    /// escapes that must be, and those that some writers add; a URL and an HTML
    /// page have their own.
    pub(crate) fn patterns(&self) -> Vec<KeyPattern> {
        let plain = self.value.as_bytes();
        if plain.len() < MIN_SEARCHED {
            return Vec::new();
        }
        let spellings = [
            escaped(plain, br#"\""#),
            escaped(plain, br#"\"/"#),
            spelt(plain, json_for_html),
            spelt(plain, |byte| percent(byte, b"0123456789ABCDEF")),
            spelt(plain, |byte| percent(byte, b"0123456789abcdef")),
            spelt(plain, |byte| html(byte, b"&#39;", b"&quot;")),
            spelt(plain, |byte| html(byte, b"&#x27;", b"&quot;")),
            spelt(plain, |byte| html(byte, b"&#39;", b"&#34;")),
        ];
        let mut forms = vec![self.value.clone()];
        for form in spellings.into_iter().filter_map(sealed) {
            if !forms.contains(&form) {
                forms.push(form);
            }
        }
        let trace = |form| KeyPattern {
            name: self.name.clone(),
            text: form,
        };
        forms.into_iter().map(trace).collect()
    }
}

/// A text that gives a key away, and whose it is.
pub(crate) struct KeyPattern {
    pub(crate) name: Arc<str>,
    text: HeaderValue,
}

impl KeyPattern {
    /// Whether a field name has it in it: those are in lower case by now.
    pub(crate) fn is_in_name(&self, name: &str) -> bool {
        let form = self.text.as_bytes();
        let mut parts = name.as_bytes().windows(form.len());
        parts.any(|part| part.eq_ignore_ascii_case(form))
    }

    /// How many of its first bytes some bytes end with; not all of them.
    pub(crate) fn prefix_at_end_of(&self, bytes: &[u8]) -> usize {
        let form = self.text.as_bytes();
        let most = bytes.len().min(form.len() - 1);
        let begins = |length: &usize| bytes.ends_with(&form[..*length]);
        (1..=most).rev().find(begins).unwrap_or(0)
    }
}

/// All that gives a key of a pool away, searched for at once, in one go over the
/// text however many keys there are. As Wu and Manber do it, without their prefix
/// table: two bytes say how far the search may go on.
#[derive(Default)]
pub(crate) struct KeyPatterns {
    all: Box<[KeyPattern]>,
    /// The length of the shortest.
    shortest: usize,
    /// By two bytes: how far before the end of some trace's first `shortest`
    /// bytes they stand, at the least. It is made of keys, and zeroed like them.
    shifts: Zeroizing<Box<[u8]>>,
}

impl std::ops::Deref for KeyPatterns {
    type Target = [KeyPattern];

    fn deref(&self) -> &[KeyPattern] {
        &self.all
    }
}

impl FromIterator<KeyPattern> for KeyPatterns {
    fn from_iter<T: IntoIterator<Item = KeyPattern>>(traces: T) -> Self {
        let all: Box<[_]> = traces.into_iter().collect();
        let Some(shortest) = all.iter().map(|trace| trace.text.len()).min() else {
            return Self::default();
        };
        let shift = |far: usize| u8::try_from(far).unwrap_or(u8::MAX);
        let table = vec![shift(shortest - 1); PAIRS].into_boxed_slice();
        let mut shifts = Zeroizing::new(table);
        for trace in &all {
            let pairs = trace.text.as_bytes()[..shortest].windows(2);
            for (at, two) in pairs.enumerate() {
                let entry = &mut shifts[pair(two[0], two[1])];
                *entry = shift(shortest - 2 - at).min(*entry);
            }
        }
        Self {
            all,
            shortest,
            shifts,
        }
    }
}

/// How many pairs of bytes are told apart.
const PAIRS: usize = 1 << 12;

fn pair(one: u8, two: u8) -> usize {
    (usize::from(one) ^ (usize::from(two) << 4)) & (PAIRS - 1)
}

impl KeyPatterns {
    /// A trace that some bytes have in them, where they do.
    pub(crate) fn find(&self, bytes: &[u8]) -> Option<&KeyPattern> {
        let mut start = 0;
        while let Some(part) = bytes.get(start..start + self.shortest) {
            let [.., one, two] = part else {
                // There are none.
                return None;
            };
            match self.shifts[pair(*one, *two)] {
                0 => {
                    let rest = &bytes[start..];
                    let mut all = self.all.iter();
                    let found = all.find(|trace| rest.starts_with(trace.text.as_bytes()));
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

/// The shortest key that is searched for: a shorter one would be found in
/// answers by chance.
const MIN_SEARCHED: usize = 8;

/// A header value that shares these bytes with its clones, without another copy;
/// they are zeroed with the last. `None` where no field can carry them.
fn sealed<B>(bytes: Zeroizing<B>) -> Option<HeaderValue>
where
    B: AsRef<[u8]> + Zeroize + Send + 'static,
{
    let shared = Bytes::from_owner(bytes);
    let mut value = HeaderValue::from_maybe_shared(shared).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// A text with a backslash before each of some marks.
fn escaped(plain: &[u8], marks: &[u8]) -> Zeroizing<Vec<u8>> {
    // Room for all of it: what grows leaves its beginning behind.
    let mut text = Zeroizing::new(Vec::with_capacity(2 * plain.len()));
    for byte in plain {
        if marks.contains(byte) {
            text.push(b'\\');
        }
        text.push(*byte);
    }
    text
}

/// A text in which some bytes are spelt in another way.
fn spelt(plain: &[u8], spelling: impl Fn(u8) -> Option<Spelling>) -> Zeroizing<Vec<u8>> {
    // Room for all of it, as above.
    let mut text = Zeroizing::new(Vec::with_capacity(Spelling::MOST * plain.len()));
    for byte in plain {
        match spelling(*byte) {
            Some(spelling) => text.extend_from_slice(spelling.bytes()),
            None => text.push(*byte),
        }
    }
    text
}

/// How one byte is spelt.
struct Spelling {
    bytes: [u8; Self::MOST],
    length: usize,
}

impl Spelling {
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

/// JSON as it is written to stand in HTML, such as Go's.
fn json_for_html(byte: u8) -> Option<Spelling> {
    match byte {
        b'\\' => Spelling::of(br"\\"),
        b'"' => Spelling::of(br#"\""#),
        b'<' => Spelling::of(br"\u003c"),
        b'>' => Spelling::of(br"\u003e"),
        b'&' => Spelling::of(br"\u0026"),
        _ => None,
    }
}

/// RFC 3986 §2.1, for all but unreserved characters.
fn percent(byte: u8, digits: &[u8; 16]) -> Option<Spelling> {
    if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
        return None;
    }
    let digit = |four: u8| digits[usize::from(four & 15)];
    Spelling::of(&[b'%', digit(byte >> 4), digit(byte)])
}

/// The text of an HTML page.
fn html(byte: u8, apostrophe: &[u8], quote: &[u8]) -> Option<Spelling> {
    match byte {
        b'&' => Spelling::of(b"&amp;"),
        b'<' => Spelling::of(b"&lt;"),
        b'>' => Spelling::of(b"&gt;"),
        b'"' => Spelling::of(quote),
        b'\'' => Spelling::of(apostrophe),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// What there was in places that were zeroed.
    type Left = Arc<Mutex<Vec<Vec<u8>>>>;

    /// Bytes that tell what they are when they have been zeroed.
    struct Watched {
        bytes: Vec<u8>,
        left: Left,
    }

    impl AsRef<[u8]> for Watched {
        fn as_ref(&self) -> &[u8] {
            &self.bytes
        }
    }

    impl Zeroize for Watched {
        fn zeroize(&mut self) {
            self.bytes.as_mut_slice().zeroize();
            self.left.lock().unwrap().push(self.bytes.clone());
        }
    }

    fn watched(text: &str) -> (Zeroizing<Watched>, Left) {
        let left = Left::default();
        let watched = Watched {
            bytes: text.into(),
            left: left.clone(),
        };
        (Zeroizing::new(watched), left)
    }

    #[test]
    fn who_uses_a_key_shares_its_bytes() {
        let keys = ApiKey::list("s3cret-value,s3cret/va\"l\\ue").unwrap();
        let place = |value: &HeaderValue| value.as_bytes().as_ptr();
        for (key, forms) in keys.iter().zip([1, 7]) {
            let clone = key.clone();
            assert_eq!(place(&clone.value), place(&key.value));
            assert!(clone.value.is_sensitive());
            let mut fields = http::HeaderMap::new();
            fields.insert("x-api-key", key.value.clone());
            assert_eq!(place(&fields["x-api-key"]), place(&key.value));
            let traces = key.patterns();
            assert_eq!(traces.len(), forms);
            assert_eq!(place(&traces[0].text), place(&key.value), "the plain form");
            assert!(traces.iter().all(|trace| trace.text.is_sensitive()));
        }
    }

    #[test]
    fn a_key_is_zeroed_with_the_last_who_uses_it() {
        let (bytes, left) = watched("s3cret-value");
        let place = bytes.as_ref().as_ptr();
        let value = sealed(bytes).unwrap();
        assert_eq!(value.as_bytes().as_ptr(), place, "nothing was copied");
        let key = ApiKey {
            name: "key-1".into(),
            value,
        };
        let traces: KeyPatterns = key.patterns().into_iter().collect();
        let mut fields = http::HeaderMap::new();
        fields.insert("x-api-key", key.value.clone());
        drop(key);
        drop(fields);
        assert!(left.lock().unwrap().is_empty(), "it is searched for yet");
        assert!(traces.find(b"{\"key\":\"s3cret-value\"}").is_some());
        drop(traces);
        assert_eq!(*left.lock().unwrap(), [[0; 12]]);
    }

    proptest::proptest! {
        /// One search finds what a search for each key would find, in texts in
        /// which keys and parts of keys are frequent.
        #[test]
        fn one_search_finds_what_many_would(
            keys in proptest::collection::vec("[ab]{8,12}", 1..6),
            parts in proptest::collection::vec((0_usize..6, 1_usize..13), 0..8),
            text in "[abc]{0,24}",
        ) {
            let list = ApiKey::list(&keys.join(",")).unwrap();
            let traces: KeyPatterns = list.iter().flat_map(ApiKey::patterns).collect();
            let mut bytes = text.into_bytes();
            for (key, length) in parts {
                let key = keys[key % keys.len()].as_bytes();
                bytes.extend_from_slice(&key[..length.min(key.len())]);
            }
            let is_in = |key: &String| bytes.windows(key.len()).any(|part| part == key.as_bytes());
            proptest::prop_assert_eq!(traces.find(&bytes).is_some(), keys.iter().any(is_in));
        }
    }

    #[test]
    fn where_no_key_is_nothing_is_found() {
        let none: KeyPatterns = ApiKey::list("short").unwrap()[0]
            .patterns()
            .into_iter()
            .collect();
        for text in ["", "short", "a longer text"] {
            assert!(none.find(text.as_bytes()).is_none());
        }
        let long = "x".repeat(300);
        let traces: KeyPatterns = ApiKey::list(&long).unwrap()[0]
            .patterns()
            .into_iter()
            .collect();
        assert!(traces.find(format!("yy{long}").as_bytes()).is_some());
        assert!(traces.find(&long.as_bytes()[1..]).is_none());
    }

    #[test]
    fn what_no_field_can_carry_is_zeroed_too() {
        let (bytes, left) = watched("s3cret\u{7f}");
        assert_eq!(sealed(bytes), None);
        assert_eq!(*left.lock().unwrap(), [[0; 7]]);
    }

    #[test]
    fn escapes_find_room() {
        let text = escaped(br#"\\\"""//"#, br#"\"/"#);
        assert_eq!(*text, br#"\\\\\\\"\"\"\/\/"#);
        assert_eq!(text.capacity(), 16);
    }
}
