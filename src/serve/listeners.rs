//! The public listeners: their sockets, and the loops that accept from them. They are opened
//! once. A reload may change their certificates, and whether they expect PROXY headers.

use std::fs::{self, Permissions};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use arc_swap::ArcSwap;
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};
use tokio::runtime::Handle;
use tokio::sync::watch;

use super::StartError;
use crate::listener::{
    Acceptor, BoundListener, ListenAddress, Listener, ListenerProtocol, ListenerSettings,
    ListeningSocket,
};
use crate::sync::lock;
use crate::tls::{Tls, TlsServer};

/// Connections that may wait in a listening socket's queue.
const BACKLOG: i32 = 4096;
/// Bytes of an answer that the kernel buffers beyond those in flight. A larger
/// buffer takes memory, and a slow client would seem to read nothing while the
/// kernel empties it.
const UNSENT_LOW_WATERMARK: u32 = 64 * 1024;

/// The public listeners.
pub(super) struct Listeners {
    tls: Tls,
    all: Vec<OpenListener>,
    /// Accept loops that have not ended.
    accepting: Arc<AtomicUsize>,
    is_draining: AtomicBool,
}

/// A public listener.
struct OpenListener {
    /// Where it listens; the port is never 0.
    bound: ListenAddress,
    settings: Mutex<ListenerSettings>,
    listener: Arc<Listener>,
    /// Its socket until it drains, after the file of a unix socket that this process has made.
    socket: Mutex<Option<(Option<SocketFile>, ListeningSocket)>>,
}

impl Listeners {
    /// Loads the certificates of listeners, and uses the sockets that the supervisor has
    /// passed, or binds the configured addresses. Nothing is accepted yet.
    ///
    /// # Errors
    /// Where an address cannot be used; everything that is wrong with the certificates.
    pub(super) fn open(
        wanted: &[ListenerSettings],
        passed: Vec<Option<ListeningSocket>>,
        tls: Tls,
        now: SystemTime,
    ) -> Result<Arc<Self>, StartError> {
        let mut all = Vec::new();
        let protocols = protocols(&tls, wanted, &[], now)?;
        for ((settings, passed), protocol) in wanted.iter().zip(passed).zip(protocols) {
            let address = &settings.address;
            let is_inherited = passed.is_some();
            let (socket, file, bound) = match passed {
                Some(socket) => {
                    let bound = inherited(&settings.key(), address, &socket)?;
                    (socket, None, bound)
                }
                None => match address {
                    ListenAddress::Tcp(tcp) => {
                        let mut others = wanted.iter();
                        let is_ipv6_only =
                            others.any(|other| address.leaves_ipv4_to(&other.address));
                        let (socket, bound) = bind_family(*tcp, is_ipv6_only)?;
                        (ListeningSocket::Tcp(socket), None, bound.into())
                    }
                    ListenAddress::Unix(path) => {
                        let bound = bind_unix(path, settings.mode);
                        let (socket, file) = bound.map_err(|error| StartError::Bind {
                            address: address.clone(),
                            error,
                        })?;
                        (ListeningSocket::Unix(socket), Some(file), address.clone())
                    }
                },
            };
            all.push(OpenListener {
                bound,
                settings: Mutex::new(settings.clone()),
                listener: Arc::new(Listener {
                    protocol: ArcSwap::from_pointee(protocol),
                    drain: watch::Sender::new(false),
                    is_inherited,
                }),
                socket: Mutex::new(Some((file, socket))),
            });
        }
        Ok(Arc::new(Self {
            all,
            tls,
            accepting: Arc::default(),
            is_draining: AtomicBool::new(false),
        }))
    }

    /// Accepts on each of these runtimes. All share one socket for each listener rather than
    /// the port: an idle worker accepts, and no other process can bind the port.
    ///
    /// # Errors
    /// Where there are no more file descriptors.
    pub(super) fn accept(
        &self,
        acceptor: &Arc<Acceptor>,
        workers: &[Handle],
    ) -> Result<(), StartError> {
        for open in &self.all {
            let held = lock(&open.socket);
            for (worker, (_, socket)) in workers.iter().zip(held.iter().cycle()) {
                let socket = socket.try_clone();
                let socket = socket.map_err(StartError::system("another handle of a socket"))?;
                let accept = acceptor.clone();
                let accept = accept.accept(socket, open.listener.clone());
                let (address, accepting) = (open.bound.clone(), self.accepting.clone());
                accepting.fetch_add(1, SeqCst);
                worker.spawn(async move {
                    if let Err(error) = accept.await {
                        tracing::error!(%error, "the socket {address} cannot be used");
                    }
                    accepting.fetch_sub(1, SeqCst);
                });
            }
        }
        Ok(())
    }

