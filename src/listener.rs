//! The public listeners: accept connections, limit how many there are, and hand
//! each request to the gateway.
//!
//! `establish` reads the PROXY header, `tls` does the handshake. `http1` serves one connection: hyper parses,
//! behind `guard`, which refuses requests that two parsers could read differently;
//! `watch` decides when a connection ends for lack of progress. `serve` makes the
//! sockets and threads.

mod address;
mod client_connections;
mod establish;
mod guard;
mod handshakes;
mod http1;
mod http2;
pub mod proxy_header;
mod rejection;
mod socket;
mod tls;
mod watch;

use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use address::Permissions;
pub use address::{ListenAddress, address_hint};
use arc_swap::ArcSwap;
use client_connections::{ClientConnections, CountedConnection};
use establish::Accepted;
use handshakes::Handshakes;
use rejection::{PreparedRefusal, Rejections};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use socket::ClientSocket;
pub use socket::ListeningSocket;
use tokio::sync::watch as signal;
pub use watch::ConnectionTimeouts;

use crate::clock::Clock;
use crate::gateway::Gateway;
use crate::identify::TrustedProxies;
use crate::log_writer::LogInterval;
use crate::meter::Totals;
use crate::reason::Reason;
use crate::tls::{CertificateStatus, TlsServer, TlsSettings};
use crate::unsent::UnsentBounds;
use crate::wire::head::HeadBounds;

/// How connections are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Concurrent connections; those beyond get 503.
    pub max_connections: u64,
    /// Bytes of a request's head.
    pub max_head_bytes: usize,
    /// Bytes of a request's target.
    pub max_target_bytes: usize,
    /// Field lines of a request.
    pub max_fields: usize,
    /// Bytes of answers that clients have not read yet, in total. Beyond it,
    /// connections of the clients that hold the most are closed.
    pub max_unsent_bytes: u64,
    /// Limits per client; `None` for no limits.
    pub per_client: Option<PerClient>,
    /// Timeouts of a connection.
    pub times: ConnectionTimeouts,
}

/// Limits per client. They do not apply to trusted proxies, which serve many
/// clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerClient {
    /// Concurrent connections; those beyond get 429.
    pub connections: u32,
    /// TLS handshakes per second; connections beyond are closed.
    pub tls_handshakes_per_second: u32,
    /// Bytes of answers that the client has not read yet. Beyond it, its
    /// longest-stalled connections are reset, until one is left.
    pub unsent_bytes: u64,
}

/// The most bytes of a request's target, and field lines of its head.
pub(crate) const MAX_TARGET_BYTES: usize = 8 << 10;
pub(crate) const MAX_FIELDS: usize = 100;
/// How long an answer may take once the client has closed its side of the connection.
pub(crate) const HALF_CLOSED_TIMEOUT: Duration = Duration::from_secs(10);

impl Settings {
    fn head_bounds(&self) -> HeadBounds {
        HeadBounds {
            head: self.max_head_bytes,
            target: self.max_target_bytes,
            fields: self.max_fields,
        }
    }

    fn unsent_bounds(&self) -> UnsentBounds {
        UnsentBounds {
            total: self.max_unsent_bytes,
            per_client: self.per_client.map(|client| client.unsent_bytes),
        }
    }
}

/// The gateway that serves now; a reload replaces it. Each connection checks for a
/// replacement once per request.
pub type Current = Arc<ArcSwap<Gateway>>;

/// `true` once the gateway drains.
pub type Drain = signal::Receiver<bool>;

/// Who serves the connections that wait in a listening socket's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backlog {
    /// This process alone: it serves them before it ends.
    Ours,
    /// The socket was inherited and outlives this process, which leaves them to
    /// the next one.
    Shared,
}

/// One public listener, which each of its accept loops shares.
pub struct Listener {
    /// What its connections begin with; a reload may change it for new ones.
    pub protocol: ArcSwap<ListenerProtocol>,
    /// `true` once it accepts no more connections.
    pub drain: signal::Sender<bool>,
}

