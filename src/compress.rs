//! Compression: stored bodies in the content codings that clients accept.
//!
//! A body is compressed once for each coding, when it is requested in it for the
//! second time, by a thread of its own at a low priority. Until then, and where the
//! queue has no room, it is sent as it is. What was made is kept with the stored
//! response ([`Encodings`]).
//!
//! `respond` and `relay` ask [`Compression`] for the body to send. The
//! [`Compressor`] is the state behind it, and survives reloads.
//!
//! Deliberately absent: compressing what is not stored, such as streams, and levels
//! as configuration.

mod encode;
pub(crate) mod queue;
mod worker;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use http::HeaderMap;
use http::header::{CACHE_CONTROL, RANGE};
use serde::Serialize;

use crate::cache::Attached;
use crate::cache::coding::{AcceptedCodings, CODINGS, Coding};
use crate::cache::directives::RequestDirectives;
use crate::cache::encodings::{Encoded, EncodedBody, Encodings};
use crate::cache::key::Key;
use crate::cache::store::Store;
use crate::identify::Client;
pub(crate) use encode::{Effort, encode, unzip};
use queue::Job;
pub(crate) use worker::Compressor;

/// Configuration of compression.
#[derive(Clone, Debug, Serialize)]
pub struct Settings {
    /// Whether bodies are compressed.
    pub(crate) enabled: bool,
    /// Smaller bodies are not.
    #[serde(serialize_with = "crate::units::serialize_size")]
    pub(crate) min_bytes: u64,
    /// The codings, the preferred one first.
    pub(crate) codings: Vec<Coding>,
}

/// Compression under one configuration.
pub(crate) struct Compression {
    min_bytes: usize,
    codings: Box<[Coding]>,
    store: Store<Attached>,
    compressor: Arc<Compressor>,
}

/// The request that a body answers.
pub(crate) struct EncodingRequest<'a> {
    /// Its fields.
    pub(crate) fields: &'a HeaderMap,
    /// The key that the response is stored under.
    pub(crate) key: &'a Key,
    /// Its client, by which the queue is fair.
    pub(crate) client: Client,
}

impl Compression {
    /// Compression of what is in a store; `None` where it is not enabled.
    pub(crate) fn new(
        settings: &Settings,
        store: &Store<Attached>,
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

    /// The body to send in place of a stored one of `length` bytes, and its coding;
    /// `None` where the stored one is to be sent.
    #[inline]
    pub(crate) fn body_for(
        &self,
        encodings: &Encodings,
        length: usize,
        request: &EncodingRequest<'_>,
        effort: impl FnOnce() -> Effort,
    ) -> Option<(Coding, Arc<EncodedBody>)> {
        if length < self.min_bytes {
            return None;
        }
        let accepted = AcceptedCodings::of(request.fields)?;
        let coding = accepted.preferred(&self.codings)?;
        if forbids_encoding(request.fields) {
            return None;
        }
        match encodings.get(coding) {
            Some(Encoded::Body(body)) => Some((coding, body.clone())),
            Some(Encoded::NotWorthwhile) => None,
            None => {
                self.request(encodings, coding, request, effort);
                None
            }
        }
    }

    /// Notes a request for a coding that is not made yet, and has it made if it is
    /// not the first.
    #[cold]
    fn request(
        &self,
        encodings: &Encodings,
        coding: Coding,
        request: &EncodingRequest<'_>,
        effort: impl FnOnce() -> Effort,
    ) {
        let Some(slots) = encodings.request(coding) else {
            return;
        };
        if !slots.begin(coding) {
            return;
        }
        let job = Job {
            key: request.key.clone(),
            slots: slots.clone(),
            coding,
            effort: effort(),
            store: self.store.clone(),
        };
        self.compressor.submit(job, request.client);
    }
}

/// Whether a request must be answered with the body as it is: it is for a range, or
/// forbids transformations (RFC 9111 §5.2.1.6).
#[inline]
fn forbids_encoding(fields: &HeaderMap) -> bool {
    fields.contains_key(RANGE)
        || fields.contains_key(CACHE_CONTROL) && RequestDirectives::of(fields).no_transform
}

/// What came of compressing bodies, by coding.
#[derive(Debug, Default)]
pub(crate) struct CompressionCounts {
    /// The bodies that became smaller.
    made: [AtomicU64; CODINGS],
    /// Those that did not, or were too large for an entry.
    not_worthwhile: [AtomicU64; CODINGS],
    /// Those that were replaced, purged or evicted meanwhile.
    overtaken: [AtomicU64; CODINGS],
    /// Those for which the queue had no room.
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
    pub(crate) results: [(&'static str, u64); 4],
    /// The bytes of the bodies that became smaller, before.
    pub(crate) before: u64,
    /// The bytes of the same bodies, after.
    pub(crate) after: u64,
}

impl CompressionCounts {
    fn count_made(&self, coding: Coding, before: usize, after: usize) {
        let at = coding.index();
        self.made[at].fetch_add(1, Relaxed);
        self.before[at].fetch_add(before as u64, Relaxed);
        self.after[at].fetch_add(after as u64, Relaxed);
    }

    /// The counts of each coding.
    pub(crate) fn by_coding(&self) -> [CodingCounts; CODINGS] {
        Coding::ALL.map(|coding| {
            let read = |counts: &[AtomicU64; CODINGS]| counts[coding.index()].load(Relaxed);
            CodingCounts {
                coding,
                results: [
                    ("made", read(&self.made)),
                    ("not-worthwhile", read(&self.not_worthwhile)),
                    ("overtaken", read(&self.overtaken)),
                    ("skipped", read(&self.skipped)),
                ],
                before: read(&self.before),
                after: read(&self.after),
            }
        })
    }
}