    /// Whether listeners with these settings listen where these do.
    pub(super) fn are_at(&self, wanted: &[ListenerSettings]) -> bool {
        let is_at = |(open, wanted): (&OpenListener, &ListenerSettings)| {
            let settings = lock(&open.settings);
            (&settings.address, settings.mode) == (&wanted.address, wanted.mode)
        };
        self.all.len() == wanted.len() && self.all.iter().zip(wanted).all(is_at)
    }

    /// Loads the certificates of these settings, apart from those that have not changed.
    ///
    /// # Errors
    /// Everything that is wrong with them.
    pub(super) fn load(
        &self,
        wanted: &[ListenerSettings],
        now: SystemTime,
    ) -> Result<Vec<ListenerProtocol>, StartError> {
        protocols(&self.tls, wanted, &self.certificates(), now)
    }

    /// Uses other settings, at the same addresses, for new connections.
    pub(super) fn apply(&self, wanted: Vec<ListenerSettings>, protocols: Vec<ListenerProtocol>) {
        for ((open, wanted), protocol) in self.all.iter().zip(wanted).zip(protocols) {
            open.listener.protocol.store(Arc::new(protocol));
            *lock(&open.settings) = wanted;
        }
    }

    /// Closes all, for good. Requests under way finish.
    pub(super) fn drain(&self) {
        for open in &self.all {
            *lock(&open.socket) = None;
            open.listener.drain.send_replace(true);
        }
        self.is_draining.store(true, SeqCst);
    }

    /// Whether they have been told to close.
    pub(super) fn are_draining(&self) -> bool {
        self.is_draining.load(SeqCst)
    }

    /// Whether no loop accepts any more.
    pub(super) fn are_closed(&self) -> bool {
        self.accepting.load(SeqCst) == 0
    }

    /// The address of each, how it is configured, and its certificates.
    pub(super) fn bound(&self, now: SystemTime) -> Vec<BoundListener> {
        let each = self.all.iter().map(|open| BoundListener {
            address: open.bound.clone(),
            settings: lock(&open.settings).clone(),
            certificates: open.tls().map_or_else(Vec::new, |tls| tls.status(now)),
        });
        each.collect()
    }

    /// Replaces the certificates whose files have changed.
    pub(super) fn reread_certificates(&self, now: SystemTime) {
        for server in self.certificates() {
            server.reread(now);
        }
    }

    /// The certificates in use.
    fn certificates(&self) -> Vec<Arc<TlsServer>> {
        self.all.iter().filter_map(OpenListener::tls).collect()
    }
}

impl OpenListener {
    fn tls(&self) -> Option<Arc<TlsServer>> {
        self.listener.protocol.load().tls.clone()
    }
}

/// What the connections of listeners begin with. Certificates in use that have not changed
/// are taken from there.
fn protocols(
    tls: &Tls,
    all: &[ListenerSettings],
    in_use: &[Arc<TlsServer>],
    now: SystemTime,
) -> Result<Vec<ListenerProtocol>, StartError> {
    let mut problems = Vec::new();
    let protocols = all.iter().map(|one| {
        let server = one.tls.as_ref().map(|of| tls.server(of, in_use, now));
        let server = server.transpose().unwrap_or_else(|found| {
            problems.extend(found);
            None
        });
        ListenerProtocol {
            proxy_header: one.proxy_protocol,
            tls: server,
        }
    });
    let protocols = protocols.collect();
    match problems.is_empty() {
        true => Ok(protocols),
        false => Err(StartError::Certificates(problems)),
    }
}

