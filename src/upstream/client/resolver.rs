//! Who knows the address of a host's name: the system, asked anew for each new
//! connection, or what stands in for it.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper_util::client::legacy::connect::dns::{GaiResolver, Name};
use tower_service::Service;

/// Who knows the addresses of names.
#[derive(Clone)]
pub enum Names {
    /// The system.
    System(GaiResolver),
    /// Another who is asked for a name.
    Given(Arc<Directory>),
}

/// Whoever knows the addresses of a name.
pub type Directory = dyn Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync;

impl Default for Names {
    fn default() -> Self {
        Self::System(GaiResolver::new())
    }
}

/// That a name has no address that is known.
#[derive(Debug, thiserror::Error)]
#[error("the name {name} does not resolve: {error}")]
pub struct NoAddress {
    name: String,
    error: io::Error,
}

impl Service<Name> for Names {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = NoAddress;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, NoAddress>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), NoAddress>> {
        match self {
            Self::System(system) => system.poll_ready(cx).map_err(|error| NoAddress {
                name: String::new(),
                error,
            }),
            Self::Given(_) => Poll::Ready(Ok(())),
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
            Self::Given(given) => {
                let found = given(name.as_str()).map_err(failed);
                let found = found.map(|addresses| {
                    let sockets = addresses.into_iter().map(|ip| SocketAddr::new(ip, 0));
                    sockets.collect::<Vec<_>>().into_iter()
                });
                Box::pin(std::future::ready(found))
            }
        }
    }
}
