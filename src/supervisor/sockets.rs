//! Listening sockets that the supervisor passes (sd_listen_fds(3)). They outlive
//! the process: while it restarts, new connections wait in their queues.

use std::io;
use std::net::TcpListener;

use listenfd::ListenFd;
use rustix::net::sockopt::socket_acceptconn;

/// The sockets that were passed, which are used instead of binding new ones.
#[derive(Debug, Default)]
pub struct InheritedSockets {
    /// For clients.
    pub public: Option<TcpListener>,
    /// For the operator.
    pub admin: Option<TcpListener>,
}

/// Why the passed sockets cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InheritedSocketError {
    /// More than two sockets.
    #[error(
        "{0} sockets were passed (LISTEN_FDS); allowed are two, the public one first and then the admin one, or each by its name"
    )]
    TooMany(usize),
    /// One has an unknown name, while another has one of ordgate's.
    #[error(
        "passed socket {0} has the name \"{1}\" (FileDescriptorName=); allowed are public and admin"
    )]
    Name(usize, String),
    /// Two with the same name.
    #[error("two sockets that were passed have the name {0}; allowed is one")]
    Twice(&'static str),
    /// Not a listening TCP socket.
    #[error(
        "passed socket {number} is not a listening TCP socket: {error}; ListenStream= with a port makes one"
    )]
    Unusable {
        /// Its number, from 1 on.
        number: usize,
        /// What is wrong with it.
        error: io::Error,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Public,
    Admin,
}

impl Side {
    const ALL: [Self; 2] = [Self::Public, Self::Admin];

    fn name(self) -> &'static str {
        match self {
            Self::Public => "public",
            Self::Admin => "admin",
        }
    }

    fn with_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|side| side.name() == name)
    }
}

/// Takes the passed sockets, and removes their variables from the environment. So
/// this must be called once, before any thread is started.
///
/// # Errors
/// Where a socket cannot be used, or its side is unknown.
pub fn inherited_sockets() -> Result<InheritedSockets, InheritedSocketError> {
    let mut sockets = ListenFd::from_env();
    let names = std::env::var("LISTEN_FDNAMES").ok();
    let sides = sides(sockets.len(), names.as_deref())?;
    let mut inherited = InheritedSockets::default();
    for (at, side) in sides.into_iter().enumerate() {
        let unusable = |error| InheritedSocketError::Unusable {
            number: at + 1,
            error,
        };
        let taken = sockets.take_tcp_listener(at).map_err(unusable)?;
        if let Some(socket) = &taken {
            prepare(socket).map_err(unusable)?;
        }
        match side {
            Side::Public => inherited.public = taken,
            Side::Admin => inherited.admin = taken,
        }
    }
    Ok(inherited)
}

/// The side of each socket: by name where at least one has a known name, else by
/// position. systemd's default name is that of the socket unit.
fn sides(count: usize, names: Option<&str>) -> Result<Vec<Side>, InheritedSocketError> {
    let names: Vec<_> = names.map_or_else(Vec::new, |names| names.split(':').collect());
    if !names.iter().any(|name| Side::with_name(name).is_some()) {
        let sides = Side::ALL.get(..count);
        return Ok(sides.ok_or(InheritedSocketError::TooMany(count))?.to_vec());
    }
    let mut sides = Vec::new();
    for at in 0..count {
        let name = names.get(at).copied().unwrap_or("");
        let side = Side::with_name(name);
        let side = side.ok_or_else(|| InheritedSocketError::Name(at + 1, name.to_owned()))?;
        if sides.contains(&side) {
            return Err(InheritedSocketError::Twice(side.name()));
        }
        sides.push(side);
    }
    Ok(sides)
}

/// Makes a listening socket non-blocking, as tokio needs it.
fn prepare(socket: &TcpListener) -> io::Result<()> {
    if !socket_acceptconn(socket)? {
        return Err(io::Error::other("it does not listen"));
    }
    socket.set_nonblocking(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_side_of_each_socket() {
        use Side::{Admin, Public};
        for (count, names, expected) in [
            (0, None, Ok(&[][..])),
            (1, None, Ok(&[Public])),
            (2, None, Ok(&[Public, Admin])),
            (3, None, Err("3 sockets")),
            (
                2,
                Some("ordgate.socket:ordgate.socket"),
                Ok(&[Public, Admin]),
            ),
            (1, Some("admin"), Ok(&[Admin])),
            (2, Some("admin:public"), Ok(&[Admin, Public])),
            (2, Some("public:ordgate.socket"), Err("socket 2")),
            (2, Some("public"), Err("socket 2")),
            (2, Some("public:public"), Err("two sockets")),
            (1, Some("public:admin"), Ok(&[Public])),
        ] {
            let found = sides(count, names);
            match (found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{names:?}"),
                (Err(error), Err(words)) => {
                    assert!(error.to_string().contains(words), "{error}");
                }
                (found, _) => panic!("{count} {names:?}: {found:?}"),
            }
        }
    }

    #[test]
    fn a_socket_that_does_not_listen_is_refused() {
        let listens = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(prepare(&listens).is_ok());
        let stream = std::net::TcpStream::connect(listens.local_addr().unwrap()).unwrap();
        let not = TcpListener::from(std::os::fd::OwnedFd::from(stream));
        let error = prepare(&not).unwrap_err().to_string();
        assert!(error.contains("does not listen"), "{error}");
    }
}
