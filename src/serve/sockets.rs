//! Listening sockets: bound here, or inherited from the supervisor.

use std::fs::{self, File, Permissions, TryLockError};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};

use super::StartError;
use super::listeners::LoadedListener;
use crate::listener::{Backlog, ListenAddress, ListeningSocket};
use crate::supervisor::{InheritedSocket, InheritedSockets};

/// Connections that may wait in a listening socket's queue.
const BACKLOG: i32 = 4096;
/// Bytes of an answer that the kernel buffers beyond those in flight. A larger
/// buffer takes memory, and a slow client would seem to read nothing while the
/// kernel empties it.
const UNSENT_LOW_WATERMARK: u32 = 64 * 1024;

/// How often, and with which pauses, the lock of a directory is tried.
const LOCK_ATTEMPTS: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// A socket that listens.
pub(super) struct BoundSocket {
    /// The file of a unix socket that this process has made. It is dropped before the
    /// socket.
    pub(super) file: Option<SocketFile>,
    pub(super) socket: ListeningSocket,
    /// Where it listens; the port is never 0.
    pub(super) address: ListenAddress,
    /// Whether connections that wait on it are left to the next process.
    pub(super) backlog: Backlog,
}

/// Uses the inherited sockets, or binds the configured addresses: those of the
/// public listeners, and that of the admin listener.
pub(super) fn open(
    listeners: &[LoadedListener],
    admin: SocketAddr,
    inherited: InheritedSockets,
) -> Result<(Vec<BoundSocket>, (TcpListener, SocketAddr)), StartError> {
    if listeners.is_empty() {
        return Err(StartError::NoListener);
    }
    let names = listeners.iter().map(|one| one.settings.name.as_deref());
    let names: Vec<_> = names.collect();
    let (mut passed, passed_admin) = inherited.assign(&names)?;
    let mut public = Vec::new();
    for (loaded, passed) in listeners.iter().zip(&mut passed) {
        let settings = &loaded.settings;
        public.push(match passed.take() {
            Some(socket) => inherit(&settings.key(), &settings.address, socket)?,
            None => loaded.bind()?,
        });
    }
    let admin = match passed_admin {
        Some(socket) => {
            let bound = inherit("admin.listen", &ListenAddress::Tcp(admin), socket)?;
            match (bound.socket, bound.address) {
                (ListeningSocket::Tcp(socket), ListenAddress::Tcp(address)) => (socket, address),
                (_, address) => return Err(StartError::AdminOnUnixSocket(address)),
            }
        }
        None => bind_tcp(admin)?,
    };
    Ok((public, admin))
}

fn inherit(
    key: &str,
    configured: &ListenAddress,
    inherited: InheritedSocket,
) -> Result<BoundSocket, StartError> {
    let unknown = |error| StartError::System {
        what: "the address of a socket",
        error,
    };
    let address = match &inherited.socket {
        ListeningSocket::Tcp(socket) => {
            bound_kernel_buffer(SockRef::from(socket));
            ListenAddress::Tcp(socket.local_addr().map_err(unknown)?)
        }
        ListeningSocket::Unix(socket) => {
            let address = socket.local_addr().map_err(unknown)?;
            ListenAddress::Unix(address.as_pathname().unwrap_or(Path::new("")).to_owned())
        }
    };
    if address != *configured {
        tracing::info!(
            "{key} is {configured}, but a socket on {address} was passed and is used instead"
        );
    }
    Ok(BoundSocket {
        socket: inherited.socket,
        address,
        file: None,
        backlog: Backlog::Shared,
    })
}

/// Binds an address. A unix socket's file gets these permissions; `[::]` is for IPv6 only,
/// or for IPv4 too.
pub(super) fn bind(
    address: &ListenAddress,
    mode: u32,
    is_ipv6_only: bool,
) -> Result<BoundSocket, StartError> {
    let (socket, address, file) = match address {
        ListenAddress::Tcp(address) => {
            let (socket, address) = bind_family(*address, is_ipv6_only)?;
            (
                ListeningSocket::Tcp(socket),
                ListenAddress::Tcp(address),
                None,
            )
        }
        ListenAddress::Unix(path) => {
            let bound = bind_unix(path, mode).map_err(|error| StartError::BindUnix {
                path: path.clone(),
                error,
            });
            let (socket, file) = bound?;
            (ListeningSocket::Unix(socket), address.clone(), Some(file))
        }
    };
    Ok(BoundSocket {
        socket,
        address,
        file,
        backlog: Backlog::Ours,
    })
}

/// A non-blocking listening socket, and the address that it is bound to.
///
/// # Errors
/// Where the address is in use or not this machine's.
pub fn bind_tcp(address: SocketAddr) -> Result<(TcpListener, SocketAddr), StartError> {
    bind_family(address, false)
}

