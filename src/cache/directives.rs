//! Cache directives of requests and responses (RFC 9111 §5.2, RFC 5861, RFC 8246), and which
//! govern a response (RFC 9213).
//!
//! Parsing is lenient and fails closed: a directive that cannot be read still
//! restricts, counts as zero if it gives a time, and is ignored if it permits
//! something. Unknown directives are ignored (§5.2.3). `private` and `no-cache` with a list
//! of fields count as those without one, as §5.2.2.4 and §5.2.2.7 allow. Reading a request
//! without `Cache-Control` and `Pragma` allocates nothing.
//!
//! `Pragma` in responses is not read (§5.4 gives it no meaning).

use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use http::header::{CACHE_CONTROL, HeaderName, HeaderValue, PRAGMA};
use sfv::{BareItem, Dictionary, ListEntry, Parser};

use super::date::{self, seconds};
use super::list::{is_token, members, plain};

/// What `Cache-Control` says, in a request (RFC 9111 §5.2.1) or a response (§5.2.2).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Directives {
    /// `no-cache` (§5.2.1.4, §5.2.2.4); of a request also `Pragma: no-cache` without
    /// `Cache-Control` (§5.4).
    pub no_cache: bool,
    /// `no-store` (§5.2.1.5, §5.2.2.5).
    pub no_store: bool,
    /// `no-transform` (§5.2.1.6, §5.2.2.6).
    pub no_transform: bool,
    /// `only-if-cached` (§5.2.1.7).
    pub only_if_cached: bool,
    /// `must-understand` (§5.2.2.3).
    pub(crate) must_understand: bool,
    /// `must-revalidate` (§5.2.2.2).
    pub must_revalidate: bool,
    /// `proxy-revalidate` (§5.2.2.8).
    pub(crate) proxy_revalidate: bool,
    /// `public` (§5.2.2.9).
    pub public: bool,
    /// `private` (§5.2.2.7).
    pub private: bool,
    /// `max-age` (§5.2.1.1, §5.2.2.1).
    pub max_age: Option<Duration>,
    /// `s-maxage` (§5.2.2.10).
    pub s_maxage: Option<Duration>,
    /// `min-fresh` (§5.2.1.3).
    pub min_fresh: Option<Duration>,
    /// `max-stale` (§5.2.1.2); without an argument, the longest time.
    pub max_stale: Option<Duration>,
    /// `stale-while-revalidate` (RFC 5861 §3).
    pub stale_while_revalidate: Option<Duration>,
    /// `stale-if-error` (RFC 5861 §4).
    pub stale_if_error: Option<Duration>,
    /// Whether they are of a targeted field, so that `Expires` is ignored (RFC 9213 §2.2).
    pub(crate) is_targeted: bool,
}

const CDN: HeaderName = HeaderName::from_static("cdn-cache-control");

impl Directives {
    /// Reads the directives that govern a response: those of `CDN-Cache-Control`, which is for
    /// caches like this one, where it is valid and not empty (RFC 9213 §2.2), else those of
    /// `Cache-Control`.
    #[must_use]
    pub fn governing(headers: &HeaderMap) -> Self {
        Self::targeted(headers).unwrap_or_else(|| Self::of(headers))
    }

    fn targeted(headers: &HeaderMap) -> Option<Self> {
        if !headers.contains_key(CDN) {
            return None;
        }
        let lines: Vec<_> = headers
            .get_all(CDN)
            .iter()
            .map(HeaderValue::as_bytes)
            .collect();
        // RFC 9651 §4.2: lines are combined before they are parsed.
        let value = lines.join(&b", "[..]);
        let dictionary: Dictionary = Parser::new(&value).parse().ok()?;
        let mut directives = Self {
            is_targeted: true,
            ..Self::default()
        };
        for (key, entry) in &dictionary {
            // RFC 9213 §2.1: a value of another type is ignored. The directive then counts
            // like a malformed one: it may restrict, and never permits.
            let argument = match entry {
                ListEntry::Item(item) if item.bare_item == BareItem::Boolean(true) => None,
                ListEntry::Item(item) => {
                    let number = item.bare_item.as_integer().map(|number| number.to_string());
                    Some(number.unwrap_or_default())
                }
                ListEntry::InnerList(_) => Some(String::new()),
            };
            let argument = argument.as_deref().map(str::as_bytes);
            directives.apply(key.as_str().as_bytes(), argument);
        }
        (!dictionary.is_empty()).then_some(directives)
    }

