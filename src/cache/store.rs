//! The cache in memory: moka, bounded in bytes. The only file that names moka.
//!
//! moka bounds memory and does nothing else: whether a response may be used is
//! decided by `freshness` and `reuse`. moka may refuse or evict any entry at any
//! time, so no caller may expect to read what it has just written.

mod attach;

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use foldhash::quality::{FixedState, RandomState};
use moka::ops::compute::Op;
use moka::sync::Cache;

use super::key::{Key, route_of};
use super::purge::{Purge, PurgeSubject, Purges};
use super::removals::Removals;
use super::sequence::{CheckedSequence, PurgeSequence};
use super::stored::{Attachment, OVERHEAD, Stored};
use super::variant::Variant;
use crate::clock::Moment;
use crate::sync::lock;

/// The variants of a target, newest last.
pub(crate) type Variants = Arc<[Arc<Variant>]>;

/// The most variants of one target; the oldest are dropped first.
const MAX_VARIANTS: usize = 64;

/// moka's maintenance runs once one part in this many of `max_bytes` was inserted.
const MAX_PENDING_SHARE: u64 = 64;

/// No entry may take more than one part in this many of `max_bytes`.
const MAX_ENTRY_SHARE: u64 = 8;

/// What a key holds.
enum Entry<A> {
    One(Arc<Stored<A>>),
    Variants(Variants, Arc<CheckedSequence>),
}

impl<A> Clone for Entry<A> {
    fn clone(&self) -> Self {
        match self {
            Self::One(stored) => Self::One(stored.clone()),
            Self::Variants(variants, checked) => Self::Variants(variants.clone(), checked.clone()),
        }
    }
}

impl<A: Attachment> Entry<A> {
    fn checked(&self) -> &CheckedSequence {
        match self {
            Self::One(stored) => &stored.checked,
            Self::Variants(_, checked) => checked,
        }
    }

    fn purge_subject<'e>(&'e self, key: &'e [u8]) -> PurgeSubject<'e> {
        match self {
            Self::One(stored) => stored.purge_subject(key),
            Self::Variants(variants, _) => PurgeSubject {
                key,
                blocks: None,
                bodies: variants.iter().map(|variant| &*variant.body).collect(),
            },
        }
    }

    fn weight(&self, key: &[u8]) -> u32 {
        match self {
            Self::One(stored) => stored.weight(key),
            Self::Variants(variants, _) => {
                let bytes: usize = variants.iter().map(|variant| variant.weight()).sum();
                u32::try_from(key.len() + bytes + OVERHEAD).unwrap_or(u32::MAX)
            }
        }
    }
}

#[expect(
    clippy::borrowed_box,
    reason = "moka passes a reference to its key type, which is a box"
)]
fn weigh<A: Attachment>(key: &Box<[u8]>, entry: &Entry<A>) -> u32 {
    entry.weight(key)
}

/// Stored responses by key.
pub struct Store<A> {
    cache: Cache<Box<[u8]>, Entry<A>, RandomState>,
    max_bytes: u64,
    /// The weight inserted since moka was last made to keep its bound.
    pending: Arc<AtomicU64>,
    removals: Arc<Mutex<Removals>>,
    purges: Arc<Purges>,
    /// The store that has replaced this one, if any.
    next: Arc<OnceLock<Self>>,
}

impl<A> Clone for Store<A> {
    fn clone(&self) -> Self {
        Self {
            cache: self.cache.clone(),
            max_bytes: self.max_bytes,
            pending: self.pending.clone(),
            removals: self.removals.clone(),
            purges: self.purges.clone(),
            next: self.next.clone(),
        }
    }
}

impl<A: Attachment> Store<A> {
    /// A store of at most `max_bytes`.
    pub fn new(max_bytes: u64) -> Self {
        Self {
            cache: Cache::builder()
                .max_capacity(max_bytes)
                .weigher(weigh)
                .build_with_hasher(RandomState::default()),
            max_bytes,
            pending: Arc::default(),
            removals: Arc::default(),
            purges: Arc::default(),
            next: Arc::default(),
        }
    }

