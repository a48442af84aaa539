//! The public listeners: accept connections, limit how many there are, and hand
//! each request to the gateway.
//!
//! `establish` waits for the first byte, reads the PROXY header and does the TLS handshake.
//! `connection` drives hyper and ends a connection that makes no progress; `io` is what hyper
//! reads and writes. `serve` makes the sockets and threads.

mod address;
mod connection;
mod establish;
mod http2;
mod io;
pub mod proxy_header;
mod socket;

use std::io::{Error, ErrorKind, Result};
use std::net::IpAddr;
use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

pub use address::ListenAddress;
use address::Permissions;
use arc_swap::ArcSwap;
use establish::Accepted;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
pub use socket::ListeningSocket;
use socket::Socket;
use tokio::sync::{Semaphore, watch as signal};
use tokio::time::sleep;

use crate::clock::Clock;
use crate::connections::Bounds;
use crate::gateway::Gateway;
use crate::limit::{self, ClientRate};
use crate::log_writer::LogInterval;
use crate::meter::Totals;
use crate::tls::{CertificateStatus, TlsServer, TlsSettings};

/// How connections are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// What connections may hold.
    pub bounds: Bounds,
    /// TLS handshakes of one client per second; connections beyond are closed. `None` for no
    /// limit. Trusted proxies, which serve many clients, have none.
    pub handshakes: Option<NonZeroU32>,
    /// Between requests.
    pub idle_timeout: Duration,
    /// While the client reads no byte of its answer.
    pub write_timeout: Duration,
}

/// The gateway that serves now; a reload replaces it. Each connection checks for a
/// replacement once per request.
pub type Current = Arc<ArcSwap<Gateway>>;

/// `true` once the gateway drains.
pub type Drain = signal::Receiver<bool>;

/// One public listener, which each of its accept loops shares.
pub struct Listener {
    /// What its connections begin with; a reload may change it for new ones.
    pub protocol: ArcSwap<ListenerProtocol>,
    /// `true` once it accepts no more connections.
    pub drain: signal::Sender<bool>,
    /// Whether its socket was inherited, and outlives this process: connections that wait in
    /// its queue are left to the next one.
    pub is_inherited: bool,
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
            None => "server.listen or an unnamed [[listener]]".to_owned(),
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
pub struct ListenerProtocol {
    /// Whether each begins with a PROXY header. Then only trusted proxies may
    /// connect.
    pub proxy_header: bool,
    /// TLS, which follows the PROXY header; none for cleartext.
    pub tls: Option<Arc<TlsServer>>,
}

/// TLS handshakes that are computed at a time, for each worker. One takes a hundred times the
/// CPU time of a stored answer; more wait in their order, within their deadline.
const HANDSHAKES_PER_WORKER: usize = 64;
/// How long a listener that drains still accepts: the kernel has completed connections of which
/// the runtime has not heard.
const LAST_CALL: Duration = Duration::from_millis(50);

/// What every accept loop shares.
pub struct Acceptor {
    current: Current,
    totals: Arc<Totals>,
    clock: Clock,
    connection_settings: ArcSwap<ConnectionSettings>,
    next_connection: AtomicU64,
    handshakes: Semaphore,
}

/// How new connections are served.
struct ConnectionSettings {
    settings: Settings,
    /// The limit on the handshakes of each client.
    handshakes: Option<Arc<ClientRate>>,
}

impl ConnectionSettings {
    fn new(settings: Settings, clock: &Clock, before: Option<&Self>) -> Self {
        let before = before.and_then(|before| before.handshakes.as_ref());
        let handshakes = settings.handshakes.map(|a_second| {
            let a_minute = a_second.saturating_mul(const { NonZeroU32::new(60).expect("not 0") });
            ClientRate::new(
                "handshakes",
                (a_minute, a_second),
                limit::MANY,
                clock,
                before,
            )
        });
        Self {
            settings,
            handshakes,
        }
    }
}

impl Acceptor {
    /// Accepts connections for the current gateway, on this number of threads.
    pub fn new(current: Current, settings: Settings, workers: usize) -> Arc<Self> {
        let gateway = current.load_full();
        gateway.meter().totals.connections.set(settings.bounds);
        let settings = ConnectionSettings::new(settings, &gateway.clock, None);
        Arc::new(Self {
            totals: gateway.meter().totals.clone(),
            clock: gateway.clock.clone(),
            connection_settings: ArcSwap::from_pointee(settings),
            current,
            next_connection: AtomicU64::new(1),
            handshakes: Semaphore::new(HANDSHAKES_PER_WORKER * workers),
        })
    }

    /// Uses other settings for new connections.
    pub fn apply(&self, settings: Settings) {
        self.totals.connections.set(settings.bounds);
        let before = self.connection_settings.load();
        let next = ConnectionSettings::new(settings, &self.clock, Some(&before));
        self.connection_settings.store(Arc::new(next));
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
    ) -> Result<()> {
        let socket = socket.register()?;
        let mut drain = listener.drain.subscribe();
        let mut closed = pin!(async {
            let _ = drain.wait_for(|drain| *drain).await;
            if !listener.is_inherited {
                sleep(LAST_CALL).await;
            }
        });
        loop {
            let accepted = tokio::select! {
                biased;
                () = &mut closed => return Ok(()),
                accepted = socket.accept() => accepted,
            };
            match accepted {
                Ok((socket, peer)) => self.admit(socket, peer, &listener),
                Err(error) if is_connection_error(&error) => {}
                // Any other error, such as a lack of file descriptors, lasts until a
                // connection ends: wait a little.
                Err(error) => {
                    if self
                        .totals
                        .not_accepted
                        .is_due(LogInterval::MINUTE, self.clock.now())
                    {
                        tracing::warn!(%error, "connections cannot be accepted; this is logged again a minute later at the earliest");
                    }
                    sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }

    fn admit(self: &Arc<Self>, socket: Socket, peer: IpAddr, listener: &Listener) {
        let totals = &self.totals;
        let settings = self.connection_settings.load_full();
        let gateway = self.current.load();
        let trust = &gateway.clients.trust;
        let protocol = listener.protocol.load_full();
        totals.accepted.fetch_add(1, Relaxed);
        if protocol.proxy_header && !trust.contains(peer) {
            // Anyone could claim any address.
            totals.proxy_header_refused.fetch_add(1, Relaxed);
            tracing::debug!(%peer, "not a trusted proxy: the connection is closed");
            return;
        }
        let number = self.next_connection.fetch_add(1, Relaxed);
        let table = &totals.connections;
        let Some(open) = table.open(peer, trust, number, &self.clock) else {
            return;
        };
        let activity = open.activity().clone();
        let mut accepted = Accepted {
            peer,
            number,
            settings,
            protocol,
            drain: listener.drain.subscribe(),
            open,
        };
        let acceptor = self.clone();
        let served = async move {
            if accepted.first_bytes(&socket).await.is_some() {
                // In memory of its own: many connections never come here.
                Box::pin(acceptor.begin(socket, accepted)).await;
            }
        };
        activity.set_task(tokio::spawn(served).abort_handle());
    }
}

/// Whether an error of `accept` concerns only that one connection.
pub(crate) fn is_connection_error(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset | ErrorKind::ConnectionRefused
    )
}
