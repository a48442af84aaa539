//! Compression: stored bodies in the content codings that clients accept. The only file that
//! names the compression libraries.
//!
//! A body is compressed once for each coding, after a hit for which it is wanted in that
//! coding: in the background, one body at a time. Until then, and where too many wait, it
//! is sent as it is. What was made belongs to that one stored response
//! ([`Encodings`](crate::cache::Encodings)).
//!
//! `respond` asks the [`Compressor`], which survives reloads, for the body to send.
//!
//! Deliberately absent: compressing what is not stored, such as streams, and levels
//! as configuration.

use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::sync::{self, Arc};

use bytes::Bytes;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
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
use crate::sync::lock;

/// Smaller bodies are not compressed.
const MIN_BYTES: usize = 1 << 10;
/// The most bodies that wait to be compressed.
const MOST_WAITING: usize = 64;
const ZSTD_LEVEL: i32 = 3;
const GZIP_LEVEL: u32 = 6;
const BROTLI_QUALITY: u32 = 5;
/// The largest window that every decoder has (RFC 7932 §9.1): 4 MiB.
const BROTLI_WINDOW: u32 = 22;
const BROTLI_BUFFER: usize = 16 << 10;

/// Compresses stored bodies, one at a time.
pub(crate) struct Compressor {
    store: Store,
    /// The stored bodies that wait for it, or are being compressed.
    waiting: sync::Mutex<HashSet<(Key, Coding)>>,
    turn: Mutex<()>,
    counts: sync::Mutex<[CodingCounts; CODINGS]>,
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
    pub(crate) bytes_before: u64,
    /// The bytes of the same bodies, after.
    pub(crate) bytes_after: u64,
}

impl Compressor {
    /// Compresses what is in a store.
    pub(crate) fn new(store: &Store) -> Arc<Self> {
        Arc::new(Self {
            store: store.clone(),
            waiting: sync::Mutex::default(),
            turn: Mutex::default(),
            counts: sync::Mutex::default(),
        })
    }

