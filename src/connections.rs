//! The open connections: one row for each, with its client and when it last made progress;
//! and the bytes of answers that they hold.
//!
//! At a limit of connections, and at a bound on unread bytes, whoever holds most makes
//! room: of its connections, the one that has been idle or stalled longest is closed.
//!
//! A hit on a small body locks nothing here: only bodies of
//! [`Activity::least_counted`] bytes are entered.

mod activity;
mod unread;

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

pub use activity::Activity;
pub(crate) use activity::BusyGuard;
use arc_swap::ArcSwap;
use foldhash::quality::RandomState;
use serde::Serialize;
pub(crate) use unread::Held;
use unread::Unread;

use crate::clock::{Clock, Moment};
use crate::identify::{Client, TrustedProxies};
use crate::sync::lock;

/// How many rows are looked at when one must make room; with more rows, they are chosen at
/// random. Whoever has a tenth of them is missed in one of a thousand cases, and whoever has
/// `limit.connections` of `server.max_connections` at their defaults in one of eight.
const SAMPLE: usize = 64;

/// What connections may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Concurrent connections. Beyond it, the client with the most loses one.
    pub connections: u64,
    /// Bytes of answers that clients have not read yet, in total. Beyond it, connections of
    /// the clients that hold the most are closed.
    pub unread: u64,
    /// Bounds on each client; `None` for none. They do not apply to trusted proxies, which
    /// serve many clients.
    pub per_client: Option<PerClient>,
}

/// What the connections of one client may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerClient {
    /// Concurrent connections. Beyond it, the client loses an idle one.
    pub connections: u32,
    /// Bytes of answers that the client has not read yet, beside its largest one. Beyond it,
    /// its longest-stalled connections are reset.
    pub unread: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            connections: u64::MAX,
            unread: u64::MAX,
            per_client: None,
        }
    }
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
    /// Connections turned away since the start because there were too many, all at work.
    pub turned_away: AtomicU64,
    /// Connections turned away since the start because their client had too many, all at
    /// work.
    pub turned_away_client: AtomicU64,
    /// Connections closed since the start so that others could be opened.
    pub closed_for_others: AtomicU64,
    /// Connections reset since the start because of unread bytes.
    #[serde(rename = "reset_unsent")]
    pub closed_unread: AtomicU64,
    #[serde(skip)]
    bounds: ArcSwap<Bounds>,
    #[serde(skip)]
    table: Mutex<Table>,
    #[serde(skip)]
    held: Mutex<Unread>,
}

/// The rows.
#[derive(Default)]
struct Table {
    /// All; each knows its place here.
    rows: Vec<Arc<Activity>>,
    owners: HashMap<Owner, Vec<Arc<Activity>>, RandomState>,
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

    /// Enters it in the table for `peer`, if there is room; it may have been there for another.
    pub(crate) fn enter(&self, peer: IpAddr, trust: &TrustedProxies) -> bool {
        let Self(own) = self;
        let all = &own.table;
        let entered = all.change(|table| -> Result<_, &AtomicU64> {
            // Its own row must not be the one that makes room.
            table.remove(own);
            if !trust.contains(peer) {
                let _is_unset = own.client.set(peer.into());
            }
            let victim = all.victim(table, own.owner())?;
            if let Some(victim) = &victim {
                table.remove(victim);
            }
            table.insert(own);
            Ok(victim)
        });
        match entered {
            Ok(None) => true,
            Ok(Some(victim)) => {
                all.closed_for_others.fetch_add(1, Relaxed);
                victim.close();
                true
            }
            Err(turned_away) => {
                turned_away.fetch_add(1, Relaxed);
                false
            }
        }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.table.change(|table| table.remove(&self.0));
    }
}

impl Connections {
    /// Sets the bounds. They apply when a connection is opened or holds more.
    pub(crate) fn set(&self, bounds: Bounds) {
        self.bounds.store(Arc::new(bounds));
    }

    /// The bound on unread bytes.
    pub fn most_unread(&self) -> u64 {
        self.bounds.load().unread
    }

    /// Enters a connection with this number from `peer`, if there is room: at a limit, another
    /// one makes room unless all are at work.
    pub(crate) fn open(
        self: &Arc<Self>,
        peer: IpAddr,
        trust: &TrustedProxies,
        number: u64,
        clock: &Clock,
    ) -> Option<OpenConnection> {
        let open = OpenConnection(Arc::new(Activity::of(self.clone(), number, clock)));
        open.enter(peer, trust).then_some(open)
    }

    fn change<T>(&self, change: impl FnOnce(&mut Table) -> T) -> T {
        let mut table = lock(&self.table);
        let result = change(&mut table);
        self.open.store(table.rows.len() as u64, Relaxed);
        result
    }

    /// The connection that must be closed for one more of an owner, if any; the count of those
    /// that are turned away where there is none. A client at its own limit loses an idle one.
    /// One at work makes room only for an owner with fewer.
    fn victim(&self, table: &Table, owner: Owner) -> Result<Option<Arc<Activity>>, &AtomicU64> {
        let bounds = self.bounds.load();
        let own = table.count(owner);
        if let Some(limit) = bounds.per_client
            && matches!(owner, Owner::Client(_))
            && own >= limit.connections as usize
        {
            let own = table.owners.get(&owner).into_iter().flatten();
            let longest = own.min_by_key(|row| waits(row));
            let idle = longest.filter(|row| !row.is_working());
            return idle.cloned().map(Some).ok_or(&self.turned_away_client);
        }
        let all = table.rows.len();
        if (all as u64) < bounds.connections {
            return Ok(None);
        }
        let sample = (0..all.min(SAMPLE)).map(|nth| match all > SAMPLE {
            true => &table.rows[fastrand::usize(..all)],
            false => &table.rows[nth],
        });
        let of_most = sample.max_by_key(|row| (table.count(row.owner()), Reverse(waits(row))));
        let makes_room =
            |row: &&Arc<Activity>| !row.is_working() || table.count(row.owner()) > own + 1;
        let victim = of_most.filter(makes_room);
        victim.cloned().map(Some).ok_or(&self.turned_away)
    }
}

impl Table {
    fn insert(&mut self, row: &Arc<Activity>) {
        row.place.store(self.rows.len(), Relaxed);
        self.rows.push(row.clone());
        self.owners
            .entry(row.owner())
            .or_default()
            .push(row.clone());
    }

    /// Removes a connection, if it is there.
    fn remove(&mut self, row: &Arc<Activity>) {
        let Some(own) = self.owners.get_mut(&row.owner()) else {
            return;
        };
        let Some(at) = own.iter().position(|one| Arc::ptr_eq(one, row)) else {
            return;
        };
        own.swap_remove(at);
        if own.is_empty() {
            self.owners.remove(&row.owner());
        }
        let place = row.place.load(Relaxed);
        self.rows.swap_remove(place);
        if let Some(moved) = self.rows.get(place) {
            moved.place.store(place, Relaxed);
        }
    }

    /// How many connections an owner has.
    fn count(&self, owner: Owner) -> usize {
        self.owners.get(&owner).map_or(0, Vec::len)
    }
}

/// The least of these is the connection that has been idle or stalled longest; if all are at
/// work, the one that has for longest.
fn waits(row: &Activity) -> (bool, Moment) {
    (row.is_working(), row.last())
}

#[cfg(test)]
mod tests;
