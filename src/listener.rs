//! The public listener: accepts connections, limits how many there are, and hands
//! each request to the gateway.
//!
//! `connection` serves one connection: hyper parses, behind `guard`, which
//! refuses requests that two parsers could read differently; `watch` decides when
//! a connection ends for lack of progress. `serve` makes the sockets and threads.

mod client_connections;
mod connection;
mod guard;
mod rejection;
mod watch;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use arc_swap::ArcSwap;
use client_connections::{ClientConnections, CountedConnection};
use rejection::Rejections;
use serde::Serialize;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch as signal;
pub use watch::ConnectionTimeouts;

use crate::clock::Clock;
use crate::gateway::Gateway;
use crate::identify::TrustedProxies;
use crate::meter::Totals;
use crate::unsent::UnsentBounds;
use crate::wire::head::HeadBounds;

/// How connections are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
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
    #[serde(serialize_with = "crate::units::serialize_size")]
    pub max_unsent_bytes: u64,
    /// Limits per client; `None` for no limits.
    #[serde(skip)]
    pub per_client: Option<PerClient>,
    /// Timeouts of a connection.
    #[serde(flatten)]
    pub times: ConnectionTimeouts,
}

/// Limits per client. They do not apply to trusted proxies, which serve many
/// clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PerClient {
    /// Concurrent connections; those beyond get 429.
    pub connections: u32,
    /// Bytes of answers that the client has not read yet. Beyond it, its
    /// longest-stalled connections are reset, until one is left.
    #[serde(serialize_with = "crate::units::serialize_size")]
    pub unsent_bytes: u64,
}

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

/// What every accept loop shares.
pub struct Acceptor {
    current: Current,
    totals: Arc<Totals>,
    clock: Clock,
    connection_settings: ArcSwap<ConnectionSettings>,
    next_connection: AtomicU64,
    rejections: Rejections,
    clients: Arc<ClientConnections>,
}

/// How new connections are served.
struct ConnectionSettings {
    settings: Settings,
    /// Addresses without limits per client.
    exempt_from_client_limits: TrustedProxies,
    /// Prepared 503 for connections over `max_connections`.
    over_total: Vec<u8>,
    /// Prepared 429 for connections over a client's limit.
    over_client: Vec<u8>,
}

/// The limit that a connection exceeds.
#[derive(Clone, Copy)]
enum OverLimit {
    /// `max_connections`.
    Total,
    /// `PerClient::connections`.
    Client,
}

impl Acceptor {
    /// Accepts connections for the current gateway.
    pub fn new(current: Current, settings: Settings) -> Arc<Self> {
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
        })
    }

    /// Uses other settings, and the current gateway's refusals, for new
    /// connections.
    pub fn apply(&self, settings: Settings) {
        let next = ConnectionSettings::of(&self.current.load_full(), settings);
        self.totals.unsent.set(settings.unsent_bounds());
        self.connection_settings.store(Arc::new(next));
    }

    /// Accepts until the gateway drains. Each connection is a task of the runtime
    /// that this runs on.
    pub async fn accept(
        self: Arc<Self>,
        listener: TcpListener,
        backlog: Backlog,
        mut drain: Drain,
    ) {
        let stop = drain.clone();
        let mut draining = pin!(drain.wait_for(|drain| *drain));
        loop {
            let accepted = tokio::select! {
                biased;
                _ = &mut draining => break,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => self.admit(stream, peer, stop.clone()),
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    // Any other error, such as a lack of file descriptors, lasts
                    // until a connection ends: wait a little.
                    if !is_connection_error(&error) {
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                }
            }
        }
        if backlog == Backlog::Shared {
            return;
        }
        // Serves the connections that the kernel has already completed. The
        // runtime may not know of them yet, so this asks the socket itself.
        let Ok(listener) = listener.into_std() else {
            return;
        };
        loop {
            match listener.accept().and_then(into_tokio) {
                Ok((stream, peer)) => self.admit(stream, peer, stop.clone()),
                Err(error) if is_connection_error(&error) => {}
                Err(_no_more) => return,
            }
        }
    }

    fn admit(self: &Arc<Self>, stream: TcpStream, peer: SocketAddr, drain: Drain) {
        let totals = &self.totals;
        let settings = self.connection_settings.load_full();
        totals.accepted.fetch_add(1, Relaxed);
        let acceptor = self.clone();
        match self.count(peer.ip(), &settings) {
            Ok(counted) => {
                tokio::spawn(async move {
                    acceptor.serve(stream, peer.ip(), &settings, drain).await;
                    drop(counted);
                });
            }
            Err(limit) => {
                let rejected = match limit {
                    OverLimit::Total => &totals.turned_away,
                    OverLimit::Client => &totals.turned_away_client,
                };
                rejected.fetch_add(1, Relaxed);
                tokio::spawn(async move {
                    let answer = settings.refusal(limit);
                    acceptor.rejections.answer(stream, answer).await;
                });
            }
        }
    }

    /// Counts a connection, in total and for its address, unless either is at its
    /// limit.
    fn count(
        &self,
        peer: IpAddr,
        settings: &ConnectionSettings,
    ) -> Result<(OpenConnection, Option<CountedConnection>), OverLimit> {
        let before = self.totals.connections.fetch_add(1, Relaxed);
        let open = OpenConnection(self.totals.clone());
        if before >= settings.settings.max_connections {
            return Err(OverLimit::Total);
        }
        let limit = settings.settings.per_client;
        let Some(limit) = limit.filter(|_| !settings.exempt_from_client_limits.contains(peer))
        else {
            return Ok((open, None));
        };
        match self.clients.admit(peer.into(), limit.connections) {
            Some(counted) => Ok((open, Some(counted))),
            None => Err(OverLimit::Client),
        }
    }
}

/// A connection that was accepted without the runtime.
fn into_tokio(
    (stream, peer): (std::net::TcpStream, SocketAddr),
) -> io::Result<(TcpStream, SocketAddr)> {
    stream.set_nonblocking(true)?;
    Ok((TcpStream::from_std(stream)?, peer))
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
