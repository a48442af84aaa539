//! The table of stalled connections, by connection, owner and buffer, and the
//! choice of those to reset.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use foldhash::fast::RandomState;

use super::{BufferOwner, SendBuffer};
use crate::clock::Moment;
use crate::wire::activity::Activity;

/// A stalled connection.
pub(super) struct StalledConnection {
    pub(super) owner: BufferOwner,
    pub(super) buffers: Vec<SendBuffer>,
    /// Has the moment since which the connection has been stalled.
    pub(super) activity: Arc<Activity>,
    /// Wakes the connection's task, so that it ends.
    pub(super) waker: Waker,
}

impl StalledConnection {
    fn stalled_for(&self, now: Moment) -> Duration {
        let since = self.activity.stalled_since();
        since.map_or(Duration::ZERO, |since| now.since(since))
    }
}

#[derive(Default)]
pub(super) struct Table {
    pub(super) connections: HashMap<u64, StalledConnection, RandomState>,
    /// The stalled connections of each owner.
    pub(super) owners: HashMap<BufferOwner, HashSet<u64, RandomState>, RandomState>,
    /// Each buffer by its end address.
    pub(super) buffers: HashMap<usize, SharedBuffer, RandomState>,
    held: u64,
}

/// A buffer that one or several connections are sending, or streams of one.
pub(super) struct SharedBuffer {
    connections: u64,
    bytes: u64,
}

/// The stalled connections of one owner, while the total bound is enforced.
struct OwnerUsage {
    /// The sum of bytes × milliseconds stalled of its connections.
    usage: u128,
    /// How many connections it had when that was last summed up.
    summed: usize,
    /// For how long each has been stalled, and its number; the longest last.
    connections: Vec<(Duration, u64)>,
}

/// Is added to the time that a connection has been stalled, so that of two owners
/// whose connections have just stalled the one with more bytes has the higher
/// usage.
const BASE_TIME: Duration = Duration::from_secs(1);

impl Table {
    /// Bytes of all buffers.
    pub(super) fn held(&self) -> u64 {
        self.held
    }

    pub(super) fn insert(&mut self, connection: u64, stalled: StalledConnection) {
        self.remove(connection);
        for SendBuffer { end, bytes } in &stalled.buffers {
            let shared = self.buffers.entry(*end).or_insert(SharedBuffer {
                connections: 0,
                bytes: 0,
            });
            shared.connections += 1;
            // A connection that began to send it later may have been offered less.
            self.held += bytes.saturating_sub(shared.bytes);
            shared.bytes = shared.bytes.max(*bytes);
        }
        let own = self.owners.entry(stalled.owner).or_default();
        own.insert(connection);
        self.connections.insert(connection, stalled);
    }

    pub(super) fn remove(&mut self, connection: u64) -> Option<StalledConnection> {
        let stalled = self.connections.remove(&connection)?;
        if let Some(own) = self.owners.get_mut(&stalled.owner) {
            own.remove(&connection);
            if own.is_empty() {
                self.owners.remove(&stalled.owner);
            }
        }
        for SendBuffer { end, .. } in &stalled.buffers {
            if let Some(shared) = self.buffers.get_mut(end) {
                shared.connections -= 1;
                if shared.connections == 0 {
                    self.held -= shared.bytes;
                    self.buffers.remove(end);
                }
            }
        }
        Some(stalled)
    }

    /// The bytes that count for a connection: of a shared buffer, an equal part.
    fn bytes_of(&self, stalled: &StalledConnection) -> u64 {
        let buffers = stalled.buffers.iter();
        let shared = buffers.filter_map(|buffer| self.buffers.get(&buffer.end));
        shared.map(|shared| shared.bytes / shared.connections).sum()
    }

    /// Removes connections of a client until it holds at most `bound` bytes, but
    /// never the last one: a single answer may be larger.
    pub(super) fn enforce_client_bound(
        &mut self,
        owner: BufferOwner,
        bound: u64,
        now: Moment,
        evicted: &mut Vec<StalledConnection>,
    ) {
        let own = self.owners.get(&owner).into_iter().flatten();
        let own = own.filter_map(|number| Some((*number, self.connections.get(number)?)));
        let mut own: Vec<_> = own
            .map(|(number, stalled)| {
                let stalled_for = Reverse(stalled.stalled_for(now));
                (stalled_for, number, self.bytes_of(stalled))
            })
            .collect();
        let mut held: u64 = own.iter().map(|(_, _, bytes)| bytes).sum();
        if held <= bound {
            return;
        }
        own.sort_unstable();
        own.pop();
        for (_, connection, bytes) in own {
            if held <= bound {
                return;
            }
            held -= bytes;
            evicted.extend(self.remove(connection));
        }
    }

    /// Removes connections of the owners with the highest usage until at most
    /// `bound` bytes are held.
    pub(super) fn enforce_total_bound(
        &mut self,
        bound: u64,
        now: Moment,
        evicted: &mut Vec<StalledConnection>,
    ) {
        let mut owners: Vec<_> = self
            .owners
            .values()
            .map(|connections| self.usage(connections, now))
            .collect();
        let ranked = owners.iter().enumerate();
        let mut ranked: BinaryHeap<_> = ranked.map(|(at, owner)| (owner.usage, at)).collect();
        while self.held > bound {
            let Some((_, at)) = ranked.pop() else {
                return;
            };
            let owner = &mut owners[at];
            let Some(longest) = owner.connections.pop() else {
                continue;
            };
            owner.usage = owner.usage.saturating_sub(self.usage_of(longest));
            evicted.extend(self.remove(longest.1));
            // The parts of other connections that send the same buffer have
            // grown. They are summed up again once an eighth has gone, rather
            // than each time.
            let left = owner.connections.len();
            if left <= owner.summed - owner.summed.div_ceil(8) {
                owner.summed = left;
                owner.usage = self.sum_usage(&owner.connections);
            }
            ranked.push((owner.usage, at));
        }
    }

    fn usage(&self, connections: &HashSet<u64, RandomState>, now: Moment) -> OwnerUsage {
        let stalled_for =
            |number: &u64| Some((self.connections.get(number)?.stalled_for(now), *number));
        let mut connections: Vec<_> = connections.iter().filter_map(stalled_for).collect();
        connections.sort_unstable();
        OwnerUsage {
            usage: self.sum_usage(&connections),
            summed: connections.len(),
            connections,
        }
    }

    fn sum_usage(&self, connections: &[(Duration, u64)]) -> u128 {
        connections.iter().map(|one| self.usage_of(*one)).sum()
    }

    fn usage_of(&self, (stalled_for, connection): (Duration, u64)) -> u128 {
        let stalled = self.connections.get(&connection);
        let bytes = stalled.map_or(0, |stalled| self.bytes_of(stalled));
        u128::from(bytes) * (stalled_for + BASE_TIME).as_millis()
    }
}
