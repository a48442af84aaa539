//! Compression: stored bodies in the content codings that clients accept.
//!
//! A body is compressed once for each coding, after a hit for which it is wanted in that
//! coding: in the background, one body at a time. Until then, and where too many wait, it
//! is sent as it is. What was made is an entry of the cache, of that one body
//! ([`BodyId`](crate::cache::encoded::BodyId)).
//!
//! `respond` asks [`Compression`] for the body to send. The
//! [`Compressor`] is the state behind it, and survives reloads.
//!
//! Deliberately absent: compressing what is not stored, such as streams, and levels
//! as configuration.

mod encode;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::Bytes;
use http::HeaderMap;
use http::header::{CACHE_CONTROL, RANGE};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use crate::cache::StoredResponse;
use crate::cache::coding::{CODINGS, Coding, preferred};
use crate::cache::directives::RequestDirectives;
use crate::cache::encoded::EncodedBody;
use crate::cache::key::Key;
use crate::cache::store::Store;
use crate::chain::Class;
pub(crate) use encode::{Effort, encode, unzip};

/// Configuration of compression.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Whether bodies are compressed.
    pub(crate) enabled: bool,
    /// Smaller bodies are not.
    pub(crate) min_bytes: u64,
    /// The codings, the preferred one first.
    pub(crate) codings: Vec<Coding>,
}

/// Compression under one configuration.
pub(crate) struct Compression {
    min_bytes: usize,
    codings: Box<[Coding]>,
    store: Store,
    compressor: Arc<Compressor>,
}

impl Compression {
    /// Compression of what is in a store; `None` where it is not enabled.
    pub(crate) fn new(
        settings: &Settings,
        store: &Store,
        compressor: &Arc<Compressor>,
    ) -> Option<Self> {
        let is_enabled = settings.enabled && !settings.codings.is_empty();
        is_enabled.then(|| Self {
            min_bytes: usize::try_from(settings.min_bytes).unwrap_or(usize::MAX),
            codings: settings.codings.clone().into(),
            store: store.clone(),
            compressor: compressor.clone(),
        })
    }

    /// The body to send in place of a stored one, and its coding; `None` where the stored
    /// one is to be sent. `is_hit` says whether it was stored before the request came, which
    /// has these fields.
    #[inline]
    pub(crate) fn body_for(
        &self,
        stored: &StoredResponse,
        key: &Key,
        fields: &HeaderMap,
        is_hit: bool,
    ) -> Option<(Coding, Arc<EncodedBody>)> {
        if stored.body.len() < self.min_bytes || !stored.body_id.is_encodable() {
            return None;
        }
        let coding = preferred(fields, &self.codings)?;
        if forbids_encoding(fields) {
            return None;
        }
        match self.store.encoded(key, coding, stored.body_id) {
            Some(encoded) => encoded.bytes.is_some().then_some((coding, encoded)),
            None => {
                if is_hit {
                    self.begin(stored, key, coding);
                }
                None
            }
        }
    }

    /// Has a body compressed, unless too many wait.
    #[cold]
    fn begin(&self, stored: &StoredResponse, key: &Key, coding: Coding) {
        let effort = match stored.stamp() {
            Some(stamp) if stamp.class == Class::Final => Effort::High,
            Some(_) | None => Effort::Usual,
        };
        let Some(place) = self.compressor.place() else {
            self.compressor.counts.skipped[coding.index()].fetch_add(1, Relaxed);
            return;
        };
        let (key, of, store) = (key.clone(), stored.body_id, self.store.clone());
        let length = stored.body.len();
        // So that no other request begins it too.
        store.insert_encoded(&key, coding, EncodedBody { of, bytes: None });
        tokio::spawn(async move {
            let compressor = place.0.clone();
            let Ok(_turn) = compressor.turn.acquire().await else {
                return;
            };
            let work = move || {
                let bytes = place.0.compress(store.body(&key, of), coding, effort);
                if let Some(bytes) = bytes {
                    let lengths = [length, bytes.len()];
                    let bytes = Some(bytes);
                    store.insert_encoded(&key, coding, EncodedBody { of, bytes });
                    place.0.made(coding, lengths);
                }
            };
            // A codec that panics on a body would do so each time.
            if let Err(error) = spawn_blocking(work).await {
                tracing::warn!(%error, coding = coding.name(), "a body could not be compressed");
            }
        });
    }
}

