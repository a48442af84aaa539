//! A bound on the memory of answers that clients have not read yet, in total and
//! per client.
//!
//! A connection registers here only once its socket accepts no more bytes of its
//! answer, so an answer that is written at once is never registered. A connection
//! counts with its whole buffers (one in HTTP/1.1, one or two for each stream in HTTP/2),
//! not with the part that is still unsent, since a buffer is freed as a whole. A buffer
//! that several connections are sending, such as a stored response, counts once; it is
//! identified by its end address.
//!
//! Over a bound, connections are reset: over a client's bound, that client's; over
//! the total, those of the client with the most bytes × time stalled. Of a client's
//! connections, the one that has been stalled for longest goes first. So a client
//! that does read is not reset for what it holds for a moment.

mod table;

use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Waker;

use table::{StalledConnection, Table};

use crate::clock::Moment;
use crate::identify::{Client, TrustedProxies};
use crate::sync::lock;
use crate::wire::activity::Activity;

/// Bounds on the bytes of answers that clients have not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnsentBounds {
    /// In total.
    pub(crate) total: u64,
    /// Per client; `None` for no bound. A single answer may exceed it.
    pub(crate) per_client: Option<u64>,
}

/// Who a connection's bytes count for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum BufferOwner {
    /// A client.
    Client(Client),
    /// One connection of a trusted proxy, which serves many clients.
    ProxyConnection(u64),
}

/// The buffer that a connection is sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SendBuffer {
    /// Its end address.
    pub(crate) end: usize,
    /// Its length.
    pub(crate) bytes: u64,
}

/// One connection's entry in [`UnsentBytes`].
pub(crate) struct UnsentConnection {
    unsent: Arc<UnsentBytes>,
    connection: u64,
    owner: BufferOwner,
    is_stalled: bool,
}

impl UnsentConnection {
    /// The entry of connection number `connection`, from `peer`.
    pub(crate) fn new(
        unsent: &Arc<UnsentBytes>,
        trust: &TrustedProxies,
        peer: IpAddr,
        connection: u64,
    ) -> Self {
        Self {
            unsent: unsent.clone(),
            connection,
            owner: match trust.contains(peer) {
                true => BufferOwner::ProxyConnection(connection),
                false => BufferOwner::Client(peer.into()),
            },
            is_stalled: false,
        }
    }

    /// The connection is stalled. Resets connections, perhaps this one, until the
    /// bounds hold.
    pub(crate) fn set_stalled(
        &mut self,
        buffers: &[SendBuffer],
        now: Moment,
        activity: &Arc<Activity>,
        waker: &Waker,
    ) {
        let stalled = StalledConnection {
            owner: self.owner,
            buffers: buffers.to_vec(),
            activity: activity.clone(),
            waker: waker.clone(),
        };
        self.is_stalled = true;
        self.unsent.insert(self.connection, stalled, now);
    }

    /// Whether its bytes count for a client, rather than for a trusted proxy.
    pub(crate) fn is_of_client(&self) -> bool {
        matches!(self.owner, BufferOwner::Client(_))
    }

    /// Counts the connection as reset over a bound.
    pub(crate) fn count_closed(&self) {
        self.unsent.closed.fetch_add(1, Relaxed);
    }

    /// The connection is no longer stalled.
    pub(crate) fn clear_stalled(&mut self) {
        if std::mem::take(&mut self.is_stalled) {
            self.unsent.remove(self.connection);
        }
    }
}

impl Drop for UnsentConnection {
    fn drop(&mut self) {
        self.clear_stalled();
    }
}

/// All stalled connections of the process.
pub struct UnsentBytes {
    total: AtomicU64,
    per_client: AtomicU64,
    held: AtomicU64,
    closed: AtomicU64,
    table: Mutex<Table>,
}

const UNBOUNDED: u64 = u64::MAX;

impl Default for UnsentBytes {
    /// Empty, and without bounds.
    fn default() -> Self {
        Self {
            total: AtomicU64::new(UNBOUNDED),
            per_client: AtomicU64::new(UNBOUNDED),
            held: AtomicU64::new(0),
            closed: AtomicU64::new(0),
            table: Mutex::default(),
        }
    }
}

impl fmt::Debug for UnsentBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} bytes", self.held(), self.bound())
    }
}

impl UnsentBytes {
    /// Sets the bounds. They are enforced whenever a connection stalls.
    pub(crate) fn set(&self, bounds: UnsentBounds) {
        self.total.store(bounds.total, Relaxed);
        self.per_client
            .store(bounds.per_client.unwrap_or(UNBOUNDED), Relaxed);
    }

    /// Bytes of answers that clients have not read.
    pub(crate) fn held(&self) -> u64 {
        self.held.load(Relaxed)
    }

    /// The bound on them.
    pub(crate) fn bound(&self) -> u64 {
        self.total.load(Relaxed)
    }

    /// Connections reset over a bound, since the start.
    pub(crate) fn closed(&self) -> u64 {
        self.closed.load(Relaxed)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }

    fn insert(&self, connection: u64, stalled: StalledConnection, now: Moment) {
        let (total, per_client) = (self.total.load(Relaxed), self.per_client.load(Relaxed));
        let owner = stalled.owner;
        let mut evicted = Vec::new();
        {
            let mut table = self.table();
            table.insert(connection, stalled);
            if per_client != UNBOUNDED && matches!(owner, BufferOwner::Client(_)) {
                table.enforce_client_bound(owner, per_client, now, &mut evicted);
            }
            if table.held() > total {
                // Frees an eighth at a time: finding the owner with the most means
                // reading every stalled connection.
                table.enforce_total_bound(total - total / 8, now, &mut evicted);
            }
            self.held.store(table.held(), Relaxed);
        }
        self.closed.fetch_add(evicted.len() as u64, Relaxed);
        for connection in evicted {
            connection.activity.request_reset();
            connection.waker.wake();
        }
    }

    fn remove(&self, connection: u64) {
        let mut table = self.table();
        table.remove(connection);
        self.held.store(table.held(), Relaxed);
    }
}

#[cfg(test)]
mod tests;
