//! The byte stream of a connection: it records activity for [`Connection`].

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};

use http::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection as IsConnection};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tower_service::Service;

use super::Connection;

/// A byte stream.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin + 'static> Stream for S {}

/// The byte stream of a connection; with TLS, the encrypted one.
pub(crate) struct TrackedStream<S> {
    inner: S,
    connection: Connection,
}

impl<S: Stream> AsyncRead for TrackedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = to.filled().len();
        let read = Pin::new(&mut self.inner).poll_read(cx, to);
        if matches!(read, Poll::Ready(Ok(()))) && to.filled().len() > before {
            let connection = &self.connection.0;
            connection.read.store(connection.age(), Relaxed);
        }
        read
    }
}

impl<S: Stream> AsyncWrite for TrackedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

impl<S: IsConnection> IsConnection for TrackedStream<S> {
    fn connected(&self) -> Connected {
        self.inner.connected().extra(self.connection.clone())
    }
}

/// A connector whose connections record their activity.
#[derive(Clone)]
pub(crate) struct TrackingConnector<C>(pub(crate) C);

impl<C, S> Service<Uri> for TrackingConnector<C>
where
    C: Service<Uri, Response = TokioIo<S>>,
    C::Future: Send + 'static,
    S: Stream,
{
    type Response = TokioIo<TrackedStream<S>>;
    type Error = C::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, C::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), C::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let connecting = self.0.call(to);
        Box::pin(async move {
            let connected = connecting.await?;
            Ok(TokioIo::new(TrackedStream {
                inner: connected.into_inner(),
                connection: Connection::default(),
            }))
        })
    }
}
