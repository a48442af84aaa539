//! The memory tier: moka, bounded in bytes. The only room that names it.
//!
//! moka bounds memory and nothing else: whether an answer may be used is
//! arithmetic in `freshness`. It may refuse or drop any entry at any time, so
//! nobody relies on reading what was just written.

use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use foldhash::quality::{FixedState, RandomState};
use moka::ops::compute::Op;
use moka::sync::Cache;

use super::key::{Key, route_of};
use super::policy::Policy;
use super::purge::{Purge, PurgeSubject, Purges};
use super::stored::OVERHEAD;
pub use super::stored::{CheckedSequence, FieldRole, StoredResponse, Template, Variant};
use crate::clock::Moment;

/// The variants of a target, newest last.
pub type Variants = Arc<[Arc<Variant>]>;

/// The most variants of one target; the oldest make room.
const VARIANTS: usize = 64;

/// What may be inserted before moka is made to hold to its bound: one part of the
/// bound in so many.
const PENDING: u64 = 64;

/// What a key holds.
#[derive(Clone)]
enum Entry {
    One(Arc<StoredResponse>),
    Variants(Variants, Arc<CheckedSequence>),
}

impl Entry {
    fn seen(&self) -> &CheckedSequence {
        match self {
            Self::One(stored) => &stored.seen,
            Self::Variants(_, seen) => seen,
        }
    }

    /// What a purge sees of it.
    fn sight<'h>(&'h self, key: &'h [u8]) -> PurgeSubject<'h> {
        match self {
            Self::One(stored) => stored.sight(key),
            Self::Variants(variants, _) => PurgeSubject {
                key,
                standing: None,
                bodies: variants.iter().map(|variant| &*variant.body).collect(),
            },
        }
    }
}

#[expect(
    clippy::borrowed_box,
    reason = "moka weighs a reference to its key type, which is a box"
)]
fn weigh(key: &Box<[u8]>, held: &Entry) -> u32 {
    match held {
        Entry::One(stored) => stored.weight(key),
        Entry::Variants(variants, _) => {
            let bytes = variants
                .iter()
                .map(|variant| variant.weight())
                .sum::<usize>();
            u32::try_from(key.len() + bytes + OVERHEAD).unwrap_or(u32::MAX)
        }
    }
}

/// Responses by key.
#[derive(Clone)]
pub struct Store {
    cache: Cache<Box<[u8]>, Entry, RandomState>,
    most: u64,
    /// The weight of what was inserted since moka has last been made to hold to
    /// its bound.
    pending: Arc<AtomicU64>,
    removals: Arc<Mutex<Removals>>,
    purges: Arc<Purges>,
    /// The store that has taken this one's place, if any.
    next: Arc<OnceLock<Self>>,
}

/// A point in the order of removals and purges: what was asked of the upstream
/// before a key was removed or purged must not be stored after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PurgeSequence {
    removal: u64,
    purge: u64,
}

impl PurgeSequence {
    /// The number of the last purge before it.
    pub(super) const fn purge(self) -> u64 {
        self.purge
    }

    /// The mark that is taken after a purge, which the purge's own cause
    /// survives.
    #[must_use]
    pub const fn past(self, purge: u64) -> Self {
        Self { purge, ..self }
    }
}

/// The keys that were removed lately, in their order, by hash.
#[derive(Debug, Default)]
struct Removals {
    next: u64,
    lately: VecDeque<(u64, u64)>,
}

/// Removals that are remembered. An answer that was asked for before the oldest
/// of them is not stored, whatever its key.
const REMOVALS: usize = 4096;

impl Removals {
    fn since(&self, mark: PurgeSequence, hash: u64) -> bool {
        let forgotten = self.next.saturating_sub(self.lately.len() as u64);
        let after = |(number, removed): &(u64, u64)| *number >= mark.removal && *removed == hash;
        mark.removal < forgotten || self.lately.iter().rev().any(after)
    }
}

impl Store {
    /// A store of so many bytes at the most.
    pub fn new(max_bytes: u64) -> Self {
        Self {
            cache: Cache::builder()
                .max_capacity(max_bytes)
                .weigher(weigh)
                .build_with_hasher(RandomState::default()),
            most: max_bytes,
            pending: Arc::default(),
            removals: Arc::default(),
            purges: Arc::default(),
            next: Arc::default(),
        }
    }

