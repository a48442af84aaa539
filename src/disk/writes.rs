//! Writes: one thread writes what was stored in memory.
//!
//! The queue is bounded in entries and in bytes. What does not fit is dropped; a value
//! that it would have replaced counts as absent from then on ([`Writes::is_replaced`]),
//! so that nothing older comes back.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::counts::count;
use super::purge_log::Checked;
use super::upkeep::Upkeep;
use super::{Disk, RouteMeaning, Tier};
use crate::cache::StoredResponse;
use crate::cache::store::Variants;
use crate::portable::codec::{Head, Kept, KeptResponse, KeptStamp, encode};
use crate::portable::variants::KeptVariant;
use crate::sync::lock;

/// The most responses that wait to be written, and the most bytes of their bodies.
const MOST_ENTRIES: usize = 4096;
const MOST_BYTES: usize = 16 << 20;
/// The most values that are written at once.
const BATCH: usize = 256;
/// The most keys that are remembered as replaced.
const MOST_REPLACED: usize = 65_536;
/// How often the thread does what is periodic, if there is nothing to write.
pub(super) const TICK: Duration = Duration::from_secs(1);

/// What was stored in memory for a key.
pub(super) enum ToKeep {
    One(Arc<StoredResponse>),
    Variants(Variants),
    /// Nothing any more.
    Nothing,
}

/// Something to be written.
pub(super) struct Write {
    pub(super) disk: Arc<Disk>,
    /// The engine's key.
    pub(super) key: [u8; 16],
    pub(super) route: RouteMeaning,
    pub(super) target: Box<str>,
    pub(super) checked: Checked,
    pub(super) to_keep: ToKeep,
}

impl Write {
    fn weight(&self) -> usize {
        let bodies = match &self.to_keep {
            ToKeep::One(stored) => stored.body.len(),
            ToKeep::Variants(variants) => variants.iter().map(|v| v.body.len()).sum(),
            ToKeep::Nothing => 0,
        };
        bodies + self.target.len() + size_of::<Self>()
    }

    /// Whether what is on disk for its key cannot be older: an answer about a block is the
    /// same for as long as the block stands.
    fn is_immutable(&self) -> bool {
        matches!(&self.to_keep, ToKeep::One(stored) if stored.stamp().is_some())
    }

    /// The value; `None` if nothing may be kept.
    fn value(&self) -> Option<Vec<u8>> {
        let kept = match &self.to_keep {
            ToKeep::One(stored) => Kept::One(Box::new(self.disk.kept(self.route, stored)?)),
            ToKeep::Variants(variants) => {
                let time = self.disk.tier.clock.now();
                let wall = time.wall();
                let (targets, least) = (&self.disk.targets, self.disk.min_freshness);
                let each = variants.iter();
                let kept: Vec<_> = each
                    .filter_map(|variant| {
                        KeptVariant::of(variant, targets, least, wall, |at| time.of_wall(at))
                    })
                    .collect();
                if kept.is_empty() {
                    return None;
                }
                Kept::Variants(kept)
            }
            ToKeep::Nothing => return None,
        };
        let head = Head {
            checked: self.checked,
            route: self.route.digest,
            target: &self.target,
        };
        Some(encode(&head, &kept))
    }
}

impl Disk {
    /// A response as it is kept.
    fn kept(&self, route: RouteMeaning, stored: &StoredResponse) -> Option<KeptResponse> {
        let stamp = match stored.stamp() {
            None => None,
            Some(stamp) => Some(KeptStamp {
                state: self.chain.state_number(route.tip)?,
                epoch: stamp.epoch(),
                class: stamp.class,
                heights: stamp.heights(),
            }),
        };
        Some(KeptResponse {
            status: stored.status,
            content_type: stored.metadata.content_type.clone(),
            client_freshness: stored.metadata.client_freshness,
            etag: stored.etag.clone(),
            received: self.tier.clock.now().of(stored.received),
            lifetime: stored.lifetime,
            took: stored.took,
            is_encodable: stored.encodings.are_allowed(),
            stamp,
            body: stored.body.clone(),
        })
    }
}

/// What is to replace the value of a key.
#[derive(Clone, Copy, Debug, Default)]
struct Replacement {
    /// The writes that wait or are under way.
    queued: usize,
    /// Whether the newest write was not written.
    is_lost: bool,
}

