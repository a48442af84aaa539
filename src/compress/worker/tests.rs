//! What the thread does with a body.

use super::*;
use crate::cache::Attached;
use crate::cache::key::Key;
use crate::cache::store::Store;
use crate::cache::stored::Stored;

#[test]
fn a_body_on_which_a_codec_panics_is_not_tried_again() {
    let stored = Arc::new(Stored::of_tests(vec![b'x'; 5000], Attached::default()));
    let store = Store::new(1 << 20);
    let key = Key::of(0, "/a");
    store.insert(key.clone(), stored.clone());
    let compressor = Compressor::with(|_, _, _| panic!("of a test"));
    let coding = Coding::Gzip;
    stored.encodings.request(coding);
    let slots = stored.encodings.request(coding).unwrap();
    assert!(slots.begin(coding));
    compressor.compress(&Job {
        key,
        slots: slots.clone(),
        coding,
        effort: Effort::Usual,
        store,
    });
    assert!(!slots.is_pending(coding));
    assert!(!slots.begin(coding), "it is known");
    let counts = compressor.counts().not_worthwhile[coding.index()].load(Relaxed);
    assert_eq!((counts, compressor.held()), (1, 0));
}