    /// The store that takes this one's place, with room for so many bytes: this
    /// one, where that is what it has. Otherwise another, since moka cannot
    /// change its bound, that is given all that this one holds and has room for.
    #[must_use]
    pub fn resized(&self, max_bytes: u64) -> Self {
        if max_bytes == self.most {
            return self.clone();
        }
        let next = Self {
            removals: self.removals.clone(),
            purges: self.purges.clone(),
            ..Self::new(max_bytes)
        };
        let mark = self.mark();
        // From now on a removal reaches both. A store is followed once, since
        // only the present one is.
        let next = self.next.get_or_init(|| next).clone();
        for (key, held) in &self.cache {
            let removals = self.removals();
            // Who removes writes that down before, under this lock: it is seen
            // here, or it finds what is put here.
            if !removals.since(mark, self.hash_of(&key)) && next.has_room(&key, &held) {
                let weight = weigh(&key.to_vec().into(), &held);
                next.cache.insert(key.to_vec().into(), held);
                next.settle(weight);
            }
        }
        next
    }

    /// Lets go of all that it holds, now that another has taken its place. What
    /// still asks this one finds nothing.
    pub fn retire(&self) {
        if self.next.get().is_some() {
            self.cache.invalidate_all();
            self.run_maintenance();
        }
    }