    /// Reads the directives of a request.
    #[must_use]
    pub fn of_request(headers: &HeaderMap) -> Self {
        if headers.contains_key(CACHE_CONTROL) {
            return Self::of(headers);
        }
        // §5.4: Pragma counts only without Cache-Control.
        let lines = headers.get_all(PRAGMA).iter();
        let mut members = lines.flat_map(|line| plain(line.as_bytes()));
        Self {
            no_cache: members.any(|member| member.eq_ignore_ascii_case(b"no-cache")),
            ..Self::default()
        }
    }

    /// Reads `Cache-Control`.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Self {
        let mut directives = Self::default();
        let lines = headers.get_all(CACHE_CONTROL).iter();
        for member in lines.flat_map(|line| members(line.as_bytes())) {
            let mut parts = member.splitn(2, |&byte| byte == b'=');
            let (name, argument) = (parts.next().unwrap_or_default(), parts.next().map(argument));
            if is_token(name) && argument != Some(None) {
                directives.apply(&name.to_ascii_lowercase(), argument.flatten());
                continue;
            }
            // A malformed member, such as `no-store max-age=5` or `max-age =5`: each of its
            // words can still restrict.
            let is_end = |&byte: &u8| byte.is_ascii_whitespace() || b"=\",".contains(&byte);
            for word in member.split(is_end).filter(|word| is_token(word)) {
                directives.apply(&word.to_ascii_lowercase(), Some(b""));
            }
        }
        directives
    }

    /// Whether a shared cache may never serve the response stale (§4.2.4).
    #[must_use]
    pub fn forbid_stale(&self) -> bool {
        // §5.2.2.10: s-maxage implies proxy-revalidate.
        self.must_revalidate || self.proxy_revalidate || self.s_maxage.is_some()
    }

    /// Applies a directive by its lower-case name. An argument that cannot be read is empty.
    fn apply(&mut self, name: &[u8], argument: Option<&[u8]>) {
        match name {
            b"no-cache" => self.no_cache = true,
            b"no-store" => self.no_store = true,
            b"no-transform" => self.no_transform = true,
            b"only-if-cached" => self.only_if_cached = true,
            b"must-understand" => self.must_understand |= argument.is_none(),
            b"must-revalidate" => self.must_revalidate = true,
            b"proxy-revalidate" => self.proxy_revalidate = true,
            b"public" => self.public |= argument.is_none(),
            b"private" => self.private = true,
            b"max-age" => shorten(&mut self.max_age, argument),
            b"s-maxage" => shorten(&mut self.s_maxage, argument),
            b"min-fresh" => {
                let asked = argument.and_then(seconds).unwrap_or(date::MOST);
                self.min_fresh = self.min_fresh.max(Some(asked));
            }
            b"max-stale" if argument.is_none() => {
                self.max_stale.get_or_insert(Duration::MAX);
            }
            b"max-stale" => shorten(&mut self.max_stale, argument),
            b"stale-while-revalidate" => shorten(&mut self.stale_while_revalidate, argument),
            b"stale-if-error" => shorten(&mut self.stale_if_error, argument),
            _ => {}
        }
    }
}

/// §4.2.1: a freshness that cannot be read is zero. Of several values the least
/// is used, which is within both behaviours that the RFC allows (use the first,
/// or treat as stale).
fn shorten(known: &mut Option<Duration>, argument: Option<&[u8]>) {
    let said = argument.and_then(seconds).unwrap_or_default();
    *known = Some(known.map_or(said, |known| known.min(said)));
}

/// Forbids shared caches to store a response (§5.2.2.7): adds `private`, and removes
/// what permits it to them. Other directives stay.
pub(crate) fn make_private(fields: &mut HeaderMap) {
    let lines = fields.get_all(CACHE_CONTROL).iter();
    let kept = lines
        .flat_map(|line| members(line.as_bytes()))
        .filter(|member| {
            let name = member.split(|&byte| byte == b'=').next();
            let name = name.map(<[u8]>::trim_ascii).unwrap_or_default();
            let mut removed = ["private", "public", "s-maxage"].into_iter();
            !removed.any(|own| name.eq_ignore_ascii_case(own.as_bytes()))
        });
    let line: Vec<_> = [&b"private"[..]].into_iter().chain(kept).collect();
    let private = HeaderValue::from_maybe_shared(Bytes::from(line.join(&b", "[..])));
    let private = private.unwrap_or(HeaderValue::from_static("private"));
    fields.insert(CACHE_CONTROL, private);
}

/// The text of an argument: a token, or what is between quotes (§5.2 requires both forms to
/// be accepted for every directive). `None` if it is neither; no known directive has escapes.
fn argument(text: &[u8]) -> Option<&[u8]> {
    if is_token(text) {
        return Some(text);
    }
    let inner = text.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
    let is_plain = !inner.iter().any(|byte| b"\"\\".contains(byte));
    is_plain.then(|| inner.trim_ascii())
}

#[cfg(test)]
mod tests;
