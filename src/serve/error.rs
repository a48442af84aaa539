//! Why a server does not start.

use std::io;
use std::net::SocketAddr;

use crate::listener::ListenAddress;
use crate::state::StateError;
use crate::supervisor::InheritedSocketError;
#[cfg(feature = "otlp")]
use crate::telemetry::otlp::ExporterError;
use crate::upstream::SetupError;

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A socket cannot be bound.
    #[error("cannot listen on {address}: {error}{}", advice(address, error))]
    Bind {
        /// The address.
        address: ListenAddress,
        /// Why not.
        error: io::Error,
    },
    /// A socket that the supervisor passed cannot be used.
    #[error(transparent)]
    Inherited(#[from] InheritedSocketError),
    /// The supervisor passed a unix socket for the admin listener.
    #[error("{0} was passed for the admin listener, which must be a TCP socket")]
    AdminOnUnixSocket(ListenAddress),
    /// Certificates cannot be used.
    #[error("{}", .0.join("\n"))]
    Certificates(Vec<String>),
    /// The admin listener would be open to the network.
    #[error(
        "the admin listener is on {address}, which other machines can reach, and has no token: set ORDGATE_ADMIN_TOKEN or admin.token_file, or set admin.listen to 127.0.0.1"
    )]
    OpenAdmin {
        /// Its address.
        address: SocketAddr,
    },
    /// The state directory cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// The exporter of traces cannot be made.
    #[cfg(feature = "otlp")]
    #[error(transparent)]
    Exporter(#[from] ExporterError),
    /// Reloads have used up the numbers of routes.
    #[error(
        "reloads have changed so many routes that there are no route numbers left: ordgate needs a restart"
    )]
    RouteNumbers,
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
    /// That the system refuses this.
    pub(super) fn system(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::System { what, error }
    }
}

/// A likely cause of an error of `bind`.
fn advice(address: &ListenAddress, error: &io::Error) -> &'static str {
    if address.tcp().is_none() {
        ""
    } else if error.kind() == io::ErrorKind::PermissionDenied {
        "; ports below 1024 need CAP_NET_BIND_SERVICE, or a socket from systemd"
    } else if error.kind() == io::ErrorKind::AddrInUse {
        "; another program may use it, and port 0 takes a free one"
    } else if error.kind() == io::ErrorKind::AddrNotAvailable {
        "; this machine does not have the address"
    } else {
        ""
    }
}
