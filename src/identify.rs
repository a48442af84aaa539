//! The first step of a request: which client sent it. Pure.
//!
//! A client is its connection's address, unless that address belongs to a trusted
//! proxy. Then it is the address that the proxy reports in `Forwarded` (RFC 7239)
//! or `X-Forwarded-For`, read from the right, past further trusted proxies. From
//! anyone else these fields are ignored.

mod forwarded;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::HeaderMap;
use ipnet::IpNet;

use forwarded::{FORWARDED, ForwardingField, X_FORWARDED_FOR};

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
    Token(u32),
}

/// A client as it is shown. One with a token is `token:NAME`, which no address looks
/// like.
#[derive(Clone, Copy, Debug)]
pub struct ClientLabel<'a> {
    /// The client.
    pub client: Client,
    /// Its name in the token file, where it has one and that is known.
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
            Self::V6(bits) => {
                write!(f, "{}/64", Ipv6Addr::from_bits(u128::from(bits) << 64))
            }
            // The name of a removed token may be gone.
            Self::Token(number) => write!(f, "token number {number}"),
        }
    }
}

/// The networks whose forwarding fields are believed.
#[derive(Clone, Debug, Default)]
pub struct TrustedProxies {
    /// Empty: nobody's are.
    pub networks: Vec<IpNet>,
}

impl TrustedProxies {
    /// Whether an address belongs to a trusted proxy.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.networks.iter().any(|net| net.contains(&address))
    }

    /// The client that sent a request with these fields on a connection from
    /// `peer`.
    pub fn client(&self, peer: IpAddr, fields: &HeaderMap) -> Client {
        self.address(peer, fields).into()
    }

    /// The client's address: the connection's, or what a trusted proxy reports.
    fn address(&self, peer: IpAddr, fields: &HeaderMap) -> IpAddr {
        if self.networks.is_empty() || !self.contains(peer) {
            return peer;
        }
        let custom = self.nearest(fields, &X_FORWARDED_FOR);
        let standard = self.nearest(fields, &FORWARDED);
        match (custom, standard) {
            (None, None) => peer,
            (Some(reported), None) | (None, Some(reported)) => reported.unwrap_or(peer),
            // A proxy writes one of the two and passes on the other as its client
            // sent it. Where they disagree, it is unknown which is the proxy's.
            (Some(one), Some(other)) => match (one, other) {
                (Some(a), Some(b)) if a.to_canonical() == b.to_canonical() => a,
                _ => peer,
            },
        }
    }

    /// The addresses that a request has come through: the client's first, the
    /// connection's last. Addresses before the client's are only claims and are
    /// left out.
    pub fn hops(&self, peer: IpAddr, fields: &HeaderMap) -> Vec<IpAddr> {
        let client = self.address(peer, fields);
        let mut hops = vec![peer.to_canonical()];
        if client == peer {
            return hops;
        }
        // Where both fields are present, both name this client.
        let field = match fields.contains_key(&X_FORWARDED_FOR.name) {
            true => &X_FORWARDED_FOR,
            false => &FORWARDED,
        };
        for hop in field.addresses(fields).map_while(|hop| hop) {
            hops.push(hop.to_canonical());
            if !self.contains(hop) {
                break;
            }
        }
        hops.reverse();
        hops
    }

    /// The first address from the right that is not a trusted proxy's; the leftmost
    /// where all are. `None` where there is no such field. `Some(None)` where an
    /// element that is not an address comes before: the client is unknown then.
    fn nearest(&self, fields: &HeaderMap, field: &ForwardingField) -> Option<Option<IpAddr>> {
        if !fields.contains_key(&field.name) {
            return None;
        }
        let mut last = None;
        for reported in field.addresses(fields) {
            match reported {
                Some(address) if self.contains(address) => last = reported,
                _ => return Some(reported),
            }
        }
        Some(last)
    }
}

#[cfg(test)]
mod tests;
