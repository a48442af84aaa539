//! Why a server does not start.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::admin::Token;
use crate::config::AdminTable;
use crate::listener::ListenAddress;
use crate::state::StateError;
use crate::supervisor::InheritedSocketError;
use crate::telemetry::otlp::ExporterError;
use crate::upstream::SetupError;

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A socket cannot be bound.
    #[error("cannot listen on {address}: {error}{}", advice(error))]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why not.
        error: io::Error,
    },
    /// A unix socket cannot be bound.
    #[error("cannot listen on unix:{}: {error}", path.display())]
    BindUnix {
        /// Its path.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// A socket that the supervisor passed cannot be used.
    #[error(transparent)]
    Inherited(#[from] InheritedSocketError),
    /// The supervisor passed a unix socket for the admin listener.
    #[error("{0} was passed for the admin listener, which must be a TCP socket")]
    AdminOnUnixSocket(ListenAddress),
    /// There is no public listener.
    #[error("there is no listener: set server.listen, or add a [[listener]]")]
    NoListener,
    /// A reload would open a listener while the process stops.
    #[error("{0} is not opened: the process is stopping")]
    Stopping(ListenAddress),
    /// Certificates cannot be used.
    #[error("{}", .0.join("\n"))]
    Certificates(Vec<String>),
    /// TLS cannot be set up.
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// The admin listener would be open to the network.
    #[error(
        "the admin listener is on {address}, which other machines can reach, and has no token: set ORDGATE_ADMIN_TOKEN or admin.token_file, or set admin.listen to 127.0.0.1"
    )]
    OpenAdmin {
        /// Its address.
        address: SocketAddr,
        /// Whether it is that of the configuration.
        is_configured: bool,
    },
    /// The state directory cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// The exporter of traces cannot be made.
    #[error(transparent)]
    Exporter(#[from] ExporterError),
    /// A client for the upstream cannot be made.
    #[error(transparent)]
    Upstream(#[from] SetupError),
    /// The system provides no thread, no runtime or no randomness.
    #[error("the system refuses {what}: {error}")]
    System {
        /// What it refuses.
        what: &'static str,
        /// Why.
        error: io::Error,
    },
}

impl StartError {
    /// Each problem on its own.
    pub(super) fn lines(self) -> Vec<String> {
        if let Self::Certificates(problems) = self {
            return problems;
        }
        vec![self.to_string()]
    }

    /// Refuses an admin address off loopback without a token.
    ///
    /// # Errors
    /// [`OpenAdmin`](Self::OpenAdmin).
    pub fn check_admin(
        address: SocketAddr,
        settings: &AdminTable,
        token: Option<&Token>,
    ) -> Result<(), Self> {
        if token.is_some() || address.ip().to_canonical().is_loopback() {
            return Ok(());
        }
        // It may also be that of a socket that the supervisor has passed, and after a
        // reload that of the start.
        let is_configured = address.ip() == settings.listen.ip();
        Err(Self::OpenAdmin {
            address,
            is_configured,
        })
    }
}

/// A likely cause of an error of `bind`.
fn advice(error: &io::Error) -> &'static str {
    if error.kind() == io::ErrorKind::AddrInUse {
        "; another program may use it, and port 0 takes a free one"
    } else if error.kind() == io::ErrorKind::AddrNotAvailable {
        "; this machine does not have the address"
    } else {
        ""
    }
}
