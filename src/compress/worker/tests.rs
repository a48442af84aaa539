//! What the thread does with a body.

use std::time::Duration;

use http::{HeaderValue, StatusCode};

use super::*;
use crate::cache::Attached;
use crate::cache::encodings::Encodings;
use crate::cache::key::Key;
use crate::cache::metadata::{ClientFreshness, Metadata};
use crate::cache::sequence::CheckedSequence;
use crate::cache::store::Store;
use crate::cache::stored::Stored;
use crate::clock::Moment;

#[test]
fn a_body_on_which_a_codec_panics_is_not_tried_again() {
    let json = HeaderValue::from_static("application/json");
    let stored = Arc::new(Stored {
        status: StatusCode::OK,
        body: vec![b'x'; 5000].into(),
        etag: HeaderValue::from_static("\"e\""),
        metadata: Metadata::of(json, ClientFreshness::Nothing),
        received: Moment::default(),
        lifetime: Duration::from_secs(9),
        took: Duration::ZERO,
        checked: CheckedSequence::default(),
        encodings: Encodings::default(),
        attached: Attached::default(),
    });
    let store = Store::new(1 << 20);
    let mut key = Key::begin(0);
    key.buffer().extend_from_slice(b"/a");
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
