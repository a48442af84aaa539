//! A connector within a time: the whole way to a connection that can be used,
//! the look-up of the name, TCP and TLS together; and which of the servers have
//! asked for a client certificate.
//!
//! The connectors beneath bound TCP alone; a server that accepts and never
//! speaks TLS would otherwise hold a request until its first byte is overdue.
//!
//! A server that demands a client certificate may end the connection without a
//! word, or after a TLS 1.3 handshake that has succeeded here. So it is kept of
//! each connection whether it was asked for one, and has answered since.

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

/// What hyper takes for an error.
type AnyError = Box<dyn StdError + Send + Sync>;

/// A connector that gives up after a time.
#[derive(Clone)]
pub(crate) struct Timely<C> {
    inner: C,
    most: Duration,
}

impl<C> Timely<C> {
    /// Lets a connector take so long at the most.
    pub(crate) fn new(inner: C, most: Duration) -> Self {
        Self { inner, most }
    }
}

task_local! {
    /// Whether the server that is being connected to has asked for a client
    /// certificate.
    static ASKED: Arc<AtomicBool>;
}

/// There is no client certificate; it is noted that one was asked for.
#[derive(Debug)]
pub(crate) struct NoClientCertificate;

impl ResolvesClientCert for NoClientCertificate {
    fn resolve(
        &self,
        _issuers: &[&[u8]],
        _schemes: &[SignatureScheme],
    ) -> Option<Arc<CertifiedKey>> {
        // Elsewhere than in a connector nobody wants to know.
        let _outside = ASKED.try_with(|asked| asked.store(true, Relaxed));
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}

/// That a server has asked for a client certificate. As an error, it wraps the
/// one with which connecting has failed.
#[derive(Clone, Debug)]
pub(crate) struct CertificateAsked {
    answered: Arc<AtomicBool>,
    error: Option<Arc<dyn StdError + Send + Sync>>,
}

impl fmt::Display for CertificateAsked {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("the server asked for a TLS client certificate")
    }
}

impl StdError for CertificateAsked {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        let error: &(dyn StdError + 'static) = &**self.error.as_ref()?;
        Some(error)
    }
}

impl CertificateAsked {
    /// Whether it has answered something on the connection since.
    pub(crate) fn has_answered(&self) -> bool {
        self.answered.load(Relaxed)
    }
}

/// A connection, and whether the server has asked for a client certificate.
pub(crate) struct Asked<S> {
    inner: S,
    asked: Option<CertificateAsked>,
}

impl<S: Connection> Connection for Asked<S> {
    fn connected(&self) -> Connected {
        let connected = self.inner.connected();
        match &self.asked {
            Some(asked) => connected.extra(asked.clone()),
            None => connected,
        }
    }
}

impl<S: Read + Unpin> Read for Asked<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut to: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let Some(asked) = this.asked.as_ref().filter(|asked| !asked.has_answered()) else {
            return Pin::new(&mut this.inner).poll_read(cx, to);
        };
        // A cursor does not tell afterwards how much has come.
        let mut first = [0; 1024];
        let room = to.remaining().min(first.len());
        let mut read = ReadBuf::new(&mut first[..room]);
        ready!(Pin::new(&mut this.inner).poll_read(cx, read.unfilled()))?;
        if !read.filled().is_empty() {
            asked.answered.store(true, Relaxed);
            to.put_slice(read.filled());
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: Write + Unpin> Write for Asked<S> {
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

impl<C> Service<Uri> for Timely<C>
where
    C: Service<Uri, Error = AnyError>,
    C::Future: Send + 'static,
{
    type Response = Asked<C::Response>;
    type Error = AnyError;
    type Future = Pin<Box<dyn Future<Output = Result<Asked<C::Response>, AnyError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), AnyError>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let connecting = tokio::time::timeout(self.most, self.inner.call(to));
        let was_asked = Arc::<AtomicBool>::default();
        let connecting = ASKED.scope(was_asked.clone(), connecting);
        Box::pin(async move {
            let connected = match connecting.await {
                Ok(connected) => connected,
                Err(elapsed) => Err(io::Error::new(io::ErrorKind::TimedOut, elapsed).into()),
            };
            let asked = |error| CertificateAsked {
                answered: Arc::default(),
                error,
            };
            let was_asked = was_asked.load(Relaxed);
            match connected {
                Ok(inner) => Ok(Asked {
                    inner,
                    asked: was_asked.then(|| asked(None)),
                }),
                Err(error) if was_asked => Err(asked(Some(error.into())).into()),
                Err(error) => Err(error),
            }
        })
    }
}
