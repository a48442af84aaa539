//! The cache in memory: moka, bounded in bytes. The only file that names moka.
//!
//! moka bounds memory and does nothing else: whether a response may be used is
//! decided by `freshness` and `reuse`. moka may refuse or evict any entry at any
//! time, so no caller may expect to read what it has just written.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use foldhash::quality::RandomState;
use moka::ops::compute::Op;
use moka::sync::Cache;
use serde::Serialize;

use super::coding::Coding;
use super::key::Key;
use super::purge::{Purge, PurgeSubject, Purges};
use super::stored::{OVERHEAD, StoredResponse};
use crate::clock::Moment;

/// The responses of one target that `Vary` distinguishes, newest last.
pub(crate) type Variants = Arc<[Arc<StoredResponse>]>;

/// The most variants of one target; the oldest are dropped first.
const MAX_VARIANTS: usize = 64;

/// moka's maintenance runs once one part in this many of `max_bytes` was inserted.
const MAX_PENDING_SHARE: u64 = 64;

/// No body is stored that takes more than one part in this many of `max_bytes`.
const MAX_ENTRY_SHARE: u64 = 8;

/// What a key holds.
#[derive(Clone)]
enum Entry {
    One(Arc<StoredResponse>),
    Variants(Variants),
}

impl Entry {
    fn responses(&self) -> &[Arc<StoredResponse>] {
        match self {
            Self::One(stored) => std::slice::from_ref(stored),
            Self::Variants(variants) => variants,
        }
    }

    fn weight(&self, key: &Key) -> u32 {
        let responses = self.responses().iter().map(|stored| stored.weight());
        u32::try_from(key.as_bytes().len() + responses.sum::<usize>() + OVERHEAD)
            .unwrap_or(u32::MAX)
    }
}

/// Stored responses by key.
#[derive(Clone)]
pub struct Store {
    cache: Cache<Key, Entry, RandomState>,
    max_bytes: u64,
    /// The weight inserted since moka was last made to keep its bound.
    pending: Arc<AtomicU64>,
    purges: Arc<Purges>,
}

impl Store {
    /// A store of at most `max_bytes`.
    pub fn new(max_bytes: u64) -> Self {
        Self {
            cache: Cache::<Key, Entry>::builder()
                .max_capacity(max_bytes)
                .weigher(|key, entry| entry.weight(key))
                .build_with_hasher(RandomState::default()),
            max_bytes,
            pending: Arc::default(),
            purges: Arc::default(),
        }
    }

    /// The stored response of a key, fresh or stale.
    pub(crate) fn get(&self, key: &Key) -> Option<Arc<StoredResponse>> {
        match self.entry(key)? {
            Entry::One(stored) => Some(stored),
            Entry::Variants(_) => None,
        }
    }

    /// The variants of a key, newest last.
    pub(crate) fn variants(&self, key: &Key) -> Option<Variants> {
        match self.entry(key)? {
            Entry::Variants(variants) => Some(variants),
            Entry::One(_) => None,
        }
    }

    /// A response that is stored under a key, and whose body has not been encoded in a coding.
    pub(crate) fn not_encoded(&self, key: &Key, coding: Coding) -> Option<Arc<StoredResponse>> {
        let entry = self.entry(key)?;
        let mut all = entry.responses().iter();
        let is_open = |stored: &&Arc<StoredResponse>| stored.encodings.get(coding).is_none();
        all.find(|stored| stored.is_encodable && is_open(stored))
            .cloned()
    }

    /// Adds what came of encoding the body of a response that is stored under a key.
    pub(crate) fn add_encoded(
        &self,
        key: &Key,
        (stored, coding): (&StoredResponse, Coding),
        encoded: Option<Bytes>,
    ) {
        stored.encodings.set(coding, encoded);
        // moka weighs an entry when it is put. (What is inserted at this moment may be lost, and
        // is then fetched again.)
        let entry = self.cache.entry_by_ref(key);
        entry.and_compute_with(|entry| match entry {
            Some(entry) => Op::Put(entry.into_value()),
            None => Op::Nop,
        });
        self.keep_bound(u32::try_from(stored.body.len()).unwrap_or(u32::MAX));
    }

    /// The entry of a key, unless it has been purged.
    fn entry(&self, key: &Key) -> Option<Entry> {
        let entry = self.cache.get(key)?;
        let last = self.purges.last();
        let is_checked = |stored: &Arc<StoredResponse>| stored.checked.number() == last;
        match entry.responses().iter().all(is_checked) {
            true => Some(entry),
            false => self.drop_if_purged(key, entry),
        }
    }

