//! Selection among variants by `Vary` (RFC 9111 §4.1).
//!
//! When a response is stored, its secondary key records the values of the
//! request fields that `Vary` nominates. A later request matches if it has the
//! same values. Keys are exact: two requests have the same key only if their
//! nominated fields have the same meaning by their own definitions. An absent
//! field matches only an absent field.
//!
//! Selection by preference (`q` of `Accept-Language` against
//! `Content-Language`) is left to the origin.

use http::{
    HeaderMap,
    header::{self, HeaderName, HeaderValue},
};

use super::list::{members, plain, trim, weighted};

/// The fields of a request as the origin receives them.
pub trait Received {
    /// The map that holds this field; an empty map if the field is removed on
    /// the way.
    fn holding(&self, name: &HeaderName) -> &HeaderMap;
}

impl Received for HeaderMap {
    fn holding(&self, _name: &HeaderName) -> &HeaderMap {
        self
    }
}

/// The request fields that `Vary` nominates.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Nominated {
    /// These, sorted and without repetition.
    Fields(Box<[HeaderName]>),
    /// `*`, or a member that is no field name: no request matches.
    Everything,
}

impl Nominated {
    /// Reads `Vary`.
    #[must_use]
    pub fn of(response: &HeaderMap) -> Self {
        let mut names = Vec::new();
        for member in response
            .get_all(header::VARY)
            .iter()
            .flat_map(|line| plain(line.as_bytes()))
        {
            match HeaderName::from_bytes(member) {
                Ok(name) if member != b"*" => names.push(name),
                Ok(_) | Err(_) => return Self::Everything,
            }
        }
        names.sort_unstable_by(|one, two| one.as_str().cmp(two.as_str()));
        names.dedup();
        Self::Fields(names.into_boxed_slice())
    }

    /// The secondary key of a request; `None` if no request can match.
    #[must_use]
    pub fn key(&self, request: &impl Received) -> Option<SecondaryKey> {
        match self {
            Self::Fields(names) => {
                let mut key = Vec::new();
                write(names, request, &mut key);
                Some(SecondaryKey(key.into_boxed_slice()))
            }
            Self::Everything => None,
        }
    }

    /// Whether a request has this secondary key. Allocates nothing.
    #[must_use]
    pub fn matches(&self, key: &SecondaryKey, request: &impl Received) -> bool {
        match self {
            Self::Fields(names) => {
                let mut comparison = Comparison {
                    rest: &key.0,
                    equal: true,
                };
                write(names, request, &mut comparison);
                comparison.equal && comparison.rest.is_empty()
            }
            Self::Everything => false,
        }
    }
}

/// The values of a request in the nominated fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SecondaryKey(Box<[u8]>);

impl SecondaryKey {
    /// The bytes of the key, which contain only the values of the nominated
    /// fields.
    #[must_use]
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Where the bytes of a key go: into a new key, or into a comparison with one.
trait Sink {
    fn put(&mut self, bytes: &[u8]);
}

impl Sink for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

struct Comparison<'a> {
    rest: &'a [u8],
    equal: bool,
}

impl Sink for Comparison<'_> {
    fn put(&mut self, bytes: &[u8]) {
        match self.rest.strip_prefix(bytes) {
            Some(rest) if self.equal => self.rest = rest,
            Some(_) | None => self.equal = false,
        }
    }
}

/// Bytes that no field value can hold.
const ABSENT: &[u8] = b"\0";
const PRESENT: &[u8] = b"\n";
/// Precedes a parsed weight, so that no text looks like one.
const WEIGHT: &[u8] = b"\r";

fn write(names: &[HeaderName], request: &impl Received, out: &mut impl Sink) {
    for name in names {
        let request = request.holding(name);
        if !request.contains_key(name) {
            // §4.1: an absent field matches only an absent field.
            out.put(ABSENT);
            continue;
        }
        out.put(PRESENT);
        let preferences = match *name {
            // RFC 9110 §12.5.3 gives no meaning to the order of codings.
            header::ACCEPT_ENCODING => Preferences::read(request, name).map(Preferences::unordered),
            // §12.5.4: some recipients take the order of languages with the
            // same weight as a preference.
            header::ACCEPT_LANGUAGE => Preferences::read(request, name).map(Preferences::by_weight),
            _ => None,
        };
        match preferences {
            Some(preferences) => preferences.write(out),
            None => combined(name, request, out),
        }
    }
}

