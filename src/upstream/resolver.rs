//! Name resolution: by the system, for each new connection, or by a function of a
//! test.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper_util::client::legacy::connect::dns::Name;
use tower_service::Service;

/// A resolver of host names.
#[derive(Clone)]
pub struct Resolver(pub Arc<Lookup>);

/// Returns the addresses of a name. It may block.
pub type Lookup = dyn Fn(&str) -> io::Result<Vec<IpAddr>> + Send + Sync;

impl Default for Resolver {
    fn default() -> Self {
        Self(Arc::new(|name| {
            let found = (name, 0).to_socket_addrs()?;
            Ok(found.map(|address| address.ip()).collect())
        }))
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

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), NoAddress>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let (lookup, asked) = (self.0.clone(), name.clone());
        let found = tokio::task::spawn_blocking(move || lookup(asked.as_str()));
        Box::pin(async move {
            let found = found.await.map_err(io::Error::other).flatten();
            let addresses = found.map_err(|error| NoAddress {
                name: name.as_str().to_owned(),
                error,
            })?;
            let sockets = addresses.into_iter().map(|ip| SocketAddr::new(ip, 0));
            Ok(sockets.collect::<Vec<_>>().into_iter())
        })
    }
}
