//! TLS on a client's connection: the handshake, and the stream inside.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};

use bytes::BytesMut;
use rustls::server::Acceptor as HelloAcceptor;
use rustls::{HandshakeKind, ProtocolVersion};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::yield_now;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::LazyConfigAcceptor;

use super::Acceptor;
use super::connection::Protocol;
use super::establish::Accepted;
use super::socket::{ClientStream, ReadAhead, StreamControl};
use crate::connections::OverLimit;
use crate::identify::Client;
use crate::meter::TlsCounts;
use crate::tls::TlsServer;

/// Encrypted bytes that rustls holds at most while a client reads nothing. With less than a record and a half, a large
/// answer takes two writes for each record.
const SEND_BUFFER: usize = 32 * 1024;

/// What TLS runs over. Behind a pointer: HTTP over TLS is then compiled once, not for
/// each kind of socket.
pub(super) type Transport = ReadAhead<Box<dyn ClientStream>>;

/// Why there is no TLS.
enum NoTls {
    /// The connection ended before a whole ClientHello had come.
    Closed,
    Failed(io::Error),
    Over(OverLimit),
}

impl Acceptor {
    /// Does the handshake, and serves the connection to its end.
    pub(super) async fn serve_tls(
        &self,
        transport: Transport,
        server: Arc<TlsServer>,
        mut accepted: Accepted,
        deadline: Instant,
    ) {
        let counts = &self.totals.tls;
        let handshake = self.handshake(transport, &server, &mut accepted, deadline);
        let stream = match timeout_at(deadline, handshake).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(why)) => {
                let count = match why {
                    NoTls::Closed => &counts.closed,
                    NoTls::Failed(error) => {
                        tracing::debug!(peer = %accepted.peer, %error, "the TLS handshake failed");
                        &counts.failed
                    }
                    NoTls::Over(OverLimit::Total) => &counts.over_limit,
                    NoTls::Over(OverLimit::Client) => &counts.over_client_limit,
                };
                count.fetch_add(1, Relaxed);
                return;
            }
            Err(_elapsed) => {
                counts.too_slow.fetch_add(1, Relaxed);
                return;
            }
        };
        drop(server);
        stream.count(counts);
        let protocol = stream.protocol();
        self.serve_http(stream, BytesMut::new(), accepted, protocol)
            .await;
    }

    async fn handshake(
        &self,
        transport: Transport,
        server: &TlsServer,
        accepted: &mut Accepted,
        deadline: Instant,
    ) -> Result<TlsStream, NoTls> {
        let hello = LazyConfigAcceptor::new(HelloAcceptor::default(), transport);
        let start = tokio::select! {
            biased;
            start = hello => start,
            () = accepted.drained() => return Err(NoTls::Closed),
        };
        let start = start.map_err(|error| match error.kind() == io::ErrorKind::InvalidData {
            true => NoTls::Failed(error),
            false => NoTls::Closed,
        })?;
        let settings = &accepted.settings;
        let limit = settings.settings.per_client;
        let limit = limit.filter(|_| !settings.trust.contains(accepted.peer));
        let limit =
            limit.map(|limit| (Client::from(accepted.peer), limit.tls_handshakes_per_second));
        let slot = self.handshakes.begin(limit, self.clock.now());
        let slot = timeout_at(deadline, slot).await;
        let slot = slot.unwrap_or(Err(OverLimit::Total)).map_err(NoTls::Over)?;
        let bound_buffer = |connection: &mut rustls::ServerConnection| {
            connection.set_buffer_limit(Some(SEND_BUFFER));
        };
        // This agrees on the keys and signs, which is nearly all of the work.
        let handshake = start.into_stream_with(server.config(), bound_buffer);
        // The worker's other tasks run before the slot is free for another handshake.
        yield_now().await;
        drop(slot);
        handshake.await.map(TlsStream).map_err(NoTls::Failed)
    }
}

/// What is inside a TLS connection.
pub(super) struct TlsStream(tokio_rustls::server::TlsStream<Transport>);

impl TlsStream {
    /// What ALPN has chosen, and the client must speak (RFC 9113 §3.2). Without ALPN, it
    /// may still begin with the preface of HTTP/2.
    fn protocol(&self) -> Option<Protocol> {
        let chosen = self.0.get_ref().1.alpn_protocol()?;
        Some(match chosen {
            b"h2" => Protocol::Http2,
            _ => Protocol::Http1,
        })
    }

    fn count(&self, counts: &TlsCounts) {
        let (_, connection) = self.0.get_ref();
        let version = usize::from(connection.protocol_version() == Some(ProtocolVersion::TLSv1_3));
        let resumed = usize::from(connection.handshake_kind() == Some(HandshakeKind::Resumed));
        counts.succeeded[version][resumed].fetch_add(1, Relaxed);
    }
}

impl StreamControl for TlsStream {
    fn reset_on_close(&self) {
        self.0.get_ref().0.reset_on_close();
    }
}

impl AsyncRead for TlsStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match ready!(Pin::new(&mut self.get_mut().0).poll_read(cx, buf)) {
            // Many clients close without close_notify. HTTP's own framing shows
            // whether a request is complete.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Poll::Ready(Ok(())),
            read => Poll::Ready(read),
        }
    }
}

impl AsyncWrite for TlsStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().0).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().0).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().0).poll_shutdown(cx)
    }
}
