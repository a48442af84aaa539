//! The fields of a request on its way to the upstream. With `headers = "all"`, the
//! client's end-to-end fields pass unchanged, but for those that tell an origin another
//! host, scheme, path or client: an origin that made links from them would put one
//! client's host into another client's response.
//!
//! A response is stored and selected by the fields that the origin received. A field that is
//! removed on the way is no part of a secondary key.

use std::net::IpAddr;
use std::sync::Arc;

use http::HeaderMap;
use http::header::{
    EXPECT, FORWARDED, HOST, HeaderName, HeaderValue, IF_MODIFIED_SINCE, IF_NONE_MATCH, RANGE,
    TRAILER,
};

use super::{Fetch, Fill};
use crate::cache::StoredResponse;
use crate::cache::hop;
use crate::cache::policy::Mode;
use crate::cache::validator::{can_be_validated, make_conditional};
use crate::route::{HeaderMode, Route};
use crate::upstream::UpstreamRequest;
use crate::wire::X_FORWARDED_FOR;

/// `x-real-ip`, nginx's name for the client's address.
const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

/// Fields, beside `x-forwarded-*`, by which an origin may take another host, scheme, path
/// or client for that of the request. docs/plain-cache.md has the list.
const MISLEADING: [&str; 32] = [
    "cf-connecting-ip",
    "cf-connecting-ipv6",
    "client-ip",
    "fastly-client-ip",
    "forwarded",
    "forwarded-for",
    "front-end-https",
    "proxy",
    "proxy-client-ip",
    "true-client-ip",
    "wl-proxy-client-ip",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-envoy-external-address",
    "x-envoy-original-path",
    "x-forwarded",
    "x-host",
    "x-http-host-override",
    "x-original-forwarded-for",
    "x-original-host",
    "x-original-uri",
    "x-original-url",
    "x-originating-ip",
    "x-proto",
    "x-real-ip",
    "x-realip",
    "x-remote-addr",
    "x-remote-ip",
    "x-rewrite-url",
    "x-scheme",
    "x-true-client-ip",
    "x-url-scheme",
];

/// Whether a field misleads an origin. It is never forwarded, whoever sent it.
fn is_misleading(name: &str) -> bool {
    let start = name.get(..12);
    start.is_some_and(|start| spells(start, "x-forwarded-"))
        || MISLEADING.iter().any(|field| spells(name, field))
}

/// Whether an origin may take one name for another: CGI and its successors turn
/// `-` into `_`, and cannot tell the two apart.
fn spells(name: &str, other: &str) -> bool {
    let same = |(one, other): (u8, u8)| one == other || (one == b'_' && other == b'-');
    name.len() == other.len() && name.bytes().zip(other.bytes()).all(same)
}

/// Fields by which some servers let a client override the method of its request line. The
/// answer to such a request is for that client alone.
const OVERRIDES: [&str; 3] = [
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
];

/// Whether a request may override its method.
pub(super) fn is_overridden(fields: &HeaderMap) -> bool {
    let is_one = |name: &HeaderName| OVERRIDES.iter().any(|own| spells(name.as_str(), own));
    fields.keys().any(is_one)
}

/// ordgate's own forwarding fields. They do not include host and protocol.
fn forwarding(hops: &[IpAddr]) -> HeaderMap {
    let element = |hop: &IpAddr| match hop {
        IpAddr::V4(v4) => format!("for={v4}"),
        // RFC 7239 §6: an IPv6 address is in brackets, and so in quotes.
        IpAddr::V6(v6) => format!("for=\"[{v6}]\""),
    };
    let plain: Vec<_> = hops.iter().map(ToString::to_string).collect();
    let elements: Vec<_> = hops.iter().map(element).collect();
    let fields = [
        (X_FORWARDED_FOR, plain.join(", ")),
        (FORWARDED, elements.join(", ")),
        (X_REAL_IP, plain.first().cloned().unwrap_or_default()),
    ];
    let valid = |(name, value)| Some((name, HeaderValue::try_from(value).ok()?));
    fields.into_iter().filter_map(valid).collect()
}

