//! From an accepted socket to HTTP: the PROXY header, TLS, then the version.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::{Instant, sleep, timeout_at};

use super::client_connections::CountedConnection;
use super::guard::Protocol;
use super::http1::DRAIN_GRACE;
use super::proxy_header::{self, MAX_HEADER, ProxyHeaderError};
use super::socket::{ClientSocket, ClientStream, ReadAhead};
use super::{Acceptor, ConnectionSettings, Drain, ListenerProtocol, OpenConnection};

/// How long the PROXY header and the TLS handshake may take together.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A connection that is counted and not served yet.
pub(super) struct Accepted {
    /// The address of its other end, or of the client that a PROXY header names.
    pub(super) peer: IpAddr,
    pub(super) settings: Arc<ConnectionSettings>,
    pub(super) protocol: Arc<ListenerProtocol>,
    pub(super) drain: Drain,
    /// Ends with the connection.
    pub(super) open: OpenConnection,
    pub(super) counted: Option<CountedConnection>,
}

impl Accepted {
    /// Waits until the listener has closed, and a little longer: what is on its way then
    /// is still served.
    pub(super) async fn drained(&mut self) {
        // The listener never reopens, and nothing else ends it.
        let _ = self.drain.wait_for(|drain| *drain).await;
        sleep(DRAIN_GRACE).await;
    }
}

impl Acceptor {
    /// Serves a connection to its end.
    pub(super) async fn serve(&self, socket: ClientSocket, accepted: Accepted) {
        match socket {
            ClientSocket::Tcp(stream) => {
                // Without TCP_NODELAY, small answers wait for the client's delayed
                // ACK. A socket that refuses the option is about to fail anyway.
                let _ = stream.set_nodelay(true);
                self.establish(stream, accepted).await;
            }
            ClientSocket::Unix(stream) => self.establish(stream, accepted).await,
        }
    }

    async fn establish<S: ClientStream>(&self, mut stream: S, mut accepted: Accepted) {
        if !accepted.protocol.proxy_header {
            return match accepted.protocol.tls.clone() {
                None => self.serve_http1(stream, accepted, Protocol::Unknown).await,
                Some(tls) => {
                    let transport = ReadAhead::new(Bytes::new(), Box::new(stream) as _);
                    let deadline = Instant::now() + TIMEOUT;
                    Box::pin(self.serve_tls(transport, tls, accepted, deadline)).await;
                }
            };
        }
        let deadline = Instant::now() + TIMEOUT;
        let read = read_proxy_header(&mut stream);
        let read = tokio::select! {
            biased;
            read = timeout_at(deadline, read) => read,
            () = accepted.drained() => return,
        };
        let (client, early) = match read {
            Ok(Ok(read)) => read,
            // There is no protocol in which to answer. A proxy that closes without
            // a byte checks whether the port is open.
            Ok(Err(HeaderFailure::Closed)) => return,
            Ok(Err(HeaderFailure::Io)) | Err(_) => {
                self.totals.proxy_header_refused.fetch_add(1, Relaxed);
                return;
            }
            Ok(Err(HeaderFailure::Invalid(why))) => {
                self.totals.proxy_header_refused.fetch_add(1, Relaxed);
                tracing::debug!(peer = %accepted.peer, "{why}: the connection is closed");
                return;
            }
        };
        if let Some(client) = client {
            accepted.peer = client;
            match self.count_client(client, &accepted.settings) {
                Ok(counted) => accepted.counted = counted,
                Err(limit) => {
                    let (settings, protocol) = (&accepted.settings, &accepted.protocol);
                    let stream = ReadAhead::new(early, stream);
                    return self
                        .reject(stream, (client, limit), settings, protocol)
                        .await;
                }
            }
        }
        match accepted.protocol.tls.clone() {
            None => {
                self.serve_http1(ReadAhead::new(early, stream), accepted, Protocol::Unknown)
                    .await;
            }
            Some(tls) => {
                let transport = ReadAhead::new(early, Box::new(stream) as _);
                Box::pin(self.serve_tls(transport, tls, accepted, deadline)).await;
            }
        }
    }
}

/// Why there is no PROXY header.
enum HeaderFailure {
    /// The connection ended before its first byte.
    Closed,
    Io,
    Invalid(ProxyHeaderError),
}

/// Reads a PROXY header: the client that it reports, and the bytes after it.
async fn read_proxy_header<S: AsyncRead + Unpin>(
    stream: &mut S,
) -> Result<(Option<IpAddr>, Bytes), HeaderFailure> {
    let mut bytes = BytesMut::with_capacity(MAX_HEADER);
    loop {
        let read = stream
            .read_buf(&mut bytes)
            .await
            .map_err(|_broken| HeaderFailure::Io)?;
        match (read, bytes.is_empty()) {
            (0, true) => return Err(HeaderFailure::Closed),
            (0, false) => return Err(HeaderFailure::Invalid(ProxyHeaderError::Malformed)),
            _ => {}
        }
        if let Some(header) = proxy_header::parse(&bytes).map_err(HeaderFailure::Invalid)? {
            let rest = bytes.split_off(header.length);
            return Ok((header.client, rest.freeze()));
        }
    }
}
