//! The listening sockets.

use std::io;
use std::net::{SocketAddr, TcpListener};

use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::StartError;
use crate::admin::Token;
use crate::config::Config;
use crate::listener::Backlog;
use crate::supervisor::InheritedSockets;

/// Connections that may wait in a listening socket's queue.
const BACKLOG: i32 = 4096;
/// Bytes of an answer that the kernel buffers beyond those in flight. A larger
/// buffer takes memory, and a slow client would seem to read nothing while the
/// kernel empties it.
const UNSENT_LOW_WATERMARK: u32 = 64 * 1024;

/// Both listening sockets, and the addresses that they are bound to.
pub(super) struct Sockets {
    pub(super) public: TcpListener,
    pub(super) public_address: SocketAddr,
    pub(super) admin: TcpListener,
    pub(super) admin_address: SocketAddr,
    /// Whether connections that wait on the public socket are left to the next
    /// process.
    pub(super) backlog: Backlog,
}

impl Sockets {
    /// Uses the inherited sockets, or binds the configured addresses.
    pub(super) fn open(
        config: &Config,
        inherited: InheritedSockets,
        admin_token: Option<&Token>,
    ) -> Result<Self, StartError> {
        let backlog = match inherited.public {
            Some(_) => Backlog::Shared,
            None => Backlog::Ours,
        };
        let public = socket("server.listen", config.server.listen, inherited.public)?;
        let admin = socket("admin.listen", config.admin.listen, inherited.admin)?;
        let (public_address, admin_address) = (address(&public)?, address(&admin)?);
        match StartError::open_admin(admin_address, admin_token) {
            Some(why) => Err(why),
            None => Ok(Self {
                public,
                public_address,
                admin,
                admin_address,
                backlog,
            }),
        }
    }
}

fn socket(
    key: &str,
    configured: SocketAddr,
    inherited: Option<TcpListener>,
) -> Result<TcpListener, StartError> {
    let Some(socket) = inherited else {
        return Ok(bind(configured)?.0);
    };
    bound_kernel_buffer(SockRef::from(&socket));
    let address = address(&socket)?;
    if address != configured {
        tracing::info!(
            "{key} is {configured}, but a socket on {address} was passed and is used instead"
        );
    }
    Ok(socket)
}

fn address(socket: &TcpListener) -> Result<SocketAddr, StartError> {
    let address = socket.local_addr();
    address.map_err(|error| StartError::System {
        what: "the address of a socket",
        error,
    })
}

/// A non-blocking listening socket, and the address that it is bound to.
///
/// # Errors
/// Where the address is in use or not this machine's.
pub fn bind(address: SocketAddr) -> Result<(TcpListener, SocketAddr), StartError> {
    let open = || -> io::Result<(TcpListener, SocketAddr)> {
        let socket = Socket::new(
            Domain::for_address(address),
            Type::STREAM,
            Some(Protocol::TCP),
        )?;
        // Otherwise a restart fails until connections of the last run have left
        // TIME_WAIT.
        socket.set_reuse_address(true)?;
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
