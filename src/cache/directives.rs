//! Cache directives of requests and responses (RFC 9111 §5.2, RFC 5861, RFC
//! 8246).
//!
//! Parsing is lenient and fails closed: a directive that cannot be read still
//! restricts, counts as zero if it gives a time, and is ignored if it permits
//! something. Unknown directives are ignored (§5.2.3). Reading a request
//! without `Cache-Control` and `Pragma` allocates nothing.
//!
//! `Pragma` in responses is not read (§5.4 gives it no meaning). Targeted
//! fields have their own grammar ([`super::targeted`]).

use std::{borrow::Cow, time::Duration};

use bytes::Bytes;
use http::{
    HeaderMap,
    header::{self, HeaderName, HeaderValue},
};

use super::{
    delta::Delta,
    list::{is_token, is_whitespace, members, plain, trim},
};

/// The staleness that a client accepts (RFC 9111 §5.2.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaxStale {
    /// Of any extent.
    Any,
    /// Of at most this extent.
    Within(Delta),
}

impl MaxStale {
    /// Whether a response with this staleness is accepted.
    #[must_use]
    pub(crate) fn accepts(self, staleness: Duration) -> bool {
        match self {
            Self::Any => true,
            Self::Within(limit) => staleness <= limit.duration(),
        }
    }

    fn stricter(self, other: Self) -> Self {
        match (self, other) {
            (Self::Within(one), Self::Within(two)) => Self::Within(one.min(two)),
            (Self::Within(limit), Self::Any) | (Self::Any, Self::Within(limit)) => {
                Self::Within(limit)
            }
            (Self::Any, Self::Any) => Self::Any,
        }
    }
}

/// The directives of a request (RFC 9111 §5.2.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestDirectives {
    /// `no-cache`, or `Pragma: no-cache` without `Cache-Control` (§5.2.1.4, §5.4).
    pub no_cache: bool,
    /// `no-store` (§5.2.1.5).
    pub no_store: bool,
    /// `no-transform` (§5.2.1.6).
    pub no_transform: bool,
    /// `only-if-cached` (§5.2.1.7).
    pub only_if_cached: bool,
    /// `max-age` (§5.2.1.1).
    pub max_age: Option<Delta>,
    /// `min-fresh` (§5.2.1.3).
    pub min_fresh: Option<Delta>,
    /// `max-stale` (§5.2.1.2).
    pub max_stale: Option<MaxStale>,
    /// `stale-if-error` (RFC 5861 §4).
    pub stale_if_error: Option<Delta>,
}

impl RequestDirectives {
    /// Reads the directives of a request.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Self {
        let mut directives = Self::default();
        if headers.contains_key(header::CACHE_CONTROL) {
            for line in headers.get_all(header::CACHE_CONTROL) {
                each_directive(line.as_bytes(), |name, argument| {
                    directives.apply(name, argument)
                });
            }
        } else {
            // §5.4: Pragma counts only without Cache-Control.
            directives.no_cache = headers
                .get_all(header::PRAGMA)
                .iter()
                .flat_map(|line| plain(line.as_bytes()))
                .any(|member| member.eq_ignore_ascii_case(b"no-cache"));
        }
        directives
    }

    fn apply(&mut self, name: &[u8], argument: Argument<'_>) {
        match name {
            b"no-cache" => self.no_cache = true,
            b"no-store" => self.no_store = true,
            b"no-transform" => self.no_transform = true,
            b"only-if-cached" => self.only_if_cached = true,
            b"max-age" => shorten(&mut self.max_age, argument),
            b"stale-if-error" => shorten(&mut self.stale_if_error, argument),
            b"min-fresh" => {
                let asked = argument.delta().unwrap_or(Delta::MAX);
                self.min_fresh = Some(self.min_fresh.map_or(asked, |known| known.max(asked)));
            }
            b"max-stale" => {
                let accepted = if argument == Argument::Absent {
                    MaxStale::Any
                } else {
                    MaxStale::Within(argument.delta().unwrap_or(Delta::ZERO))
                };
                self.max_stale = Some(
                    self.max_stale
                        .map_or(accepted, |known| known.stricter(accepted)),
                );
            }
            _ => {}
        }
    }
}

/// The extent of `no-cache` or `private` (RFC 9111 §5.2.2.4, §5.2.2.7).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// The directive is absent.
    #[default]
    Absent,
    /// The qualified form: only these fields.
    Fields(Box<[HeaderName]>),
    /// The unqualified form: the whole response.
    Whole,
}

