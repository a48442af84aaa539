//! The client's request fields as the origin receives them on a route with
//! `headers = "all"`: the end-to-end fields unchanged, and ordgate's own
//! forwarding fields in place of the client's.
//!
//! A response is stored and selected by the fields that the origin received
//! ([`ForwardedFields`]). A field that is removed on the way is no part of a
//! secondary key.

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

/// Fields, beside `forwarded` and `x-forwarded-*`, in which proxies report the
/// client's address or the requested host.
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

/// Whether a field reports the client, host or protocol of a request. Such a
/// field is never forwarded, whoever sent it.
fn is_forwarding(name: &str) -> bool {
    spells(name, FORWARDED.as_str())
        || name
            .get(..12)
            .is_some_and(|start| spells(start, "x-forwarded-"))
        || REPORTS.iter().any(|report| spells(name, report))
}

/// Whether an origin may take one name for another: CGI and its successors turn
/// `-` into `_`, and cannot tell the two apart.
fn spells(name: &str, other: &str) -> bool {
    let same = |(one, other): (u8, u8)| one == other || (one == b'_' && other == b'-');
    name.len() == other.len() && name.bytes().zip(other.bytes()).all(same)
}

/// Fields by which some servers let a client override the method or the target of
/// its request line. Those are the cache key, so the answer to such a request is
/// for that client alone.
const OVERRIDES: [&str; 6] = [
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
    "x-original-uri",
    "x-original-url",
    "x-rewrite-url",
];

/// Whether a request may override its request line.
pub(super) fn is_overridden(fields: &HeaderMap) -> bool {
    let is_one = |name: &HeaderName| OVERRIDES.iter().any(|own| spells(name.as_str(), own));
    fields.keys().any(is_one)
}

/// The forwarding fields that the origin receives. They do not include host and
/// protocol: those are in no cache key, and an origin that makes links from them
/// would put one client's host into another client's response.
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
    let fields = [
        (X_FORWARDED_FOR, Some(list)),
        (FORWARDED, Some(elements)),
        (X_REAL_IP, client),
    ];
    let fields = fields.into_iter().filter_map(|(name, value)| {
        let value = HeaderValue::try_from(value?).ok()?;
        Some((name, value))
    });
    fields.collect()
}

/// Replaces the forwarding fields of a request to the origin, and removes all that
/// the origin could take for one of them or for ordgate's key.
pub(super) fn replace_forwarding(
    relay: &Relay,
    route: &Route,
    request: &ClientRequest,
    fields: &mut HeaderMap,
) {
    let own = own(&relay.trust.hops(request.peer, &request.fields));
    let settings = relay.upstreams.get(route.upstream.number).settings();
    let key = settings.api_key_header.as_str();
    let is_ours = |name: &str| is_forwarding(name) || spells(name, key);
    let theirs = fields.keys().filter(|name| is_ours(name.as_str()));
    let theirs: Vec<HeaderName> = theirs.cloned().collect();
    for name in theirs {
        fields.remove(name);
    }
    // Some servers merge trailers into the fields. Without this field no trailers
    // are sent (RFC 9110 §6.5.1 lets an intermediary discard them).
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

/// A client's request fields as the origin receives them. They are looked up one
/// at a time, so that a hit copies none.
pub(super) struct ForwardedFields<'a> {
    relay: &'a Relay,
    fields: &'a HeaderMap,
    peer: IpAddr,
    headers: HeaderMode,
    /// The field that carries ordgate's key.
    key: &'a HeaderName,
    /// Made only when a response varies by one of them.
    forwarding: OnceCell<HeaderMap>,
}

static NONE: LazyLock<HeaderMap> = LazyLock::new(HeaderMap::new);

impl<'a> ForwardedFields<'a> {
    /// The fields of a request. On a typed route no field of the client is
    /// forwarded, so none can affect the answer.
    pub(super) fn of(relay: &'a Relay, route: &Route, fields: &'a HeaderMap, peer: IpAddr) -> Self {
        Self {
            relay,
            fields,
            peer,
            headers: route.headers,
            key: &relay
                .upstreams
                .get(route.upstream.number)
                .settings()
                .api_key_header,
            forwarding: OnceCell::new(),
        }
    }
}

impl Received for ForwardedFields<'_> {
    fn holding(&self, name: &HeaderName) -> &HeaderMap {
        let is_removed = self.headers == HeaderMode::Typed
            || matches!(*name, HOST | EXPECT)
            || spells(name.as_str(), self.key.as_str())
            || hop::ends_here(name, self.fields);
        match () {
            () if is_removed => &NONE,
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
    fn fields_that_report_the_client_are_forwarding_fields() {
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
    fn the_origin_receives_the_hops_in_three_fields() {
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
