//! Name resolution: by the system, for each new connection, or by a function of a
//! test.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper_util::client::legacy::connect::dns::{GaiResolver, Name};
use tower_service::Service;

/// A resolver of host names.
#[derive(Clone)]
pub enum Resolver {
    /// The system's.
    System(GaiResolver),
    /// A function.
    Function(Arc<Lookup>),
}

/// Returns the addresses of a name.
pub type Lookup = dyn Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync;

impl Default for Resolver {
    fn default() -> Self {
        Self::System(GaiResolver::new())
    }
}

/// The error of a name that does not resolve.
#[derive(Debug, thiserror::Error)]
#[error("the name {name} does not resolve: {error}")]
pub struct NoAddress {
    name: String,
    error: io::Error,
}

impl Service<Name> for Resolver {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = NoAddress;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, NoAddress>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), NoAddress>> {
        match self {
            Self::System(system) => system.poll_ready(cx).map_err(|error| NoAddress {
                name: String::new(),
                error,
            }),
            Self::Function(_) => Poll::Ready(Ok(())),
        }
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let text = name.as_str().to_owned();
        let failed = |error| NoAddress { name: text, error };
        match self {
            Self::System(system) => {
                let found = system.call(name);
                Box::pin(async move {
                    let found = found.await.map_err(failed)?;
                    Ok(found.collect::<Vec<_>>().into_iter())
                })
            }
            Self::Function(lookup) => {
                let found = lookup(name.as_str()).map_err(failed);
                let found = found.map(|addresses| {
                    let sockets = addresses.into_iter().map(|ip| SocketAddr::new(ip, 0));
                    sockets.collect::<Vec<_>>().into_iter()
                });
                Box::pin(std::future::ready(found))
            }
        }
    }
}
