//! A process that does not run for a while, as its connections see it: the kernel
//! takes what is sent to it, and the process reads that when it runs again.

use std::future::Future;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

/// The end of a connection is read so much later than what came before it. The
/// HTTP/2 server drops requests that it reads together with the end.
const END: Duration = Duration::from_millis(20);

/// Whether a process runs.
#[derive(Default)]
pub(crate) struct Gate(Mutex<State>);

#[derive(Default)]
struct State {
    is_frozen: bool,
    waiting: Vec<Waker>,
}

impl Gate {
    /// Stops the process, or lets it run; returns whether that is a change.
    pub(crate) fn set_frozen(&self, is_frozen: bool) -> bool {
        let mut state = self.0.lock().unwrap();
        let was_frozen = std::mem::replace(&mut state.is_frozen, is_frozen);
        if !is_frozen {
            for waker in state.waiting.drain(..) {
                waker.wake();
            }
        }
        was_frozen != is_frozen
    }

    /// Ready while the process runs.
    fn poll_runs(&self, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.0.lock().unwrap();
        if !state.is_frozen {
            return Poll::Ready(());
        }
        if !state.waiting.iter().any(|one| one.will_wake(cx.waker())) {
            state.waiting.push(cx.waker().clone());
        }
        Poll::Pending
    }
}

/// A connection of a process that may be frozen. Its end shows to who reads it
/// alone.
pub(crate) struct Stream {
    inner: TcpStream,
    gate: Arc<Gate>,
    end: Option<Pin<Box<Sleep>>>,
}

impl Stream {
    pub(crate) fn new(inner: TcpStream, gate: Arc<Gate>) -> Self {
        let end = None;
        Self { inner, gate, end }
    }

    fn inner(&mut self, cx: &Context<'_>) -> Poll<Pin<&mut TcpStream>> {
        self.gate.poll_runs(cx).map(|()| Pin::new(&mut self.inner))
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.as_fd()
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = to.filled().len();
        let read = std::task::ready!(self.inner(cx)).poll_read(cx, to);
        if matches!(read, Poll::Pending) || to.filled().len() > before {
            return read;
        }
        let end = self.end.get_or_insert_with(|| Box::pin(sleep(END)));
        std::task::ready!(end.as_mut().poll(cx));
        read
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = std::task::ready!(self.inner(cx)).poll_write(cx, bytes);
        // Where nothing can be sent any more, what has come is read all the same.
        written.map(|written| Ok(written.unwrap_or(bytes.len())))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        std::task::ready!(self.inner(cx)).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        std::task::ready!(self.inner(cx)).poll_shutdown(cx)
    }
}
