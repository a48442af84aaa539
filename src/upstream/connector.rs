//! A connector within a time: the whole way to a connection that can be used,
//! the look-up of the name, TCP and TLS together.
//!
//! The connectors beneath bound TCP alone; a server that accepts and never
//! speaks TLS would otherwise hold a request until its first byte is overdue.

use std::error::Error as StdError;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use tower_service::Service;

/// What hyper takes for an error.
type AnyError = Box<dyn StdError + Send + Sync>;

/// A connector that gives up after a time.
#[derive(Clone)]
pub(super) struct Timely<C> {
    inner: C,
    most: Duration,
}

impl<C> Timely<C> {
    /// Lets a connector take so long at the most.
    pub(super) fn new(inner: C, most: Duration) -> Self {
        Self { inner, most }
    }
}

impl<C> Service<Uri> for Timely<C>
where
    C: Service<Uri, Error = AnyError>,
    C::Future: Send + 'static,
{
    type Response = C::Response;
    type Error = AnyError;
    type Future = Pin<Box<dyn Future<Output = Result<C::Response, AnyError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), AnyError>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let connecting = tokio::time::timeout(self.most, self.inner.call(to));
        Box::pin(async move {
            match connecting.await {
                Ok(connected) => connected,
                Err(elapsed) => Err(io::Error::new(io::ErrorKind::TimedOut, elapsed).into()),
            }
        })
    }
}
