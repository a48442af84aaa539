//! Where a listener listens: a TCP address, or a unix socket.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// What a unix socket's address begins with.
const UNIX: &str = "unix:";
/// The most bytes of a unix socket's path (sockaddr_un has 108, one of them NUL).
const MAX_PATH: usize = 107;

/// The address of a listener.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize, JsonSchema)]
#[serde(try_from = "String")]
#[schemars(with = "String")]
pub enum ListenAddress {
    /// A TCP address and port.
    Tcp(SocketAddr),
    /// The path of a unix socket.
    Unix(PathBuf),
}

impl ListenAddress {
    /// The TCP address.
    pub fn tcp(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(address) => Some(*address),
            Self::Unix(_) => None,
        }
    }

    /// Whether only this machine can reach it, and by TCP.
    pub fn is_loopback(&self) -> bool {
        self.tcp()
            .is_some_and(|address| address.ip().to_canonical().is_loopback())
    }

    /// Whether sockets on these addresses would accept the same connections. Port 0
    /// takes a free port each time.
    pub fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Tcp(one), Self::Tcp(other)) => {
                one.port() != 0 && one.port() == other.port() && overlap(*one, *other)
            }
            (Self::Unix(one), Self::Unix(other)) => place(one) == place(other),
            (Self::Tcp(_), Self::Unix(_)) | (Self::Unix(_), Self::Tcp(_)) => false,
        }
    }

    /// Whether two listeners cannot have these addresses.
    pub fn conflicts_with(&self, other: &Self) -> bool {
        self.overlaps(other) && !self.leaves_ipv4_to(other) && !other.leaves_ipv4_to(self)
    }

    /// Whether this is `[::]` and the other one is `0.0.0.0`, with the same port. Then this
    /// one is for IPv6 only; otherwise `[::]` is for IPv4 too.
    pub(crate) fn leaves_ipv4_to(&self, other: &Self) -> bool {
        let is_any = |address: &SocketAddr| address.ip().is_unspecified();
        self.overlaps(other)
            && self.tcp().is_some_and(|one| one.is_ipv6() && is_any(&one))
            && other.tcp().is_some_and(|one| one.is_ipv4() && is_any(&one))
    }
}

/// Where a file is or would be, however its path is written.
fn place(path: &Path) -> PathBuf {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let directory = whole.parent().and_then(|parent| parent.canonicalize().ok());
    match (directory, whole.file_name()) {
        (Some(directory), Some(name)) => directory.join(name),
        _ => whole,
    }
}

/// What to write in place of a text that is no address and port, where that can be said.
/// Names are not resolved: one may have several addresses, and they may change.
pub fn address_hint(text: &str) -> Option<String> {
    let text = text.trim();
    let (host, port) = text.rsplit_once(':').unwrap_or(("", text));
    if let Ok(ip) = text.parse::<IpAddr>() {
        let whole = SocketAddr::new(ip, 8080);
        // `::1:8080` is an IPv6 address too, and seldom meant as one.
        return Some(match (host.parse::<Ipv6Addr>(), port.parse::<u16>()) {
            (Ok(_), Ok(_)) => format!(
                "an IPv6 address has brackets: write [{host}]:{port}, or {whole} if {port} is part of the address"
            ),
            _ => format!("the port is missing: write {whole}"),
        });
    }
    port.parse::<u16>().ok()?;
    match host {
        "localhost" => Some(format!(
            "localhost is a name, which may mean both: write 127.0.0.1:{port} or [::1]:{port}"
        )),
        "" | "*" => Some(format!(
            "the address is missing: write 127.0.0.1:{port} for this machine alone, or 0.0.0.0:{port} for all networks"
        )),
        host if host.parse::<Ipv6Addr>().is_ok() => Some(format!(
            "an IPv6 address has brackets: write [{host}]:{port}"
        )),
        host => {
            let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
            let has_letter = host.contains(|c: char| c.is_ascii_alphabetic());
            let is_name = has_letter && host.len() <= 253 && host.chars().all(is_name);
            is_name.then(|| format!("{host} is a name: write its address"))
        }
    }
}

/// How proxy.toml has the permissions of a file.
pub(super) struct Permissions;

impl Permissions {
    pub(super) fn default() -> u32 {
        0o660
    }

    pub(super) fn serialize<S: Serializer>(mode: &u32, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{mode:04o}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
        let text = String::deserialize(from)?;
        let mode = u32::from_str_radix(&text, 8).ok();
        mode.filter(|mode| *mode <= 0o777).ok_or_else(|| {
            de::Error::custom(format_args!(
                "{text:?} came; allowed are permissions as octal digits, such as \"0660\""
            ))
        })
    }
}

