//! The first step of a request: which client sent it. Pure.
//!
//! A client is its connection's address, unless that address belongs to a trusted proxy. Then
//! it is the address that the proxy reports, read from the right, past further trusted proxies.
//! A proxy writes one field and may pass on others as its client sent them, so only the one
//! that the operator names is read, and from anyone else none.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use http::header::FORWARDED;
use http::{HeaderMap, HeaderName};
use ipnet::IpNet;

use crate::wire::X_FORWARDED_FOR;

/// Whose limits a request counts against: an IPv4 address, an IPv6 /64, or whoever has
/// a client token. A /64 is what one household or host usually has, and it can use any
/// address of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Client {
    /// An IPv4 address, also where it came as an IPv4-mapped IPv6 address.
    V4(u32),
    /// The upper 64 bits of an IPv6 address.
    V6(u64),
    /// The number of a name in the token file (`client_tokens`).
    Token(u64),
}

/// A client as it is shown. One with a token is `token:NAME`, which no address looks
/// like.
#[derive(Clone, Copy, Debug)]
pub struct ClientLabel<'a> {
    /// The client.
    pub client: Client,
    /// Its name in the token file, where it has one.
    pub name: Option<&'a str>,
}

impl std::fmt::Display for ClientLabel<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.name {
            Some(name) => write!(f, "token:{name}"),
            None => self.client.fmt(f),
        }
    }
}

impl From<IpAddr> for Client {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(v4) => Self::V4(v4.to_bits()),
            IpAddr::V6(v6) => Self::V6((v6.to_bits() >> 64) as u64),
        }
    }
}

impl std::fmt::Display for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Self::V4(bits) => Ipv4Addr::from_bits(bits).fmt(f),
            Self::V6(bits) => write!(f, "{}/64", Ipv6Addr::from_bits(u128::from(bits) << 64)),
            Self::Token(number) => write!(f, "token number {number}"),
        }
    }
}

/// The proxies that are believed about their clients.
#[derive(Clone, Debug, Default)]
pub struct TrustedProxies {
    /// Their networks. Empty: nobody is believed.
    pub networks: Vec<IpNet>,
    /// Whether they write `Forwarded` (RFC 7239), not `X-Forwarded-For`.
    pub write_forwarded: bool,
}

impl TrustedProxies {
    /// Whether an address belongs to a trusted proxy.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.networks.iter().any(|net| net.contains(&address))
    }

    /// The field that they write.
    pub fn field(&self) -> HeaderName {
        if self.write_forwarded {
            FORWARDED
        } else {
            X_FORWARDED_FOR
        }
    }

    /// The client that sent a request with these fields on a connection from
    /// `peer`.
    pub fn client(&self, peer: IpAddr, fields: &HeaderMap) -> Client {
        match self.contains(peer) {
            true => self.hops(peer, fields)[0].into(),
            false => peer.into(),
        }
    }

    /// The addresses that a request has come through: the client's first, the connection's
    /// last. Addresses before the client's are only claims and are left out. Where a trusted
    /// proxy reports something else than an address, the client is unknown, and the connection
    /// stands for it.
    pub fn hops(&self, peer: IpAddr, fields: &HeaderMap) -> Vec<IpAddr> {
        let mut hops = vec![peer.to_canonical()];
        let lines = fields.get_all(self.field()).iter().rev();
        let lines = lines.map(|line| String::from_utf8_lossy(line.as_bytes()));
        let lines: Vec<_> = lines.collect();
        let elements = lines.iter().flat_map(|line| line.rsplit(','));
        let elements = elements.map(str::trim);
        for element in elements.filter(|element| !element.is_empty()) {
            if !hops.last().is_some_and(|hop| self.contains(*hop)) {
                break;
            }
            let read = if self.write_forwarded {
                forwarded_for
            } else {
                address
            };
            match read(element) {
                Some(address) => hops.push(address.to_canonical()),
                None => {
                    hops.truncate(1);
                    break;
                }
            }
        }
        hops.reverse();
        hops
    }
}

/// An address, with or without a port, IPv6 with or without brackets.
fn address(text: &str) -> Option<IpAddr> {
    let with_port = |_| text.parse::<SocketAddr>().map(|socket| socket.ip());
    let alone = text.trim_matches(['[', ']']).parse();
    alone.or_else(with_port).ok()
}

/// The `for` parameter of a forwarded-element (RFC 7239 §4). `None` where it is no address, and
/// where the element has two of them. No proxy needs a delimiter or an escape within quotes, so
/// an element that has one, which may be what a client sent, is not read.
fn forwarded_for(element: &str) -> Option<IpAddr> {
    let mut found = None;
    let pairs = element.split(';').map(str::trim);
    for pair in pairs.filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=')?;
        let value = match value.strip_prefix('"') {
            Some(quoted) => quoted.strip_suffix('"')?,
            None => value,
        };
        let is_two = name.eq_ignore_ascii_case("for") && found.replace(value).is_some();
        if is_two || value.contains(['"', '\\']) {
            return None;
        }
    }
    address(found?)
}

#[cfg(test)]
mod tests;