    /// The body to send in place of a stored one, and its coding, one of `codings`; `None` where
    /// the stored one is to be sent: also for a range, or if the request, which has these
    /// `fields`, forbids transformations (RFC 9111 §5.2.1.6). `is_hit` says whether it was stored
    /// before the request came.
    #[inline]
    pub(crate) fn body_for(
        self: &Arc<Self>,
        stored: &StoredResponse,
        key: &Key,
        (fields, codings): (&HeaderMap, &[Coding]),
        is_hit: bool,
    ) -> Option<(Coding, Bytes)> {
        if stored.body.len() < MIN_BYTES || !stored.is_encodable {
            return None;
        }
        let coding = preferred(fields, codings)?;
        let no_transform = || Directives::of_request(fields).no_transform;
        if fields.contains_key(RANGE) || fields.contains_key(CACHE_CONTROL) && no_transform() {
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
    fn begin(self: &Arc<Self>, key: &Key, coding: Coding) {
        let (compressor, wanted) = (self.clone(), (key.clone(), coding));
        {
            let mut waiting = lock(&self.waiting);
            if waiting.contains(&wanted) {
                return;
            }
            if waiting.len() >= MOST_WAITING {
                return self.count(coding, |counts| counts.skipped += 1);
            }
            waiting.insert(wanted.clone());
        }
        tokio::spawn(async move {
            let _turn = compressor.turn.lock().await;
            compressor.compress(&wanted.0, coding).await;
            lock(&compressor.waiting).remove(&wanted);
        });
    }

    async fn compress(&self, key: &Key, coding: Coding) {
        let Some(stored) = self.store.not_encoded(key, coding) else {
            return self.count(coding, |counts| counts.skipped += 1);
        };
        let encoded = encode_smaller(stored.body.clone(), coding).await;
        self.store
            .add_encoded(key, (&stored, coding), encoded.clone());
        self.count(coding, |counts| match &encoded {
            None => counts.not_worthwhile += 1,
            Some(encoded) => {
                counts.made += 1;
                counts.bytes_before += stored.body.len() as u64;
                counts.bytes_after += encoded.len() as u64;
            }
        });
    }

    fn count(&self, coding: Coding, change: impl FnOnce(&mut CodingCounts)) {
        change(&mut lock(&self.counts)[coding.index()]);
    }

    /// The counts of each coding.
    pub(crate) fn counts(&self) -> [(Coding, CodingCounts); CODINGS] {
        let counts = *lock(&self.counts);
        Coding::ALL.map(|coding| (coding, counts[coding.index()]))
    }
}

/// A body in a coding; `None` where it would not be smaller, or cannot be encoded.
async fn encode_smaller(body: Bytes, coding: Coding) -> Option<Bytes> {
    let length = body.len();
    let encoded = spawn_blocking(move || encode(&body, coding)).await;
    // A codec that panics or fails on a body would do so each time.
    let encoded = encoded.map_err(io::Error::other).flatten();
    let encoded = encoded.inspect_err(|error| {
        let coding = coding.name();
        tracing::warn!(%error, coding, "a body could not be compressed");
    });
    let encoded = encoded.ok().filter(|encoded| encoded.len() < length)?;
    Some(encoded.into_boxed_slice().into())
}

/// A body in a coding.
///
/// # Errors
/// Where the library fails, for want of memory for example.
pub(crate) fn encode(body: &[u8], coding: Coding) -> io::Result<Vec<u8>> {
    match coding {
        Coding::Zstd => zstd::bulk::compress(body, ZSTD_LEVEL),
        Coding::Brotli => {
            let mut encoded = Vec::with_capacity(body.len() / 4);
            let mut encoder = brotli::CompressorWriter::new(
                &mut encoded,
                BROTLI_BUFFER,
                BROTLI_QUALITY,
                BROTLI_WINDOW,
            );
            encoder.write_all(body)?;
            // It writes the end of the stream when it is dropped, and cannot fail to:
            // a vector takes everything.
            drop(encoder);
            Ok(encoded)
        }
        Coding::Gzip => {
            let level = flate2::Compression::new(GZIP_LEVEL);
            let mut encoder = GzEncoder::new(Vec::with_capacity(body.len() / 4), level);
            encoder.write_all(body)?;
            encoder.finish()
        }
    }
}

/// What gzip's encoding of a text was made from.
///
/// # Errors
/// If it is not gzip, or broken.
pub(crate) fn unzip(encoded: &[u8]) -> io::Result<Vec<u8>> {
    let mut text = Vec::with_capacity(encoded.len() * 4);
    GzDecoder::new(encoded).read_to_end(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(encoded: &[u8], coding: Coding) -> Vec<u8> {
        let mut body = Vec::new();
        match coding {
            Coding::Zstd => zstd::stream::copy_decode(encoded, &mut body).unwrap(),
            Coding::Brotli => {
                let mut decoder = brotli::Decompressor::new(encoded, 4096);
                decoder.read_to_end(&mut body).map(drop).unwrap();
            }
            Coding::Gzip => body = unzip(encoded).unwrap(),
        }
        body
    }

    #[test]
    fn a_body_is_decoded_to_itself() {
        let item = r#"{"operation":"transfer","ticker":"ordi","tx_id":"#;
        let numbered = (0..2000).map(|n| format!("{item}{n}}},"));
        let bodies = [
            Vec::new(),
            b"{}".to_vec(),
            numbered.collect::<String>().into_bytes(),
            (0..100_000_u32)
                .map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8)
                .collect(),
        ];
        for body in &bodies {
            for coding in Coding::ALL {
                let encoded = encode(body, coding).unwrap();
                assert!(decode(&encoded, coding) == *body, "{coding:?}");
            }
        }
        // Text becomes much smaller.
        for coding in Coding::ALL {
            let encoded = encode(&bodies[2], coding).unwrap();
            assert!(encoded.len() < bodies[2].len() / 5, "{coding:?}");
        }
    }
}
