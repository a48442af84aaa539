//! The `Cache-Status` field (RFC 9211): what this cache did with a request.
//!
//! The reasons to forward ([`Forward`]) are also those of [`super::decision`].

use bytes::{BufMut, Bytes, BytesMut};
use http::{
    HeaderMap, StatusCode,
    header::{HeaderName, HeaderValue},
};

use super::list::is_token;

/// The field's name.
pub const CACHE_STATUS: HeaderName = HeaderName::from_static("cache-status");

/// Why a request was forwarded (RFC 9211 §2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Forward {
    /// The cache was configured to not handle this request.
    Bypass,
    /// The method's semantics require it.
    Method,
    /// No stored response matches the target URI.
    UriMiss,
    /// A stored response matches the target URI, but not the fields that `Vary` nominates.
    VaryMiss,
    /// The selected stored response is fresh, but the request does not accept it.
    Request,
    /// The selected stored response may not be used without validation.
    Stale,
    /// The stored response contains only a part of what is requested.
    Partial,
}

impl Forward {
    /// The reason as a parameter's value.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Bypass => "bypass",
            Self::Method => "method",
            Self::UriMiss => "uri-miss",
            Self::VaryMiss => "vary-miss",
            Self::Request => "request",
            Self::Stale => "stale",
            Self::Partial => "partial",
        }
    }
}

/// A member of the field's list: what one cache did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStatus<'a> {
    /// The request was answered without forwarding it.
    pub hit: bool,
    /// Why the request was forwarded. Left out beside `hit` (RFC 9211 §2.2).
    pub forward: Option<Forward>,
    /// The status code that the next hop sent (§2.3).
    pub forward_status: Option<StatusCode>,
    /// Seconds of freshness left, negative for a stale response (§2.4).
    pub ttl: Option<i64>,
    /// The response was stored (§2.5).
    pub stored: bool,
    /// The request was collapsed with another one (§2.6).
    pub collapsed: bool,
    /// The cache key (§2.7).
    pub key: Option<&'a str>,
    /// Further details (§2.8).
    pub detail: Option<&'a str>,
}

impl CacheStatus<'_> {
    /// Writes the list member, for the cache called `name`.
    pub(crate) fn write(&self, name: &str, out: &mut BytesMut) {
        bare(name, out);
        match (self.hit, self.forward) {
            (true, _) => out.put_slice(b"; hit"),
            (false, Some(reason)) => {
                out.put_slice(b"; fwd=");
                out.put_slice(reason.as_str().as_bytes());
                self.write_forwarded(out);
            }
            (false, None) => {}
        }
        if let Some(ttl) = self.ttl {
            out.put_slice(b"; ttl=");
            integer(ttl, out);
        }
        if let Some(key) = self.key {
            out.put_slice(b"; key=");
            quoted(key, out);
        }
        if let Some(detail) = self.detail {
            out.put_slice(b"; detail=");
            bare(detail, out);
        }
    }

    /// Writes the parameters of forwarded requests.
    fn write_forwarded(&self, out: &mut BytesMut) {
        if let Some(status) = self.forward_status {
            out.put_slice(b"; fwd-status=");
            out.put_slice(status.as_str().as_bytes());
        }
        if self.stored {
            out.put_slice(b"; stored");
        }
        if self.collapsed {
            out.put_slice(b"; collapsed");
        }
    }

    /// The list member as a field value.
    #[must_use]
    pub(crate) fn value(&self, name: &str) -> HeaderValue {
        let mut out = BytesMut::with_capacity(64);
        self.write(name, &mut out);
        shared(out.freeze())
    }

    /// Appends the list member after those of caches nearer to the origin (RFC 9211 §2).
    pub fn append(&self, name: &str, headers: &mut HeaderMap) {
        headers.append(CACHE_STATUS, self.value(name));
    }
}

fn shared(value: Bytes) -> HeaderValue {
    HeaderValue::from_maybe_shared(value).expect("bare items are visible ASCII")
}

/// Writes text as a Token where it is one, else as a String (RFC 9651 §3.3.3, §3.3.4).
fn bare(text: &str, out: &mut BytesMut) {
    let starts_token = text
        .bytes()
        .next()
        .is_some_and(|first| first.is_ascii_alphabetic() || first == b'*');
    let token = starts_token
        && text
            .split([':', '/'])
            .all(|part| part.is_empty() || is_token(part.as_bytes()));
    if token {
        out.put_slice(text.as_bytes());
        return;
    }
    quoted(text, out);
}

