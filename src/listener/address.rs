//! Where a listener listens: a TCP address, or a unix socket.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// What a unix socket's address begins with.
const UNIX: &str = "unix:";
/// The most bytes of a unix socket's path (sockaddr_un has 108, one of them NUL).
const MAX_PATH: usize = 107;

/// The address of a listener.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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

    /// Whether two listeners cannot have these addresses. Port 0 takes a free port
    /// each time.
    pub fn conflicts_with(&self, other: &Self) -> bool {
        self == other && self.tcp().is_none_or(|address| address.port() != 0)
    }
}

impl From<SocketAddr> for ListenAddress {
    fn from(address: SocketAddr) -> Self {
        Self::Tcp(address)
    }
}

impl FromStr for ListenAddress {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text.strip_prefix(UNIX) {
            Some(path) => {
                let is_path = !path.is_empty() && path.len() <= MAX_PATH && !path.contains('\0');
                is_path.then(|| Self::Unix(path.into())).ok_or(())
            }
            None => text.parse().map(Self::Tcp).map_err(drop),
        }
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
    fn two_listeners_may_share_port_0_only() {
        let of = |text: &str| text.parse::<ListenAddress>().unwrap();
        for (one, other, conflict) in [
            ("127.0.0.1:80", "127.0.0.1:80", true),
            ("127.0.0.1:80", "127.0.0.2:80", false),
            ("127.0.0.1:0", "127.0.0.1:0", false),
            ("unix:/a", "unix:/a", true),
            ("unix:/a", "unix:/b", false),
        ] {
            assert_eq!(
                of(one).conflicts_with(&of(other)),
                conflict,
                "{one} {other}"
            );
        }
    }
}
