//! A provider's API key, and how a list of keys is read.
//!
//! Invariants: no byte of a key leaves the process except in the upstream request's
//! header. An [`ApiKey`] has no `Display`, its `Debug` prints only its name, and its
//! header value is marked sensitive. A key's bytes are in one place in memory, which
//! all its users share and which is zeroed when the last of them drops it.
//!
//! ordgate cannot zero all copies: hyper copies the key into the write buffer of each
//! request, and the kernel into those of its sockets. Neither zeroes them.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::HeaderValue;
use zeroize::{Zeroize, Zeroizing};

/// A key of the provider.
#[derive(Clone)]
pub struct ApiKey {
    pub(super) name: Arc<str>,
    pub(crate) value: HeaderValue,
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} [redacted]", self.name)
    }
}

/// Why a list of keys cannot be used. It gives the number of a key, never its value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadKeys {
    /// A key that cannot be a header field value. Keys are numbered from 1.
    #[error(
        "API key number {0} has a character that a header field cannot carry: visible ASCII is allowed"
    )]
    Character(usize),
    /// The list has no key.
    #[error("there is no API key in it: give one or more, separated by commas or line ends")]
    Empty,
}

impl ApiKey {
    /// Reads a list of keys, separated by commas or line ends. A key that is listed
    /// twice is one key, because the provider has one budget for it.
    ///
    /// # Errors
    /// If there is no key, or one has characters other than visible ASCII.
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

    /// Its name in logs and metrics: `key-` and its number in the list.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// A sensitive header value that shares these bytes with its clones and zeroes them
/// when the last clone is dropped. `None` if a field value cannot have these bytes.
pub(super) fn sealed<B>(bytes: Zeroizing<B>) -> Option<HeaderValue>
where
    B: AsRef<[u8]> + Zeroize + Send + 'static,
{
    let shared = Bytes::from_owner(bytes);
    let mut value = HeaderValue::from_maybe_shared(shared).ok()?;
    value.set_sensitive(true);
    Some(value)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::upstream::key_patterns::KeyPatterns;

    /// Buffers as they were after they had been zeroed.
    type ZeroedBuffers = Arc<Mutex<Vec<Vec<u8>>>>;

    /// A buffer that records its bytes after it has been zeroed.
    struct Watched {
        bytes: Vec<u8>,
        zeroed: ZeroedBuffers,
    }

    impl AsRef<[u8]> for Watched {
        fn as_ref(&self) -> &[u8] {
            &self.bytes
        }
    }

    impl Zeroize for Watched {
        fn zeroize(&mut self) {
            self.bytes.as_mut_slice().zeroize();
            self.zeroed.lock().unwrap().push(self.bytes.clone());
        }
    }

    fn watched(text: &str) -> (Zeroizing<Watched>, ZeroedBuffers) {
        let zeroed = ZeroedBuffers::default();
        let watched = Watched {
            bytes: text.into(),
            zeroed: zeroed.clone(),
        };
        (Zeroizing::new(watched), zeroed)
    }

    #[test]
    fn clones_of_a_key_share_its_bytes() {
        let keys = ApiKey::list("s3cret-value,s3cret/va\"l\\ue").unwrap();
        let address = |value: &HeaderValue| value.as_bytes().as_ptr();
        for (key, count) in keys.iter().zip([1, 7]) {
            let clone = key.clone();
            assert_eq!(address(&clone.value), address(&key.value));
            assert!(clone.value.is_sensitive());
            let mut fields = http::HeaderMap::new();
            fields.insert("x-api-key", key.value.clone());
            assert_eq!(address(&fields["x-api-key"]), address(&key.value));
            let patterns = key.patterns();
            assert_eq!(patterns.len(), count);
            assert_eq!(
                address(patterns[0].text()),
                address(&key.value),
                "the plain form"
            );
            assert!(patterns.iter().all(|pattern| pattern.text().is_sensitive()));
        }
    }

    #[test]
    fn a_key_is_zeroed_when_its_last_user_drops_it() {
        let (bytes, zeroed) = watched("s3cret-value");
        let address = bytes.as_ref().as_ptr();
        let value = sealed(bytes).unwrap();
        assert_eq!(value.as_bytes().as_ptr(), address, "nothing was copied");
        let key = ApiKey {
            name: "key-1".into(),
            value,
        };
        let patterns: KeyPatterns = key.patterns().into_iter().collect();
        let mut fields = http::HeaderMap::new();
        fields.insert("x-api-key", key.value.clone());
        drop(key);
        drop(fields);
        assert!(
            zeroed.lock().unwrap().is_empty(),
            "responses are still searched for it"
        );
        assert!(patterns.find(b"{\"key\":\"s3cret-value\"}").is_some());
        drop(patterns);
        assert_eq!(*zeroed.lock().unwrap(), [[0; 12]]);
    }

    #[test]
    fn a_key_with_bad_characters_is_zeroed_too() {
        let (bytes, zeroed) = watched("s3cret\u{7f}");
        assert_eq!(sealed(bytes), None);
        assert_eq!(*zeroed.lock().unwrap(), [[0; 7]]);
    }
}
