//! What a connection does: when it last made progress, how far it is with its requests and
//! its answers, and whether it must be closed.
//!
//! The listener writes it while it reads and writes the socket; the connection's one timer,
//! the table and the gateway read it. It is plain numbers, so that a request needs no timer
//! of its own.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};

use tokio::task::AbortHandle;

use super::{Connections, Owner};
use crate::clock::{Clock, Moment};
use crate::identify::Client;
use crate::sync::lock;

/// Complete bodies of fewer bytes are not counted in HTTP/1.1, where a connection sends one
/// answer after another: the socket's buffer takes most of it.
const LEAST_COUNTED_HTTP1: usize = 64 * 1024;
/// The same in HTTP/2, where a connection has up to 100 streams.
const LEAST_COUNTED_HTTP2: usize = 1024;

/// Activity of one connection. Every access is relaxed: nearly all numbers are read by the
/// task that wrote them, and none orders anything else.
pub struct Activity {
    pub(super) table: Arc<Connections>,
    /// Its number, which no other connection has.
    number: u64,
    /// The client that it counts for, if that is no trusted proxy.
    pub(super) client: OnceLock<Client>,
    /// Its place among the rows, while the table is locked.
    pub(super) place: AtomicUsize,
    clock: Clock,
    last: AtomicU64,
    /// When bytes were last read in HTTP/2.
    read_at: AtomicU64,
    head_since: AtomicU64,
    /// Requests and streamed answers in progress.
    busy: AtomicU32,
    is_http2: AtomicBool,
    /// Whether the socket accepts no more bytes.
    pub(crate) is_blocked: AtomicBool,
    /// Bytes of answers that HTTP/2 has not sent.
    owed: AtomicU64,
    /// Bytes of answers that the client has taken since this was last asked.
    taken: AtomicU64,
    /// Bytes of requests in HTTP/2.
    requested: AtomicU64,
    /// Whether its last request was for the stream of events, which has not ended.
    pub(crate) is_listening: AtomicBool,
    /// Whether the connection closes after the next answer, which then has
    /// `connection: close`.
    pub(crate) is_draining: AtomicBool,
    /// Whether all is sent; what the client still sends is discarded.
    pub(crate) is_closing: AtomicBool,
    is_closed: AtomicBool,
    /// The task that serves it, which [`close`](Self::close) ends.
    task: Mutex<Option<AbortHandle>>,
}

impl Activity {
    /// A connection that is in no table, for requests without a listener.
    pub fn new(clock: &Clock) -> Self {
        Self::of(Arc::default(), 0, clock)
    }

    pub(super) fn of(table: Arc<Connections>, number: u64, clock: &Clock) -> Self {
        Self {
            table,
            number,
            client: OnceLock::new(),
            place: AtomicUsize::new(0),
            clock: clock.clone(),
            last: AtomicU64::new(clock.now().nanos()),
            read_at: AtomicU64::new(0),
            head_since: AtomicU64::new(0),
            busy: AtomicU32::new(0),
            is_http2: AtomicBool::new(false),
            is_blocked: AtomicBool::new(false),
            owed: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            requested: AtomicU64::new(0),
            is_listening: AtomicBool::new(false),
            is_draining: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            task: Mutex::new(None),
        }
    }

    /// Whom it counts for.
    pub(super) fn owner(&self) -> Owner {
        let client = self.client.get();
        client.map_or(Owner::ProxyConnection(self.number), |of| Owner::Client(*of))
    }

    /// The current moment.
    pub(crate) fn now(&self) -> Moment {
        self.clock.now()
    }

    /// Records progress: bytes were read, an answer was made or has ended, or a part of one was
    /// taken.
    pub fn record(&self, now: Moment) {
        self.last.store(now.nanos(), Relaxed);
    }

    /// When it last made progress.
    pub fn last(&self) -> Moment {
        Moment::from_nanos(self.last.load(Relaxed))
    }

    /// Bytes have been read. In HTTP/1.1, where no request is in progress, a head has begun. In
    /// HTTP/2 only requests keep a connection from being idle.
    #[inline]
    pub(crate) fn read(&self) {
        let now = self.clock.now();
        if self.is_http2() {
            self.read_at.store(now.nanos(), Relaxed);
            return;
        }
        self.record(now);
        if self.head_since.load(Relaxed) == 0 && !self.is_busy() {
            self.head_since.store(now.nanos(), Relaxed);
        }
    }