    /// Whether two are one.
    pub fn is_same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.next, &other.next)
    }

    fn has_room(&self, key: &[u8], held: &Entry) -> bool {
        match held {
            Entry::One(stored) => u64::from(stored.weight(key)) <= self.most / 8,
            Entry::Variants(..) => true,
        }
    }

    /// The stored response of a key, fresh or not.
    pub fn get(&self, key: &Key) -> Option<Arc<StoredResponse>> {
        match self.held(key)? {
            Entry::One(stored) => Some(stored),
            Entry::Variants(..) => None,
        }
    }

    /// What a key holds, unless it has been purged.
    fn held(&self, key: &Key) -> Option<Entry> {
        let held = self.cache.get(key.as_bytes())?;
        // One load of what hardly ever changes, and one of what is in reach.
        match held.seen().number() == self.purges.last() {
            true => Some(held),
            false => self.unless_purged(key.as_bytes(), held),
        }
    }

    #[cold]
    fn unless_purged(&self, key: &[u8], held: Entry) -> Option<Entry> {
        let last = self.purges.last();
        let seen = held.seen();
        if self.purges.strike(&held.sight(key), seen.number(), None) {
            self.cache.invalidate(key);
            return None;
        }
        seen.0.fetch_max(last, Ordering::Relaxed);
        Some(held)
    }

    /// Purges: whatever of it is stored, or asked for, now is never answered
    /// with again, from the moment that this returns. Answers with the purge's
    /// number.
    pub fn purge(&self, what: Purge) -> u64 {
        self.purges.push(what)
    }

    /// Whether something that was asked for at a mark has been purged since,
    /// leaving out one purge that it has itself caused.
    pub fn is_purged(
        &self,
        sight: &PurgeSubject<'_>,
        mark: PurgeSequence,
        except: Option<u64>,
    ) -> bool {
        mark.purge != self.purges.last() && self.purges.strike(sight, mark.purge, except)
    }

    /// Whether a response, stored or not, has been purged since it was asked
    /// for.
    pub fn has_purged(&self, key: &Key, stored: &StoredResponse) -> bool {
        let since = stored.seen.number();
        since != self.purges.last()
            && self
                .purges
                .strike(&stored.sight(key.as_bytes()), since, None)
    }

    /// Whether a key has been removed or purged since a mark, or may have been
    /// purged for something in its body.
    pub fn is_overtaken(&self, key: &Key, mark: PurgeSequence) -> bool {
        let purged =
            mark.purge != self.purges.last() && self.purges.may_strike(key.as_bytes(), mark.purge);
        purged || self.removals().since(mark, self.hash(key))
    }

    /// Purges so far.
    pub fn purges(&self) -> u64 {
        self.purges.last()
    }

    /// Every stored response of one kind, with its key.
    pub fn each(&self, mut visit: impl FnMut(&[u8], &Arc<StoredResponse>)) {
        for (key, held) in &self.cache {
            if let Entry::One(stored) = held {
                visit(&key, &stored);
            }
        }
    }

    /// Stores a response, unless it alone would take an eighth of the room.
    /// Answers whether it was.
    pub fn insert(&self, key: Key, stored: Arc<StoredResponse>) -> bool {
        let key = key.into_boxed();
        let weight = stored.weight(&key);
        if u64::from(weight) > self.most / 8 {
            return false;
        }
        self.cache.insert(key, Entry::One(stored));
        self.settle(weight);
        true
    }

    /// Makes moka hold to its bound once so much was inserted. It would do so by
    /// itself after 64 operations or a while later, and holds all that was
    /// inserted until then: with large bodies several times its bound.
    fn settle(&self, weight: u32) {
        let weight = u64::from(weight);
        let pending = self.pending.fetch_add(weight, Ordering::Relaxed) + weight;
        if pending >= (self.most / PENDING).max(1) {
            self.pending.store(0, Ordering::Relaxed);
            self.run_maintenance();
        }
    }

    /// Has moka evict what is too much, and frees it. What moka removes from its
    /// table it leaves to crossbeam-epoch, which keeps up to 64 values for each
    /// thread, whatever their size, until it is flushed: with bodies of 7 MiB
    /// that is 448 MiB.
    fn run_maintenance(&self) {
        self.cache.run_pending_tasks();
        // The first hands them over, and each moves the epoch on by one; two
        // epochs later nobody can see them any more.
        for _ in 0..3 {
            crossbeam_epoch::pin().flush();
        }
    }

    /// The most bytes of a body that is stored.
    pub fn most_body(&self) -> u64 {
        self.most / 8
    }

    /// The variants of a key, newest last.
    pub fn variants(&self, key: &Key) -> Option<Variants> {
        match self.held(key)? {
            Entry::Variants(variants, _) => Some(variants),
            Entry::One(_) => None,
        }
    }

    /// Where the removals have come to; to be taken before the upstream is
    /// asked.
    pub fn mark(&self) -> PurgeSequence {
        PurgeSequence {
            removal: self.removals().next,
            purge: self.purges.last(),
        }
    }

    fn removals(&self) -> MutexGuard<'_, Removals> {
        // It is whole after each of its operations.
        self.removals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hash(&self, key: &Key) -> u64 {
        self.hash_of(key.as_bytes())
    }

    fn hash_of(&self, key: &[u8]) -> u64 {
        FixedState::default().hash_one(key)
    }

    /// Changes the variants of a key, at one with all who do so; not where the
    /// key has been removed since the mark was taken.
    pub fn amend(
        &self,
        key: &Key,
        mark: PurgeSequence,
        change: impl FnOnce(&mut Vec<Arc<Variant>>),
    ) {
        let entry = self.cache.entry(key.as_bytes().into());
        let mut weight = 0;
        entry.and_compute_with(|entry| {
            // A removal is written down before it is done, and it is done with
            // this key at rest: it is seen here, or it undoes what is put here.
            if self.removals().since(mark, self.hash(key)) {
                return Op::Nop;
            }
            let purge = self.purges.last();
            let held = entry.map(moka::Entry::into_value);
            let held = held.filter(|held| {
                let (sight, seen) = (held.sight(key.as_bytes()), held.seen().number());
                seen == purge || !self.purges.strike(&sight, seen, None)
            });
            let mut variants = match held {
                Some(Entry::Variants(variants, _)) => variants.to_vec(),
                Some(Entry::One(_)) | None => Vec::new(),
            };
            change(&mut variants);
            if variants.len() > VARIANTS {
                variants.drain(..variants.len() - VARIANTS);
            }
            if variants.is_empty() {
                return Op::Remove;
            }
            let seen = CheckedSequence(AtomicU64::new(purge));
            let held = Entry::Variants(variants.into(), Arc::new(seen));
            // Of what was asked for before a purge that concerns it, nothing
            // stays; nor of what stood beside it.
            match self
                .purges
                .strike(&held.sight(key.as_bytes()), mark.purge, None)
            {
                true => Op::Remove,
                false => {
                    weight = weigh(&key.as_bytes().into(), &held);
                    Op::Put(held)
                }
            }
        });
        if weight > 0 {
            self.settle(weight);
        }
    }

    /// Drops all that a key holds.
    pub fn remove(&self, key: &Key) {
        let hash = self.hash(key);
        let mut removals = self.removals();
        let number = removals.next;
        removals.next += 1;
        removals.lately.push_back((number, hash));
        if removals.lately.len() > REMOVALS {
            removals.lately.pop_front();
        }
        drop(removals);
        self.cache.invalidate(key.as_bytes());
        if let Some(next) = self.next.get() {
            next.remove(key);
        }
    }

    /// Drops what is past every use, so that its room is free before others
    /// need it. Called now and then, off the walk.
    pub fn sweep(&self, now: Moment, policy: impl Fn(u16) -> Option<Policy>) {
        for (key, held) in &self.cache {
            if held.seen().number() != self.purges.last()
                && self.unless_purged(&key, held.clone()).is_none()
            {
                continue;
            }
            let spare = policy(route_of(&key)).map_or(Duration::ZERO, |policy| {
                policy.stale_while_revalidate.max(policy.stale_if_error)
            });
            // What obeys RFC 9111 can be validated however old it is; it leaves
            // when its room is wanted.
            if let Entry::One(stored) = held
                && stored.received + stored.longest() + spare < now
            {
                self.cache.invalidate(&*key);
            }
        }
        self.run_maintenance();
    }

    /// Drops what is stored under routes that are no more: nobody asks for it
    /// again. What is yet to come of them leaves when its room is wanted.
    pub fn keep_routes(&self, is_there: impl Fn(u16) -> bool) {
        for (key, _) in &self.cache {
            if !is_there(route_of(&key)) {
                self.cache.invalidate(&*key);
            }
        }
        self.run_maintenance();
    }

    /// Whether a purge waits for a sweep to free what it has struck.
    pub fn wants_sweep(&self, swept: u64) -> bool {
        self.purges.last() != swept
    }

    /// Entries and bytes held, as of the last maintenance.
    pub fn size(&self) -> Size {
        Size {
            entries: self.cache.entry_count(),
            bytes: self.cache.weighted_size(),
            max_bytes: self.most,
        }
    }
}