/// The address of a socket that was passed for a listener, whose address has this key.
fn inherited(
    key: &str,
    configured: &ListenAddress,
    socket: &ListeningSocket,
) -> Result<ListenAddress, StartError> {
    let address = match socket {
        ListeningSocket::Tcp(socket) => {
            bound_kernel_buffer(SockRef::from(socket));
            socket.local_addr().map(ListenAddress::Tcp)
        }
        ListeningSocket::Unix(socket) => socket.local_addr().map(|address| {
            ListenAddress::Unix(address.as_pathname().unwrap_or(Path::new("")).to_owned())
        }),
    };
    let address = address.map_err(StartError::system("the address of a socket"))?;
    if address != *configured {
        tracing::info!(
            "{key} is {configured}, but a socket on {address} was passed and is used instead"
        );
    }
    Ok(address)
}

/// The socket of the admin listener: the passed one, or else one that is bound.
pub(super) fn admin_socket(
    address: SocketAddr,
    passed: Option<ListeningSocket>,
) -> Result<(TcpListener, SocketAddr), StartError> {
    let Some(socket) = passed else {
        return bind_tcp(address);
    };
    let bound = inherited("admin.listen", &ListenAddress::Tcp(address), &socket)?;
    match (socket, bound) {
        (ListeningSocket::Tcp(socket), ListenAddress::Tcp(address)) => Ok((socket, address)),
        (_, address) => Err(StartError::AdminOnUnixSocket(address)),
    }
}

/// A non-blocking listening socket, and the address that it is bound to.
///
/// # Errors
/// Where the address is in use or not this machine's.
pub fn bind_tcp(address: SocketAddr) -> Result<(TcpListener, SocketAddr), StartError> {
    bind_family(address, false)
}

/// The same; `[::]` is for IPv6 only, or for IPv4 too.
fn bind_family(
    address: SocketAddr,
    is_ipv6_only: bool,
) -> Result<(TcpListener, SocketAddr), StartError> {
    let open = || -> io::Result<(TcpListener, SocketAddr)> {
        let domain = Domain::for_address(address);
        let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
        // Otherwise a restart fails until connections of the last run have left
        // TIME_WAIT.
        socket.set_reuse_address(true)?;
        if address.is_ipv6() && address.ip().is_unspecified() {
            socket.set_only_v6(is_ipv6_only)?;
        }
        bound_kernel_buffer(SockRef::from(&socket));
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        let listener = TcpListener::from(socket);
        let bound = listener.local_addr()?;
        Ok((listener, bound))
    };
    open().map_err(|error| StartError::Bind {
        address: ListenAddress::Tcp(address),
        error,
    })
}

fn bind_unix(path: &Path, mode: u32) -> io::Result<(UnixListener, SocketFile)> {
    remove_stale(path)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    let file = SocketFile(path.to_owned());
    // Nobody can connect before it listens.
    fs::set_permissions(path, Permissions::from_mode(mode))?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok((socket.into(), file))
}

/// Removes the file of a unix socket that nobody listens on: what a process leaves
/// behind when it is killed. Two processes that start at once on one path may take each
/// other's file for such a one.
fn remove_stale(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
        Ok(found) if found.file_type().is_socket() => {}
        Ok(_) => {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "there is a file of this name that is not a socket; remove it, or choose another path",
            ));
        }
    }
    let probe = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // A process whose queue is full would let this wait.
    probe.set_nonblocking(true)?;
    match probe.connect(&SockAddr::unix(path)?) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            tracing::info!(
                "{} is left from a process that has ended; it is replaced",
                path.display()
            );
            fs::remove_file(path)
        }
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
        Ok(()) | Err(_) => Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            "another process listens on it",
        )),
    }
}

/// The file of a unix socket, which is removed when this is dropped. That must be before the
/// socket is closed: afterwards it may be another process's.
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // A file that stays is stale for the next process.
        let _ = fs::remove_file(&self.0);
    }
}

/// Bounds what the kernel buffers of an answer. Accepted connections inherit the
/// option from the listening socket.
fn bound_kernel_buffer(socket: SockRef<'_>) {
    #[cfg(any(target_os = "android", target_os = "linux"))]
    if let Err(error) = socket.set_tcp_notsent_lowat(UNSENT_LOW_WATERMARK) {
        tracing::warn!(%error, "TCP_NOTSENT_LOWAT cannot be set: the kernel may buffer more of each answer");
    }
    #[cfg(not(any(target_os = "android", target_os = "linux")))]
    drop(socket);
}
