//! The store: its bound, invalidation, resizing, bodies in codings, sweeping.

use std::time::Duration;

use bytes::Bytes;

use super::*;
use crate::cache::purge::{CheckedPurge, Purge};

fn key(target: &str) -> Key {
    Key::of(0, target)
}

fn stored(size: usize, lifetime: u64) -> Arc<StoredResponse> {
    Arc::new(StoredResponse {
        lifetime: Duration::from_secs(lifetime),
        ..StoredResponse::of_json(vec![b'x'; size])
    })
}

#[test]
fn the_bound_counts_every_byte_of_an_entry() {
    let store = Store::new(100_000);
    for n in 0..1000 {
        store.insert(&key(&format!("/{n}")), stored(1000, 10));
    }
    store.sweep(Moment::default(), |_| Some(Duration::ZERO));
    let size = store.size();
    assert!(size.bytes <= 100_000, "{size:?}");
    assert!(size.entries > 30, "{size:?}");
    assert!(size.entries * 1400 < 100_000, "{size:?}");
}

#[test]
fn large_bodies_stay_within_the_bound() {
    const BOUND: u64 = 1 << 20;
    const BODY: usize = 100_000;
    let store = Store::new(BOUND);
    let mut all = Vec::new();
    for n in 0..60 {
        let body = stored(BODY, 10);
        all.push(Arc::downgrade(&body));
        assert!(store.insert(&key(&format!("/{n}")), body));
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
    let store = Store::new(100_000);
    assert!(!store.insert(&key("/big"), stored(50_000, 10)));
    assert!(store.get(&key("/big")).is_none());
    assert!(store.insert(&key("/small"), stored(1000, 10)));
    assert!(store.get(&key("/small")).is_some());
}

#[test]
fn an_answer_requested_before_an_invalidation_is_not_stored_after_it() {
    let store = Store::new(100_000);
    let variant = |purge| {
        Arc::new(StoredResponse {
            checked: CheckedPurge::at(purge),
            ..StoredResponse::of_json("{}")
        })
    };
    let put = |target: &str, purge| {
        store.amend(&key(target), |variants| variants.push(variant(purge)));
        let variants = store.variants(&key(target));
        variants.map_or(0, |variants| variants.len())
    };
    let before = store.purges();
    assert_eq!(put("/a", before), 1);
    store.invalidate(&key("/a"));
    assert_eq!(
        put("/a", before),
        0,
        "its request may have been answered from before the invalidation"
    );
    assert_eq!(put("/b", before), 1, "another key");
    assert_eq!(put("/a", store.purges()), 1);
    store.purge(&[Purge::All], drop);
    assert_eq!(put("/b", before), 0);
    assert!(store.variants(&key("/a")).is_none());
}

#[test]
fn a_body_in_a_coding_counts_and_goes_with_its_response() {
    let store = Store::new(1_000_000);
    let put = || {
        let response = StoredResponse {
            is_encodable: true,
            ..StoredResponse::of_json(vec![b'x'; 1000])
        };
        store.insert(&key("/a"), Arc::new(response));
    };
    let open = |coding| store.not_encoded(&key("/a"), coding);
    let bytes = || {
        store.sweep(Moment::default(), |_| Some(Duration::ZERO));
        store.size().bytes
    };
    put();
    let before = bytes();
    let stored = open(Coding::Gzip).unwrap();
    let encoded = Bytes::from(vec![0; 5000]);
    store.add_encoded(&key("/a"), (&stored, Coding::Gzip), Some(encoded.clone()));
    store.add_encoded(&key("/a"), (&stored, Coding::Brotli), None);
    assert!(bytes() > before + 5000);
    let found = store.get(&key("/a")).unwrap();
    assert_eq!(found.encodings.get(Coding::Gzip), Some(&Some(encoded)));
    assert_eq!(found.encodings.get(Coding::Brotli), Some(&None));
    assert!(open(Coding::Gzip).is_none() && open(Coding::Zstd).is_some());
    // Another response takes its place.
    put();
    assert!(bytes() < before + 500 && open(Coding::Gzip).is_some());
    // It is purged, and what is made late is not stored.
    store.purge(&[Purge::All], drop);
    assert!(open(Coding::Gzip).is_none());
    store.add_encoded(&key("/a"), (&found, Coding::Zstd), None);
    assert_eq!((bytes(), store.size().entries), (0, 0));
}

#[test]
fn sweeping_drops_what_is_too_old_to_be_used_even_stale() {
    let store = Store::new(100_000);
    store.insert(&key("/short"), stored(10, 1));
    store.insert(&key("/long"), stored(10, 100));
    store.insert(&Key::of(1, "/gone"), stored(10, 100));
    let stale_time = |route| (route == 0).then_some(Duration::from_secs(5));
    let at = |seconds| Moment::default() + Duration::from_secs(seconds);
    store.sweep(at(6), stale_time);
    assert!(store.get(&Key::of(1, "/gone")).is_none(), "no such route");
    assert!(store.get(&key("/short")).is_some());
    store.sweep(at(7), stale_time);
    assert!(store.get(&key("/short")).is_none());
    assert!(store.get(&key("/long")).is_some());
}
