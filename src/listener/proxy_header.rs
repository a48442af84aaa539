//! The PROXY protocol, versions 1 and 2: a header before everything else on a
//! connection, with which a proxy reports the address of its client.
//!
//! The specification is HAProxy's, doc/proxy-protocol.txt. [`parse`] does no I/O.
//! Why no crate: of ppp 2.3, the version 1 parser takes a header that arrives in
//! pieces for a wrong one, and neither version has a bound of its own.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// The first bytes of a header of version 2.
const V2: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// Bytes of a header of version 2 before its addresses.
const V2_FIXED: usize = 16;
/// The first bytes of a header of version 1.
const V1: &[u8; 6] = b"PROXY ";
/// The most bytes of a header of version 1, with its CRLF (specification §2.1).
const V1_MAX: usize = 107;
/// The most bytes of a header of either version. Addresses take 216 bytes at the
/// most; the rest is for TLVs, which are skipped.
pub const MAX_HEADER: usize = 536;

/// A complete header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyHeader {
    /// The client's address; `None` where the proxy reports none (`LOCAL`,
    /// `UNKNOWN`, unix sockets): the connection's own address counts then.
    pub client: Option<IpAddr>,
    /// Bytes of the header. What follows belongs to the client.
    pub length: usize,
}

/// Why bytes are not a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProxyHeaderError {
    /// Another protocol.
    #[error("there is no PROXY header")]
    Missing,
    /// It is longer than [`MAX_HEADER`], or than 107 bytes in version 1.
    #[error("the PROXY header is too long")]
    TooLong,
    /// It begins as one and then breaks the format.
    #[error("the PROXY header is malformed")]
    Malformed,
}

/// Parses the header that these bytes begin with; `None` where they are only a
/// part of one.
///
/// # Errors
/// Where they cannot be the beginning of a header.
pub fn parse(bytes: &[u8]) -> Result<Option<ProxyHeader>, ProxyHeaderError> {
    if begins(bytes, V2) {
        parse_v2(bytes)
    } else if begins(bytes, V1) {
        parse_v1(bytes)
    } else {
        Err(ProxyHeaderError::Missing)
    }
}

/// Whether the bytes agree with a prefix as far as both go.
fn begins(bytes: &[u8], prefix: &[u8]) -> bool {
    bytes.iter().zip(prefix).all(|(one, other)| one == other)
}

fn parse_v2(bytes: &[u8]) -> Result<Option<ProxyHeader>, ProxyHeaderError> {
    let Some((fixed, rest)) = bytes.split_first_chunk::<V2_FIXED>() else {
        return Ok(None);
    };
    let [.., command, family, high, low] = *fixed;
    let addresses = usize::from(u16::from_be_bytes([high, low]));
    let length = V2_FIXED + addresses;
    if length > MAX_HEADER {
        return Err(ProxyHeaderError::TooLong);
    }
    let Some(rest) = rest.get(..addresses) else {
        return Ok(None);
    };
    let client = match (command, family) {
        // LOCAL: the proxy's own connection, such as a health check.
        (0x20, _) => None,
        // TCP over IPv4: addresses of 4 bytes, then ports.
        (0x21, 0x11) => {
            let (client, _) = rest
                .split_first_chunk::<4>()
                .filter(|_| addresses >= 12)
                .ok_or(ProxyHeaderError::Malformed)?;
            Some(IpAddr::from(*client))
        }
        // TCP over IPv6.
        (0x21, 0x21) => {
            let (client, _) = rest
                .split_first_chunk::<16>()
                .filter(|_| addresses >= 36)
                .ok_or(ProxyHeaderError::Malformed)?;
            Some(IpAddr::from(*client))
        }
        // Unspecified, a unix socket or a datagram: a receiver must accept the
        // connection and use its own addresses (§2.2).
        (0x21, 0x00 | 0x12 | 0x22 | 0x31 | 0x32) => None,
        _ => return Err(ProxyHeaderError::Malformed),
    };
    Ok(Some(ProxyHeader { client, length }))
}

