//! The bytes of answers that clients have not read, and who must close because of them.
//!
//! Several connections that send the same buffer, such as a stored response, hold it
//! once; it is identified by its address.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use foldhash::quality::RandomState;

use super::{Activity, Bounds, Connections, Owner, waits};
use crate::sync::lock;

/// What connections hold.
#[derive(Default)]
pub(super) struct Unread {
    /// What the connections of each owner send.
    holders: HashMap<Owner, Vec<Holding>, RandomState>,
    /// Buffers by their address: how many times each is held, and its bytes.
    buffers: HashMap<usize, (u64, u64), RandomState>,
    /// Bytes of all of them, each once.
    bytes: u64,
}

/// A connection, and the address of a buffer that it sends.
type Holding = (Arc<Activity>, usize);

impl Unread {
    fn hold(&mut self, of: &Arc<Activity>, buffer: usize, bytes: u64) {
        let own = self.holders.entry(of.owner()).or_default();
        own.push((of.clone(), buffer));
        let (times, before) = self.buffers.entry(buffer).or_default();
        *times += 1;
        self.bytes += bytes.saturating_sub(*before);
        *before = bytes.max(*before);
    }

    /// Releases a buffer of a connection once, or all that it holds. Nothing happens where that
    /// has been done because it closes.
    fn release(&mut self, of: &Arc<Activity>, buffer: Option<usize>) {
        let Some(own) = self.holders.get_mut(&of.owner()) else {
            return;
        };
        let is_it = |(one, held): &mut Holding| {
            Arc::ptr_eq(one, of) && buffer.is_none_or(|buffer| buffer == *held)
        };
        let most = buffer.map_or(usize::MAX, |_one| 1);
        for (_, released) in own.extract_if(.., is_it).take(most) {
            if let Some((times, bytes)) = self.buffers.get_mut(&released) {
                *times -= 1;
                if *times == 0 {
                    self.bytes -= *bytes;
                    self.buffers.remove(&released);
                }
            }
        }
        if own.is_empty() {
            self.holders.remove(&of.owner());
        }
    }

    /// The bytes that these hold, each buffer once, and those of the largest buffer.
    fn bytes_of(&self, own: &[Holding]) -> (u64, u64) {
        let mut buffers: Vec<_> = own.iter().map(|(_, buffer)| buffer).collect();
        buffers.sort_unstable();
        buffers.dedup();
        let bytes = buffers
            .into_iter()
            .filter_map(|held| self.buffers.get(held));
        bytes.fold((0, 0), |(all, largest), (_, bytes)| {
            (all + bytes, largest.max(*bytes))
        })
    }

    /// The next connection that must close, since this owner holds more than before.
    fn victim(&self, owner: Owner, bounds: &Bounds) -> Option<Arc<Activity>> {
        let longest = |holders: &mut dyn Iterator<Item = &Holding>| {
            let longest = holders.map(|(of, _)| of);
            longest.min_by_key(|of| waits(of)).cloned()
        };
        if let Some(limit) = bounds.per_client
            && matches!(owner, Owner::Client(_))
            && let Some(own) = self.holders.get(&owner)
            // One answer may exceed the bound by itself, also while parts of it are sent.
            && let (bytes, largest) = self.bytes_of(own)
            && bytes - largest > limit.unread
        {
            return longest(&mut own.iter());
        }
        if self.bytes <= bounds.unread {
            return None;
        }
        let each = self.holders.values().map(|own| (self.bytes_of(own).0, own));
        let each: Vec<_> = each.collect();
        let most = each.iter().map(|(bytes, _)| *bytes).max()?;
        // Owners with at least half as much are alike: what counts is who does not read.
        let alike = each.iter().filter(|(bytes, _)| *bytes >= most.div_ceil(2));
        longest(&mut alike.flat_map(|(_, own)| *own))
    }
}

impl Connections {
    fn change_held(&self, change: impl FnOnce(&mut Unread)) {
        let mut held = lock(&self.held);
        change(&mut held);
        self.unread.store(held.bytes, Relaxed);
    }

    /// Enters what a connection holds, and closes connections until the bounds hold.
    fn hold(&self, of: &Arc<Activity>, change: impl FnOnce(&mut Unread)) {
        let bounds = self.bounds.load();
        let mut evicted = Vec::new();
        self.change_held(|held| {
            change(held);
            while let Some(victim) = held.victim(of.owner(), &bounds) {
                held.release(&victim, None);
                evicted.push(victim);
            }
        });
        for victim in evicted {
            self.closed_unread.fetch_add(1, Relaxed);
            victim.close();
        }
    }
}

/// A buffer that a connection sends, or that is collected for it, and counts until this is
/// dropped.
pub(crate) struct Held {
    /// The connection that sends it.
    pub(crate) of: Arc<Activity>,
    buffer: usize,
}

impl Held {
    /// Enters a buffer, which is identified by an address in it.
    pub(crate) fn new(of: &Arc<Activity>, buffer: usize, bytes: u64) -> Self {
        of.table.hold(of, |held| held.hold(of, buffer, bytes));
        Self {
            of: of.clone(),
            buffer,
        }
    }

    /// It has another size now.
    pub(crate) fn set(&self, bytes: u64) {
        let (of, buffer) = (&self.of, self.buffer);
        of.table.hold(of, |held| {
            held.release(of, Some(buffer));
            held.hold(of, buffer, bytes);
        });
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let (of, buffer) = (&self.of, self.buffer);
        of.table.change_held(|held| held.release(of, Some(buffer)));
    }
}
