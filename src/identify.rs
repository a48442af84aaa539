//! Who asks: the first step of the walk. Pure.
//!
//! A caller is the address of its connection, unless that address belongs to a
//! trusted proxy: then it is what the proxy says in `Forwarded` (RFC 7239) or
//! `X-Forwarded-For`, read from the right, past further trusted proxies. What
//! anyone else says in those fields changes nothing.
//!
//! Deliberately absent: what a caller may do. That is `limit`'s.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use http::header::FORWARDED;
use http::{HeaderMap, HeaderName};
use ipnet::IpNet;

use crate::wire::X_FORWARDED_FOR;

/// Whose limits a request counts against: an IPv4 address or an IPv6 /64,
/// since a household is given a /64 and a host any address of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Client {
    /// An IPv4 address, IPv4-mapped IPv6 addresses among them.
    V4(u32),
    /// The upper half of an IPv6 address.
    V6(u64),
}

impl From<IpAddr> for Client {
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

impl std::fmt::Display for Client {
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
    pub fn client(&self, peer: IpAddr, fields: &HeaderMap) -> Client {
        self.address(peer, fields).into()
    }

    /// The client's address: the connection's, or what a trusted proxy reports.
    fn address(&self, peer: IpAddr, fields: &HeaderMap) -> IpAddr {
        if self.proxies.is_empty() || !self.holds(peer) {
            return peer;
        }
        let custom = self.nearest(fields, &X_FORWARDED_FOR, addresses);
        let standard = self.nearest(fields, &FORWARDED, forwarded);
        match (custom, standard) {
            (None, None) => peer,
            (Some(said), None) | (None, Some(said)) => said.unwrap_or(peer),
            // A proxy keeps one of the two and passes the other on as its own
            // client sent it. Where they disagree, neither can be believed.
            (Some(one), Some(other)) => match (one, other) {
                (Some(a), Some(b)) if a.to_canonical() == b.to_canonical() => a,
                _ => peer,
            },
        }
    }

    /// The addresses that a request is known to have come by, the client's
    /// first and the connection's last. What stands before the client's in the
    /// fields is not known, and left out.
    pub fn hops(&self, peer: IpAddr, fields: &HeaderMap) -> Vec<IpAddr> {
        let client = self.address(peer, fields);
        let mut hops = vec![peer.to_canonical()];
        if client == peer {
            return hops;
        }
        // Both fields name this client where both are there.
        let (name, read): (_, fn(&str) -> Vec<_>) = match fields.contains_key(X_FORWARDED_FOR) {
            true => (X_FORWARDED_FOR, addresses),
            false => (FORWARDED, forwarded),
        };
        let lines = fields.get_all(name).iter().rev();
        let said = lines.flat_map(|line| line.to_str().map(read).unwrap_or_default());
        for hop in said.map_while(|said| said) {
            hops.push(hop.to_canonical());
            if !self.holds(hop) {
                break;
            }
        }
        hops.reverse();
        hops
    }