/// Whether a request must be answered with the body as it is: it is for a range, or
/// forbids transformations (RFC 9111 §5.2.1.6).
#[inline]
fn forbids_encoding(fields: &HeaderMap) -> bool {
    fields.contains_key(RANGE)
        || fields.contains_key(CACHE_CONTROL) && RequestDirectives::of(fields).no_transform
}

/// The most bodies that wait to be compressed.
const MOST_WAITING: u64 = 64;

/// Compresses stored bodies, one at a time.
pub(crate) struct Compressor {
    turn: Semaphore,
    waiting: AtomicU64,
    counts: CompressionCounts,
}

impl Default for Compressor {
    fn default() -> Self {
        Self {
            turn: Semaphore::new(1),
            waiting: AtomicU64::new(0),
            counts: CompressionCounts::default(),
        }
    }
}

/// A place among the bodies that wait or are compressed.
struct Place(Arc<Compressor>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Relaxed);
    }
}

impl Compressor {
    fn place(self: &Arc<Self>) -> Option<Place> {
        let before = self.waiting.fetch_add(1, Relaxed);
        let place = Place(self.clone());
        (before < MOST_WAITING).then_some(place)
    }

    /// A body in a coding; `None` where it is not stored any more, or would not be smaller.
    fn compress(&self, body: Option<Bytes>, coding: Coding, effort: Effort) -> Option<Bytes> {
        let (counts, at) = (&self.counts, coding.index());
        let Some(body) = body else {
            counts.skipped[at].fetch_add(1, Relaxed);
            return None;
        };
        let encoded = encode(&body, coding, effort).inspect_err(|error| {
            let coding = coding.name();
            tracing::warn!(%error, coding, "a body could not be compressed");
        });
        let Some(encoded) = encoded.ok().filter(|encoded| encoded.len() < body.len()) else {
            counts.not_worthwhile[at].fetch_add(1, Relaxed);
            return None;
        };
        Some(encoded.into_boxed_slice().into())
    }

    /// Counts a body that is stored in a coding, and its lengths before and after.
    fn made(&self, coding: Coding, [before, after]: [usize; 2]) {
        let (counts, at) = (&self.counts, coding.index());
        counts.before[at].fetch_add(before as u64, Relaxed);
        counts.after[at].fetch_add(after as u64, Relaxed);
        counts.made[at].fetch_add(1, Relaxed);
    }

    /// The counts of each coding.
    pub(crate) fn counts(&self) -> [CodingCounts; CODINGS] {
        let counts = &self.counts;
        Coding::ALL.map(|coding| {
            let read = |counts: &[AtomicU64; CODINGS]| counts[coding.index()].load(Relaxed);
            CodingCounts {
                coding,
                results: [
                    ("made", read(&counts.made)),
                    ("not-worthwhile", read(&counts.not_worthwhile)),
                    ("skipped", read(&counts.skipped)),
                ],
                before: read(&counts.before),
                after: read(&counts.after),
            }
        })
    }
}

/// What came of compressing bodies, by coding.
#[derive(Debug, Default)]
struct CompressionCounts {
    /// The bodies that became smaller.
    made: [AtomicU64; CODINGS],
    /// Those that did not.
    not_worthwhile: [AtomicU64; CODINGS],
    /// Those that were not stored any more, or for which too many waited.
    skipped: [AtomicU64; CODINGS],
    /// The bytes of the bodies that became smaller, before.
    before: [AtomicU64; CODINGS],
    /// The bytes of the same bodies, after.
    after: [AtomicU64; CODINGS],
}

/// The counts of one coding.
pub(crate) struct CodingCounts {
    /// The coding.
    pub(crate) coding: Coding,
    /// How many bodies came to each result.
    pub(crate) results: [(&'static str, u64); 3],
    /// The bytes of the bodies that became smaller, before.
    pub(crate) before: u64,
    /// The bytes of the same bodies, after.
    pub(crate) after: u64,
}