/// The queue.
pub(super) struct Writes {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    writes: VecDeque<Write>,
    bytes: usize,
    /// The keys whose values on disk are older than what memory has, or had.
    replaced: HashMap<[u8; 16], Replacement>,
    is_closed: bool,
    /// Whether the thread has ended.
    has_ended: bool,
}

impl Writes {
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Adds a write, if there is room. Otherwise the key counts as replaced, if it can.
    fn push(&self, write: Write) -> Pushed {
        let weight = write.weight();
        let mut state = self.state();
        let is_full = state.writes.len() >= MOST_ENTRIES || state.bytes + weight > MOST_BYTES;
        if is_full || state.is_closed {
            return state.lose(&write);
        }
        if !write.is_immutable() {
            // Until it is written, what is on disk is older.
            let Some(replacement) = state.replacement(write.key) else {
                return Pushed::Lost;
            };
            replacement.queued += 1;
            replacement.is_lost = false;
        }
        state.bytes += weight;
        state.writes.push_back(write);
        drop(state);
        self.changed.notify_one();
        Pushed::Queued
    }

    /// The next writes, or none after a while; `None` once all is written and it is closed.
    fn next(&self) -> Option<Vec<Write>> {
        let mut state = self.state();
        if state.writes.is_empty() && !state.is_closed {
            let waited = self.changed.wait_timeout(state, TICK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if state.writes.is_empty() && state.is_closed {
            return None;
        }
        let most = state.writes.len().min(BATCH);
        let writes: Vec<_> = state.writes.drain(..most).collect();
        let written: usize = writes.iter().map(Write::weight).sum();
        state.bytes = state.bytes.saturating_sub(written);
        Some(writes)
    }

    /// Notes that writes were written, or that they could not be.
    fn settle(&self, writes: &[Write], is_written: bool) {
        let mut state = self.state();
        for write in writes.iter().filter(|write| !write.is_immutable()) {
            let Some(replacement) = state.replaced.get_mut(&write.key) else {
                continue;
            };
            replacement.queued = replacement.queued.saturating_sub(1);
            replacement.is_lost |= !is_written;
            if replacement.queued == 0 && !replacement.is_lost {
                state.replaced.remove(&write.key);
            }
        }
    }

    /// The keys whose writes were lost.
    pub(super) fn lost(&self) -> Vec<[u8; 16]> {
        let state = self.state();
        let lost = state.replaced.iter().filter(|(_, one)| one.queued == 0);
        lost.map(|(key, _)| *key).collect()
    }

    /// Forgets keys whose writes were lost, since they have no value on disk any more.
    pub(super) fn forget_lost(&self, keys: &[[u8; 16]]) {
        let mut state = self.state();
        for key in keys {
            if state.replaced.get(key).is_some_and(|one| one.queued == 0) {
                state.replaced.remove(key);
            }
        }
    }

    /// Whether memory has, or had, something newer for a key than the disk.
    pub(super) fn is_replaced(&self, key: &[u8; 16]) -> bool {
        self.state().replaced.contains_key(key)
    }

    pub(super) fn len(&self) -> usize {
        self.state().writes.len()
    }

    /// Has the thread write what waits, and end. Returns whether it has, in time.
    pub(super) fn close(&self, until: Instant) -> bool {
        let mut state = self.state();
        state.is_closed = true;
        self.changed.notify_all();
        while !state.has_ended {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    fn end(&self) {
        self.state().has_ended = true;
        self.changed.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// What became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pushed {
    Queued,
    /// There is no room. The key counts as replaced.
    Dropped,
    /// There is no room, nor any for the key: nothing on disk can be trusted.
    Lost,
}

impl State {
    /// What is to replace the value of a key; `None` if there is no room to note it.
    fn replacement(&mut self, key: [u8; 16]) -> Option<&mut Replacement> {
        let has_room = self.replaced.len() < MOST_REPLACED || self.replaced.contains_key(&key);
        has_room.then(|| self.replaced.entry(key).or_default())
    }

    /// Drops a write.
    fn lose(&mut self, write: &Write) -> Pushed {
        if write.is_immutable() {
            return Pushed::Dropped;
        }
        match self.replacement(write.key) {
            Some(replacement) => {
                replacement.is_lost = true;
                Pushed::Dropped
            }
            None => Pushed::Lost,
        }
    }
}

impl Tier {
    /// Has something written.
    pub(super) fn submit(&self, write: Write) {
        match self.writes.push(write) {
            Pushed::Queued => {}
            Pushed::Dropped => count(&self.counts.dropped),
            Pushed::Lost => {
                count(&self.counts.dropped);
                self.log.discard(&"too many responses could not be written");
            }
        }
    }

    /// Writes until the tier is closed and all is written.
    pub(super) fn run_writer(&self) {
        let (mut last, mut upkeep) = (Instant::now(), Upkeep::default());
        self.tick(&mut upkeep);
        while let Some(writes) = self.writes.next() {
            self.write(&writes);
            if last.elapsed() >= TICK {
                last = Instant::now();
                self.tick(&mut upkeep);
            }
        }
        self.last_tick();
        self.writes.end();
    }

    fn write(&self, writes: &[Write]) {
        if writes.is_empty() {
            return;
        }
        // Purges before what was checked against them.
        if !self.writing.is_good() || !self.make_purges_durable() {
            writes.iter().for_each(|_| count(&self.counts.dropped));
            self.writes.settle(writes, false);
            return;
        }
        let (mut values, mut gone) = (Vec::new(), Vec::new());
        let most = self.engine.max_value_bytes();
        for write in writes {
            // Or it was removed or purged meanwhile: then nothing older may stay either.
            let may_keep = |_: &Vec<u8>| self.log.may_keep(write.checked, &write.key);
            match write.value().filter(may_keep) {
                Some(value) if value.len() <= most => values.push((write.key, value)),
                too_long => {
                    too_long.iter().for_each(|_| count(&self.counts.dropped));
                    // What comes before in the same batch is not removed by it.
                    values.retain(|(key, _)| *key != write.key);
                    gone.push(write.key);
                }
            }
        }
        let count_of = values.len() as u64;
        let removed = match gone.is_empty() {
            true => Ok(()),
            false => self.engine.remove_batch(&gone),
        };
        let evicted = self.engine.evicted();
        let written = removed.and_then(|()| self.engine.put_batch(&values));
        if self.engine.evicted() > evicted {
            let now = self.now().nanos();
            self.counts.last_eviction.store(now, Relaxed);
        }
        match written {
            Ok(()) => {
                self.writing.succeed();
                let counter = &self.counts.written;
                counter.fetch_add(count_of, Relaxed);
                self.writes.settle(writes, true);
            }
            Err(error) => {
                count(&self.counts.errors);
                writes.iter().for_each(|_| count(&self.counts.dropped));
                self.writes.settle(writes, false);
                let what = "stored responses cannot be written to disk";
                self.writing.fail(what, &error);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    #[test]
    fn lost_writes_are_forgotten_and_those_that_wait_are_not() {
        let writes = Writes::new();
        let (lost, waiting) = ([1; 16], [2; 16]);
        for (key, queued) in [(lost, 0), (waiting, 1)] {
            let is_lost = true;
            let replacement = Replacement { queued, is_lost };
            writes.state().replaced.insert(key, replacement);
        }
        assert_eq!(writes.lost(), [lost]);
        writes.forget_lost(&[lost, waiting]);
        assert!(!writes.is_replaced(&lost));
        assert!(writes.is_replaced(&waiting));
    }

    #[tokio::test]
    async fn what_is_older_than_a_lost_write_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let tier = Tier::open(directory.path(), 64 << 20, 0, Clock::manual()).unwrap();
        let (lost, other) = ([1; 16], [2; 16]);
        let values = [lost, other].map(|key| (key, b"older".to_vec()));
        tier.engine.put_batch(&values).unwrap();
        let replacement = Replacement {
            queued: 0,
            is_lost: true,
        };
        tier.writes.state().replaced.insert(lost, replacement);
        tier.carry_out().unwrap();
        assert_eq!(tier.engine.get(&lost).unwrap(), None);
        assert!(tier.engine.get(&other).unwrap().is_some());
        assert!(!tier.is_replaced(&lost), "it need not be remembered");
        tier.close(Duration::from_secs(30));
    }
}
