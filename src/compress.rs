//! Compression: stored bodies in the content codings that clients accept.
//!
//! A body is compressed once for each coding, after a hit for which it is wanted in that
//! coding: in the background, one body at a time. Until then, and where too many wait, it
//! is sent as it is. What was made belongs to that one stored response
//! ([`Encodings`](crate::cache::Encodings)).
//!
//! `respond` asks [`Compression`] for the body to send. The
//! [`Compressor`] is the state behind it, and survives reloads.
//!
//! Deliberately absent: compressing what is not stored, such as streams, and levels
//! as configuration.

mod encode;

use std::collections::HashSet;
use std::io;
use std::sync::{self, Arc};

use bytes::Bytes;
use http::HeaderMap;
use http::header::{CACHE_CONTROL, RANGE};
use serde::Serialize;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

use crate::cache::StoredResponse;
use crate::cache::coding::{CODINGS, Coding, preferred};
use crate::cache::directives::Directives;
use crate::cache::key::Key;
use crate::cache::store::Store;
use crate::chain::Class;
use crate::sync::lock;
pub(crate) use encode::{Effort, encode, unzip};

/// Smaller bodies are not compressed.
const MIN_BYTES: usize = 1 << 10;

/// Compression under one configuration.
pub(crate) struct Compression {
    codings: Box<[Coding]>,
    store: Store,
    compressor: Arc<Compressor>,
}

impl Compression {
    /// Compression of what is in a store; `None` where no coding is wanted.
    pub(crate) fn new(
        codings: &[Coding],
        store: &Store,
        compressor: &Arc<Compressor>,
    ) -> Option<Self> {
        (!codings.is_empty()).then(|| Self {
            codings: codings.into(),
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
    ) -> Option<(Coding, Bytes)> {
        if stored.body.len() < MIN_BYTES || !stored.is_encodable {
            return None;
        }
        let coding = preferred(fields, &self.codings)?;
        if forbids_encoding(fields) {
            return None;
        }
        match stored.encodings.get(coding) {
            Some(encoded) => Some((coding, encoded.clone()?)),
            None => {
                if is_hit {
                    self.begin(key, coding);
                }
                None
            }
        }
    }

    /// Has a body compressed, unless too many wait.
    #[cold]
    fn begin(&self, key: &Key, coding: Coding) {
        let (compressor, wanted) = (self.compressor.clone(), (key.clone(), coding));
        {
            let mut waiting = lock(&compressor.waiting);
            if waiting.contains(&wanted) {
                return;
            }
            if waiting.len() >= MOST_WAITING {
                drop(waiting);
                return compressor.count(coding, |counts| counts.skipped += 1);
            }
            waiting.insert(wanted.clone());
        }
        let store = self.store.clone();
        tokio::spawn(async move {
            let _turn = compressor.turn.lock().await;
            let stored = store.not_encoded(&wanted.0, coding);
            let encoded = match &stored {
                Some(stored) => encode_smaller(stored, coding).await,
                None => None,
            };
            if let Some(stored) = &stored {
                store.add_encoded(&wanted.0, (stored, coding), encoded.clone());
            }
            let before = stored.map(|stored| stored.body.len());
            compressor.count(coding, |counts| match (before, &encoded) {
                (None, _) => counts.skipped += 1,
                (Some(_), None) => counts.not_worthwhile += 1,
                (Some(before), Some(encoded)) => {
                    counts.made += 1;
                    counts.before += before as u64;
                    counts.after += encoded.len() as u64;
                }
            });
            lock(&compressor.waiting).remove(&wanted);
        });
    }
}

/// Whether a request must be answered with the body as it is: it is for a range, or
/// forbids transformations (RFC 9111 §5.2.1.6).
#[inline]
fn forbids_encoding(fields: &HeaderMap) -> bool {
    fields.contains_key(RANGE)
        || fields.contains_key(CACHE_CONTROL) && Directives::of_request(fields).no_transform
}

/// The body of a stored response in a coding; `None` where it would not be smaller, or
/// cannot be encoded.
async fn encode_smaller(stored: &StoredResponse, coding: Coding) -> Option<Bytes> {
    let effort = match stored.stamp.as_ref() {
        Some(stamp) if stamp.class == Class::Final => Effort::High,
        Some(_) | None => Effort::Usual,
    };
    let body = stored.body.clone();
    let encoded = spawn_blocking(move || encode(&body, coding, effort)).await;
    // A codec that panics or fails on a body would do so each time.
    let encoded = encoded.map_err(io::Error::other).flatten();
    let encoded = encoded.inspect_err(|error| {
        let coding = coding.name();
        tracing::warn!(%error, coding, "a body could not be compressed");
    });
    let encoded = encoded
        .ok()
        .filter(|encoded| encoded.len() < stored.body.len())?;
    Some(encoded.into_boxed_slice().into())
}

/// The most bodies that wait to be compressed.
const MOST_WAITING: usize = 64;

/// Compresses stored bodies, one at a time.
#[derive(Default)]
pub(crate) struct Compressor {
    /// The stored bodies that wait for it, or are being compressed.
    waiting: sync::Mutex<HashSet<(Key, Coding)>>,
    turn: Mutex<()>,
    counts: sync::Mutex<[CodingCounts; CODINGS]>,
}

impl Compressor {
    fn count(&self, coding: Coding, change: impl FnOnce(&mut CodingCounts)) {
        change(&mut lock(&self.counts)[coding.index()]);
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