/// Fields that are no lists. A comma in them, and the space beside it, is text.
const SINGLETONS: [HeaderName; 9] = [
    header::AUTHORIZATION,
    header::COOKIE,
    header::FROM,
    header::HOST,
    header::IF_MODIFIED_SINCE,
    header::ORIGIN,
    header::PROXY_AUTHORIZATION,
    header::REFERER,
    header::USER_AGENT,
];

/// Combines lines with commas (RFC 9110 §5.3), and drops whitespace around
/// commas.
fn combined(name: &HeaderName, request: &HeaderMap, out: &mut impl Sink) {
    for (index, line) in request
        .get_all(name)
        .iter()
        .map(HeaderValue::as_bytes)
        .enumerate()
    {
        if index > 0 {
            out.put(b",");
        }
        if SINGLETONS.contains(name) || members(line).any(|member| !member.sound) {
            out.put(trim(line));
        } else {
            without_space(trim(line), out);
        }
    }
}

/// Drops whitespace around commas outside quoted-strings, all of which are
/// closed here.
fn without_space(line: &[u8], out: &mut impl Sink) {
    let mut quoted = false;
    let mut escaped = false;
    let mut start = 0;
    for (at, &byte) in line.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b',' if !quoted => {
                out.put(trim(&line[start..at]));
                out.put(b",");
                start = at + 1;
            }
            _ => {}
        }
    }
    out.put(trim(&line[start..]));
}

/// Lists with more members are compared as text.
const MAX_MEMBERS: usize = 16;

/// A list of weighted words (RFC 9110 §12.4.2, §12.5.3, §12.5.4).
struct Preferences<'a> {
    words: [(&'a [u8], u16); MAX_MEMBERS],
    count: usize,
}

impl<'a> Preferences<'a> {
    /// Reads the field; `None` if it has another form, or too many members.
    fn read(request: &'a HeaderMap, name: &HeaderName) -> Option<Self> {
        let mut words: [(&[u8], u16); MAX_MEMBERS] = [(&[], 0); MAX_MEMBERS];
        let mut count = 0;
        for member in request
            .get_all(name)
            .iter()
            .flat_map(|line| plain(line.as_bytes()))
        {
            *words.get_mut(count)? = weighted(member)?;
            count += 1;
        }
        Some(Self { words, count })
    }

    fn unordered(mut self) -> Self {
        for (word, _) in &mut self.words[..self.count] {
            // §8.4.1: these names are equivalent.
            match *word {
                name if name.eq_ignore_ascii_case(b"x-gzip") => *word = b"gzip",
                name if name.eq_ignore_ascii_case(b"x-compress") => *word = b"compress",
                _ => {}
            }
        }
        self.words[..self.count].sort_unstable_by(|(one, first), (two, second)| {
            let lower = |word: &'a [u8]| word.iter().map(u8::to_ascii_lowercase);
            lower(one).cmp(lower(two)).then(first.cmp(second))
        });
        self
    }

    fn by_weight(mut self) -> Self {
        // An insertion sort: it is stable and allocates nothing.
        let words = &mut self.words[..self.count];
        for at in 1..words.len() {
            let mut to = at;
            while to > 0 && words[to - 1].1 < words[to].1 {
                words.swap(to - 1, to);
                to -= 1;
            }
        }
        self
    }

    fn write(&self, out: &mut impl Sink) {
        for (index, (word, weight)) in self.words[..self.count].iter().enumerate() {
            if index > 0 {
                out.put(b",");
            }
            for byte in *word {
                out.put(&[byte.to_ascii_lowercase()]);
            }
            // A missing weight means 1 (§12.4.2).
            if *weight < 1000 {
                out.put(WEIGHT);
                let digit =
                    |divisor: u16| b'0' + u8::try_from(weight / divisor % 10).unwrap_or_default();
                out.put(&[digit(100), digit(10), digit(1)]);
            }
        }
    }
}

#[cfg(test)]
mod tests;
