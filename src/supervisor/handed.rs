//! Sockets that listen already, handed over by who starts the process
//! (sd_listen_fds(3)). They outlive it: connections that come while it is
//! restarted wait for its successor.

use std::io;
use std::net::TcpListener;

use listenfd::ListenFd;
use rustix::net::sockopt::socket_acceptconn;

/// What was handed over, to be used in place of binding.
#[derive(Debug, Default)]
pub struct Handed {
    /// Where clients come.
    pub public: Option<TcpListener>,
    /// Where the operator comes.
    pub admin: Option<TcpListener>,
}

/// Why what was handed over cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BadSockets {
    /// More than there are sides.
    #[error(
        "{0} sockets were handed over (LISTEN_FDS); allowed are two, the public one first and then the admin one, or each by its name"
    )]
    TooMany(usize),
    /// By the others' names it has none of ours.
    #[error(
        "socket {0} that was handed over has the name \"{1}\" (FileDescriptorName=); allowed are public and admin"
    )]
    Name(usize, String),
    /// Two for one side.
    #[error("two sockets that were handed over have the name {0}; allowed is one")]
    Twice(&'static str),
    /// It is none that connections can be accepted from.
    #[error(
        "socket {number} that was handed over is no TCP socket that listens: {error}; ListenStream= with a port makes one"
    )]
    Unusable {
        /// Which, from 1 on.
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

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|side| side.name() == name)
    }
}

/// Takes what was handed over, once. It takes variables out of the environment,
/// and so belongs before the first thread.
///
/// # Errors
/// Where a socket cannot be used, or it is not known for what.
pub fn handed() -> Result<Handed, BadSockets> {
    let mut sockets = ListenFd::from_env();
    let names = std::env::var("LISTEN_FDNAMES").ok();
    let sides = sides(sockets.len(), names.as_deref())?;
    let mut handed = Handed::default();
    for (at, side) in sides.into_iter().enumerate() {
        let unusable = |error| BadSockets::Unusable {
            number: at + 1,
            error,
        };
        let taken = sockets.take_tcp_listener(at).map_err(unusable)?;
        if let Some(socket) = &taken {
            usable(socket).map_err(unusable)?;
        }
        match side {
            Side::Public => handed.public = taken,
            Side::Admin => handed.admin = taken,
        }
    }
    Ok(handed)
}

/// Which side each socket is for: by name where one has a name of ours, else by
/// its place. systemd names a socket after its unit where it is not told better.
fn sides(count: usize, names: Option<&str>) -> Result<Vec<Side>, BadSockets> {
    let names: Vec<_> = names.map_or_else(Vec::new, |names| names.split(':').collect());
    if !names.iter().any(|name| Side::named(name).is_some()) {
        let sides = Side::ALL.get(..count).ok_or(BadSockets::TooMany(count))?;
        return Ok(sides.to_vec());
    }
    let mut sides = Vec::new();
    for at in 0..count {
        let name = names.get(at).copied().unwrap_or("");
        let side = Side::named(name);
        let side = side.ok_or_else(|| BadSockets::Name(at + 1, name.to_owned()))?;
        if sides.contains(&side) {
            return Err(BadSockets::Twice(side.name()));
        }
        sides.push(side);
    }
    Ok(sides)
}

/// Makes a socket as the runtimes want it, if it is one that listens.
fn usable(socket: &TcpListener) -> io::Result<()> {
    if !socket_acceptconn(socket)? {
        return Err(io::Error::other("it does not listen"));
    }
    socket.set_nonblocking(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_socket_is_for_what() {
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
    fn what_does_not_listen_is_told() {
        let listens = TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(usable(&listens).is_ok());
        let stream = std::net::TcpStream::connect(listens.local_addr().unwrap()).unwrap();
        let not = TcpListener::from(std::os::fd::OwnedFd::from(stream));
        let error = usable(&not).unwrap_err().to_string();
        assert!(error.contains("does not listen"), "{error}");
    }
}
