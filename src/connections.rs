//! The table of open connections: one row for each, with its client, when it last made
//! progress, and the bytes of answers that it holds.
//!
//! At a limit of connections, and at a bound on unread bytes, whoever holds most makes
//! room: of its connections, the one that has been idle or stalled longest is closed.
//! Several connections that send the same buffer, such as a stored response, hold it
//! once; it is identified by its address.
//!
//! A hit on a small body never locks the table: only bodies of
//! [`Activity::least_counted`] bytes are entered.

mod activity;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

pub use activity::Activity;
pub(crate) use activity::AnswerGuard;
use foldhash::quality::RandomState;
use serde::Serialize;

use crate::clock::Clock;
use crate::identify::{Client, TrustedProxies};
use crate::sync::lock;

/// What connections may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// Connections.
    pub(crate) connections: u64,
    /// Bytes of answers that have not been read.
    pub(crate) unread: u64,
    /// Connections and bytes of one client; none for no such limit. One answer may have
    /// more bytes.
    pub(crate) per_client: Option<(u64, u64)>,
}

/// The limit that a connection exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OverLimit {
    /// That of all clients.
    Total,
    /// That of one client.
    Client,
}

/// Whom a connection counts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Owner {
    /// A client.
    Client(Client),
    /// A trusted proxy, which serves many clients: each of its connections is an owner of
    /// its own.
    ProxyConnection(u64),
}

/// All open connections of the process.
#[derive(Default, Serialize)]
pub struct Connections {
    /// Connections open now.
    pub open: AtomicU64,
    /// Bytes of answers that clients have not read.
    #[serde(skip)]
    pub unread: AtomicU64,
    /// Connections closed since the start so that others could be opened.
    pub closed_for_others: AtomicU64,
    /// Connections reset since the start because of unread bytes.
    #[serde(rename = "reset_unsent")]
    pub closed_unread: AtomicU64,
    #[serde(skip)]
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    bounds: Option<Bounds>,
    owners: HashMap<Owner, Rows, RandomState>,
    connections: u64,
    buffers: Buffers,
}

/// The connections of an owner.
#[derive(Default)]
struct Rows {
    list: Vec<Row>,
    buffers: Buffers,
}

/// Buffers by their address: how many times each is sent, and its bytes.
#[derive(Default)]
struct Buffers {
    list: HashMap<usize, (u64, u64), RandomState>,
    /// Bytes of all of them, each once.
    bytes: u64,
}

impl Buffers {
    fn hold(&mut self, buffer: usize, bytes: u64) {
        let (times, before) = self.list.entry(buffer).or_default();
        *times += 1;
        self.bytes += bytes.saturating_sub(*before);
        *before = (*before).max(bytes);
    }

    fn release(&mut self, buffer: usize) {
        if let Some((times, bytes)) = self.list.get_mut(&buffer) {
            *times -= 1;
            if *times == 0 {
                self.bytes -= *bytes;
                self.list.remove(&buffer);
            }
        }
    }
}

struct Row {
    activity: Arc<Activity>,
    /// The addresses of what it sends.
    buffers: Vec<usize>,
}

impl Rows {
    fn row(&mut self, of: &Arc<Activity>) -> Option<&mut Row> {
        let mut rows = self.list.iter_mut();
        rows.find(|row| Arc::ptr_eq(&row.activity, of))
    }
}

impl std::fmt::Debug for Connections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} connections", self.open.load(Relaxed))
    }
}

/// An open connection, which is in the table until this is dropped.
pub(crate) struct OpenConnection(Arc<Activity>);

impl OpenConnection {
    /// What is known of it.
    pub(crate) fn activity(&self) -> &Arc<Activity> {
        &self.0
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        let of = &self.0;
        of.table.change(|table| table.remove(of));
    }
}

impl Connections {
    /// Sets the bounds. They apply when a connection is opened or holds more.
    pub(crate) fn set(&self, bounds: Bounds) {
        lock(&self.table).bounds = Some(bounds);
    }

