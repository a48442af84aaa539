//! Who asks: the first step of the walk. Pure.
//!
//! A caller is the address of its connection, unless that address belongs to a
//! trusted proxy: then it is what the proxy says in `Forwarded` (RFC 7239) or
//! `X-Forwarded-For`, read from the right, past further trusted proxies. What
//! anyone else says in those fields changes nothing.
//!
//! Deliberately absent: what a caller may do. That is `limit`'s.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use http::HeaderMap;
use http::header::FORWARDED;
use ipnet::IpNet;

use crate::wire::X_FORWARDED_FOR;

/// Whose limits a request counts against: an IPv4 address or an IPv6 /64,
/// since a household is given a /64 and a host any address of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Caller {
    /// An IPv4 address, IPv4-mapped IPv6 addresses among them.
    V4(u32),
    /// The upper half of an IPv6 address.
    V6(u64),
}

impl From<IpAddr> for Caller {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(v4) => Self::V4(v4.to_bits()),
            IpAddr::V6(v6) => {
                let [a, b, c, d, ..] = v6.segments();
                Self::V6(
                    [a, b, c, d]
                        .iter()
                        .fold(0, |bits, s| bits << 16 | u64::from(*s)),
                )
            }
        }
    }
}

impl std::fmt::Display for Caller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Self::V4(bits) => std::net::Ipv4Addr::from_bits(bits).fmt(f),
            Self::V6(bits) => {
                write!(f, "{}/64", Ipv6Addr::from_bits(u128::from(bits) << 64))
            }
        }
    }
}

/// The networks whose forwarding fields are believed.
#[derive(Clone, Debug, Default)]
pub struct Trust {
    /// Empty: nobody's are.
    pub proxies: Vec<IpNet>,
}

impl Trust {
    /// Whether an address belongs to a trusted proxy.
    pub fn holds(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.proxies.iter().any(|net| net.contains(&address))
    }

    /// Who asks, given the connection's address and the request's fields.
    pub fn caller(&self, peer: IpAddr, fields: &HeaderMap) -> Caller {
        if self.proxies.is_empty() || !self.holds(peer) {
            return peer.into();
        }
        let custom = lines(fields, &X_FORWARDED_FOR).map(|line| self.nearest(line, address));
        let standard = lines(fields, &FORWARDED).map(|line| self.nearest(line, forwarded_for));
        match (custom, standard) {
            (None, None) => peer.into(),
            (Some(said), None) | (None, Some(said)) => said.unwrap_or(peer).into(),
            // A proxy keeps one of the two and passes the other on as its own
            // client sent it. Where they disagree, neither can be believed.
            (Some(one), Some(other)) => match (one, other) {
                (Some(a), Some(b)) if a.to_canonical() == b.to_canonical() => a.into(),
                _ => peer.into(),
            },
        }
    }

    /// From the right, the first address that is no trusted proxy's; the
    /// leftmost where all are trusted. An element that is no address ends what
    /// can be believed: `None` leaves the proxy itself as the caller.
    fn nearest(&self, list: String, read: fn(&str) -> Option<IpAddr>) -> Option<IpAddr> {
        let mut last = None;
        for element in list.rsplit(',').map(str::trim).filter(|e| !e.is_empty()) {
            let said = read(element)?;
            last = Some(said);
            if !self.holds(said) {
                break;
            }
        }
        last
    }
}

/// All lines of a field as one list; `None` where there is no such field.
fn lines(fields: &HeaderMap, name: &http::HeaderName) -> Option<String> {
    let mut lines = fields.get_all(name).iter().peekable();
    lines.peek()?;
    let text: Vec<_> = lines.map(|line| line.to_str().unwrap_or("?")).collect();
    Some(text.join(","))
}

/// An address, with or without a port, IPv6 with or without brackets.
fn address(text: &str) -> Option<IpAddr> {
    text.parse()
        .or_else(|_| text.parse::<SocketAddr>().map(|socket| socket.ip()))
        .or_else(|_| text.trim_start_matches('[').trim_end_matches(']').parse())
        .ok()
}

