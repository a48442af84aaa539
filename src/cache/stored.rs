//! A stored response: its bytes, and when they were received.
//!
//! What other modules know about a response (its relation to the chain, its page
//! index) is an [`Attachment`]. The store keeps it and asks it only for what
//! eviction and purges need.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, StatusCode};

use super::encoded::BodyId;
use super::metadata::Metadata;
use super::purge::{BlockRange, PurgeSubject};
use super::sequence::CheckedSequence;
use crate::clock::Moment;

/// What other modules keep with a stored response.
pub trait Attachment: Send + Sync + 'static {
    /// The bytes it has allocated.
    fn weight(&self) -> usize {
        0
    }

    /// The blocks that the response names, which a purge of heights matches.
    fn blocks(&self) -> Option<BlockRange> {
        None
    }

    /// The longest time that the response may stay fresh, given its freshness
    /// lifetime.
    fn longest_lifetime(&self, lifetime: Duration) -> Duration {
        lifetime
    }
}

impl Attachment for () {}

/// A stored response.
#[derive(Debug)]
pub struct Stored<A> {
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
    /// The last purge that it was checked against.
    pub checked: CheckedSequence,
    /// The digest of its body.
    pub body_id: BodyId,
    /// What other modules know about it.
    pub attached: A,
}

#[cfg(test)]
impl<A> Stored<A> {
    /// A JSON response of tests, received at the start, with a lifetime of 9 s.
    pub(crate) fn of_tests(body: impl Into<Bytes>, attached: A) -> Self {
        let content_type = HeaderValue::from_static("application/json");
        Self {
            status: StatusCode::OK,
            body: body.into(),
            etag: HeaderValue::from_static("\"e\""),
            metadata: Metadata::of(content_type, super::metadata::ClientFreshness::Nothing),
            received: Moment::default(),
            lifetime: Duration::from_secs(9),
            took: Duration::ZERO,
            checked: CheckedSequence::default(),
            body_id: BodyId::FIXED,
            attached,
        }
    }
}

/// `wire::Body` sends the body from here without a copy.
impl<A> AsRef<[u8]> for Stored<A> {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

/// What moka, the allocator's rounding and the shared counters take for each
/// entry, in bytes, beside what [`Stored`] and its key hold. Measured by
/// `benches/memory.rs`.
pub(super) const OVERHEAD: usize = 480;

impl<A: Attachment> Stored<A> {
    /// What a purge compares with this response, stored under `key`.
    pub(crate) fn purge_subject<'s>(&'s self, key: &'s [u8]) -> PurgeSubject<'s> {
        PurgeSubject {
            key,
            blocks: self.attached.blocks(),
            bodies: vec![&self.body],
        }
    }

    /// The longest time after `received` for which it may be fresh.
    pub(super) fn longest_lifetime(&self) -> Duration {
        self.attached.longest_lifetime(self.lifetime)
    }

    /// All bytes that the entry takes, its key included.
    pub(super) fn weight(&self, key: &[u8]) -> u32 {
        let text = key.len() + self.body.len() + self.etag.len() + self.metadata.weight();
        let bytes = text + self.attached.weight() + size_of::<Self>() + OVERHEAD;
        u32::try_from(bytes).unwrap_or(u32::MAX)
    }
}
