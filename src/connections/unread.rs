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
    /// The connections that hold something.
    holders: HashMap<Owner, Vec<Holder>, RandomState>,
    /// Buffers by their address: how many times each is held, and its bytes.
    buffers: HashMap<usize, (u64, u64), RandomState>,
    /// Bytes of all of them, each once.
    bytes: u64,
}

struct Holder {
    of: Arc<Activity>,
    /// The addresses of what it sends.
    buffers: Vec<usize>,
}

impl Unread {
    fn hold(&mut self, of: &Arc<Activity>, buffer: usize, bytes: u64) {
        let own = self.holders.entry(of.owner).or_default();
        match own.iter_mut().find(|holder| Arc::ptr_eq(&holder.of, of)) {
            Some(holder) => holder.buffers.push(buffer),
            None => own.push(Holder {
                of: of.clone(),
                buffers: vec![buffer],
            }),
        }
        let (times, before) = self.buffers.entry(buffer).or_default();
        *times += 1;
        self.bytes += bytes.saturating_sub(*before);
        *before = bytes.max(*before);
    }

    /// Nothing happens where the connection has been closed.
    fn release(&mut self, of: &Arc<Activity>, buffer: usize) {
        let Some(own) = self.holders.get_mut(&of.owner) else {
            return;
        };
        let Some(at) = own.iter().position(|holder| Arc::ptr_eq(&holder.of, of)) else {
            return;
        };
        let held = &mut own[at].buffers;
        let Some(nth) = held.iter().position(|held| *held == buffer) else {
            return;
        };
        held.swap_remove(nth);
        if held.is_empty() {
            own.swap_remove(at);
        }
        if own.is_empty() {
            self.holders.remove(&of.owner);
        }
        self.forget(buffer);
    }

    fn forget(&mut self, buffer: usize) {
        if let Some((times, bytes)) = self.buffers.get_mut(&buffer) {
            *times -= 1;
            if *times == 0 {
                self.bytes -= *bytes;
                self.buffers.remove(&buffer);
            }
        }
    }

    /// The bytes that these hold, each buffer once, and those of the largest buffer.
    fn bytes_of(&self, own: &[Holder]) -> (u64, u64) {
        let mut buffers: Vec<_> = own.iter().flat_map(|holder| &holder.buffers).collect();
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
        let longest = |holders: &mut dyn Iterator<Item = &Holder>| {
            let longest = holders.map(|holder| &holder.of);
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

    /// Nothing of a connection that closes counts any more.
    fn remove(&mut self, of: &Arc<Activity>) {
        let own = self.holders.get_mut(&of.owner);
        let at = own
            .as_ref()
            .and_then(|own| own.iter().position(|one| Arc::ptr_eq(&one.of, of)));
        let held = own.zip(at).map(|(own, at)| own.swap_remove(at).buffers);
        self.holders.retain(|_, own| !own.is_empty());
        for buffer in held.unwrap_or_default() {
            self.forget(buffer);
        }
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
            while let Some(victim) = held.victim(of.owner, &bounds) {
                held.remove(&victim);
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
            held.release(of, buffer);
            held.hold(of, buffer, bytes);
        });
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let (of, buffer) = (&self.of, self.buffer);
        of.table.change_held(|held| held.release(of, buffer));
    }
}
