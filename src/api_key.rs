//! The provider's API keys, and where a text has one.
//!
//! Invariants: no byte of a key leaves the process except in the upstream request's
//! field. An [`ApiKey`] has no `Display`, its `Debug` prints only its name, and its
//! field value is marked sensitive. Memory that has had a key is not zeroed: hyper and the
//! kernel copy it with each request.
//!
//! Texts are searched for a key's own spelling, not for its encodings.

use std::fmt;
use std::sync::{Arc, RwLock, Weak};

use http::HeaderValue;
use memchr::memmem;

use crate::log_writer::LogInterval;
use crate::sync::{read, write};

/// The most bytes of a key.
pub(crate) const MAX_LENGTH: usize = 256;
/// Shorter keys are not searched for: texts contain them by chance.
const MIN_SEARCHED: usize = 8;

/// The keys in use that are searched for.
static IN_USE: RwLock<Vec<Weak<Key>>> = RwLock::new(Vec::new());

/// A key of the provider.
#[derive(Clone)]
pub struct ApiKey(Arc<Key>);

struct Key {
    name: String,
    value: HeaderValue,
    echoes: LogInterval,
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} [redacted]", self.name())
    }
}

/// Why a list of keys cannot be used. It gives the number of a key, never its value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadKeys {
    /// A key that no field can carry, or that is too long. Keys are numbered from 1.
    #[error(
        "API key number {0} is not allowed: a key has at most {MAX_LENGTH} characters, each of them visible ASCII"
    )]
    Malformed(usize),
    /// The list has no key.
    #[error("there is no API key in it: give one or more, separated by commas or line ends")]
    Empty,
}

impl ApiKey {
    /// Reads a list of keys, separated by commas or line ends. A key that is listed
    /// twice is one key, because the provider has one budget for it.
    ///
    /// # Errors
    /// If there is no key, or one is too long or has characters other than visible
    /// ASCII.
    pub fn list(text: &str) -> Result<Vec<Self>, BadKeys> {
        let parts = text.split([',', '\n', '\r']).map(str::trim);
        let mut keys: Vec<Self> = Vec::new();
        for (number, part) in (1..).zip(parts.filter(|part| !part.is_empty())) {
            let is_visible = part.bytes().all(|byte| byte.is_ascii_graphic());
            let value = HeaderValue::from_str(part).ok();
            let value = value.filter(|_| is_visible && part.len() <= MAX_LENGTH);
            let mut value = value.ok_or(BadKeys::Malformed(number))?;
            value.set_sensitive(true);
            if keys.iter().all(|key| *key.value() != value) {
                keys.push(Self::new(format!("key-{number}"), value));
            }
        }
        (!keys.is_empty()).then_some(keys).ok_or(BadKeys::Empty)
    }

    fn new(name: String, value: HeaderValue) -> Self {
        let key = Self(Arc::new(Key {
            name,
            value,
            echoes: LogInterval::default(),
        }));
        if key.is_searched() {
            let mut in_use = write(&IN_USE);
            in_use.retain(|key| key.strong_count() > 0);
            in_use.push(Arc::downgrade(&key.0));
        }
        key
    }

    /// The keys in use that are searched for, for what is shown: lines of logs, spans,
    /// the last errors. A client may send a key in a URL, and few of those that show it
    /// know an upstream and its keys.
    pub(crate) fn in_use() -> Vec<Self> {
        let keys = read(&IN_USE);
        keys.iter().filter_map(Weak::upgrade).map(Self).collect()
    }

    /// Its name in logs and metrics: `key-` and its number in the list.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    pub(crate) fn value(&self) -> &HeaderValue {
        &self.0.value
    }

    /// When it was last logged that an answer contains it.
    pub(crate) fn echoes(&self) -> &LogInterval {
        &self.0.echoes
    }

    fn bytes(&self) -> &[u8] {
        self.value().as_bytes()
    }

    /// Whether texts are searched for it.
    pub(crate) fn is_searched(&self) -> bool {
        self.bytes().len() >= MIN_SEARCHED
    }

    /// What texts are not searched for.
    pub(crate) fn warning(&self) -> Option<&'static str> {
        let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"._~-".contains(byte);
        if !self.is_searched() {
            return Some("is shorter than 8 characters: answers and logs are not searched for it");
        }
        (!self.bytes().iter().all(is_plain)).then_some(
            "has characters other than letters, digits and . _ ~ -: answers and logs are not searched for its encodings",
        )
    }

    /// Whether a text contains it.
    pub(crate) fn is_in(&self, text: &[u8]) -> bool {
        memmem::find(text, self.bytes()).is_some()
    }

    /// Where it ends in a text that has it at this place, in upper or lower case: field
    /// names and paths are folded.
    pub(crate) fn end(&self, text: &[u8], at: usize) -> Option<usize> {
        let end = at + self.bytes().len();
        let is_there = text.get(at..end)?.eq_ignore_ascii_case(self.bytes());
        is_there.then_some(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_keys() {
        let count = |text: &str| ApiKey::list(text).map(|keys| keys.len());
        assert_eq!(count("one"), Ok(1));
        assert_eq!(count(" one , two\nthree\r\n"), Ok(3));
        assert_eq!(count("one,two,one\n one"), Ok(2));
        assert_eq!(count(" , "), Err(BadKeys::Empty));
        assert_eq!(count("one,t wo"), Err(BadKeys::Malformed(2)));
        assert_eq!(count("one,tw\u{f6}"), Err(BadKeys::Malformed(2)));
        assert_eq!(count(&"x".repeat(MAX_LENGTH)), Ok(1));
        let long = format!("one,{}", "x".repeat(MAX_LENGTH + 1));
        assert_eq!(count(&long), Err(BadKeys::Malformed(2)));
    }

    #[test]
    fn a_key_is_never_printed() {
        let keys = ApiKey::list("s3cret-value").unwrap();
        let shown = format!("{keys:?} {:?}", keys[0].value());
        assert_eq!(shown, "[key-1 [redacted]] Sensitive");
    }

    #[test]
    fn keys_that_are_not_searched_for_in_every_form_are_warned_of() {
        for (key, expected) in [
            ("7-chars", Some("shorter than 8")),
            ("8.chars~", None),
            ("Az09._~-", None),
            ("has/slash", Some("encodings")),
            ("has\"quote", Some("encodings")),
        ] {
            let warning = ApiKey::list(key).unwrap()[0].warning();
            let is_it = |part| warning.is_some_and(|warning: &str| warning.contains(part));
            assert!(
                expected.map_or(warning.is_none(), is_it),
                "{key}: {warning:?}"
            );
        }
    }
}
