//! The store: its bound, removals, resizing, sweeping.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, StatusCode};

use super::*;
use crate::cache::encodings::Encodings;
use crate::cache::purge::Purge;
use crate::cache::reuse;
use crate::cache::vary::Nominated;

fn key(target: &str) -> Key {
    Key::of(0, target)
}

/// An attachment that triples the lifetime.
#[derive(Default)]
struct Live(bool);

impl Attachment for Live {
    fn longest_lifetime(&self, lifetime: Duration) -> Duration {
        if self.0 { lifetime * 3 } else { lifetime }
    }
}

fn stored(size: usize, lifetime: u64) -> Arc<Stored<Live>> {
    Arc::new(Stored {
        lifetime: Duration::from_secs(lifetime),
        ..Stored::of_tests(vec![b'x'; size], Live(false))
    })
}

#[test]
fn the_bound_counts_every_byte_of_an_entry() {
    let store = Store::<Live>::new(100_000);
    for n in 0..1000 {
        store.insert(key(&format!("/{n}")), stored(1000, 10));
    }
    store.sweep(Moment::default(), |_| Duration::ZERO);
    let size = store.size();
    assert!(size.bytes <= 100_000, "{size:?}");
    assert!(size.entries > 30, "{size:?}");
    assert!(size.entries * 1400 < 100_000, "{size:?}");
}

#[test]
fn large_bodies_stay_within_the_bound() {
    const BOUND: u64 = 1 << 20;
    const BODY: usize = 100_000;
    let store = Store::<Live>::new(BOUND);
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
        store.keep_bound(u32::MAX);
    }
    assert!(held() <= BOUND, "{} of {BOUND} bytes", held());
}

#[test]
fn a_response_over_an_eighth_of_the_store_is_not_stored() {
    let store = Store::<Live>::new(100_000);
    assert!(!store.insert(key("/big"), stored(50_000, 10)));
    assert!(store.get(&key("/big")).is_none());
    assert!(store.insert(key("/small"), stored(1000, 10)));
    assert!(store.get(&key("/small")).is_some());
}

#[test]
fn an_answer_requested_before_a_removal_is_not_stored_after_it() {
    let store = Store::<Live>::new(100_000);
    let variant = || {
        let fields = HeaderMap::new();
        let nominated = Nominated::of(&fields);
        let now = SystemTime::UNIX_EPOCH;
        let targets = crate::cache::targeted::TargetList::none();
        let heuristic = crate::cache::freshness::Heuristic::default();
        Arc::new(Variant {
            status: StatusCode::OK,
            body: Bytes::new(),
            encodings: Encodings::default(),
            secondary: nominated.key(&fields).unwrap(),
            nominated,
            reuse: reuse::StoredFacts::of(StatusCode::OK, &fields, &targets, heuristic, now, now),
            received: now,
            fields,
        })
    };
    let put = |target: &str, sequence| {
        store.amend(&key(target), sequence, |variants| variants.push(variant()));
        store
            .variants(&key(target))
            .map_or(0, |variants| variants.len())
    };
    let before = store.sequence();
    assert_eq!(put("/a", before), 1);
    store.remove(&key("/a"));
    assert_eq!(
        put("/a", before),
        0,
        "its request may have been answered from before the removal"
    );
    assert_eq!(put("/b", before), 1, "another key");
    assert_eq!(put("/a", store.sequence()), 1);
    for n in 0..=crate::cache::removals::REMEMBERED {
        store.remove(&key(&format!("/{n}")));
    }
    assert_eq!(
        put("/c", before),
        0,
        "removals since then are no longer remembered"
    );
    assert_eq!(put("/c", store.sequence()), 1);
}

#[test]
fn a_resized_store_keeps_the_entries_that_fit() {
    let store = Store::<Live>::new(100_000);
    store.insert(key("/a"), stored(1000, 10));
    store.insert(key("/b"), stored(1000, 10));
    store.insert(key("/large"), stored(10_000, 10));
    assert!(store.resized(100_000).is_same_as(&store));
    let sequence = store.sequence();
    let next = store.resized(50_000);
    assert!(!next.is_same_as(&store));
    assert_eq!(next.size().max_bytes, 50_000);
    let held = |store: &Store<Live>, target| store.get(&key(target)).is_some();
    assert!(held(&next, "/a") && held(&next, "/b"));
    assert!(!held(&next, "/large"), "it takes more than an eighth");
    store.remove(&key("/a"));
    assert!(
        !held(&next, "/a"),
        "a removal from the old store applies to both"
    );
    assert!(next.is_removed(&key("/a"), sequence));
    next.retire();
    assert!(held(&next, "/b"), "only a replaced store retires");
    store.purge(Purge::All);
    assert!(!held(&next, "/b"), "a purge applies to both");
    store.insert(key("/late"), stored(10, 10));
    store.retire();
    assert!(!held(&store, "/late"));
}

#[test]
fn sweeping_drops_what_is_too_old_to_be_used_even_stale() {
    let store = Store::<Live>::new(100_000);
    store.insert(key("/short"), stored(10, 1));
    store.insert(key("/long"), stored(10, 100));
    let stale_time = |_| Duration::from_secs(5);
    let at = |seconds| Moment::default() + Duration::from_secs(seconds);
    store.sweep(at(6), stale_time);
    assert!(store.get(&key("/short")).is_some());
    store.sweep(at(7), stale_time);
    assert!(store.get(&key("/short")).is_none());
    assert!(store.get(&key("/long")).is_some());
    let mut live = Arc::into_inner(stored(10, 1)).unwrap();
    live.attached = Live(true);
    store.insert(key("/live"), Arc::new(live));
    store.sweep(at(8), stale_time);
    assert!(store.get(&key("/live")).is_some());
    store.sweep(at(9), stale_time);
    assert!(store.get(&key("/live")).is_none());
}