    #[cold]
    fn drop_if_purged(&self, key: &Key, entry: Entry) -> Option<Entry> {
        let last = self.purges.last();
        // Then all of them go.
        let mut all = entry.responses().iter();
        if all.any(|stored| self.response_was_purged(key, stored)) {
            self.cache.invalidate(key);
            return None;
        }
        for stored in entry.responses() {
            stored.checked.raise(last);
        }
        Some(entry)
    }

    /// Whether a purge since a response was last checked matches it, stored or not.
    pub(crate) fn response_was_purged(&self, key: &Key, stored: &StoredResponse) -> bool {
        self.fetch_was_purged(&stored.purge_subject(key), stored.checked.number())
    }

    /// Whether a purge since the number `since` matches an answer.
    pub(crate) fn fetch_was_purged(&self, subject: &PurgeSubject<'_>, since: u64) -> bool {
        self.purges.any(since, |purge| purge.matches(subject))
    }

    /// Whether a purge since the number `since` might match a key. What is stored under it
    /// is not known, so any purge by text or heights counts.
    pub(crate) fn may_be_purged(&self, key: &Key, since: u64) -> bool {
        let subject = PurgeSubject {
            key,
            blocks: None,
            body: &[],
        };
        self.purges.any(since, |purge| {
            matches!(purge, Purge::Text(_) | Purge::Heights { .. }) || purge.matches(&subject)
        })
    }

    /// The number of the last purge. It is taken before a request is sent to the upstream,
    /// or something is looked up elsewhere.
    pub(crate) fn purges(&self) -> u64 {
        self.purges.last()
    }

    /// Stores a response, unless it is too large. Returns whether it was stored.
    pub fn insert(&self, key: &Key, stored: Arc<StoredResponse>) -> bool {
        let fits = stored.body.len() as u64 <= self.max_body();
        if fits {
            let entry = Entry::One(stored);
            let weight = entry.weight(key);
            self.cache.insert(key.clone(), entry);
            self.keep_bound(weight);
        }
        fits
    }

    /// Replaces the variants of a key, atomically. Those that were purged since their
    /// request was sent are left out.
    pub(crate) fn amend(&self, key: &Key, change: impl FnOnce(&mut Vec<Arc<StoredResponse>>)) {
        let mut weight = 0;
        self.cache.entry_by_ref(key).and_compute_with(|entry| {
            let entry = entry.map(moka::Entry::into_value);
            let mut variants = entry.map_or_else(Vec::new, |entry| entry.responses().to_vec());
            variants.retain(|stored| !self.response_was_purged(key, stored));
            change(&mut variants);
            variants.retain(|stored| !self.response_was_purged(key, stored));
            if variants.len() > MAX_VARIANTS {
                variants.drain(..variants.len() - MAX_VARIANTS);
            }
            if variants.is_empty() {
                return Op::Remove;
            }
            let entry = Entry::Variants(variants.into());
            weight = entry.weight(key);
            Op::Put(entry)
        });
        if weight > 0 {
            self.keep_bound(weight);
        }
    }

    /// Purges. Once this returns, no request that begins later is answered with
    /// a matching response, whether it is stored now or still being fetched.
    /// `first` is called before that, with the number of the last of these purges, and while
    /// nobody else purges. Returns the number, and what `first` did.
    pub fn purge<T>(&self, purges: &[Purge], first: impl FnOnce(u64) -> T) -> (u64, T) {
        self.purges.push(purges, first)
    }

    /// Purges a key for an unsafe request.
    pub(crate) fn invalidate(&self, key: &Key) {
        let (route, target) = (key.route(), key.target().into());
        self.purge(&[Purge::Target { route, target }], drop);
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

    /// The most bytes of a body that is stored.
    pub(crate) fn max_body(&self) -> u64 {
        self.max_bytes / MAX_ENTRY_SHARE
    }

    /// Drops purged entries, those too old to be used even stale, and those of routes that no
    /// longer exist. `stale_time` says for how long a route, if it exists, may use stale
    /// responses. Called periodically and after a reload, not by requests.
    pub fn sweep(&self, now: Moment, stale_time: impl Fn(u16) -> Option<Duration>) {
        for (key, entry) in &self.cache {
            let Some(entry) = self.drop_if_purged(&key, entry) else {
                continue;
            };
            let stale_time = stale_time(key.route());
            let is_useless = match &entry {
                Entry::One(stored) => {
                    stale_time.is_none_or(|time| stored.received + (stored.lifetime + time) < now)
                }
                // It may be revalidated at any age (RFC 9111 §4.3), and stays until moka
                // evicts it.
                Entry::Variants(_) => stale_time.is_none(),
            };
            if is_useless {
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

/// How full a store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
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