    /// A store of at most `max_bytes` with the same entries: this one, if its
    /// bound is the same. moka cannot change its bound, so otherwise it is a new
    /// store, into which the entries are copied as far as they fit.
    #[must_use]
    pub(crate) fn resized(&self, max_bytes: u64) -> Self {
        if max_bytes == self.max_bytes {
            return self.clone();
        }
        let next = Self {
            removals: self.removals.clone(),
            purges: self.purges.clone(),
            ..Self::new(max_bytes)
        };
        let sequence = self.sequence();
        // From here on a removal applies to both. Only the current store is ever
        // replaced, so this happens once.
        let next = self.next.get_or_init(|| next).clone();
        for (key, entry) in &self.cache {
            let removals = self.removals();
            // A removal is recorded under this lock before it is done: either it
            // is seen here, or it removes what is copied here.
            if !removals.since(sequence.removal, hash(&key)) && next.has_room(&key, &entry) {
                let weight = entry.weight(&key);
                next.put(key.to_vec().into(), entry);
                next.keep_bound(weight);
            }
        }
        next
    }

    /// Drops all entries, once another store has replaced this one.
    pub(crate) fn retire(&self) {
        if self.next.get().is_some() {
            self.cache.invalidate_all();
            self.run_maintenance();
        }
    }