/// A listener with settings of its own: [[listener]].
///
/// Other addresses and modes need a restart.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListenerSettings {
    /// A name of a-z, 0-9 and -, which selects a socket from systemd (FileDescriptorName=).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The address and port, or "unix:/path".
    pub address: ListenAddress,
    /// The permissions of a unix socket's file, in octal digits: who may connect.
    #[serde(default = "Permissions::default", with = "Permissions")]
    #[schemars(with = "String")]
    pub mode: u32,
    /// Whether each connection begins with a PROXY header, version 1 or 2, which has the
    /// client's address.
    ///
    /// Only the proxies in clients.trusted_proxies may connect then; others are
    /// disconnected.
    #[serde(default)]
    pub proxy_protocol: bool,
    /// TLS; without it, the listener speaks cleartext.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<TlsSettings>,
}

impl ListenerSettings {
    /// A listener with no settings but its address.
    pub fn at(address: ListenAddress) -> Self {
        Self {
            name: None,
            address,
            mode: Permissions::default(),
            proxy_protocol: false,
            tls: None,
        }
    }

    /// What messages call it.
    pub(crate) fn key(&self) -> String {
        match &self.name {
            Some(name) => format!("the address of the listener \"{name}\""),
            None => "server.listen".to_owned(),
        }
    }
}

/// A public listener that is open.
#[derive(Clone, Debug)]
pub struct BoundListener {
    /// Where it listens; the port is never 0.
    pub address: ListenAddress,
    /// How it is configured.
    pub settings: ListenerSettings,
    /// The certificates in use.
    pub certificates: Vec<CertificateStatus>,
}

impl BoundListener {
    /// Its address as a URL; a unix socket has none.
    pub fn url(&self) -> String {
        match (&self.address, &self.settings.tls) {
            (ListenAddress::Tcp(address), None) => format!("http://{address}"),
            (ListenAddress::Tcp(address), Some(_)) => format!("https://{address}"),
            (unix @ ListenAddress::Unix(_), _) => unix.to_string(),
        }
    }
}

/// What the connections of a listener begin with.
#[derive(Debug)]
pub struct ListenerProtocol {
    /// Whether each begins with a PROXY header. Then only trusted proxies may
    /// connect.
    pub proxy_header: bool,
    /// TLS, which follows the PROXY header; none for cleartext.
    pub tls: Option<Arc<TlsServer>>,
}

impl ListenerProtocol {
    /// That of a listener with these settings, and with its certificates.
    pub fn of(settings: &ListenerSettings, tls: Option<Arc<TlsServer>>) -> Self {
        Self {
            proxy_header: settings.proxy_protocol,
            tls,
        }
    }
}

/// What every accept loop shares.
pub struct Acceptor {
    current: Current,
    totals: Arc<Totals>,
    clock: Clock,
    connection_settings: ArcSwap<ConnectionSettings>,
    next_connection: AtomicU64,
    rejections: Rejections,
    clients: Arc<ClientConnections>,
    handshakes: Handshakes,
}

/// How new connections are served.
struct ConnectionSettings {
    settings: Settings,
    /// The proxies whose PROXY headers are believed, and which have no limits per
    /// client.
    trust: TrustedProxies,
    /// Prepared 503 for connections over `max_connections`.
    over_total: PreparedRefusal,
    /// Prepared 429 for connections over a client's limit.
    over_client: PreparedRefusal,
}

/// The limit that a connection exceeds.
#[derive(Clone, Copy)]
enum OverLimit {
    /// That of all clients, such as `max_connections`.
    Total,
    /// That of one client, such as `PerClient::connections`.
    Client,
}

impl OverLimit {
    fn reason(self) -> Reason {
        match self {
            Self::Total => Reason::TooManyConnections,
            Self::Client => Reason::TooManyClientConnections,
        }
    }
}

impl Acceptor {
    /// Accepts connections for the current gateway, on this number of threads.
    pub fn new(current: Current, settings: Settings, workers: usize) -> Arc<Self> {
        let gateway = current.load_full();
        gateway.meter().totals.unsent.set(settings.unsent_bounds());
        Arc::new(Self {
            totals: gateway.meter().totals.clone(),
            clock: gateway.clock.clone(),
            connection_settings: ArcSwap::from_pointee(ConnectionSettings::of(&gateway, settings)),
            current,
            next_connection: AtomicU64::new(1),
            rejections: Rejections::default(),
            clients: Arc::default(),
            handshakes: Handshakes::new(workers),
        })
    }

    /// Uses other settings, and the current gateway's refusals, for new
    /// connections.
    pub fn apply(&self, settings: Settings) {
        let next = ConnectionSettings::of(&self.current.load_full(), settings);
        self.totals.unsent.set(settings.unsent_bounds());
        self.connection_settings.store(Arc::new(next));
    }