    /// A request has come whole, but for its body.
    #[inline]
    pub(crate) fn begin(&self) {
        match self.is_http2() {
            true => self.last.store(self.read_at.load(Relaxed), Relaxed),
            false => self.head_since.store(0, Relaxed),
        }
    }

    /// Since when a head has been incomplete.
    pub(crate) fn head_since(&self) -> Option<Moment> {
        let since = self.head_since.load(Relaxed);
        (since > 0).then(|| Moment::from_nanos(since))
    }

    /// The connection is in HTTP/2.
    pub(crate) fn set_http2(&self) {
        self.is_http2.store(true, Relaxed);
        self.head_since.store(0, Relaxed);
    }

    /// Whether the connection is in HTTP/2.
    #[inline]
    pub(crate) fn is_http2(&self) -> bool {
        self.is_http2.load(Relaxed)
    }

    /// The least bytes of a complete body that is counted.
    #[inline]
    pub(crate) fn least_counted(&self) -> usize {
        match self.is_http2() {
            true => LEAST_COUNTED_HTTP2,
            false => LEAST_COUNTED_HTTP1,
        }
    }

    /// HTTP/2 has so many more bytes to send.
    pub(crate) fn owe(&self, bytes: u64) {
        self.owed.fetch_add(bytes, Relaxed);
    }

    /// So many of them need not be sent.
    pub(crate) fn forgive(&self, bytes: u64) {
        self.owed.fetch_sub(bytes, Relaxed);
    }

    /// The client has taken so many bytes of its answers.
    pub(crate) fn take(&self, bytes: u64) {
        self.taken.fetch_add(bytes, Relaxed);
        self.record(self.clock.now());
    }

    /// The bytes that the client has taken since this was last asked.
    pub(crate) fn taken(&self) -> u64 {
        self.taken.swap(0, Relaxed)
    }

    /// Whether the client has an answer to read.
    pub(crate) fn is_stalled(&self) -> bool {
        self.is_blocked.load(Relaxed) || self.owed.load(Relaxed) > 0
    }

    /// Adds to the bytes of requests in HTTP/2.
    pub(crate) fn add_requested(&self, bytes: u64) {
        self.requested.fetch_add(bytes, Relaxed);
    }

    /// Whether so many received and sent bytes in HTTP/2 are a flood: a connection may receive
    /// 256 KiB, eight times the bytes of its requests, and a 64th of the bytes of its answers.
    #[inline]
    pub(crate) fn is_flood(&self, received: u64, sent: u64) -> bool {
        const FREE: u64 = 256 * 1024;
        received > FREE && received > FREE + 8 * self.requested.load(Relaxed) + sent / 64
    }

    /// A request, or a streamed answer, is in progress until the guard is dropped.
    pub(crate) fn busy(self: &Arc<Self>) -> BusyGuard {
        self.busy.fetch_add(1, Relaxed);
        BusyGuard(self.clone())
    }

    /// Whether a request or a streamed answer is in progress.
    pub(crate) fn is_busy(&self) -> bool {
        self.busy.load(Relaxed) > 0
    }

    /// Whether it is ordgate, and not the client, that has to do something.
    pub(crate) fn is_working(&self) -> bool {
        self.is_busy() && !self.is_stalled()
    }

    /// Unread bytes of all connections of its table.
    #[cfg(test)]
    pub(crate) fn unread(&self) -> u64 {
        self.table.unread.load(Relaxed)
    }

    /// Resets the connection, so that the kernel also drops what it has of the answer.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Relaxed);
        if let Some(task) = &*lock(&self.task) {
            task.abort();
        }
    }

    /// Whether the connection must be reset.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Relaxed)
    }

    /// Sets the task that serves the connection.
    pub(crate) fn set_task(&self, task: AbortHandle) {
        *lock(&self.task) = Some(task);
        if self.is_closed() {
            self.close();
        }
    }
}

/// A request or a streamed answer in progress.
pub(crate) struct BusyGuard(pub(crate) Arc<Activity>);

impl Drop for BusyGuard {
    fn drop(&mut self) {
        self.0.record(self.0.now());
        self.0.is_listening.store(false, Relaxed);
        self.0.busy.fetch_sub(1, Relaxed);
    }
}
