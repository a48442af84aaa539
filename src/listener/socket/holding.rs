//! A stream for tests that accepts all that is written, and holds it until its socket
//! does, as TLS does with its last records.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::StreamControl;

/// The most bytes that it holds.
pub(in crate::listener) const BUFFER: u64 = 32 * 1024;

#[derive(Default)]
pub(in crate::listener) struct HoldingStream {
    held: u64,
    sent: u64,
    is_reset: Cell<bool>,
}

impl HoldingStream {
    /// The socket accepts so many bytes.
    pub(in crate::listener) fn send(&mut self, bytes: u64) {
        let bytes = bytes.min(self.held);
        self.held -= bytes;
        self.sent += bytes;
    }

    pub(in crate::listener) fn is_reset(&self) -> bool {
        self.is_reset.get()
    }
}

impl StreamControl for HoldingStream {
    fn reset_on_close(&self) {
        self.is_reset.set(true);
    }

    fn buffer_bytes(&self) -> u64 {
        BUFFER
    }

    fn sent(&self) -> u64 {
        self.sent
    }
}

impl AsyncRead for HoldingStream {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        _: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Poll::Pending
    }
}

impl AsyncWrite for HoldingStream {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().held += bytes.len() as u64;
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.held {
            0 => Poll::Ready(Ok(())),
            _ => Poll::Pending,
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
