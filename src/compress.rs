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

use std::sync::{self, Arc};

use bytes::Bytes;
use http::HeaderMap;
use http::header::{CACHE_CONTROL, RANGE};
use serde::Serialize;
use tokio::sync::{Mutex, Semaphore};
use tokio::task::spawn_blocking;

use crate::cache::StoredResponse;
use crate::cache::coding::{CODINGS, Coding, preferred};
use crate::cache::directives::RequestDirectives;
use crate::cache::encoded::EncodedBody;
use crate::cache::key::Key;
use crate::cache::store::Store;
use crate::chain::Class;
use crate::sync::lock;
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
        let compressor = self.compressor.clone();
        let Ok(place) = compressor.places.clone().try_acquire_owned() else {
            return compressor.count(coding, |counts| &mut counts.skipped, 1);
        };
        let (key, of, store) = (key.clone(), stored.body_id, self.store.clone());
        // So that no other request begins it too.
        store.insert_encoded(&key, coding, EncodedBody { of, bytes: None });
        tokio::spawn(async move {
            let (_place, _turn) = (place, compressor.turn.lock().await);
            let compressor = compressor.clone();
            let work = move || {
                if let Some(bytes) = compressor.compress(store.body(&key, of), coding, effort) {
                    let bytes = Some(bytes);
                    store.insert_encoded(&key, coding, EncodedBody { of, bytes });
                    compressor.count(coding, |counts| &mut counts.made, 1);
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
const MOST_WAITING: usize = 64;

/// Compresses stored bodies, one at a time.
pub(crate) struct Compressor {
    places: Arc<Semaphore>,
    turn: Mutex<()>,
    counts: sync::Mutex<[CodingCounts; CODINGS]>,
}

impl Default for Compressor {
    fn default() -> Self {
        Self {
            places: Arc::new(Semaphore::new(MOST_WAITING)),
            turn: Mutex::default(),
            counts: sync::Mutex::default(),
        }
    }
}

impl Compressor {
    /// A body in a coding; `None` where it is not stored any more, or would not be smaller.
    fn compress(&self, body: Option<Bytes>, coding: Coding, effort: Effort) -> Option<Bytes> {
        let Some(body) = body else {
            self.count(coding, |counts| &mut counts.skipped, 1);
            return None;
        };
        let encoded = encode(&body, coding, effort).inspect_err(|error| {
            let coding = coding.name();
            tracing::warn!(%error, coding, "a body could not be compressed");
        });
        let Some(encoded) = encoded.ok().filter(|encoded| encoded.len() < body.len()) else {
            self.count(coding, |counts| &mut counts.not_worthwhile, 1);
            return None;
        };
        self.count(coding, |counts| &mut counts.before, body.len());
        self.count(coding, |counts| &mut counts.after, encoded.len());
        Some(encoded.into_boxed_slice().into())
    }

    fn count(&self, coding: Coding, which: fn(&mut CodingCounts) -> &mut u64, more: usize) {
        *which(&mut lock(&self.counts)[coding.index()]) += more as u64;
    }

    /// The counts of each coding.
    pub(crate) fn counts(&self) -> [(Coding, CodingCounts); CODINGS] {
        let counts = *lock(&self.counts);
        Coding::ALL.map(|coding| (coding, counts[coding.index()]))
    }
}

/// What came of compressing bodies in one coding.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct CodingCounts {
    /// The bodies that became smaller.
    pub(crate) made: u64,
    /// Those that did not.
    pub(crate) not_worthwhile: u64,
    /// Those that were not stored any more, or for which too many waited.
    pub(crate) skipped: u64,
    /// The bytes of the bodies that became smaller, before.
    #[serde(rename = "bytes_before")]
    pub(crate) before: u64,
    /// The bytes of the same bodies, after.
    #[serde(rename = "bytes_after")]
    pub(crate) after: u64,
}