impl Scope {
    /// The fields of the qualified form.
    #[must_use]
    pub(crate) fn fields(&self) -> &[HeaderName] {
        match self {
            Self::Fields(fields) => fields,
            Self::Absent | Self::Whole => &[],
        }
    }

    fn widen(&mut self, argument: Argument<'_>) {
        let added = match argument {
            Argument::Absent | Argument::Broken => Self::Whole,
            Argument::Text(text) => field_names(text).map_or(Self::Whole, Self::Fields),
        };
        *self = match (std::mem::take(self), added) {
            (Self::Absent, added) => added,
            (Self::Fields(known), Self::Fields(added)) => {
                let mut both = known.into_vec();
                both.extend(
                    added
                        .into_iter()
                        .filter(|name| !both.contains(name))
                        .collect::<Vec<_>>(),
                );
                Self::Fields(both.into_boxed_slice())
            }
            (Self::Whole | Self::Fields(_), _) => Self::Whole,
        };
    }
}

/// The directives of a response (RFC 9111 §5.2.2), from whichever field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResponseDirectives {
    /// `no-store` (§5.2.2.5).
    pub no_store: bool,
    /// `no-transform` (§5.2.2.6).
    pub(crate) no_transform: bool,
    /// `must-understand` (§5.2.2.3).
    pub(crate) must_understand: bool,
    /// `must-revalidate` (§5.2.2.2).
    pub must_revalidate: bool,
    /// `proxy-revalidate` (§5.2.2.8).
    pub(crate) proxy_revalidate: bool,
    /// `public` (§5.2.2.9).
    pub public: bool,
    /// `immutable` (RFC 8246), which has no effect on a shared cache.
    pub(crate) immutable: bool,
    /// `no-cache` (§5.2.2.4).
    pub no_cache: Scope,
    /// `private` (§5.2.2.7).
    pub private: Scope,
    /// `max-age` (§5.2.2.1).
    pub max_age: Option<Delta>,
    /// `s-maxage` (§5.2.2.10).
    pub s_maxage: Option<Delta>,
    /// `stale-while-revalidate` (RFC 5861 §3).
    pub stale_while_revalidate: Option<Delta>,
    /// `stale-if-error` (RFC 5861 §4).
    pub stale_if_error: Option<Delta>,
}

impl ResponseDirectives {
    /// Reads the `Cache-Control` of a response.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Self {
        let mut directives = Self::default();
        for line in headers.get_all(header::CACHE_CONTROL) {
            each_directive(line.as_bytes(), |name, argument| {
                directives.apply(name, argument)
            });
        }
        directives
    }

    /// Whether a shared cache may never serve the response stale (§4.2.4).
    #[must_use]
    pub fn forbid_stale(&self) -> bool {
        // §5.2.2.10: s-maxage implies proxy-revalidate.
        self.must_revalidate || self.proxy_revalidate || self.s_maxage.is_some()
    }

    pub(super) fn apply(&mut self, name: &[u8], argument: Argument<'_>) {
        let plainly = argument == Argument::Absent;
        match name {
            b"no-store" => self.no_store = true,
            b"no-transform" => self.no_transform = true,
            b"must-revalidate" => self.must_revalidate = true,
            b"proxy-revalidate" => self.proxy_revalidate = true,
            b"must-understand" => self.must_understand |= plainly,
            b"public" => self.public |= plainly,
            b"immutable" => self.immutable |= plainly,
            b"no-cache" => self.no_cache.widen(argument),
            b"private" => self.private.widen(argument),
            b"max-age" => shorten(&mut self.max_age, argument),
            b"s-maxage" => shorten(&mut self.s_maxage, argument),
            b"stale-while-revalidate" => shorten(&mut self.stale_while_revalidate, argument),
            b"stale-if-error" => shorten(&mut self.stale_if_error, argument),
            _ => {}
        }
    }
}

