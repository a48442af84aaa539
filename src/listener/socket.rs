//! Sockets: those that accept, and the streams of accepted connections.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

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

    /// A connection that the kernel has already completed. The runtime may not know
    /// of it yet, so this asks the socket itself.
    pub(super) fn accept_completed(&self) -> io::Result<(ClientSocket, IpAddr)> {
        match self {
            Self::Tcp(socket) => {
                let (stream, peer) = socket.accept()?;
                stream.set_nonblocking(true)?;
                let stream = TcpStream::from_std(stream)?;
                Ok((ClientSocket::Tcp(stream), peer.ip()))
            }
            Self::Unix(socket) => {
                let (stream, _) = socket.accept()?;
                stream.set_nonblocking(true)?;
                let stream = UnixStream::from_std(stream)?;
                Ok((ClientSocket::Unix(stream), UNIX_PEER))
            }
        }
    }
}

/// A listening socket of a runtime.
pub(super) enum RegisteredSocket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl RegisteredSocket {
    pub(super) async fn accept(&self) -> io::Result<(ClientSocket, IpAddr)> {
        match self {
            Self::Tcp(socket) => {
                let (stream, peer) = socket.accept().await?;
                Ok((ClientSocket::Tcp(stream), peer.ip()))
            }
            Self::Unix(socket) => {
                let (stream, _) = socket.accept().await?;
                Ok((ClientSocket::Unix(stream), UNIX_PEER))
            }
        }
    }

    /// Takes it from the runtime again.
    pub(super) fn into_std(self) -> io::Result<ListeningSocket> {
        match self {
            Self::Tcp(socket) => socket.into_std().map(ListeningSocket::Tcp),
            Self::Unix(socket) => socket.into_std().map(ListeningSocket::Unix),
        }
    }
}

/// The address that counts for a connection on a unix socket, which has none: only
/// programs of this machine can open it.
const UNIX_PEER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// The stream of an accepted connection.
pub(super) enum ClientSocket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// What a client's stream has beside reading and writing.
pub(super) trait StreamControl {
    /// Makes the stream reset the connection (RST) when it is dropped, so that the
    /// kernel also drops the part of the answer that it holds.
    fn reset_on_close(&self);
}

impl StreamControl for TcpStream {
    fn reset_on_close(&self) {
        // Where the socket refuses, the connection is closed normally.
        let _ = SockRef::from(self).set_linger(Some(Duration::ZERO));
    }
}

impl StreamControl for UnixStream {
    /// Unix sockets have no reset.
    fn reset_on_close(&self) {}
}

impl<S: StreamControl + ?Sized> StreamControl for Box<S> {
    fn reset_on_close(&self) {
        (**self).reset_on_close();
    }
}

/// The stream of a client's connection, with whatever is between it and HTTP.
pub(super) trait ClientStream:
    AsyncRead + AsyncWrite + StreamControl + Send + Unpin + 'static
{
}

impl<S: AsyncRead + AsyncWrite + StreamControl + Send + Unpin + 'static> ClientStream for S {}

/// A stream of which some bytes have been read already.
pub(super) struct ReadAhead<S> {
    bytes: Bytes,
    io: S,
}

impl<S> ReadAhead<S> {
    pub(super) fn new(bytes: Bytes, io: S) -> Self {
        Self { bytes, io }
    }
}

impl<S: StreamControl> StreamControl for ReadAhead<S> {
    fn reset_on_close(&self) {
        self.io.reset_on_close();
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ReadAhead<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let stream = self.get_mut();
        if stream.bytes.is_empty() {
            return Pin::new(&mut stream.io).poll_read(cx, buf);
        }
        let count = stream.bytes.len().min(buf.remaining());
        buf.put_slice(&stream.bytes[..count]);
        stream.bytes.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ReadAhead<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }
}
