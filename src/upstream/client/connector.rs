//! A connector with a timeout, for name resolution, TCP and TLS together; and a
//! record of which servers request a client certificate.
//!
//! The inner connectors limit the time of TCP only: a server that accepts a
//! connection and never answers the TLS handshake would hold a request until its
//! first byte is overdue.
//!
//! A server that requires a client certificate may close the connection without an
//! alert, or after a TLS 1.3 handshake that has succeeded on this side. So each
//! connection records whether a certificate was requested, and whether the server
//! has sent anything since.

use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::Uri;
use hyper::rt::{Read, ReadBuf, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::sign::CertifiedKey;
use tokio::task_local;
use tower_service::Service;

/// The error type of hyper's connectors.
type AnyError = Box<dyn StdError + Send + Sync>;

/// A connector with a timeout.
#[derive(Clone)]
pub(crate) struct TimedConnector<C> {
    inner: C,
    timeout: Duration,
}

impl<C> TimedConnector<C> {
    /// Limits the time of a connector.
    pub(crate) fn new(inner: C, timeout: Duration) -> Self {
        Self { inner, timeout }
    }
}

task_local! {
    /// Whether the server that is being connected to has requested a client
    /// certificate.
    static REQUESTED: Arc<AtomicBool>;
}

/// Sends no client certificate, and records that one was requested.
#[derive(Debug)]
pub(crate) struct NoClientCertificate;

impl ResolvesClientCert for NoClientCertificate {
    fn resolve(
        &self,
        _issuers: &[&[u8]],
        _schemes: &[SignatureScheme],
    ) -> Option<Arc<CertifiedKey>> {
        // Outside of a connector the record is not needed.
        let _outside = REQUESTED.try_with(|requested| requested.store(true, Relaxed));
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}

/// The record that a server has requested a client certificate. As an error, it
/// wraps the one of the failed connection.
#[derive(Clone, Debug)]
pub(crate) struct CertificateRequest {
    answered: Arc<AtomicBool>,
    error: Option<Arc<dyn StdError + Send + Sync>>,
}

impl fmt::Display for CertificateRequest {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("the server asked for a TLS client certificate")
    }
}

impl StdError for CertificateRequest {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        let error: &(dyn StdError + 'static) = &**self.error.as_ref()?;
        Some(error)
    }
}

impl CertificateRequest {
    /// Whether the server has sent anything on the connection since.
    pub(crate) fn has_answered(&self) -> bool {
        self.answered.load(Relaxed)
    }
}

/// A connection, and whether the server has requested a client certificate.
pub(crate) struct TlsConnection<S> {
    inner: S,
    request: Option<CertificateRequest>,
}

impl<S: Connection> Connection for TlsConnection<S> {
    fn connected(&self) -> Connected {
        let connected = self.inner.connected();
        match &self.request {
            Some(request) => connected.extra(request.clone()),
            None => connected,
        }
    }
}

impl<S: Read + Unpin> Read for TlsConnection<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut to: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let unanswered = |request: &&CertificateRequest| !request.has_answered();
        let Some(request) = this.request.as_ref().filter(unanswered) else {
            return Pin::new(&mut this.inner).poll_read(cx, to);
        };
        // A cursor does not show afterwards how much was read.
        let mut first = [0; 1024];
        let room = to.remaining().min(first.len());
        let mut read = ReadBuf::new(&mut first[..room]);
        ready!(Pin::new(&mut this.inner).poll_read(cx, read.unfilled()))?;
        if !read.filled().is_empty() {
            request.answered.store(true, Relaxed);
            to.put_slice(read.filled());
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: Write + Unpin> Write for TlsConnection<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, slices)
    }
}

impl<C> Service<Uri> for TimedConnector<C>
where
    C: Service<Uri, Error = AnyError>,
    C::Future: Send + 'static,
{
    type Response = TlsConnection<C::Response>;
    type Error = AnyError;
    type Future =
        Pin<Box<dyn Future<Output = Result<TlsConnection<C::Response>, AnyError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), AnyError>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let connecting = tokio::time::timeout(self.timeout, self.inner.call(to));
        let requested = Arc::<AtomicBool>::default();
        let connecting = REQUESTED.scope(requested.clone(), connecting);
        Box::pin(async move {
            let connected = match connecting.await {
                Ok(connected) => connected,
                Err(elapsed) => Err(io::Error::new(io::ErrorKind::TimedOut, elapsed).into()),
            };
            let request = |error| CertificateRequest {
                answered: Arc::default(),
                error,
            };
            let is_requested = requested.load(Relaxed);
            match connected {
                Ok(inner) => Ok(TlsConnection {
                    inner,
                    request: is_requested.then(|| request(None)),
                }),
                Err(error) if is_requested => Err(request(Some(error.into())).into()),
                Err(error) => Err(error),
            }
        })
    }
}