/// Forbids shared caches to store a response (§5.2.2.7): adds `private`, and removes
/// what permits it to them. Other directives stay.
pub(crate) fn make_private(fields: &mut HeaderMap) {
    const REMOVED: [&[u8]; 3] = [b"private", b"public", b"s-maxage"];
    let mut line = b"private".to_vec();
    for value in fields.get_all(header::CACHE_CONTROL) {
        for member in members(value.as_bytes()) {
            let name = member.text.split(|&byte| byte == b'=').next();
            let name = name.map(trim).unwrap_or_default();
            if !REMOVED.iter().any(|own| name.eq_ignore_ascii_case(own)) {
                line.extend_from_slice(b", ");
                line.extend_from_slice(member.text);
            }
        }
    }
    let private = HeaderValue::from_maybe_shared(Bytes::from(line));
    let private = private.unwrap_or(HeaderValue::from_static("private"));
    fields.insert(header::CACHE_CONTROL, private);
}

/// The argument of a directive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Argument<'a> {
    /// None.
    Absent,
    /// A token, or the content of a quoted-string.
    Text(&'a [u8]),
    /// Text that the grammar does not allow.
    Broken,
}

impl Argument<'_> {
    fn delta(self) -> Option<Delta> {
        match self {
            Self::Text(text) => Delta::parse(text),
            Self::Absent | Self::Broken => None,
        }
    }
}

/// §4.2.1: a freshness that cannot be read is zero. Of several values the least
/// is used, which is within both behaviours that the RFC allows (use the first,
/// or treat as stale).
fn shorten(known: &mut Option<Delta>, argument: Argument<'_>) {
    let said = argument.delta().unwrap_or(Delta::ZERO);
    *known = Some(known.map_or(said, |known| known.min(said)));
}

/// Fields by which the cache itself decides. If one of them is named, the
/// qualified form counts as the unqualified one: without the field, the stored
/// response could not be judged again.
const DECISIVE: [HeaderName; 5] = [
    header::CACHE_CONTROL,
    header::EXPIRES,
    header::DATE,
    header::AGE,
    header::VARY,
];

fn field_names(text: &[u8]) -> Option<Box<[HeaderName]>> {
    let names: Option<Vec<_>> = plain(text)
        .map(|name| HeaderName::from_bytes(name).ok())
        .collect();
    names
        .filter(|names| !names.is_empty() && !names.iter().any(|name| DECISIVE.contains(name)))
        .map(Vec::into_boxed_slice)
}

/// Calls `each` with the lower-case name and the argument of every directive in
/// a line.
fn each_directive(line: &[u8], mut each: impl FnMut(&[u8], Argument<'_>)) {
    for member in members(line) {
        let (name, argument) = match member.text.iter().position(|&byte| byte == b'=') {
            None => (member.text, Some(None)),
            Some(at) => (
                &member.text[..at],
                unquote(&member.text[at + 1..]).map(Some),
            ),
        };
        match argument.filter(|_| member.sound && is_token(name)) {
            Some(None) => with_lower(name, |name| each(name, Argument::Absent)),
            Some(Some(text)) => with_lower(name, |name| each(name, Argument::Text(&text))),
            None => {
                // A malformed member, such as `no-store max-age=5` or `max-age
                // =5`: each of its words can still restrict.
                let words = member
                    .text
                    .split(|&byte| is_whitespace(byte) || b"=\"".contains(&byte));
                for word in words.filter(|word| is_token(word)) {
                    with_lower(word, |name| each(name, Argument::Broken));
                }
            }
        }
    }
}

fn with_lower(name: &[u8], each: impl FnOnce(&[u8])) {
    // The longest known name has 22 bytes.
    let mut lower = [0; 24];
    if let Some(lower) = lower.get_mut(..name.len()) {
        lower.copy_from_slice(name);
        lower.make_ascii_lowercase();
        each(lower);
    }
}

/// The argument's text: a token, or a quoted-string without quotes and escapes
/// (§5.2 requires both forms to be accepted for every directive).
fn unquote(text: &[u8]) -> Option<Cow<'_, [u8]>> {
    let Some(inner) = text.strip_prefix(b"\"") else {
        return is_token(text).then_some(Cow::Borrowed(text));
    };
    let inner = inner.strip_suffix(b"\"")?;
    if !inner.contains(&b'\\') {
        return (!inner.contains(&b'"')).then(|| Cow::Borrowed(trim(inner)));
    }
    let mut plain = Vec::with_capacity(inner.len());
    let mut bytes = inner.iter();
    while let Some(&byte) = bytes.next() {
        match byte {
            b'\\' => plain.push(*bytes.next()?),
            b'"' => return None,
            _ => plain.push(byte),
        }
    }
    Some(Cow::Owned(plain))
}

#[cfg(test)]
mod tests;
