//! From an accepted socket to HTTP: the first byte, the PROXY header, TLS, the version.
//!
//! Until the first byte has come, a connection has a small task and its row in the table.

use std::future::poll_fn;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use rustls::server::Acceptor as HelloAcceptor;
use rustls::{HandshakeKind, ProtocolVersion, ServerConnection};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

use super::connection::DRAIN_GRACE;
use super::proxy_header;
use super::socket::{Socket, poll_peek};
use super::{Acceptor, ConnectionSettings, Drain, ListenerProtocol};
use crate::connections::OpenConnection;
use crate::identify::Client;
use crate::tls::TlsServer;

/// How long the PROXY header and the TLS handshake may take together.
const TIMEOUT: Duration = Duration::from_secs(5);
/// What a client begins with.
type FirstBytes = [u8; 4];
/// The same in HTTP/2 (RFC 9113 §3.4): no request in HTTP/1.1 has this method. A client whose
/// first packet has less of it is taken for HTTP/1.1, and its connection is closed.
const HTTP2_PREFACE: &FirstBytes = b"PRI ";
/// Encrypted bytes that rustls holds at most while a client reads nothing. With less than a
/// record and a half, a large answer takes two writes for each record.
const SEND_BUFFER: usize = 32 * 1024;

/// A connection that is in the table and not served yet.
pub(super) struct Accepted {
    /// The address of its other end, or of the client that a PROXY header names.
    pub(super) peer: IpAddr,
    /// Its number, which no other connection has.
    pub(super) number: u64,
    pub(super) settings: Arc<ConnectionSettings>,
    pub(super) protocol: Arc<ListenerProtocol>,
    pub(super) drain: Drain,
    pub(super) open: OpenConnection,
}

impl Accepted {
    /// The first bytes, which stay in the socket. There are none where nothing comes in time, or
    /// the listener closes; what is on its way then is still served.
    pub(super) async fn first_bytes(&mut self, socket: &Socket) -> Option<FirstBytes> {
        let mut wait = pin!(sleep(self.settings.settings.idle_timeout));
        let mut is_draining = false;
        loop {
            let mut start = FirstBytes::default();
            tokio::select! {
                biased;
                sent = poll_fn(|cx| poll_peek(socket, cx, &mut start)) => {
                    return sent.is_ok_and(|count| count > 0).then_some(start);
                }
                () = &mut wait => return None,
                // The listener never reopens, and nothing else ends it.
                _ = self.drain.wait_for(|drain| *drain), if !is_draining => {
                    is_draining = true;
                    wait.as_mut().reset(Instant::now() + DRAIN_GRACE);
                }
            }
        }
    }
}

impl Acceptor {
    /// Serves a connection that has sent something, to its end.
    pub(super) async fn begin(&self, mut socket: Socket, mut accepted: Accepted) {
        let deadline = Instant::now() + TIMEOUT;
        if accepted.protocol.proxy_header {
            let read = timeout_at(deadline, proxy_header::read(&mut socket)).await;
            let read = read.unwrap_or(Err(ErrorKind::TimedOut.into()));
            let Ok(client) = read.inspect_err(|error| {
                self.totals.proxy_header_refused.fetch_add(1, Relaxed);
                // There is no protocol in which to say why.
                tracing::debug!(peer = %accepted.peer, %error, "the connection is closed");
            }) else {
                return;
            };
            if let Some(client) = client {
                let gateway = self.current.load_full();
                if !accepted.open.enter(client, &gateway.clients.trust) {
                    return;
                }
                accepted.peer = client;
            }
        }
        let Some(tls) = accepted.protocol.tls.clone() else {
            if let Some(start) = accepted.first_bytes(&socket).await {
                let is_http2 = start == *HTTP2_PREFACE;
                self.serve_http(Either::Left(socket), is_http2, accepted)
                    .await;
            }
            return;
        };
        let counts = &self.totals.tls;
        let handshake = timeout_at(deadline, self.handshake(socket, &tls, &accepted, deadline));
        let stream = match handshake.await.unwrap_or(Err(&counts.too_slow)) {
            Ok(stream) => stream,
            Err(why) => {
                why.fetch_add(1, Relaxed);
                return;
            }
        };
        drop(tls);
        let (_, connection) = stream.get_ref();
        let version = usize::from(connection.protocol_version() == Some(ProtocolVersion::TLSv1_3));
        let resumed = usize::from(connection.handshake_kind() == Some(HandshakeKind::Resumed));
        counts.succeeded[version][resumed].fetch_add(1, Relaxed);
        // The client must speak what ALPN has chosen, and HTTP/1.1 without it (RFC 9113 §3.2).
        let is_http2 = connection.alpn_protocol() == Some(b"h2");
        let stream = Either::Right(Box::new(stream));
        self.serve_http(stream, is_http2, accepted).await;
    }

    /// Does the handshake of TLS; where it fails, returns the count of why.
    async fn handshake(
        &self,
        socket: Socket,
        server: &TlsServer,
        accepted: &Accepted,
        deadline: Instant,
    ) -> Result<TlsStream<Socket>, &AtomicU64> {
        let counts = &self.totals.tls;
        let hello = LazyConfigAcceptor::new(HelloAcceptor::default(), socket).await;
        let failed = |error| {
            tracing::debug!(peer = %accepted.peer, %error, "the TLS handshake failed");
            &counts.failed
        };
        let hello = hello.map_err(|error| match error.kind() == ErrorKind::InvalidData {
            true => failed(error),
            false => &counts.closed,
        })?;
        if let Some(handshakes) = &accepted.settings.handshakes
            && !self.current.load().clients.trust.contains(accepted.peer)
        {
            let client = Client::from(accepted.peer);
            let admitted = handshakes.admit(client, self.clock.now());
            admitted.map_err(|_too_many| &counts.over_client_limit)?;
        }
        // A slot is taken once a whole ClientHello has come, and given back before anything
        // is awaited from the client: no client can keep one.
        let slot = timeout_at(deadline, self.handshakes.acquire()).await;
        let slot = slot.map_err(|_elapsed| &counts.over_limit)?;
        let bound_buffer = |connection: &mut ServerConnection| {
            connection.set_buffer_limit(Some(SEND_BUFFER));
        };
        // This agrees on the keys and signs, which is nearly all of the work.
        let handshake = hello.into_stream_with(server.config.clone(), bound_buffer);
        // The worker's other tasks run before the slot is free for another handshake.
        yield_now().await;
        drop(slot);
        handshake.await.map_err(failed)
    }
}