    /// The bound on unread bytes.
    pub fn most_unread(&self) -> u64 {
        let bounds = lock(&self.table).bounds;
        bounds.map_or(u64::MAX, |bounds| bounds.unread)
    }

    /// Enters a connection with this number from `peer`. At a limit, another one makes room.
    pub(crate) fn open(
        self: &Arc<Self>,
        peer: IpAddr,
        trust: &TrustedProxies,
        number: u64,
        clock: &Clock,
    ) -> Result<OpenConnection, OverLimit> {
        let owner = match trust.contains(peer) {
            true => Owner::ProxyConnection(number),
            false => Owner::Client(peer.into()),
        };
        let activity = Arc::new(Activity::of(self.clone(), owner, clock));
        let mut evicted = None;
        let opened = self.change(|table| {
            evicted = table.room_for(owner)?;
            table.connections += 1;
            table.owners.entry(owner).or_default().list.push(Row {
                activity: activity.clone(),
                buffers: Vec::new(),
            });
            Ok(OpenConnection(activity.clone()))
        });
        if let Some(evicted) = evicted {
            self.closed_for_others.fetch_add(1, Relaxed);
            evicted.close();
        }
        opened
    }

    fn change<T>(&self, change: impl FnOnce(&mut Table) -> T) -> T {
        let mut table = lock(&self.table);
        let result = change(&mut table);
        self.open.store(table.connections, Relaxed);
        self.unread.store(table.buffers.bytes, Relaxed);
        result
    }

    /// Enters a buffer of a connection, or its new size, and closes connections until the
    /// bounds hold.
    fn hold(&self, of: &Arc<Activity>, buffer: usize, bytes: u64) {
        let mut evicted = Vec::new();
        self.change(|table| {
            table.release(of, buffer);
            table.hold(of, buffer, bytes);
            table.enforce(of.owner, &mut evicted);
        });
        let count = evicted.len() as u64;
        self.closed_unread.fetch_add(count, Relaxed);
        for connection in evicted {
            connection.close();
        }
    }
}

impl Table {
    /// Makes room for one more connection of an owner: returns the one that must be closed
    /// for it, if any.
    fn room_for(&mut self, owner: Owner) -> Result<Option<Arc<Activity>>, OverLimit> {
        let Some(bounds) = self.bounds else {
            return Ok(None);
        };
        let own = self.owners.get(&owner).map_or(0, |rows| rows.list.len());
        let limit = bounds.per_client.map(|(connections, _)| connections);
        let is_client = matches!(owner, Owner::Client(_));
        let victim = if is_client && limit.is_some_and(|limit| own as u64 >= limit) {
            let rows = self.owners.get(&owner).into_iter();
            let idle = Self::longest(rows.flat_map(|rows| &rows.list))
                .filter(|idle| !idle.is_working())
                .ok_or(OverLimit::Client)?;
            Some(idle)
        } else if self.connections >= bounds.connections {
            let (most, idle) = self
                .of_most(|rows| rows.list.len() as u64)
                .ok_or(OverLimit::Total)?;
            if idle.is_working() && most <= own as u64 + 1 {
                return Err(OverLimit::Total);
            }
            Some(idle)
        } else {
            None
        };
        if let Some(victim) = &victim {
            self.remove(victim);
        }
        Ok(victim)
    }

    /// Of the owners that hold most, the connection that has been idle or stalled longest.
    fn of_most(&self, holds: impl Fn(&Rows) -> u64) -> Option<(u64, Arc<Activity>)> {
        let most = self.owners.values().map(&holds).max()?;
        let owners = self.owners.values().filter(|rows| holds(rows) == most);
        let longest = Self::longest(owners.flat_map(|rows| &rows.list))?;
        Some((most, longest))
    }