    /// Whether two handles are of one store.
    pub(crate) fn is_same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.next, &other.next)
    }

    /// Whether an entry is not too large for this store. Variants were checked
    /// one by one when they were stored.
    fn has_room(&self, key: &[u8], entry: &Entry<A>) -> bool {
        match entry {
            Entry::One(_) => u64::from(entry.weight(key)) <= self.max_body(),
            Entry::Variants(..) => true,
        }
    }

    /// The stored response of a key, fresh or stale.
    pub(crate) fn get(&self, key: &Key) -> Option<Arc<Stored<A>>> {
        match self.entry(key)? {
            Entry::One(stored) => Some(stored),
            Entry::Variants(..) => None,
        }
    }

    /// The variants of a key, newest last.
    pub(crate) fn variants(&self, key: &Key) -> Option<Variants> {
        match self.entry(key)? {
            Entry::Variants(variants, _) => Some(variants),
            Entry::One(_) => None,
        }
    }

    /// The entry of a key, unless it has been purged.
    fn entry(&self, key: &Key) -> Option<Entry<A>> {
        let entry = self.cache.get(key.as_bytes())?;
        match entry.checked().number() == self.purges.last() {
            true => Some(entry),
            false => self.drop_if_purged(key.as_bytes(), entry),
        }
    }

    #[cold]
    fn drop_if_purged(&self, key: &[u8], entry: Entry<A>) -> Option<Entry<A>> {
        let last = self.purges.last();
        if self.entry_was_purged(key, &entry) {
            self.cache.invalidate(key);
            return None;
        }
        entry.checked().raise(last);
        Some(entry)
    }

    /// Whether a purge since the entry's last check matches it.
    fn entry_was_purged(&self, key: &[u8], entry: &Entry<A>) -> bool {
        let since = entry.checked().number();
        let matches = || {
            let subject = entry.purge_subject(key);
            self.purges.any_matches(&subject, since)
        };
        since != self.purges.last() && matches()
    }

    /// Whether a purge since a position matches an answer whose fetch began there.
    pub(crate) fn fetch_was_purged(
        &self,
        subject: &PurgeSubject<'_>,
        sequence: PurgeSequence,
    ) -> bool {
        let since = sequence.purge;
        since != self.purges.last() && self.purges.any_matches(subject, since)
    }

    /// Whether a purge since a response was last checked matches it, stored or
    /// not.
    pub(crate) fn response_was_purged(&self, key: &Key, stored: &Stored<A>) -> bool {
        let since = stored.checked.number();
        let subject = || stored.purge_subject(key.as_bytes());
        since != self.purges.last() && self.purges.any_matches(&subject(), since)
    }

    /// Whether a key was removed since a position, or a purge since might match it.
    /// The body is not known, so any purge by text counts.
    pub(crate) fn may_be_overtaken(&self, key: &Key, sequence: PurgeSequence) -> bool {
        let since = sequence.purge;
        let purged = since != self.purges.last() && self.purges.may_match(key.as_bytes(), since);
        purged || self.is_removed(key, sequence)
    }

    fn is_removed(&self, key: &Key, sequence: PurgeSequence) -> bool {
        let hash = hash(key.as_bytes());
        self.removals().since(sequence.removal, hash)
    }

    /// How many purges there have been.
    pub(crate) fn purges(&self) -> u64 {
        self.purges.last()
    }

    /// The current position in the order of removals and purges. To be taken
    /// before a request is sent to the upstream.
    pub(crate) fn sequence(&self) -> PurgeSequence {
        PurgeSequence {
            removal: self.removals().next(),
            purge: self.purges.last(),
        }
    }

    fn removals(&self) -> MutexGuard<'_, Removals> {
        lock(&self.removals)
    }

    /// Stores a response, unless it is too large. Returns whether it was stored.
    pub fn insert(&self, key: Key, stored: Arc<Stored<A>>) -> bool {
        let (key, entry) = (key.into_boxed(), Entry::One(stored));
        if !self.has_room(&key, &entry) {
            return false;
        }
        let weight = entry.weight(&key);
        self.put(key, entry);
        self.keep_bound(weight);
        true
    }

    /// Replaces the variants of a key, atomically. Does nothing if the key was
    /// removed or purged since `sequence`.
    pub(crate) fn amend(
        &self,
        key: &Key,
        sequence: PurgeSequence,
        change: impl FnOnce(&mut Vec<Arc<Variant>>),
    ) {
        let bytes = key.as_bytes();
        let mut weight = 0;
        self.cache.entry(bytes.into()).and_compute_with(|entry| {
            // A removal is recorded before it is done, and it waits for this key:
            // either it is seen here, or it removes what is stored here.
            if self.is_removed(key, sequence) {
                return Op::Nop;
            }
            let last = self.purges.last();
            let entry = entry.map(moka::Entry::into_value);
            let entry = entry.filter(|entry| !self.entry_was_purged(bytes, entry));
            let mut variants = match entry {
                Some(Entry::Variants(variants, _)) => variants.to_vec(),
                Some(Entry::One(_)) | None => Vec::new(),
            };
            change(&mut variants);
            if variants.len() > MAX_VARIANTS {
                variants.drain(..variants.len() - MAX_VARIANTS);
            }
            if variants.is_empty() {
                return Op::Remove;
            }
            let variants: Variants = variants.into();
            let number = Arc::new(CheckedSequence::at(last));
            let entry = Entry::Variants(variants, number);
            // A purge since the fetch began that matches any variant removes all.
            match self
                .purges
                .any_matches(&entry.purge_subject(bytes), sequence.purge)
            {
                true => Op::Remove,
                false => {
                    weight = entry.weight(bytes);
                    Op::Put(entry)
                }
            }
        });
        if weight > 0 {
            self.keep_bound(weight);
        }
    }

    /// Purges. Once this returns, no request that begins later is answered with
    /// a matching response, whether it is stored now or still being fetched.
    /// Returns the purge's number.
    pub fn purge(&self, purge: Purge) -> u64 {
        self.purges.push(purge)
    }

    /// Removes the entry of a key.
    pub(crate) fn remove(&self, key: &Key) {
        self.removals().push(hash(key.as_bytes()));
        self.invalidate(key);
    }

    /// Removes the entry of a key here, and in the store that has replaced this one.
    fn invalidate(&self, key: &Key) {
        self.cache.invalidate(key.as_bytes());
        if let Some(next) = self.next.get() {
            next.invalidate(key);
        }
    }

    /// Makes moka keep its bound once enough was inserted. moka itself does so
    /// after 64 operations or a while later, and holds everything inserted until
    /// then: with large bodies that is several times its bound.
    fn keep_bound(&self, weight: u32) {
        let weight = u64::from(weight);
        let pending = self.pending.fetch_add(weight, Ordering::Relaxed) + weight;
        if pending >= (self.max_bytes / MAX_PENDING_SHARE).max(1) {
            self.pending.store(0, Ordering::Relaxed);
            self.run_maintenance();
        }
    }

    /// Makes moka evict what exceeds its bound, and frees it. moka leaves removed
    /// values to crossbeam-epoch, which keeps up to 64 of them per thread,
    /// whatever their size, until it is flushed: with bodies of 7 MiB that is
    /// 448 MiB.
    fn run_maintenance(&self) {
        self.cache.run_pending_tasks();
        // The first flush hands the values over, and each advances
        // crossbeam's epoch by one; two epochs later no thread can see them.
        for _ in 0..3 {
            crossbeam_epoch::pin().flush();
        }
    }

    /// The most bytes of an entry that is stored.
    pub(crate) fn max_body(&self) -> u64 {
        self.max_bytes / MAX_ENTRY_SHARE
    }

    /// Drops purged entries, and those too old to be used even stale.
    /// `stale_time` says for how long a route may use stale responses. Called
    /// periodically, not by requests.
    pub fn sweep(&self, now: Moment, stale_time: impl Fn(u16) -> Duration) {
        for (key, entry) in &self.cache {
            let Some(entry) = self.drop_if_purged(&key, entry) else {
                continue;
            };
            // A variant may be revalidated at any age (RFC 9111 §4.3); it stays
            // until moka evicts it.
            if let Entry::One(stored) = entry {
                let usable = stored.longest_lifetime() + stale_time(route_of(&key));
                if stored.received + usable < now {
                    self.cache.invalidate(&*key);
                }
            }
        }
        self.run_maintenance();
    }

    /// How many entries some of these purges match, and whether all entries were looked at
    /// before `is_time_over`.
    pub(crate) fn count_matching(
        &self,
        purges: &[Purge],
        mut is_time_over: impl FnMut() -> bool,
    ) -> (u64, bool) {
        let mut matched = 0;
        for (at, (key, entry)) in self.cache.iter().enumerate() {
            if at % 1024 == 1023 && is_time_over() {
                return (matched, false);
            }
            if self.entry_was_purged(&key, &entry) {
                continue;
            }
            let subject = entry.purge_subject(&key);
            matched += u64::from(purges.iter().any(|purge| purge.matches(&subject)));
        }
        (matched, true)
    }

    /// Drops the entries of routes that no longer exist. Fetches under way may
    /// still store some; moka evicts them.
    pub(crate) fn keep_routes(&self, exists: impl Fn(u16) -> bool) {
        for (key, _) in &self.cache {
            if !exists(route_of(&key)) {
                self.cache.invalidate(&*key);
            }
        }
        self.run_maintenance();
    }

    /// Entries and bytes held, as of the last maintenance.
    pub fn size(&self) -> Size {
        Size {
            entries: self.cache.entry_count(),
            bytes: self.cache.weighted_size(),
            max_bytes: self.max_bytes,
        }
    }
}

/// The hash by which removals are remembered.
fn hash(key: &[u8]) -> u64 {
    FixedState::default().hash_one(key)
}

/// How full a store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Stored responses.
    pub entries: u64,
    /// Their weight, in bytes.
    pub bytes: u64,
    /// The bound on `bytes`.
    pub(crate) max_bytes: u64,
}

#[cfg(test)]
mod tests;
