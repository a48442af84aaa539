//! Listening sockets that the supervisor passes (sd_listen_fds(3)). They outlive
//! the process: while it restarts, new connections wait in their queues.

use std::io;
use std::os::fd::AsFd;

use listenfd::ListenFd;
use rustix::net::sockopt::socket_acceptconn;

use crate::listener::{ListenAddress, ListeningSocket};

/// The sockets that were passed, which are used instead of binding new ones.
#[derive(Debug, Default)]
pub struct InheritedSockets(Vec<InheritedSocket>);

/// A socket that was passed.
#[derive(Debug)]
pub struct InheritedSocket {
    /// Its name (`FileDescriptorName=`); empty for none.
    name: String,
    /// The socket.
    pub(crate) socket: ListeningSocket,
}

/// Why the passed sockets cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InheritedSocketError {
    /// More than a public and an admin socket, without names.
    #[error(
        "{0} sockets were passed (LISTEN_FDS) without names of ordgate's; allowed are two, the public one first and then the admin one, or each by its name (FileDescriptorName=)"
    )]
    TooMany(usize),
    /// One has an unknown name, while another has a known one.
    #[error(
        "passed socket {number} has the name \"{name}\" (FileDescriptorName=); allowed are {allowed}"
    )]
    Name {
        /// Its number, from 1 on.
        number: usize,
        /// Its name.
        name: String,
        /// The names that sockets may have.
        allowed: String,
    },
    /// Two with the same name.
    #[error("two sockets that were passed have the name {0}; allowed is one")]
    Twice(String),
    /// Not a listening TCP or unix socket.
    #[error(
        "passed socket {number} is not a listening TCP or unix socket: {error}; ListenStream= with a port or a path makes one"
    )]
    Unusable {
        /// Its number, from 1 on.
        number: usize,
        /// What is wrong with it.
        error: io::Error,
    },
}

/// The name of the first public listener.
const PUBLIC: &str = "public";
/// The name of the admin listener.
const ADMIN: &str = "admin";

/// The use of a passed socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    /// The public listener of this number.
    Public(usize),
    Admin,
}

/// Takes the passed sockets, and removes their variables from the environment. So
/// this must be called once, before any thread is started.
///
/// # Errors
/// Where a socket cannot be used.
pub fn inherited_sockets() -> Result<InheritedSockets, InheritedSocketError> {
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':').map(str::to_owned);
    let mut sockets = ListenFd::from_env();
    let mut inherited = Vec::new();
    for at in 0..sockets.len() {
        let name = names.next().unwrap_or_default();
        let taken = take(&mut sockets, at).map_err(|error| InheritedSocketError::Unusable {
            number: at + 1,
            error,
        })?;
        inherited.extend(taken.map(|socket| InheritedSocket { name, socket }));
    }
    Ok(InheritedSockets(inherited))
}

/// Takes a passed socket, and makes it non-blocking, as tokio needs it.
fn take(sockets: &mut ListenFd, at: usize) -> io::Result<Option<ListeningSocket>> {
    let socket = match sockets.take_tcp_listener(at) {
        Ok(socket) => socket.map(ListeningSocket::Tcp),
        Err(not_tcp) => match sockets.take_unix_listener(at) {
            Ok(socket) => socket.map(ListeningSocket::Unix),
            Err(_neither) => return Err(not_tcp),
        },
    };
    match &socket {
        Some(ListeningSocket::Tcp(socket)) => {
            check_listens(socket)?;
            socket.set_nonblocking(true)?;
        }
        Some(ListeningSocket::Unix(socket)) => {
            check_listens(socket)?;
            socket.set_nonblocking(true)?;
        }
        None => {}
    }
    Ok(socket)
}

fn check_listens(socket: impl AsFd) -> io::Result<()> {
    match socket_acceptconn(socket)? {
        true => Ok(()),
        false => Err(io::Error::other("it does not listen")),
    }
}

