//! Sockets on loopback.

use std::net::SocketAddr;

use socket2::{Domain, Socket, Type};

/// A free port of this machine.
pub(crate) const ANY_PORT: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// A socket that is bound to this address, and does not listen. Several may be
/// bound, as long as one of them listens at the most: one that does not listen
/// keeps the port.
pub(crate) fn bound(address: SocketAddr) -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket.bind(&address.into()).unwrap();
    socket
}