    /// The connection that has been idle or stalled longest; if all of them work, the one
    /// that has for longest.
    fn longest<'r>(rows: impl Iterator<Item = &'r Row>) -> Option<Arc<Activity>> {
        let rows = rows.map(|row| &row.activity);
        rows.min_by_key(|row| (row.is_working(), row.last()))
            .cloned()
    }

    /// Removes a connection with all that it holds, if it is there.
    fn remove(&mut self, of: &Arc<Activity>) {
        let Some(rows) = self.owners.get_mut(&of.owner) else {
            return;
        };
        let mut list = rows.list.iter();
        let Some(at) = list.position(|row| Arc::ptr_eq(&row.activity, of)) else {
            return;
        };
        let row = rows.list.swap_remove(at);
        for buffer in row.buffers {
            rows.buffers.release(buffer);
            self.buffers.release(buffer);
        }
        if rows.list.is_empty() {
            self.owners.remove(&of.owner);
        }
        self.connections -= 1;
    }

    fn hold(&mut self, of: &Arc<Activity>, buffer: usize, bytes: u64) {
        let Some(rows) = self.owners.get_mut(&of.owner) else {
            return;
        };
        let Some(row) = rows.row(of) else {
            return;
        };
        row.buffers.push(buffer);
        rows.buffers.hold(buffer, bytes);
        self.buffers.hold(buffer, bytes);
    }

    fn release(&mut self, of: &Arc<Activity>, buffer: usize) {
        let Some(rows) = self.owners.get_mut(&of.owner) else {
            return;
        };
        let Some(row) = rows.row(of) else {
            return;
        };
        if let Some(at) = row.buffers.iter().position(|held| *held == buffer) {
            row.buffers.swap_remove(at);
            rows.buffers.release(buffer);
            self.buffers.release(buffer);
        }
    }

    /// Removes connections until the bounds hold. This owner holds more than before.
    fn enforce(&mut self, owner: Owner, evicted: &mut Vec<Arc<Activity>>) {
        let Some(bounds) = self.bounds else {
            return;
        };
        let of_client = bounds.per_client.map(|(_, unread)| unread);
        let of_client = of_client.filter(|_| matches!(owner, Owner::Client(_)));
        while let Some(rows) = self.owners.get(&owner) {
            let is_over = of_client.is_some_and(|bound| rows.buffers.bytes > bound);
            let holding = rows.list.iter().filter(|row| !row.buffers.is_empty());
            let Some(longest) = Self::longest(holding.clone()).filter(|_| is_over) else {
                break;
            };
            // One answer may exceed the bound by itself; while it is collected, a part of it
            // is sent.
            if holding.count() == 1 && (!longest.is_http2() || rows.buffers.list.len() <= 2) {
                break;
            }
            self.remove(&longest);
            evicted.push(longest);
        }
        while self.buffers.bytes > bounds.unread {
            let Some(most) = self.owners.values().map(|rows| rows.buffers.bytes).max() else {
                return;
            };
            // Owners with at least half as much are alike: what counts is who does not read.
            let owners = self.owners.values();
            let owners = owners.filter(|rows| rows.buffers.bytes >= most.div_ceil(2));
            let holding = owners.flat_map(|rows| &rows.list);
            let holding = holding.filter(|row| !row.buffers.is_empty());
            let Some(longest) = Self::longest(holding) else {
                return;
            };
            self.remove(&longest);
            evicted.push(longest);
        }
    }
}

/// A buffer that a connection sends, or that is collected for it, in the table until this
/// is dropped.
pub(crate) struct Held {
    of: Arc<Activity>,
    buffer: usize,
}

impl Held {
    /// Enters a buffer, which is identified by an address in it.
    pub(crate) fn new(of: &Arc<Activity>, buffer: usize, bytes: u64) -> Self {
        of.table.hold(of, buffer, bytes);
        Self {
            of: of.clone(),
            buffer,
        }
    }

    /// It has another size now.
    pub(crate) fn set(&self, bytes: u64) {
        self.of.table.hold(&self.of, self.buffer, bytes);
    }

    /// The connection that sends it.
    pub(crate) fn activity(&self) -> &Activity {
        &self.of
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let table = &self.of.table;
        table.change(|table| table.release(&self.of, self.buffer));
    }
}

#[cfg(test)]
mod tests;