/// Writes text as a String (RFC 9651 §3.3.3). Characters that a String cannot have become `?`.
fn quoted(text: &str, out: &mut BytesMut) {
    out.put_u8(b'"');
    for character in text.chars() {
        match character {
            '"' | '\\' => out.put_slice(&[b'\\', character as u8]),
            ' '..='~' => out.put_u8(character as u8),
            _ => out.put_u8(b'?'),
        }
    }
    out.put_u8(b'"');
}

/// Writes an Integer (RFC 9651 §3.3.1), clamped to fifteen digits.
fn integer(number: i64, out: &mut BytesMut) {
    const MOST: i64 = 999_999_999_999_999;
    let number = number.clamp(-MOST, MOST);
    if number < 0 {
        out.put_u8(b'-');
    }
    let mut digits = [0; 15];
    let mut at = digits.len();
    let mut left = number.unsigned_abs();
    loop {
        at -= 1;
        digits[at] = b'0' + u8::try_from(left % 10).unwrap_or_default();
        left /= 10;
        if left == 0 {
            break;
        }
    }
    out.put_slice(&digits[at..]);
}

#[cfg(test)]
mod tests {
    //! Sections are of RFC 9211 where no other is named.

    use proptest::prelude::{prop_assert, prop_assert_eq, proptest};
    use sfv::{FieldType, List, Parser};

    use super::*;

    #[test]
    fn members_of_the_list() {
        let none = CacheStatus::default();
        let hit = CacheStatus { hit: true, ..none };
        let hit_for = |seconds| CacheStatus {
            ttl: Some(seconds),
            ..hit
        };
        let forward = |reason| CacheStatus {
            forward: Some(reason),
            ..none
        };
        let table = [
            (hit_for(376), "ordgate; hit; ttl=376", "§2.1"),
            (hit_for(-412), "ordgate; hit; ttl=-412", "§2.4"),
            (hit_for(0), "ordgate; hit; ttl=0", "§2.4"),
            (
                CacheStatus {
                    forward: Some(Forward::Stale),
                    stored: true,
                    ..hit
                },
                "ordgate; hit",
                "§2.2, never beside hit",
            ),
            (
                CacheStatus {
                    stored: true,
                    collapsed: true,
                    ..forward(Forward::UriMiss)
                },
                "ordgate; fwd=uri-miss; stored; collapsed",
                "§2.5, §2.6",
            ),
            (
                CacheStatus {
                    forward_status: Some(StatusCode::NOT_MODIFIED),
                    ttl: Some(9),
                    ..forward(Forward::Stale)
                },
                "ordgate; fwd=stale; fwd-status=304; ttl=9",
                "§2.3",
            ),
            (
                CacheStatus {
                    key: Some("/a?b=\"c\""),
                    detail: Some("MEMORY"),
                    ..hit
                },
                "ordgate; hit; key=\"/a?b=\\\"c\\\"\"; detail=MEMORY",
                "§2.7, §2.8",
            ),
            (
                CacheStatus {
                    key: Some("abc"),
                    ..hit
                },
                "ordgate; hit; key=\"abc\"",
                "§2.7, a String always",
            ),
            (none, "ordgate", "§2"),
        ];
        for (status, expected, section) in table {
            assert_eq!(status.value("ordgate"), expected, "{section}");
        }
        for (reason, name) in [
            (Forward::VaryMiss, "vary-miss"),
            (Forward::Request, "request"),
            (Forward::Method, "method"),
            (Forward::Bypass, "bypass"),
            (Forward::Partial, "partial"),
        ] {
            let expected = format!("ordgate; fwd={name}");
            assert_eq!(forward(reason).value("ordgate"), expected, "§2.2");
        }
        assert_eq!(
            none.value("edge cache 1"),
            "\"edge cache 1\"",
            "§2, a String"
        );
    }

    #[test]
    fn a_member_is_appended_after_those_of_other_caches() {
        let mut headers = HeaderMap::new();
        headers.insert(CACHE_STATUS, HeaderValue::from_static("origin; hit"));
        CacheStatus {
            hit: true,
            ..CacheStatus::default()
        }
        .append("ordgate", &mut headers);
        let lines: Vec<_> = headers.get_all(CACHE_STATUS).iter().collect();
        assert_eq!(lines, ["origin; hit", "ordgate; hit"], "§2");
    }

    proptest! {
        #[test]
        fn a_member_is_always_a_structured_field(name in ".{1,20}", key in ".{0,30}", ttl in proptest::prelude::any::<i64>()) {
            let status = CacheStatus { hit: true, ttl: Some(ttl), key: Some(&key), ..CacheStatus::default() };
            let value = status.value(&name);
            let list: List = Parser::new(value.as_bytes()).parse().unwrap();
            prop_assert_eq!(list.len(), 1);
            prop_assert!(list.serialize().is_some());
        }
    }
}
