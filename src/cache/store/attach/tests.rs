//! Encoded bodies: attached only to the response that they were made of, and
//! counted.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::*;
use crate::cache::encodings::EncodedBody;
use crate::cache::purge::Purge;
use crate::cache::stored::Stored;
use crate::clock::Moment;

fn key(target: &str) -> Key {
    Key::of(0, target)
}

fn stored(size: usize) -> Arc<Stored<()>> {
    Arc::new(Stored::of_tests(vec![b'x'; size], ()))
}

/// The encoded forms of a body that was requested in a coding twice.
fn slots(stored: &Stored<()>, coding: Coding) -> Arc<EncodingSlots> {
    stored.encodings.request(coding);
    stored.encodings.request(coding).unwrap().clone()
}

fn body(size: usize, total: &Arc<AtomicU64>) -> Encoded {
    Encoded::Body(Arc::new(EncodedBody::new(vec![0; size].into(), total)))
}

#[test]
fn what_was_overtaken_is_not_attached() {
    let total = Arc::default();
    type Overtake = fn(&Store<()>, &Key);
    let rows: [(&str, Overtake); 6] = [
        ("purged", |store, _| {
            store.purge(Purge::All);
        }),
        ("removed", |store, key| store.remove(key)),
        ("replaced", |store, key| {
            store.insert(key.clone(), stored(1000));
        }),
        ("purged, and another is stored", |store, key| {
            store.purge(Purge::All);
            store.insert(key.clone(), stored(1000));
        }),
        ("of a route that is gone", |store, _| {
            store.keep_routes(|_| false)
        }),
        ("swept", |store, _| {
            let later = Moment::default() + Duration::from_secs(100);
            store.sweep(later, |_| Duration::ZERO);
        }),
    ];
    for (what, overtake) in rows {
        let store = Store::<()>::new(1 << 20);
        let (key, stored) = (key("/a"), stored(1000));
        store.insert(key.clone(), stored.clone());
        let slots = slots(&stored, Coding::Gzip);
        assert!(slots.begin(Coding::Gzip));
        assert!(store.body_of(&key, &slots).is_some(), "the job begins");
        overtake(&store, &key);
        let attached = store.attach(&key, &slots, Coding::Gzip, body(100, &total));
        assert!(attached.is_none(), "{what}");
        assert!(slots.get(Coding::Gzip).is_none(), "{what}");
        assert!(store.body_of(&key, &slots).is_none(), "{what}");
        assert_eq!(total.load(Relaxed), 0, "{what}");
    }
}

#[test]
fn what_is_attached_counts_against_the_bound() {
    let total = Arc::default();
    let store = Store::<()>::new(1 << 20);
    let (key, first) = (key("/a"), stored(1000));
    store.insert(key.clone(), first.clone());
    let bytes = || {
        store.run_maintenance();
        store.size().bytes
    };
    let before = bytes();
    let slots = slots(&first, Coding::Gzip);
    for (coding, at_least) in [(Coding::Gzip, 5000), (Coding::Zstd, 10_000)] {
        let attached = store.attach(&key, &slots, coding, body(5000, &total));
        assert!(matches!(attached, Some(Encoded::Body(_))));
        let grown = bytes() - before;
        assert!((at_least..at_least + 500).contains(&grown), "{grown}");
    }
    assert_eq!(store.size().entries, 1);
    // A freshened response takes them over, and their weight.
    let freshened = stored(1000);
    freshened.encodings.adopt(&first.encodings);
    drop(first);
    store.insert(key.clone(), freshened);
    assert!(bytes() - before > 10_000);
    // One that replaces it does not.
    store.insert(key, stored(1000));
    assert_eq!(bytes(), before);
    drop(slots);
    // Other tests may keep crossbeam from freeing what was removed for a while.
    let freed = (0..100_000).any(|_| {
        store.run_maintenance();
        std::thread::yield_now();
        total.load(Relaxed) == 0
    });
    assert!(freed, "{total:?}");
}

#[test]
fn what_is_attached_while_the_bound_changes_counts_against_the_new_one() {
    let total = Arc::default();
    let store = Store::<()>::new(1 << 20);
    let (key, stored) = (key("/a"), stored(1000));
    store.insert(key.clone(), stored.clone());
    let slots = slots(&stored, Coding::Gzip);
    // A reload has copied the entry, and its body is compressed for the old store.
    let next = store.resized(2 << 20);
    let bytes = || {
        next.run_maintenance();
        next.size().bytes
    };
    let before = bytes();
    let attached = store.attach(&key, &slots, Coding::Gzip, body(5000, &total));
    assert!(matches!(attached, Some(Encoded::Body(_))));
    let grown = bytes() - before;
    assert!((5000..5500).contains(&grown), "{grown}");
    // Of an entry that the new store no longer has, nothing stays.
    next.remove(&key);
    let attached = store.attach(&key, &slots, Coding::Zstd, body(5000, &total));
    assert!(
        matches!(attached, Some(Encoded::Body(_))),
        "the old one still has it"
    );
    assert_eq!((bytes(), next.size().entries), (0, 0));
}

#[test]
fn an_encoded_body_that_does_not_fit_beside_the_body_is_not_worthwhile() {
    let total = Arc::default();
    let store = Store::<()>::new(80_000);
    let (key, stored) = (key("/a"), stored(6000));
    assert!(store.insert(key.clone(), stored.clone()));
    let slots = slots(&stored, Coding::Brotli);
    let attached = store.attach(&key, &slots, Coding::Brotli, body(5000, &total));
    assert!(matches!(attached, Some(Encoded::NotWorthwhile)));
    assert!(matches!(
        slots.get(Coding::Brotli),
        Some(Encoded::NotWorthwhile)
    ));
    assert!(store.get(&key).is_some());
}

#[test]
fn a_hundred_thousand_tokens_and_their_encoded_bodies_stay_within_the_bound() {
    const BOUND: u64 = 16 << 20;
    let total = Arc::default();
    let store = Store::<()>::new(BOUND);
    for number in 0..100_000_u32 {
        let key = key(&format!("/ordinals/v1/brc-20/tokens/{number}"));
        let stored = stored(1200);
        store.insert(key.clone(), stored.clone());
        let slots = slots(&stored, Coding::Zstd);
        for coding in [Coding::Zstd, Coding::Gzip] {
            store.attach(&key, &slots, coding, body(400, &total));
        }
        if number % 1000 == 0 {
            let held = total.load(Relaxed);
            assert!(held < BOUND, "{held} at {number}");
        }
    }
    store.run_maintenance();
    let size = store.size();
    assert!(size.bytes <= BOUND, "{size:?}");
    let held = total.load(Relaxed);
    assert!(held > BOUND / 8, "{held}");
    assert!(size.entries * 1200 + held < size.bytes, "{size:?} {held}");
}