impl InheritedSockets {
    /// Whether none were passed.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether all of them, the admin listener's too, are TCP sockets on loopback addresses; so
    /// it is if none were passed.
    pub fn are_loopback(&self) -> bool {
        let is_loopback = |one: &InheritedSocket| match &one.socket {
            ListeningSocket::Tcp(socket) => socket
                .local_addr()
                .is_ok_and(|address| ListenAddress::Tcp(address).is_loopback()),
            ListeningSocket::Unix(_) => false,
        };
        self.0.iter().all(is_loopback)
    }

    /// The socket of each public listener, by the listeners' names, and that of the
    /// admin listener.
    ///
    /// # Errors
    /// Where it is unknown what a socket is for.
    pub(crate) fn assign(
        self,
        listeners: &[Option<&str>],
    ) -> Result<(Vec<Option<InheritedSocket>>, Option<InheritedSocket>), InheritedSocketError> {
        let names: Vec<_> = self.0.iter().map(|socket| &*socket.name).collect();
        let sides = sides(&names, listeners)?;
        let mut public: Vec<_> = listeners.iter().map(|_| None).collect();
        let mut admin = None;
        for (side, socket) in sides.into_iter().zip(self.0) {
            let place = match side {
                Side::Public(number) => public.get_mut(number),
                Side::Admin => Some(&mut admin),
            };
            if let Some(place) = place {
                *place = Some(socket);
            }
        }
        Ok((public, admin))
    }
}

/// The side of each socket: by name where at least one has a known name, else by
/// position. systemd's default name is that of the socket unit.
fn sides(sockets: &[&str], listeners: &[Option<&str>]) -> Result<Vec<Side>, InheritedSocketError> {
    let with_name = |name: &str| match name {
        ADMIN => Some(Side::Admin),
        PUBLIC => (!listeners.is_empty()).then_some(Side::Public(0)),
        name => {
            let found = listeners.iter().position(|known| *known == Some(name));
            found.map(Side::Public)
        }
    };
    if !sockets.iter().any(|name| with_name(name).is_some()) {
        return match sockets.len() {
            0 => Ok(Vec::new()),
            1 => Ok(vec![Side::Public(0)]),
            2 => Ok(vec![Side::Public(0), Side::Admin]),
            count => Err(InheritedSocketError::TooMany(count)),
        };
    }
    let mut sides = Vec::new();
    for (number, name) in (1..).zip(sockets) {
        let side = with_name(name).ok_or_else(|| InheritedSocketError::Name {
            number,
            name: (*name).to_owned(),
            allowed: [PUBLIC, ADMIN]
                .into_iter()
                .chain(listeners.iter().copied().flatten())
                .collect::<Vec<_>>()
                .join(", "),
        })?;
        if sides.contains(&side) {
            return Err(InheritedSocketError::Twice((*name).to_owned()));
        }
        sides.push(side);
    }
    Ok(sides)
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn the_side_of_each_socket() {
        use Side::{Admin, Public};
        let listeners = [None, Some("edge"), None, Some("local")];
        type Row = (
            &'static [&'static str],
            Result<&'static [Side], &'static str>,
        );
        let rows: &[Row] = &[
            (&[], Ok(&[])),
            (&[""], Ok(&[Public(0)])),
            (&["", ""], Ok(&[Public(0), Admin])),
            (&["", "", ""], Err("3 sockets")),
            (
                &["ordgate.socket", "ordgate.socket"],
                Ok(&[Public(0), Admin]),
            ),
            (&["admin"], Ok(&[Admin])),
            (&["admin", "public"], Ok(&[Admin, Public(0)])),
            (
                &["local", "admin", "edge"],
                Ok(&[Public(3), Admin, Public(1)]),
            ),
            (
                &["public", "ordgate.socket"],
                Err("allowed are public, admin, edge, local"),
            ),
            (&["public", ""], Err("socket 2")),
            (&["public", "public"], Err("two sockets")),
            (&["edge", "edge"], Err("two sockets")),
        ];
        for (names, expected) in rows {
            match (sides(names, &listeners), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, *expected, "{names:?}"),
                (Err(error), Err(words)) => {
                    assert!(error.to_string().contains(words), "{error}");
                }
                (found, _) => panic!("{names:?}: {found:?}"),
            }
        }
    }
}
