//! What the origin receives of a client's request fields on a route with
//! `headers = "all"`: the end-to-end fields as they came, and forwarding fields
//! of ordgate's own in place of the client's.
//!
//! A response is stored, and chosen, by what the origin received ([`Sent`]): a
//! field that is removed on the way has no part in a secondary key.

use std::cell::OnceCell;
use std::net::IpAddr;
use std::sync::LazyLock;

use http::HeaderMap;
use http::header::{EXPECT, FORWARDED, HOST, HeaderName, HeaderValue, TRAILER};

use super::{ClientRequest, Relay};
use crate::cache::hop;
use crate::cache::vary::Received;
use crate::route::{HeaderMode, Route};
use crate::wire::X_FORWARDED_FOR;

/// `x-real-ip`, nginx's name for the client's address.
const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

/// Fields beside `forwarded` and `x-forwarded-*` by which proxies report a
/// client's address, or the host that it asked for.
const REPORTS: [&str; 14] = [
    "cf-connecting-ip",
    "cf-connecting-ipv6",
    "fastly-client-ip",
    "true-client-ip",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-envoy-external-address",
    "x-forwarded",
    "x-host",
    "x-original-forwarded-for",
    "x-original-host",
    "x-originating-ip",
    "x-real-ip",
    "x-remote-ip",
];

/// Whether a field reports how a request came to us: from whom, for which host,
/// by which protocol. Whoever sent it, it goes no further.
fn is_forwarding(name: &str) -> bool {
    spells(name, FORWARDED.as_str())
        || name
            .get(..12)
            .is_some_and(|start| spells(start, "x-forwarded-"))
        || REPORTS.iter().any(|report| spells(name, report))
}

/// Whether an origin may read one name as another: CGI and its heirs make `_` of
/// `-`, and cannot tell the two apart.
fn spells(name: &str, other: &str) -> bool {
    let same = |(one, other): (u8, u8)| one == other || (one == b'_' && other == b'-');
    name.len() == other.len() && name.bytes().zip(other.bytes()).all(same)
}

/// Fields by which a client asks some servers for another resource, or with
/// another method, than its request line says. Both are the cache key: what is
/// answered to such a request is nobody else's.
const OVERRIDES: [&str; 6] = [
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
    "x-original-uri",
    "x-original-url",
    "x-rewrite-url",
];

/// Whether a request may ask for something else than its request line says.
pub(super) fn is_overridden(fields: &HeaderMap) -> bool {
    let is_one = |name: &HeaderName| OVERRIDES.iter().any(|own| spells(name.as_str(), own));
    fields.keys().any(is_one)
}

/// The forwarding fields that the origin receives. Host and protocol are not
/// among them: they are in no cache key, and an origin that makes links of them
/// would have one client's in another's answer.
fn own(hops: &[IpAddr]) -> HeaderMap {
    let mut list = String::new();
    let mut elements = String::new();
    for hop in hops {
        if !list.is_empty() {
            list.push_str(", ");
            elements.push_str(", ");
        }
        list.push_str(&hop.to_string());
        elements.push_str(&match hop {
            IpAddr::V4(v4) => format!("for={v4}"),
            // RFC 7239 §6: an IPv6 address is in brackets, and so in quotes.
            IpAddr::V6(v6) => format!("for=\"[{v6}]\""),
        });
    }
    let client = hops.first().map(ToString::to_string);
    let said = [
        (X_FORWARDED_FOR, Some(list)),
        (FORWARDED, Some(elements)),
        (X_REAL_IP, client),
    ];
    let fields = said.into_iter().filter_map(|(name, value)| {
        let value = HeaderValue::try_from(value?).ok()?;
        Some((name, value))
    });
    fields.collect()
}

