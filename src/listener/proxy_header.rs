//! The PROXY protocol, versions 1 and 2: a header before everything else on a
//! connection, with which a proxy reports the address of its client.
//!
//! The specification is HAProxy's, doc/proxy-protocol.txt. Only trusted proxies may send
//! one, so what ordgate does not need of it is not checked.

use std::io::{Error, ErrorKind, Result};
use std::net::IpAddr;

use tokio::io::{AsyncRead, AsyncReadExt};

/// The first bytes of a header of version 2.
const V2: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// The most bytes of a header of version 1, with its CRLF (specification §2.1).
const V1_MAX: usize = 107;
/// The most bytes of a header of version 2 after its length. Addresses take 216 bytes at the
/// most; the rest is for TLVs, which are skipped.
const V2_MAX: usize = 520;

/// Reads a header, and nothing after it. Returns the client's address; `None` where the proxy
/// reports none (`LOCAL`, `UNKNOWN`, unix sockets): the connection's own address counts then.
///
/// # Errors
/// Where there is no header or a malformed one, or the connection ends.
pub async fn read<S: AsyncRead + Unpin>(stream: &mut S) -> Result<Option<IpAddr>> {
    // No header is shorter.
    let mut start = [0; V2.len()];
    stream.read_exact(&mut start).await?;
    if start == *V2 {
        return read_v2(stream).await;
    }
    let mut line = start.to_vec();
    if !line.starts_with(b"PROXY ") {
        return Err(malformed("there is no PROXY header"));
    }
    while !line.ends_with(b"\n") {
        if line.len() == V1_MAX {
            return Err(malformed("the PROXY header is too long"));
        }
        line.push(stream.read_u8().await?);
    }
    client_of_v1(&line).ok_or_else(|| malformed("the PROXY header is malformed"))
}

/// The client that a line of version 1 reports, if it is one.
fn client_of_v1(line: &[u8]) -> Option<Option<IpAddr>> {
    let line = str::from_utf8(line).ok()?.strip_suffix("\r\n")?;
    let mut parts = line.split(' ').skip(1);
    match parts.next()? {
        // Whatever follows UNKNOWN is ignored (§2.1).
        "UNKNOWN" => Some(None),
        "TCP4" | "TCP6" => parts.next()?.parse().ok().map(Some),
        _ => None,
    }
}

async fn read_v2<S: AsyncRead + Unpin>(stream: &mut S) -> Result<Option<IpAddr>> {
    let mut fixed = [0; 4];
    stream.read_exact(&mut fixed).await?;
    let [command, family, high, low] = fixed;
    let mut rest = [0; V2_MAX];
    let length = usize::from(u16::from_be_bytes([high, low]));
    let Some(rest) = rest.get_mut(..length) else {
        return Err(malformed("the PROXY header is too long"));
    };
    stream.read_exact(rest).await?;
    let client = match (command, family) {
        // LOCAL: the proxy's own connection, such as a health check.
        (0x20, _) => Some(None),
        // TCP: two addresses, then ports. The client's is the first.
        (0x21, 0x11) => rest.first_chunk::<4>().map(|ip| Some(IpAddr::from(*ip))),
        (0x21, 0x21) => rest.first_chunk::<16>().map(|ip| Some(IpAddr::from(*ip))),
        // Unspecified, a unix socket or a datagram: a receiver must accept the
        // connection and use its own addresses (§2.2).
        (0x21, _) => Some(None),
        _ => None,
    };
    client.ok_or_else(|| malformed("the PROXY header is malformed"))
}

fn malformed(why: &'static str) -> Error {
    Error::new(ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn v2(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
        [V2, &[command, family][..], &length, rest].concat()
    }

    #[test]
    fn a_header_is_read_and_nothing_after_it() {
        let (v4, v6) = ("192.0.2.1", "2001:db8::1");
        let of_v6 = v6.parse::<std::net::Ipv6Addr>().unwrap().octets();
        let of_v6 = [&of_v6[..], &[0; 20]].concat();
        let of_v4 = [192, 0, 2, 1, 10, 0, 0, 1, 0x30, 0x39, 0x01, 0xbb];
        let with_tlvs = |bytes| [&of_v4[..], &vec![0xee; bytes]].concat();
        let v1 = |line: &str| format!("PROXY {line}\r\n").into_bytes();
        let unknown = |length: usize| v1(&format!("UNKNOWN {}", "x".repeat(length - 16)));
        // the header, and the client that it reports; none if it is refused
        for (header, expected) in [
            (v1("TCP4 192.0.2.1 10.0.0.1 12345 443"), Some(v4)),
            (v1("TCP6 2001:db8::1 ::1 1 65535"), Some(v6)),
            (v1("UNKNOWN"), Some("")),
            (unknown(107), Some("")),
            (unknown(108), None),
            (v1("TCP4 192.0.2.256 10.0.0.1 1 2"), None),
            (v1("TCP4  192.0.2.1 10.0.0.1 1 2"), None),
            (v1("tcp4 192.0.2.1 10.0.0.1 1 2"), None),
            (b"PROXY UNKNOWN\n".to_vec(), None),
            (b"GET / HTTP/1.1\r\n".to_vec(), None),
            (v2(0x21, 0x11, &of_v4), Some(v4)),
            (v2(0x21, 0x11, &with_tlvs(V2_MAX - 12)), Some(v4)),
            (v2(0x21, 0x11, &with_tlvs(V2_MAX - 11)), None),
            (v2(0x21, 0x21, &of_v6), Some(v6)),
            (v2(0x20, 0x00, &[]), Some("")),
            (v2(0x20, 0x11, &of_v4), Some("")),
            (v2(0x21, 0x31, &[0; 216]), Some("")),
            (v2(0x21, 0x11, &of_v4[..3]), None),
            (v2(0x22, 0x11, &of_v4), None),
            (v2(0x31, 0x11, &of_v4), None),
        ] {
            let shown = header.escape_ascii().to_string();
            let sent = [&header[..], b"GET /"].concat();
            let mut rest = &sent[..];
            let client = read(&mut rest).now_or_never().unwrap().ok();
            let client = client.map(|client| client.map_or(String::new(), |ip| ip.to_string()));
            assert_eq!(client.as_deref(), expected, "{shown}");
            if expected.is_some() {
                assert_eq!(rest, b"GET /", "{shown}");
                let cut = &header[..header.len() - 1];
                let cut = read(&mut &*cut).now_or_never().unwrap();
                assert_eq!(cut.unwrap_err().kind(), ErrorKind::UnexpectedEof);
            }
        }
    }
}
