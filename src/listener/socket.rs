//! Sockets: those that accept, and the streams of accepted connections.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, BorrowedFd};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::net::{RecvFlags, recv};
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

/// A listening socket that is not registered with a runtime.
#[derive(Debug)]
pub enum ListeningSocket {
    /// TCP.
    Tcp(std::net::TcpListener),
    /// A unix socket.
    Unix(std::os::unix::net::UnixListener),
}

impl ListeningSocket {
    /// Another handle of the same socket.
    ///
    /// # Errors
    /// Where there are no more file descriptors.
    pub fn try_clone(&self) -> io::Result<Self> {
        match self {
            Self::Tcp(socket) => socket.try_clone().map(Self::Tcp),
            Self::Unix(socket) => socket.try_clone().map(Self::Unix),
        }
    }

    /// Registers it with the runtime that this runs on.
    pub(super) fn register(self) -> io::Result<RegisteredSocket> {
        match self {
            Self::Tcp(socket) => TcpListener::from_std(socket).map(RegisteredSocket::Tcp),
            Self::Unix(socket) => UnixListener::from_std(socket).map(RegisteredSocket::Unix),
        }
    }
}

/// The address that counts for a connection on a unix socket, which has none: only
/// programs of this machine can open it.
const UNIX_PEER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A listening socket of a runtime.
pub(super) enum RegisteredSocket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl RegisteredSocket {
    /// The next connection, and the address of its other end.
    pub(super) async fn accept(&self) -> io::Result<(Socket, IpAddr)> {
        match self {
            Self::Tcp(socket) => {
                let (stream, peer) = socket.accept().await?;
                // Without TCP_NODELAY, small answers wait for the client's delayed
                // ACK. A socket that refuses the option is about to fail anyway.
                let _ = stream.set_nodelay(true);
                Ok((Either::Left(stream), peer.ip()))
            }
            Self::Unix(socket) => {
                let (stream, _) = socket.accept().await?;
                Ok((Either::Right(stream), UNIX_PEER))
            }
        }
    }
}

/// The socket of a connection.
pub(super) type Socket = Either<TcpStream, UnixStream>;

/// What HTTP is spoken on: a socket, or what is inside TLS on one.
pub(super) type Stream = Either<Socket, Box<TlsStream<Socket>>>;

/// Reads what the client has sent, and leaves it in the socket.
pub(super) fn poll_peek(
    socket: &Socket,
    cx: &mut Context<'_>,
    bytes: &mut [u8],
) -> Poll<io::Result<usize>> {
    loop {
        let mut peek = |fd: BorrowedFd<'_>| Ok(recv(fd, &mut *bytes, RecvFlags::PEEK)?.1);
        let peeked = match socket {
            Either::Left(tcp) => {
                ready!(tcp.poll_read_ready(cx))?;
                tcp.try_io(Interest::READABLE, || peek(tcp.as_fd()))
            }
            Either::Right(unix) => {
                ready!(unix.poll_read_ready(cx))?;
                unix.try_io(Interest::READABLE, || peek(unix.as_fd()))
            }
        };
        // The runtime may take a socket for readable before anything has come.
        if !matches!(&peeked, Err(error) if error.kind() == io::ErrorKind::WouldBlock) {
            return Poll::Ready(peeked);
        }
    }
}

/// Makes a stream reset the connection (RST) when it is dropped, so that the kernel also
/// drops the part of the answer that it holds. Unix sockets have no reset.
pub(super) fn reset_on_close(stream: &Stream) {
    let socket = match stream {
        Either::Left(socket) => socket,
        Either::Right(tls) => tls.get_ref().0,
    };
    if let Either::Left(tcp) = socket {
        // Where the socket refuses, the connection is closed normally.
        let _ = SockRef::from(tcp).set_linger(Some(Duration::ZERO));
    }
}