    fn log_not_accepted(&self, error: &io::Error) {
        let log = &self.totals.not_accepted;
        if log.is_due(LogInterval::MINUTE, self.clock.now()) {
            tracing::warn!(%error, "connections cannot be accepted; this is logged again a minute later at the earliest");
        }
    }

    /// Accepts from a socket until its listener drains. Each connection is a task of
    /// the runtime that this runs on.
    ///
    /// # Errors
    /// Where the runtime cannot use the socket.
    pub async fn accept(
        self: Arc<Self>,
        socket: ListeningSocket,
        listener: Arc<Listener>,
        backlog: Backlog,
    ) -> io::Result<()> {
        let socket = socket.register()?;
        let mut drain = listener.drain.subscribe();
        let mut draining = pin!(drain.wait_for(|drain| *drain));
        loop {
            let accepted = tokio::select! {
                biased;
                _ = &mut draining => break,
                accepted = socket.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => self.admit(stream, peer, &listener),
                Err(error) => {
                    // Any other error, such as a lack of file descriptors, lasts
                    // until a connection ends: wait a little.
                    if !is_connection_error(&error) {
                        self.log_not_accepted(&error);
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                }
            }
        }
        if backlog == Backlog::Shared {
            return Ok(());
        }
        // Serves the connections that the kernel has already completed.
        let socket = socket.into_std()?;
        loop {
            match socket.accept_completed() {
                Ok((stream, peer)) => self.admit(stream, peer, &listener),
                Err(error) if is_connection_error(&error) => {}
                Err(_no_more) => return Ok(()),
            }
        }
    }

    fn admit(self: &Arc<Self>, socket: ClientSocket, peer: IpAddr, listener: &Listener) {
        let totals = &self.totals;
        let settings = self.connection_settings.load_full();
        let protocol = listener.protocol.load_full();
        totals.accepted.fetch_add(1, Relaxed);
        if protocol.proxy_header && !settings.trust.contains(peer) {
            // Anyone could claim any address.
            totals.proxy_header_refused.fetch_add(1, Relaxed);
            tracing::debug!(%peer, "not a trusted proxy: the connection is closed");
            return;
        }
        let acceptor = self.clone();
        let counted = self
            .count_total(&settings)
            .and_then(|open| Ok((open, self.count_client(peer, &settings)?)));
        match counted {
            Ok((open, counted)) => {
                let accepted = Accepted {
                    peer,
                    settings,
                    protocol,
                    drain: listener.drain.subscribe(),
                    open,
                    counted,
                };
                tokio::spawn(async move { acceptor.serve(socket, accepted).await });
            }
            Err(limit) => {
                let rejected = (peer, limit);
                tokio::spawn(async move {
                    match socket {
                        ClientSocket::Tcp(stream) => {
                            acceptor
                                .reject(stream, rejected, &settings, &protocol)
                                .await;
                        }
                        ClientSocket::Unix(stream) => {
                            acceptor
                                .reject(stream, rejected, &settings, &protocol)
                                .await;
                        }
                    }
                });
            }
        }
    }

    /// Counts a connection, unless there are `max_connections`.
    fn count_total(&self, settings: &ConnectionSettings) -> Result<OpenConnection, OverLimit> {
        let before = self.totals.connections.fetch_add(1, Relaxed);
        let open = OpenConnection(self.totals.clone());
        match before < settings.settings.max_connections {
            true => Ok(open),
            false => Err(OverLimit::Total),
        }
    }

    /// Counts a connection for its address, unless that is at its limit.
    fn count_client(
        &self,
        peer: IpAddr,
        settings: &ConnectionSettings,
    ) -> Result<Option<CountedConnection>, OverLimit> {
        let limit = settings.settings.per_client;
        let Some(limit) = limit.filter(|_| !settings.trust.contains(peer)) else {
            return Ok(None);
        };
        let counted = self.clients.admit(peer.into(), limit.connections);
        counted.map(Some).ok_or(OverLimit::Client)
    }
}

/// Whether an error of `accept` concerns only that one connection.
pub(crate) fn is_connection_error(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
    )
}

/// Counts an open connection until it is dropped.
struct OpenConnection(Arc<Totals>);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Relaxed);
    }
}
