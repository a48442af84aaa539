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
        store.insert(key(&format!("/{n}")), stored(1000, 10));
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
    let store = Store::new(100_000);
    assert!(!store.insert(key("/big"), stored(50_000, 10)));
    assert!(store.get(&key("/big")).is_none());
    assert!(store.insert(key("/small"), stored(1000, 10)));
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
    store.purge(Purge::All);
    assert_eq!(put("/b", before), 0);
    assert!(store.variants(&key("/a")).is_none());
}

#[test]
fn a_body_in_a_coding_is_of_one_body_and_goes_with_it() {
    let store = Store::new(1_000_000);
    let id = |tag: &'static str| BodyId::of(&http::HeaderValue::from_static(tag), true);
    let (of, other) = (id("\"0123456789abcdef\""), id("\"0123456789abcdeX\""));
    let put = |target: &str, body_id| {
        let response = StoredResponse {
            body_id,
            ..StoredResponse::of_json(vec![b'x'; 1000])
        };
        store.insert(key(target), Arc::new(response));
    };
    let encode = |of| {
        let bytes = Some(Bytes::from(vec![0; 5000]));
        store.insert_encoded(&key("/a"), Coding::Gzip, EncodedBody { of, bytes });
    };
    let has = |coding, of| store.encoded(&key("/a"), coding, of).is_some();
    let entries = || {
        store.sweep(Moment::default(), |_| Some(Duration::ZERO));
        store.size().entries
    };
    put("/a", of);
    assert_eq!(store.body(&key("/a"), of).unwrap().len(), 1000);
    assert!(store.body(&key("/a"), other).is_none());
    encode(of);
    assert!(has(Coding::Gzip, of) && !has(Coding::Gzip, other) && !has(Coding::Zstd, of));
    assert_eq!(entries(), 2);
    assert!(store.size().bytes > 6000);
    // Another body takes its place.
    put("/a", other);
    assert_eq!(entries(), 1);
    // It is purged.
    encode(other);
    store.purge(Purge::All);
    assert!(store.body(&key("/a"), other).is_none());
    assert_eq!(entries(), 0);
    encode(BodyId::FIXED);
    store.insert_encoded(
        &key("/b"),
        Coding::Gzip,
        EncodedBody {
            of,
            bytes: Some(vec![0; 200_000].into()),
        },
    );
    assert!(
        store.encoded(&key("/b"), Coding::Gzip, of).is_none(),
        "over an eighth"
    );
}

#[test]
fn sweeping_drops_what_is_too_old_to_be_used_even_stale() {
    let store = Store::new(100_000);
    store.insert(key("/short"), stored(10, 1));
    store.insert(key("/long"), stored(10, 100));
    store.insert(Key::of(1, "/gone"), stored(10, 100));
    let stale_time = |route| (route == 0).then_some(Duration::from_secs(5));
    let at = |seconds| Moment::default() + Duration::from_secs(seconds);
    store.sweep(at(6), stale_time);
    assert!(store.get(&Key::of(1, "/gone")).is_none(), "no such route");
    assert!(store.get(&key("/short")).is_some());
    store.sweep(at(7), stale_time);
    assert!(store.get(&key("/short")).is_none());
    assert!(store.get(&key("/long")).is_some());
}
