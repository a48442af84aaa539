//! The connections of the admin listener: how many there are, which one makes
//! room for another, and how long a client may take to read an answer.
//!
//! A new connection is always served, so that a probe of `/healthz` and a purge
//! get through whatever others do. What makes room is a connection of the client
//! that has the most: the one whose last request began, or was answered, before
//! all others'. So one that has just come is the last to go.

use std::cmp::Reverse;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::AbortHandle;
use tokio::time::{Sleep, sleep};

use crate::identify::Client;

/// How long a client may take to read an answer, once it does not take all of it
/// at once.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// When a connection was last used, in the order of all uses of connections.
#[derive(Clone)]
pub(super) struct Use {
    last: Arc<AtomicU64>,
    uses: Arc<AtomicU64>,
}

impl Use {
    /// A request of it begins, or has been answered.
    pub(super) fn touch(&self) {
        self.last.store(self.uses.fetch_add(1, Relaxed), Relaxed);
    }
}

/// The connections that are open.
pub(super) struct Connections {
    most: usize,
    open: Vec<Open>,
    uses: Arc<AtomicU64>,
}

struct Open {
    client: Client,
    last: Arc<AtomicU64>,
    task: Option<AbortHandle>,
}

impl Connections {
    /// None yet, and so many at the most.
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            open: Vec::with_capacity(most),
            uses: Arc::default(),
        }
    }

    /// Takes in a new connection of a client; another one makes room for it where
    /// there are as many as there may be.
    pub(super) fn admit(&mut self, client: Client) -> Use {
        let is_open = |open: &Open| open.task.as_ref().is_none_or(|task| !task.is_finished());
        self.open.retain(is_open);
        if self.open.len() >= self.most
            && let Some(place) = self.victim(client)
        {
            let victim = self.open.swap_remove(place);
            if let Some(task) = victim.task {
                task.abort();
            }
        }
        let now = self.uses.fetch_add(1, Relaxed);
        let last = Arc::new(AtomicU64::new(now));
        self.open.push(Open {
            client,
            last: last.clone(),
            task: None,
        });
        Use {
            last,
            uses: self.uses.clone(),
        }
    }

    /// The task that serves the connection that was taken in last.
    pub(super) fn serves(&mut self, task: AbortHandle) {
        if let Some(open) = self.open.last_mut() {
            open.task = Some(task);
        }
    }

    /// The connection that makes room for a new one of a client.
    fn victim(&self, new: Client) -> Option<usize> {
        let of = |client: Client| {
            let own = self.open.iter().filter(|open| open.client == client);
            own.count() + usize::from(client == new)
        };
        let ranked = self.open.iter().enumerate().map(|(place, open)| {
            let most_first = Reverse(of(open.client));
            (most_first, open.last.load(Relaxed), place)
        });
        ranked.min().map(|(_, _, place)| place)
    }
}

/// A stream whose peer must read each answer within [`WRITE_TIMEOUT`].
pub(super) struct Timed<S> {
    io: S,
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<S> Timed<S> {
    pub(super) fn new(io: S) -> Self {
        Self { io, deadline: None }
    }

    fn note(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            return written;
        }
        let deadline = self
            .deadline
            .get_or_insert_with(|| Box::pin(sleep(WRITE_TIMEOUT)));
        deadline.as_mut().poll(cx).map(|()| {
            Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the client does not read the answer",
            ))
        })
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Timed<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Timed<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let timed = self.get_mut();
        let written = Pin::new(&mut timed.io).poll_write(cx, bytes);
        timed.note(cx, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let timed = self.get_mut();
        let written = Pin::new(&mut timed.io).poll_write_vectored(cx, slices);
        timed.note(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let timed = self.get_mut();
        let flushed = Pin::new(&mut timed.io).poll_flush(cx);
        if flushed.is_ready() {
            // hyper flushes once all that it has is written.
            timed.deadline = None;
        }
        flushed
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const ONE: Client = Client::V4(1);
    const OTHER: Client = Client::V4(2);

    /// The clients whose connections are left, once so many of each were taken in.
    fn clients(connections: &Connections) -> [usize; 2] {
        [ONE, OTHER].map(|client| {
            let own = connections.open.iter().filter(|open| open.client == client);
            own.count()
        })
    }

    #[test]
    fn who_has_the_most_makes_room() {
        let mut connections = Connections::new(4);
        let honest = connections.admit(OTHER);
        for _ in 0..100 {
            connections.admit(ONE);
        }
        assert_eq!(clients(&connections), [3, 1]);
        honest.touch();
        for _ in 0..100 {
            connections.admit(OTHER);
        }
        assert_eq!(clients(&connections), [2, 2]);
    }

    #[test]
    fn the_longest_unused_makes_room() {
        let mut connections = Connections::new(3);
        let used: Vec<_> = (0..3).map(|_| connections.admit(ONE)).collect();
        let is_open = |connections: &Connections, of: &Use| {
            let mut open = connections.open.iter();
            open.any(|open| Arc::ptr_eq(&open.last, &of.last))
        };
        used[0].touch();
        for place in [1, 2, 0] {
            assert!(is_open(&connections, &used[place]), "{place}");
            let new = connections.admit(ONE);
            assert!(!is_open(&connections, &used[place]), "{place}");
            assert!(is_open(&connections, &new), "a new one is always taken in");
        }
        assert_eq!(connections.open.len(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn who_does_not_read_is_given_up() {
        let (here, _there) = tokio::io::duplex(64);
        let mut timed = Timed::new(here);
        let answer = [0; 100];
        let error = timed.write_all(&answer).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);

        let (here, mut other) = tokio::io::duplex(64);
        let mut timed = Timed::new(here);
        let reading = async {
            let mut room = [0; 100];
            for _ in 0..3 {
                sleep(WRITE_TIMEOUT / 2).await;
                other.read_exact(&mut room).await.unwrap();
            }
        };
        let writing = async {
            for _ in 0..3 {
                timed.write_all(&answer).await.unwrap();
                timed.flush().await.unwrap();
            }
        };
        tokio::join!(reading, writing);
    }
}