/// Replaces the forwarding fields of a request on its way to the origin, and
/// removes what could be read as one of them or as ordgate's key.
pub(super) fn replace_forwarding(
    relay: &Relay,
    route: &Route,
    ask: &ClientRequest,
    fields: &mut HeaderMap,
) {
    let own = own(&relay.trust.hops(ask.peer, &ask.fields));
    let settings = relay.upstreams.get(route.upstream).settings();
    let key = settings.api_key_header.as_str();
    let is_ours = |name: &str| is_forwarding(name) || spells(name, key);
    let theirs = fields.keys().filter(|name| is_ours(name.as_str()));
    let theirs: Vec<HeaderName> = theirs.cloned().collect();
    for name in theirs {
        fields.remove(name);
    }
    // Some servers merge trailers into the fields. Without this field none is
    // sent (RFC 9110 §6.5.1: an intermediary may discard them).
    let is_ours = |name: &[u8]| {
        let name = String::from_utf8_lossy(name.trim_ascii()).to_ascii_lowercase();
        is_ours(&name)
    };
    let mut trailers = fields.get_all(TRAILER).iter();
    if trailers.any(|line| line.as_bytes().split(|byte| *byte == b',').any(is_ours)) {
        fields.remove(TRAILER);
    }
    fields.extend(own);
}

/// A client's request fields as the origin receives them, read one at a time:
/// a hit makes no copy of them.
pub(super) struct Sent<'a> {
    relay: &'a Relay,
    fields: &'a HeaderMap,
    peer: IpAddr,
    headers: HeaderMode,
    /// The field that carries ordgate's key.
    key: &'a HeaderName,
    /// Made when a response varies by one of them.
    forwarding: OnceCell<HeaderMap>,
}

static NOTHING: LazyLock<HeaderMap> = LazyLock::new(HeaderMap::new);

impl<'a> Sent<'a> {
    /// On a typed route nothing of the client's goes up, so nothing of it can
    /// have changed the answer.
    pub(super) fn of(relay: &'a Relay, route: &Route, fields: &'a HeaderMap, peer: IpAddr) -> Self {
        Self {
            relay,
            fields,
            peer,
            headers: route.headers,
            key: &relay
                .upstreams
                .get(route.upstream)
                .settings()
                .api_key_header,
            forwarding: OnceCell::new(),
        }
    }
}

impl Received for Sent<'_> {
    fn holding(&self, name: &HeaderName) -> &HeaderMap {
        let is_removed = self.headers == HeaderMode::Typed
            || matches!(*name, HOST | EXPECT)
            || spells(name.as_str(), self.key.as_str())
            || hop::ends_here(name, self.fields);
        match () {
            () if is_removed => &NOTHING,
            () if is_forwarding(name.as_str()) => {
                let own = || own(&self.relay.trust.hops(self.peer, self.fields));
                self.forwarding.get_or_init(own)
            }
            () => self.fields,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_reports_how_a_request_came() {
        for (name, is) in [
            ("forwarded", true),
            ("x-forwarded-for", true),
            ("x-forwarded-host", true),
            ("x-forwarded-proto", true),
            ("x-forwarded-port", true),
            ("x-forwarded-prefix", true),
            ("x-forwarded", true),
            ("x-real-ip", true),
            ("true-client-ip", true),
            ("cf-connecting-ip", true),
            ("x_forwarded_for", true),
            ("x-forwarded_host", true),
            ("x_real_ip", true),
            ("x-host", true),
            ("host", false),
            ("via", false),
            ("x-forward", false),
            ("x-request-id", false),
            ("from", false),
        ] {
            assert_eq!(is_forwarding(name), is, "{name}");
        }
    }

    #[test]
    fn what_the_origin_is_told() {
        let hops: Vec<IpAddr> = ["2001:db8::7", "10.0.0.1"]
            .map(|hop| hop.parse().unwrap())
            .to_vec();
        let fields = own(&hops);
        assert_eq!(fields[X_FORWARDED_FOR], "2001:db8::7, 10.0.0.1");
        assert_eq!(fields[FORWARDED], "for=\"[2001:db8::7]\", for=10.0.0.1");
        assert_eq!(fields[X_REAL_IP], "2001:db8::7");
        assert_eq!(fields.len(), 3);
    }
}
