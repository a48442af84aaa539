//! A stored response of a typed route: its bytes, when they were received, and what the
//! chain and the pages know of it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, StatusCode};

use super::encoded::BodyId;
use super::metadata::Metadata;
use super::purge::{BlockRange, CheckedPurge, PurgeSubject};
use crate::chain::ChainStamp;
use crate::clock::Moment;
use crate::pages::Page;

/// A stored response.
#[derive(Debug)]
pub struct StoredResponse {
    /// The upstream's status.
    pub status: StatusCode,
    /// The upstream's body, unchanged.
    pub body: Bytes,
    /// ordgate's ETag of the body.
    pub etag: HeaderValue,
    /// What its header fields are made from.
    pub metadata: Arc<Metadata>,
    /// When the upstream's answer was received.
    pub received: Moment,
    /// Its freshness lifetime, counted from `received`.
    pub lifetime: Duration,
    /// How long the upstream took.
    pub took: Duration,
    /// The last purge that it was checked against: at first, that before its request was
    /// sent.
    pub checked: CheckedPurge,
    /// The digest of its body.
    pub body_id: BodyId,
    /// Its relation to the chain, on a route in mode `chain`.
    pub(crate) stamp: Option<ChainStamp>,
    /// The index of its page, from which other pages are cut, where its body is one.
    pub(crate) page: Option<Box<Page>>,
}

/// `wire::Body` sends the body from here without a copy.
impl AsRef<[u8]> for StoredResponse {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

/// What moka, the allocator's rounding and the shared counters take for each
/// entry, in bytes, beside what [`StoredResponse`] and its key hold. Measured by
/// `benches/memory.rs`.
pub(super) const OVERHEAD: usize = 480;

impl StoredResponse {
    /// A response that is not of a chain, for benchmarks and tests: received at the start,
    /// with a lifetime of 9 s.
    pub fn of_json(body: impl Into<Bytes>) -> Self {
        let content_type = HeaderValue::from_static("application/json");
        Self {
            status: StatusCode::OK,
            body: body.into(),
            etag: HeaderValue::from_static("\"e\""),
            metadata: Metadata::of(content_type, super::metadata::ClientFreshness::Nothing),
            received: Moment::default(),
            lifetime: Duration::from_secs(9),
            took: Duration::ZERO,
            checked: CheckedPurge::default(),
            body_id: BodyId::FIXED,
            stamp: None,
            page: None,
        }
    }

    /// Its relation to the chain, on a route in mode `chain`.
    pub(crate) fn stamp(&self) -> Option<&ChainStamp> {
        self.stamp.as_ref()
    }

    /// The index of its page, where its body is one.
    pub(crate) fn page(&self) -> Option<&Page> {
        self.page.as_deref()
    }

    /// What a purge compares with this response, stored under `key`.
    pub(crate) fn purge_subject<'s>(&'s self, key: &'s [u8]) -> PurgeSubject<'s> {
        let blocks = self.stamp.as_ref().and_then(|stamp| {
            let (lowest, highest) = stamp.heights?;
            Some(BlockRange {
                tip: stamp.tip,
                lowest,
                highest,
            })
        });
        PurgeSubject {
            key,
            blocks,
            bodies: vec![&self.body],
        }
    }

    /// All bytes that the entry takes, its key included.
    pub(super) fn weight(&self, key: &[u8]) -> u32 {
        let text = key.len() + self.body.len() + self.etag.len() + self.metadata.weight();
        let page = self.page.as_ref();
        let page = page.map_or(0, |page| size_of::<Page>() + page.weight());
        u32::try_from(text + page + size_of::<Self>() + OVERHEAD).unwrap_or(u32::MAX)
    }
}
