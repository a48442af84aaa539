//! Where a listener listens: a TCP address, or a unix socket.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// What a unix socket's address begins with.
const UNIX: &str = "unix:";
/// The most bytes of a unix socket's path (sockaddr_un has 108, one of them NUL).
const MAX_PATH: usize = 107;
/// What is allowed as the address of a listener.
const ALLOWED: &str = "allowed is an IP address and a port, such as 127.0.0.1:8080, [::1]:8080 or 0.0.0.0:8080, not a name, which may have several addresses; or unix: and the path of a socket (at most 107 bytes)";

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

    /// Whether two listeners have one address. Port 0 takes a free port each time. Others
    /// that exclude each other, such as an address and 0.0.0.0, are found when they are bound.
    pub fn conflicts_with(&self, other: &Self) -> bool {
        self == other && self.tcp().is_none_or(|address| address.port() != 0)
    }

    /// Whether this is `[::]` and the other one is `0.0.0.0`, with the same port. Then this
    /// one is for IPv6 only; otherwise `[::]` is for IPv4 too.
    pub(crate) fn leaves_ipv4_to(&self, other: &Self) -> bool {
        let this = self.tcp().filter(|address| address.is_ipv6());
        let this = this.filter(|address| address.ip().is_unspecified());
        let ipv4 = this.map(|address| (Ipv4Addr::UNSPECIFIED, address.port()).into());
        ipv4.is_some() && other.tcp() == ipv4
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

impl From<SocketAddr> for ListenAddress {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address)
    }
}

impl FromStr for ListenAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_path = |path: &str| (1..=MAX_PATH).contains(&path.len()) && !path.contains('\0');
        let read = match text.strip_prefix(UNIX) {
            Some(path) => is_path(path).then(|| Self::Unix(path.into())),
            None => text.parse().ok().map(Self::Tcp),
        };
        read.ok_or_else(|| format!("{text:?} came; {ALLOWED}"))
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
    fn both_families_may_have_all_addresses_of_a_port() {
        let of = |text: &str| text.parse::<ListenAddress>().unwrap();
        for (one, other, expected) in [
            ("[::]:80", "0.0.0.0:80", true),
            ("[::]:80", "0.0.0.0:81", false),
            ("[::]:80", "127.0.0.1:80", false),
            ("[::1]:80", "0.0.0.0:80", false),
            ("0.0.0.0:80", "[::]:80", false),
        ] {
            assert_eq!(
                of(one).leaves_ipv4_to(&of(other)),
                expected,
                "{one} {other}"
            );
        }
    }
}