    /// From the right, the first address that is no trusted proxy's; the
    /// leftmost where all are trusted. An element that is no address ends what
    /// can be believed: `Some(None)` leaves the proxy itself as the caller.
    /// `None` where there is no such field.
    ///
    /// Each line is read on its own, so that a quote which a client leaves open
    /// in its line hides nothing of what a proxy says in the next.
    fn nearest(
        &self,
        fields: &HeaderMap,
        name: &HeaderName,
        read: fn(&str) -> Vec<Option<IpAddr>>,
    ) -> Option<Option<IpAddr>> {
        let mut lines = fields.get_all(name).iter().rev().peekable();
        lines.peek()?;
        let elements = lines.flat_map(|line| match line.to_str() {
            Ok(line) => read(line),
            Err(_not_ascii) => vec![None],
        });
        let mut last = None;
        for said in elements {
            match said {
                Some(said) if self.holds(said) => last = Some(said),
                other => return Some(other),
            }
        }
        Some(last)
    }
}

/// The addresses of a line of `X-Forwarded-For`, from the right.
fn addresses(line: &str) -> Vec<Option<IpAddr>> {
    let elements = line.rsplit(',').map(str::trim);
    elements.filter(|e| !e.is_empty()).map(address).collect()
}

/// The addresses of a line of `Forwarded`, from the right: of each element that
/// of its client, where it can be believed.
fn forwarded(line: &str) -> Vec<Option<IpAddr>> {
    // With a quote that is left open there is no telling where elements begin.
    let Some(elements) = split(line, ',') else {
        return vec![None];
    };
    let elements = elements.into_iter().rev().map(str::trim);
    elements
        .filter(|e| !e.is_empty())
        .map(forwarded_for)
        .collect()
}

/// Splits at a delimiter that stands outside quoted strings (RFC 9110 §5.6.4),
/// in which a backslash takes its meaning from what follows. `None` where one
/// has no end.
fn split(text: &str, delimiter: char) -> Option<Vec<&str>> {
    let mut parts = Vec::new();
    let (mut from, mut quoted, mut escaped) = (0, false, false);
    for (at, character) in text.char_indices() {
        match character {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            _ if character == delimiter && !quoted => {
                parts.push(&text[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[from..]);
    (!quoted).then_some(parts)
}

/// An address, with or without a port, IPv6 with or without brackets.
fn address(text: &str) -> Option<IpAddr> {
    text.parse()
        .or_else(|_| text.parse::<SocketAddr>().map(|socket| socket.ip()))
        .or_else(|_| text.trim_start_matches('[').trim_end_matches(']').parse())
        .ok()
}

/// The `for` parameter of a forwarded-element (RFC 7239 §4), where it is an
/// address: `unknown` and obfuscated identifiers are not. An element that is
/// malformed, or has it twice, is not believed.
fn forwarded_for(element: &str) -> Option<IpAddr> {
    let mut said = None;
    for pair in split(element, ';')?.into_iter().map(str::trim) {
        if pair.is_empty() {
            continue;
        }
        let (name, value) = pair.split_once('=')?;
        let value = value_of(value.trim())?;
        if name.trim().eq_ignore_ascii_case("for") && said.replace(value).is_some() {
            return None;
        }
    }
    address(&said?)
}

/// What a parameter's value says: a quoted string without its quotes and
/// escapes, or what stands there, which is to have neither.
fn value_of(value: &str) -> Option<Cow<'_, str>> {
    let Some(rest) = value.strip_prefix('"') else {
        let plain = !value.contains(['"', '\\']);
        return plain.then_some(Cow::Borrowed(value));
    };
    let mut said = String::with_capacity(rest.len());
    let mut characters = rest.chars();
    loop {
        match characters.next()? {
            '\\' => said.push(characters.next()?),
            '"' => break,
            other => said.push(other),
        }
    }
    characters.next().is_none().then_some(Cow::Owned(said))
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
                HeaderName::from_bytes(name.as_bytes()).unwrap(),
                value.parse().unwrap(),
            );
        }
        fields
    }

    #[test]
    fn quotes_in_forwarded() {
        // What stands in a quoted string is no delimiter (RFC 9110 §5.6.4), and
        // what cannot be told apart is not believed.
        let proxy = "10.0.0.1";
        for (lines, caller) in [
            (
                &[r#"for=203.0.113.9;by="a, for=1.1.1.1""#][..],
                "203.0.113.9",
            ),
            (&[r#"by="x;for=1.1.1.1";for=203.0.113.9"#], "203.0.113.9"),
            (&[r#"by="x\";for=1.1.1.1";for=203.0.113.9"#], "203.0.113.9"),
            (&[r#"by="x\\";for=203.0.113.9"#], "203.0.113.9"),
            (&[r#"for="203.0.113.9""#], "203.0.113.9"),
            (&[r#"for="203.0.1\13.9:80""#], "203.0.113.9"),
            (&[r#";for=203.0.113.9; proto=http;"#], "203.0.113.9"),
            (&["for=1.1.1.1, , for=203.0.113.9,"], "203.0.113.9"),
            (&[r#"for=1.1.1.1;x=", for=203.0.113.9"#], proxy),
            (&[r#"for=1.1.1.1;x=", for="203.0.113.9""#], proxy),
            (&[r#"for=1.1.1.1;x="\", for=203.0.113.9"#], proxy),
            (&[r#"for="203.0.113.9"x"#], proxy),
            (&[r#"for=20"3.0.1"13.9"#], proxy),
            (&[r#"for="203.0.113.9;x=y"#], proxy),
            (&["for=203.0.113.9;secret"], proxy),
            // Which of two would it be?
            (&["for=1.1.1.1;for=203.0.113.9"], proxy),
            (&["for=203.0.113.9;FOR=203.0.113.9"], proxy),
            (&["for=203.0.113.9, for=1.1.1.1;for=10.2.3.4"], proxy),
            // A quote does not reach into another line.
            (&[r#"for=1.1.1.1;x=""#, "for=203.0.113.9"], "203.0.113.9"),
            (
                &["for=203.0.113.9", r#"for=10.2.3.4;x="a,b""#],
                "203.0.113.9",
            ),
            (&[r#"for=1.1.1.1;x=""#, "for=10.2.3.4"], proxy),
        ] {
            let pairs: Vec<_> = lines.iter().map(|line| ("forwarded", *line)).collect();
            let found = trust().client(proxy.parse().unwrap(), &fields(&pairs));
            assert_eq!(found.to_string(), caller, "{lines:?}");
        }
    }

    #[test]
    fn hops() {
        let xff = "x-forwarded-for";
        type Row<'r> = (&'r str, &'r [(&'r str, &'r str)], &'r [&'r str]);
        let rows: &[Row<'_>] = &[
            ("192.0.2.1", &[], &["192.0.2.1"]),
            ("::ffff:192.0.2.1", &[], &["192.0.2.1"]),
            ("192.0.2.1", &[(xff, "203.0.113.9")], &["192.0.2.1"]),
            ("10.0.0.1", &[], &["10.0.0.1"]),
            (
                "10.0.0.1",
                &[(xff, "203.0.113.9")],
                &["203.0.113.9", "10.0.0.1"],
            ),
            // What the client claims of those before it is left out.
            (
                "10.0.0.1",
                &[(xff, "1.1.1.1, 203.0.113.9, 10.2.3.4")],
                &["203.0.113.9", "10.2.3.4", "10.0.0.1"],
            ),
            (
                "10.0.0.1",
                &[(xff, "1.1.1.1"), (xff, "203.0.113.9")],
                &["203.0.113.9", "10.0.0.1"],
            ),
            (
                "10.0.0.1",
                &[(xff, "10.9.9.9, 10.2.3.4")],
                &["10.9.9.9", "10.2.3.4", "10.0.0.1"],
            ),
            ("10.0.0.1", &[(xff, "203.0.113.9, junk")], &["10.0.0.1"]),
            (
                "10.0.0.1",
                &[(
                    "forwarded",
                    "for=1.1.1.1, for=\"[2001:db8:2::7]:1\";proto=https",
                )],
                &["2001:db8:2::7", "10.0.0.1"],
            ),
            (
                "10.0.0.1",
                &[(xff, "203.0.113.9"), ("forwarded", "for=1.1.1.1")],
                &["10.0.0.1"],
            ),
        ];
        for (peer, pairs, expected) in rows {
            let found = trust().hops(peer.parse().unwrap(), &fields(pairs));
            let found: Vec<_> = found.iter().map(ToString::to_string).collect();
            assert_eq!(found, *expected, "{peer} {pairs:?}");
        }
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
            let found = trust().client(peer.parse().unwrap(), &fields(pairs));
            assert_eq!(found.to_string(), *caller, "{peer} {pairs:?}");
        }
    }
}