/// Whether two addresses of this machine have one in common. `[::]` has all. The same
/// link-local address on two links is two.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let scope = |address: SocketAddr| match address {
        SocketAddr::V6(address) => address.scope_id(),
        SocketAddr::V4(_) => 0,
    };
    let is_same_link = scope(one) == scope(other) || scope(one) == 0 || scope(other) == 0;
    let [one, other] = [one, other].map(|address| address.ip().to_canonical());
    let has =
        |one: IpAddr, other: IpAddr| one.is_unspecified() && (one.is_ipv6() || other.is_ipv4());
    (one == other && is_same_link) || has(one, other) || has(other, one)
}

impl From<SocketAddr> for ListenAddress {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address)
    }
}

/// What is allowed as the address of a listener.
const ALLOWED: &str = "allowed is an address and a port, such as 127.0.0.1:8080, or unix: and the path of a socket (at most 107 bytes)";

impl FromStr for ListenAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_path = |path: &str| (1..=MAX_PATH).contains(&path.len()) && !path.contains('\0');
        let read = match text.strip_prefix(UNIX) {
            Some(path) => is_path(path).then(|| Self::Unix(path.into())),
            None => text.parse().ok().map(Self::Tcp),
        };
        read.ok_or_else(|| match address_hint(text) {
            Some(hint) => format!("{text:?} came; {ALLOWED}: {hint}"),
            None => format!("{text:?} came; {ALLOWED}"),
        })
    }
}

impl TryFrom<String> for ListenAddress {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

impl Serialize for ListenAddress {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_printed() {
        let longest = format!("unix:{}", "p".repeat(MAX_PATH));
        let rows = [
            ("127.0.0.1:80", true),
            ("[::1]:80", true),
            ("unix:/run/ordgate.sock", true),
            ("unix:relative.sock", true),
            (&longest, true),
            (&format!("{longest}p"), false),
            ("unix:", false),
            ("unix:/a\0b", false),
            ("localhost:80", false),
            ("80", false),
            ("", false),
        ];
        for (text, is_address) in rows {
            let read = text.parse::<ListenAddress>();
            assert_eq!(read.is_ok(), is_address, "{text}");
            if let Ok(address) = read {
                assert_eq!(address.to_string(), text);
            }
        }
    }

    #[test]
    fn which_addresses_two_listeners_cannot_have() {
        let of = |text: &str| text.parse::<ListenAddress>().unwrap();
        for (one, other, conflict) in [
            ("127.0.0.1:80", "127.0.0.1:80", true),
            ("127.0.0.1:80", "127.0.0.2:80", false),
            ("127.0.0.1:0", "127.0.0.1:0", false),
            ("0.0.0.0:80", "127.0.0.1:80", true),
            ("0.0.0.0:80", "127.0.0.1:81", false),
            ("0.0.0.0:0", "127.0.0.1:0", false),
            ("0.0.0.0:80", "[::1]:80", false),
            ("127.0.0.1:80", "[::1]:80", false),
            ("[::]:80", "[::1]:80", true),
            ("[fe80::1%2]:80", "[fe80::1%3]:80", false),
            ("[fe80::1%2]:80", "[fe80::1]:80", true),
            ("[::]:80", "[fe80::1%3]:80", true),
            ("[::]:80", "127.0.0.1:80", true),
            ("[::ffff:127.0.0.1]:80", "127.0.0.1:80", true),
            ("unix:/a", "unix:/a", true),
            ("unix:/a", "unix:/b", false),
            ("unix:a", "unix:./a", true),
            ("unix:src/../a", "unix:a", true),
            ("unix:no/such/a", "unix:no/such/./a", true),
            ("unix:a", "unix:src/a", false),
            ("unix:/a", "127.0.0.1:80", false),
        ] {
            for (one, other) in [(one, other), (other, one)].map(|(a, b)| (of(a), of(b))) {
                assert_eq!(one.conflicts_with(&other), conflict, "{one} {other}");
                assert_eq!(one.overlaps(&other), conflict, "{one} {other}");
                assert!(!one.leaves_ipv4_to(&other), "{one} {other}");
            }
        }
        // One for each family.
        let (one, other) = (of("[::]:80"), of("0.0.0.0:80"));
        assert!(one.overlaps(&other) && other.overlaps(&one));
        assert!(!one.conflicts_with(&other) && !other.conflicts_with(&one));
        assert!(one.leaves_ipv4_to(&other) && !other.leaves_ipv4_to(&one));
        assert!(!one.leaves_ipv4_to(&of("0.0.0.0:81")));
    }
}