fn parse_v1(bytes: &[u8]) -> Result<Option<ProxyHeader>, ProxyHeaderError> {
    let within = &bytes[..bytes.len().min(V1_MAX)];
    let Some(end) = memchr::memchr(b'\n', within) else {
        return match bytes.len() < V1_MAX {
            true => Ok(None),
            false => Err(ProxyHeaderError::TooLong),
        };
    };
    let line = within[..end].strip_suffix(b"\r");
    let line = line.and_then(|line| line.strip_prefix(V1));
    let line = line.and_then(|line| str::from_utf8(line).ok());
    let line = line.ok_or(ProxyHeaderError::Malformed)?;
    let parts: Vec<&str> = line.split(' ').collect();
    let client = match parts[..] {
        // Whatever follows UNKNOWN is ignored (§2.1).
        ["UNKNOWN", ..] => None,
        ["TCP4", client, server, from, to] => address::<Ipv4Addr>(client, server, from, to)?,
        ["TCP6", client, server, from, to] => address::<Ipv6Addr>(client, server, from, to)?,
        _ => return Err(ProxyHeaderError::Malformed),
    };
    let length = end + 1;
    Ok(Some(ProxyHeader { client, length }))
}

/// The client's address in a line of version 1, once all of it is well-formed.
fn address<A: FromStr + Into<IpAddr>>(
    client: &str,
    server: &str,
    from: &str,
    to: &str,
) -> Result<Option<IpAddr>, ProxyHeaderError> {
    let port = |text: &str| {
        let is_decimal = text.bytes().all(|byte| byte.is_ascii_digit());
        is_decimal && text.parse::<u16>().is_ok()
    };
    match (client.parse::<A>(), server.parse::<A>()) {
        (Ok(client), Ok(_)) if port(from) && port(to) => Ok(Some(client.into())),
        _ => Err(ProxyHeaderError::Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::ProxyHeaderError::{Malformed, Missing, TooLong};
    use super::*;

    /// A name, a header, and the client that it reports.
    type Row = (
        &'static str,
        Vec<u8>,
        Result<Option<IpAddr>, ProxyHeaderError>,
    );

    fn v2(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
        [V2, &[command, family][..], &length, rest].concat()
    }

    fn v4(tlvs: &[u8]) -> Vec<u8> {
        let addresses = [192, 0, 2, 1, 10, 0, 0, 1, 0x30, 0x39, 0x01, 0xbb];
        v2(0x21, 0x11, &[&addresses[..], tlvs].concat())
    }

    #[test]
    fn complete_headers() {
        let client: IpAddr = "192.0.2.1".parse().unwrap();
        let client6: IpAddr = "2001:db8::1".parse().unwrap();
        let mut v6 = client6_octets(client6);
        v6.extend([0; 20]);
        let longest_unknown = format!("PROXY UNKNOWN {}\r\n", "x".repeat(107 - 16));
        let rows: Vec<Row> = vec![
            (
                "v1 IPv4",
                b"PROXY TCP4 192.0.2.1 10.0.0.1 12345 443\r\n".to_vec(),
                Ok(Some(client)),
            ),
            (
                "v1 IPv6",
                b"PROXY TCP6 2001:db8::1 ::1 1 65535\r\n".to_vec(),
                Ok(Some(client6)),
            ),
            ("v1 UNKNOWN", b"PROXY UNKNOWN\r\n".to_vec(), Ok(None)),
            (
                "v1 UNKNOWN with 107 bytes",
                longest_unknown.into_bytes(),
                Ok(None),
            ),
            (
                "v1 of IPv6 as TCP4",
                b"PROXY TCP4 ::1 ::1 1 2\r\n".to_vec(),
                Err(Malformed),
            ),
            (
                "v1 port too large",
                b"PROXY TCP4 1.1.1.1 2.2.2.2 65536 2\r\n".to_vec(),
                Err(Malformed),
            ),
            (
                "v1 port with a sign",
                b"PROXY TCP4 1.1.1.1 2.2.2.2 +1 2\r\n".to_vec(),
                Err(Malformed),
            ),
            (
                "v1 too few parts",
                b"PROXY TCP4 1.1.1.1 2.2.2.2 1\r\n".to_vec(),
                Err(Malformed),
            ),
            (
                "v1 two spaces",
                b"PROXY TCP4  1.1.1.1 2.2.2.2 1 2\r\n".to_vec(),
                Err(Malformed),
            ),
            (
                "v1 in lower case",
                b"PROXY tcp4 1.1.1.1 2.2.2.2 1 2\r\n".to_vec(),
                Err(Malformed),
            ),
            ("v1 bare LF", b"PROXY UNKNOWN\n".to_vec(), Err(Malformed)),
            ("v2 IPv4", v4(&[]), Ok(Some(client))),
            (
                "v2 IPv4 with TLVs",
                v4(&[0x04, 0, 3, 1, 2, 3]),
                Ok(Some(client)),
            ),
            (
                "v2 with the most TLVs",
                v4(&vec![0xee; MAX_HEADER - V2_FIXED - 12]),
                Ok(Some(client)),
            ),
            ("v2 IPv6", v2(0x21, 0x21, &v6), Ok(Some(client6))),
            ("v2 LOCAL", v2(0x20, 0x00, &[]), Ok(None)),
            (
                "v2 LOCAL with addresses",
                v2(0x20, 0x11, &[9; 12]),
                Ok(None),
            ),
            ("v2 unspecified", v2(0x21, 0x00, &[]), Ok(None)),
            ("v2 unix", v2(0x21, 0x31, &[0; 216]), Ok(None)),
            (
                "v2 short addresses",
                v2(0x21, 0x11, &[1; 11]),
                Err(Malformed),
            ),
            (
                "v2 short IPv6 addresses",
                v2(0x21, 0x21, &[1; 35]),
                Err(Malformed),
            ),
            (
                "v2 unknown command",
                v2(0x22, 0x11, &[1; 12]),
                Err(Malformed),
            ),
            (
                "v2 unknown family",
                v2(0x21, 0x41, &[1; 12]),
                Err(Malformed),
            ),
            ("v2 other version", v2(0x31, 0x11, &[1; 12]), Err(Malformed)),
            (
                "v2 one byte too long",
                v2(0x21, 0x11, &[1; MAX_HEADER - V2_FIXED + 1]),
                Err(TooLong),
            ),
        ];
        for (name, bytes, expected) in rows {
            let parsed = parse(&bytes);
            let expected = expected.map(|client| {
                Some(ProxyHeader {
                    client,
                    length: bytes.len(),
                })
            });
            assert_eq!(parsed, expected, "{name}");
            if expected.is_err() {
                continue;
            }
            for cut in 0..bytes.len() {
                assert_eq!(parse(&bytes[..cut]), Ok(None), "{name}, {cut} bytes of it");
            }
            let more = [&bytes, &b"GET / HTTP/1.1\r\n"[..]].concat();
            assert_eq!(parse(&more), expected, "{name}, with more after it");
        }
    }

    fn client6_octets(address: IpAddr) -> Vec<u8> {
        match address {
            IpAddr::V6(v6) => v6.octets().to_vec(),
            IpAddr::V4(v4) => v4.octets().to_vec(),
        }
    }

    #[test]
    fn other_protocols_and_endless_lines() {
        for (bytes, expected) in [
            (&b"GET / HTTP/1.1\r\n"[..], Err(Missing)),
            (b"\x16\x03\x01", Err(Missing)),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Err(Missing)),
            (b"\r\n\r\n\0\r\nQUIX\n", Err(Missing)),
            (b"", Ok(None)),
            (b"P", Ok(None)),
            (&[&b"PROXY "[..], &[b'x'; 100]].concat(), Ok(None)),
            (&[&b"PROXY "[..], &[b'x'; 101]].concat(), Err(TooLong)),
            (
                &[&b"PROXY UNKNOWN "[..], &[b'x'; 92], b"\r\n"].concat(),
                Err(TooLong),
            ),
        ] {
            assert_eq!(
                parse(bytes),
                expected,
                "{:?}",
                bytes.escape_ascii().to_string()
            );
        }
    }
}