impl Fill {
    /// A client's request fields as the origin receives them. On a typed route no field of the
    /// client is forwarded, so none can affect the answer.
    pub(super) fn sent_fields(&self, route: &Route, own: &HeaderMap, peer: IpAddr) -> HeaderMap {
        if route.headers == HeaderMode::Typed {
            return UpstreamRequest::typed("").fields;
        }
        let key = &self
            .upstreams
            .get(route.upstream.number)
            .settings
            .api_key_header;
        let mut fields = own.clone();
        hop::strip(&mut fields);
        hop::keep(&mut fields, |name| {
            // Some servers merge trailers into the fields. Without this field no trailers
            // are sent (RFC 9110 §6.5.1 lets an intermediary discard them).
            !matches!(*name, HOST | EXPECT | TRAILER)
                && !spells(name.as_str(), key.as_str())
                && !is_misleading(name.as_str())
                && route.passes(name)
        });
        fields.extend(forwarding(&self.trust.hops(peer, own)));
        fields
    }
}

const CONDITIONS: [HeaderName; 2] = [IF_NONE_MATCH, IF_MODIFIED_SINCE];

/// Whether the answer depends on conditions, or on a range.
pub(super) fn has_conditions(fields: &HeaderMap) -> bool {
    CONDITIONS.iter().any(|name| fields.contains_key(name)) || fields.contains_key(RANGE)
}

impl Fetch {
    /// The fields that go to the upstream, and whether they ask for a validation of stored
    /// responses. `unconditional` leaves out all conditions.
    pub(super) fn request_fields(&self, unconditional: bool) -> (HeaderMap, bool) {
        let (mut fields, mut validates) = (self.sent(), false);
        hop::add_via(&mut fields, self.request.version, &self.fill.pseudonym);
        if unconditional {
            for name in CONDITIONS {
                fields.remove(name);
            }
        } else if self.route().cache.mode == Mode::Respect && self.stored.is_some() {
            let chosen = self.validated().and_then(|chosen| chosen.origin());
            validates = make_conditional(&mut fields, chosen.map(|origin| &origin.map));
        }
        // Otherwise the client's own conditions go up.
        (fields, validates)
    }

    /// The selected stored response, if a 304 may be about it. Another, such as a
    /// stored error, is not validated but fetched again.
    pub(super) fn validated(&self) -> Option<&Arc<StoredResponse>> {
        let chosen = self.stored.as_ref().map(|judged| &judged.stored);
        chosen.filter(|chosen| can_be_validated(chosen.status))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_tell_another_host_scheme_path_or_client_mislead() {
        for (name, is) in [
            ("forwarded", true),
            ("x-forwarded-for", true),
            ("x-forwarded-prefix", true),
            ("x-forwarded", true),
            ("true-client-ip", true),
            ("x_forwarded_for", true),
            ("x-forwarded_host", true),
            ("x_real_ip", true),
            ("x-http-host-override", true),
            ("front-end-https", true),
            ("x-rewrite-url", true),
            ("proxy", true),
            ("host", false),
            ("via", false),
            ("x-forward", false),
            ("x-request-id", false),
            ("from", false),
        ] {
            assert_eq!(is_misleading(name), is, "{name}");
        }
    }

    #[test]
    fn the_origin_receives_the_hops_in_three_fields() {
        let hops: Vec<IpAddr> = ["2001:db8::7", "10.0.0.1"]
            .map(|hop| hop.parse().unwrap())
            .to_vec();
        let fields = forwarding(&hops);
        assert_eq!(fields[X_FORWARDED_FOR], "2001:db8::7, 10.0.0.1");
        assert_eq!(fields[FORWARDED], "for=\"[2001:db8::7]\", for=10.0.0.1");
        assert_eq!(fields[X_REAL_IP], "2001:db8::7");
        assert_eq!(fields.len(), 3);
    }
}