/// What a store holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Stored responses.
    pub entries: u64,
    /// Their weight, in bytes.
    pub bytes: u64,
    /// The bound on it.
    pub max_bytes: u64,
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use bytes::Bytes;
    use http::{HeaderMap, HeaderValue, StatusCode};

    use super::*;
    use crate::cache::reuse;
    use crate::cache::vary::Nominated;
    use crate::chain::ChainStamp;
    use crate::chain::finality::Class;

    fn key(target: &str) -> Key {
        let mut key = Key::begin(0);
        key.buffer().extend_from_slice(target.as_bytes());
        key
    }

    fn stored(size: usize, lifetime: u64) -> Arc<StoredResponse> {
        Arc::new(StoredResponse {
            status: StatusCode::OK,
            body: vec![b'x'; size].into(),
            etag: HeaderValue::from_static("\"e\""),
            fields: Arc::default(),
            received: Moment::default(),
            lifetime: Duration::from_secs(lifetime),
            took: Duration::ZERO,
            standing: None,
            page: None,
            seen: CheckedSequence::default(),
        })
    }

    #[test]
    fn the_bound_is_in_bytes_all_counted() {
        let store = Store::new(100_000);
        for n in 0..1000 {
            store.insert(key(&format!("/{n}")), stored(1000, 10));
        }
        store.sweep(Moment::default(), |_| None);
        let size = store.size();
        assert!(size.bytes <= 100_000, "{size:?}");
        assert!(size.entries > 30, "{size:?}");
        assert!(size.entries * 1400 < 100_000, "{size:?}");
    }

    #[test]
    fn large_bodies_do_not_pile_up_in_moka() {
        const BOUND: u64 = 1 << 20;
        const BODY: usize = 100_000;
        let store = Store::new(BOUND);
        let mut all = Vec::new();
        for n in 0..60 {
            let body = stored(BODY, 10);
            all.push(Arc::downgrade(&body));
            assert!(store.insert(key(&format!("/{n}")), body));
        }
        // Other tests of this process may hold back the epoch for a moment.
        let held = || {
            let held = all.iter().filter(|body| body.strong_count() > 0);
            (held.count() * BODY) as u64
        };
        let mut tries = 0;
        while held() > BOUND && tries < 1000 {
            tries += 1;
            std::thread::yield_now();
            store.settle(u32::MAX);
        }
        assert!(held() <= BOUND, "{} of {BOUND} bytes", held());
    }

    #[test]
    fn one_answer_does_not_take_the_room_of_all() {
        let store = Store::new(100_000);
        assert!(!store.insert(key("/big"), stored(50_000, 10)));
        assert!(store.get(&key("/big")).is_none());
        assert!(store.insert(key("/small"), stored(1000, 10)));
        assert!(store.get(&key("/small")).is_some());
    }

    #[test]
    fn what_was_asked_for_before_a_removal_is_not_stored_after_it() {
        let store = Store::new(100_000);
        let variant = || {
            let fields = HeaderMap::new();
            let nominated = Nominated::of(&fields);
            let now = SystemTime::UNIX_EPOCH;
            let targets = crate::cache::targeted::TargetList::none();
            let heuristic = crate::cache::freshness::Heuristic::default();
            Arc::new(Variant {
                status: StatusCode::OK,
                body: Bytes::new(),
                secondary: nominated.key(&fields).unwrap(),
                nominated,
                reuse: reuse::StoredFacts::of(
                    StatusCode::OK,
                    &fields,
                    &targets,
                    heuristic,
                    now,
                    now,
                ),
                received: now,
                fields,
            })
        };
        let put = |target: &str, mark| {
            store.amend(&key(target), mark, |variants| variants.push(variant()));
            store
                .variants(&key(target))
                .map_or(0, |variants| variants.len())
        };
        let before = store.mark();
        assert_eq!(put("/a", before), 1);
        store.remove(&key("/a"));
        assert_eq!(put("/a", before), 0, "it may be what was before");
        assert_eq!(put("/b", before), 1, "another key");
        assert_eq!(put("/a", store.mark()), 1);
        for n in 0..=REMOVALS {
            store.remove(&key(&format!("/{n}")));
        }
        assert_eq!(put("/c", before), 0, "what was removed since is forgotten");
        assert_eq!(put("/c", store.mark()), 1);
    }

    #[test]
    fn a_store_of_another_size_takes_over_what_it_has_room_for() {
        let store = Store::new(100_000);
        store.insert(key("/a"), stored(1000, 10));
        store.insert(key("/b"), stored(1000, 10));
        store.insert(key("/large"), stored(10_000, 10));
        assert!(store.resized(100_000).is_same_as(&store));
        let mark = store.mark();
        let next = store.resized(50_000);
        assert!(!next.is_same_as(&store));
        assert_eq!(next.size().max_bytes, 50_000);
        let held = |store: &Store, target| store.get(&key(target)).is_some();
        assert!(held(&next, "/a") && held(&next, "/b"));
        assert!(!held(&next, "/large"), "it takes more than an eighth");
        store.remove(&key("/a"));
        assert!(!held(&next, "/a"), "who has the old one removes from both");
        assert!(next.removals().since(mark, next.hash(&key("/a"))));
        next.retire();
        assert!(held(&next, "/b"), "only what was followed retires");
        store.purge(Purge::All);
        assert!(!held(&next, "/b"), "and a purge is one");
        store.insert(key("/late"), stored(10, 10));
        store.retire();
        assert!(!held(&store, "/late"));
    }

    #[test]
    fn sweeping_drops_what_is_past_every_use() {
        let store = Store::new(100_000);
        store.insert(key("/short"), stored(10, 1));
        store.insert(key("/long"), stored(10, 100));
        let policy = Policy {
            stale_if_error: Duration::from_secs(5),
            ..Policy::default()
        };
        let at = |seconds| Moment::default() + Duration::from_secs(seconds);
        store.sweep(at(6), |_| Some(policy.clone()));
        assert!(store.get(&key("/short")).is_some());
        store.sweep(at(7), |_| Some(policy.clone()));
        assert!(store.get(&key("/short")).is_none());
        assert!(store.get(&key("/long")).is_some());
        // Checks of others may keep a live answer fresh for longer.
        let mut live = Arc::into_inner(stored(10, 1)).unwrap();
        live.standing = Some(ChainStamp::new(Class::Live, 0, None, 1));
        store.insert(key("/live"), Arc::new(live));
        store.sweep(at(25), |_| Some(policy.clone()));
        assert!(store.get(&key("/live")).is_some());
        store.sweep(at(26), |_| Some(policy.clone()));
        assert!(store.get(&key("/live")).is_none());
    }
}