/// The `for` parameter of a forwarded-element (RFC 7239 §4), where it is an
/// address: `unknown` and obfuscated identifiers are not.
fn forwarded_for(element: &str) -> Option<IpAddr> {
    element.split(';').find_map(|pair| {
        let (name, value) = pair.split_once('=')?;
        if !name.trim().eq_ignore_ascii_case("for") {
            return None;
        }
        address(value.trim().trim_matches('"'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trust() -> Trust {
        Trust {
            proxies: ["10.0.0.0/8", "2001:db8:1::/48"]
                .map(|net| net.parse().unwrap())
                .to_vec(),
        }
    }

    fn fields(pairs: &[(&str, &str)]) -> HeaderMap {
        let mut fields = HeaderMap::new();
        for (name, value) in pairs {
            fields.append(
                http::HeaderName::from_bytes(name.as_bytes()).unwrap(),
                value.parse().unwrap(),
            );
        }
        fields
    }

    #[test]
    fn callers() {
        type Row = (
            &'static str,
            &'static [(&'static str, &'static str)],
            &'static str,
        );
        let rows: &[Row] = &[
            ("192.0.2.1", &[], "192.0.2.1"),
            // Untrusted: whatever it says changes nothing.
            (
                "192.0.2.1",
                &[("x-forwarded-for", "203.0.113.9")],
                "192.0.2.1",
            ),
            (
                "192.0.2.1",
                &[("forwarded", "for=203.0.113.9")],
                "192.0.2.1",
            ),
            // Trusted: read from the right.
            (
                "10.0.0.1",
                &[("x-forwarded-for", "203.0.113.9")],
                "203.0.113.9",
            ),
            (
                "10.0.0.1",
                &[("x-forwarded-for", "1.1.1.1, 203.0.113.9")],
                "203.0.113.9",
            ),
            (
                "10.0.0.1",
                &[("x-forwarded-for", "203.0.113.9, 10.2.3.4")],
                "203.0.113.9",
            ),
            (
                "10.0.0.1",
                &[("x-forwarded-for", "10.9.9.9, 10.2.3.4")],
                "10.9.9.9",
            ),
            (
                "10.0.0.1",
                &[
                    ("x-forwarded-for", "1.1.1.1"),
                    ("x-forwarded-for", "203.0.113.9"),
                ],
                "203.0.113.9",
            ),
            (
                "10.0.0.1",
                &[("x-forwarded-for", "203.0.113.9:4711")],
                "203.0.113.9",
            ),
            (
                "10.0.0.1",
                &[("x-forwarded-for", "203.0.113.9, junk")],
                "10.0.0.1",
            ),
            ("10.0.0.1", &[("x-forwarded-for", "")], "10.0.0.1"),
            (
                "10.0.0.1",
                &[("forwarded", "for=203.0.113.9;proto=https")],
                "203.0.113.9",
            ),
            (
                "10.0.0.1",
                &[("forwarded", "for=1.1.1.1, For=\"[2001:db8:2::7]:1234\"")],
                "2001:db8:2::/64",
            ),
            ("10.0.0.1", &[("forwarded", "for=unknown")], "10.0.0.1"),
            ("10.0.0.1", &[("forwarded", "proto=https")], "10.0.0.1"),
            // Both: believed only where they agree.
            (
                "10.0.0.1",
                &[
                    ("x-forwarded-for", "203.0.113.9"),
                    ("forwarded", "for=203.0.113.9"),
                ],
                "203.0.113.9",
            ),
            (
                "10.0.0.1",
                &[
                    ("x-forwarded-for", "203.0.113.9"),
                    ("forwarded", "for=1.1.1.1"),
                ],
                "10.0.0.1",
            ),
            // IPv6 by /64, IPv4-mapped as IPv4.
            ("2001:db8:7:8:9:a:b:c", &[], "2001:db8:7:8::/64"),
            ("::ffff:192.0.2.1", &[], "192.0.2.1"),
            (
                "::ffff:10.0.0.1",
                &[("x-forwarded-for", "203.0.113.9")],
                "203.0.113.9",
            ),
        ];
        for (peer, pairs, caller) in rows {
            let found = trust().caller(peer.parse().unwrap(), &fields(pairs));
            assert_eq!(found.to_string(), *caller, "{peer} {pairs:?}");
        }
    }
}
