//! A key of the provider: how a list of them is read, and what gives one away.
//!
//! Invariant: no byte of a key leaves the process but in the upstream request's
//! header. An [`ApiKey`] has no `Display`, its `Debug` says its name alone, and
//! its header value is marked sensitive.

use std::fmt;
use std::sync::Arc;

use http::HeaderValue;
use memchr::memmem::Finder;

/// A key of the provider.
#[derive(Clone)]
pub struct ApiKey {
    name: Arc<str>,
    pub(super) value: HeaderValue,
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
            let value = HeaderValue::from_str(part).ok().filter(|_| visible);
            let mut value = value.ok_or(BadKeys::Character(at + 1))?;
            if keys.iter().any(|key| key.value == value) {
                continue;
            }
            value.set_sensitive(true);
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

    /// What gives it away: itself, and as a JSON string spells it, with the
    /// escapes that must be and with the one that some writers add.
    pub(super) fn traces(&self) -> Vec<Trace> {
        let plain = self.value.to_str().unwrap_or("");
        if plain.len() < LEAST_SEARCHED {
            return Vec::new();
        }
        let escaped = plain.replace('\\', r"\\").replace('"', r#"\""#);
        let slashed = escaped.replace('/', r"\/");
        let mut forms = vec![plain.to_owned(), escaped, slashed];
        forms.dedup();
        let trace = |form: String| Trace {
            name: self.name.clone(),
            finder: Finder::new(form.as_bytes()).into_owned(),
        };
        forms.into_iter().map(trace).collect()
    }
}

/// A text that gives a key away, and whose it is.
pub(super) struct Trace {
    pub(super) name: Arc<str>,
    pub(super) finder: Finder<'static>,
}

/// The shortest key that is searched for: a shorter one would be found in
/// answers by chance.
const LEAST_SEARCHED: usize = 8;