fn bind_family(
    address: SocketAddr,
    is_ipv6_only: bool,
) -> Result<(TcpListener, SocketAddr), StartError> {
    let open = || -> io::Result<(TcpListener, SocketAddr)> {
        let socket = Socket::new(
            Domain::for_address(address),
            Type::STREAM,
            Some(Protocol::TCP),
        )?;
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
    open().map_err(|error| StartError::Bind { address, error })
}

fn bind_unix(path: &Path, mode: u32) -> io::Result<(UnixListener, SocketFile)> {
    let _lock = lock_directory(path);
    remove_stale(path)?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    let metadata = fs::symlink_metadata(path)?;
    let file = SocketFile {
        path: path.to_owned(),
        inode: (metadata.dev(), metadata.ino()),
    };
    // Nobody can connect before it listens.
    fs::set_permissions(path, Permissions::from_mode(mode))?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok((socket.into(), file))
}

/// Locks the directory of a unix socket, if that can be done soon. A process that starts at
/// the same time could otherwise take this one's socket, which is bound and does not listen
/// yet, for a stale one. Anybody who can read the directory can hold the lock: it must not
/// keep ordgate from starting.
fn lock_directory(path: &Path) -> Option<File> {
    let parent = path.parent().filter(|parent| *parent != Path::new(""));
    let directory = File::open(parent.unwrap_or(Path::new("."))).ok()?;
    for _ in 0..LOCK_ATTEMPTS {
        match directory.try_lock() {
            Ok(()) => return Some(directory),
            Err(TryLockError::WouldBlock) => thread::sleep(LOCK_PAUSE),
            // A file system without such locks.
            Err(TryLockError::Error(_)) => return None,
        }
    }
    None
}

/// Refuses a path at which there is something else than a socket. Returns whether there is a
/// socket.
pub(super) fn is_socket(path: &Path) -> io::Result<bool> {
    let metadata = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        metadata => metadata?,
    };
    match metadata.file_type().is_socket() {
        true => Ok(true),
        false => Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "there is a file of this name that is not a socket; remove it, or choose another path",
        )),
    }
}

/// Removes the file of a unix socket that nobody listens on: what a process leaves
/// behind when it is killed.
fn remove_stale(path: &Path) -> io::Result<()> {
    if !is_socket(path)? {
        return Ok(());
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
/// socket is closed: afterwards another process may replace the file, and the new one may
/// have the same inode number.
pub(super) struct SocketFile {
    path: PathBuf,
    /// Its device and inode numbers.
    inode: (u64, u64),
}

impl SocketFile {
    /// Changes its permissions.
    pub(super) fn set_mode(&self, mode: u32) {
        if self.is_unchanged()
            && let Err(error) = fs::set_permissions(&self.path, Permissions::from_mode(mode))
        {
            tracing::warn!(%error, "the mode of {} cannot be changed", self.path.display());
        }
    }

    /// Whether the path still leads to this socket: another process may have
    /// replaced it.
    fn is_unchanged(&self) -> bool {
        let metadata = fs::symlink_metadata(&self.path);
        metadata.is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == self.inode)
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.is_unchanged() {
            // A file that stays is stale for the next process.
            let _ = fs::remove_file(&self.path);
        }
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

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::sync::Barrier;

    use super::*;

    /// A regression: each of two processes took the other's socket, which did not listen
    /// yet, for a stale one, and removed its file.
    #[test]
    fn of_two_that_bind_at_once_one_has_the_path() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("http.sock");
        for round in 0..500 {
            // What a killed process leaves behind.
            drop(UnixListener::bind(&path).unwrap());
            let barrier = Barrier::new(2);
            let bind = || {
                barrier.wait();
                bind_unix(&path, 0o600)
            };
            let bound = thread::scope(|scope| {
                let other = scope.spawn(bind);
                [bind(), other.join().unwrap()]
            });
            let bound: Vec<_> = bound.into_iter().filter_map(Result::ok).collect();
            assert_eq!(bound.len(), 1, "round {round}");
            assert!(UnixStream::connect(&path).is_ok(), "round {round}");
            let (socket, file) = bound.into_iter().next().unwrap();
            drop(file);
            assert!(!path.exists());
            drop(socket);
        }
    }

    #[test]
    fn a_directory_that_stays_locked_keeps_nobody_from_starting() {
        let directory = tempfile::tempdir().unwrap();
        let lock = File::open(directory.path()).unwrap();
        lock.lock().unwrap();
        let path = directory.path().join("http.sock");
        let _socket = bind_unix(&path, 0o600).unwrap();
        assert!(UnixStream::connect(&path).is_ok());
    }
}
