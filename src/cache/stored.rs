//! What is stored: a response with what a hit needs ready-made, or, on routes in
//! mode `respect`, one of the variants that a target has.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode};

use super::purge::PurgeSubject;
use super::reuse;
use super::store::PurgeSequence;
use super::vary::{Nominated, SecondaryKey};
use crate::chain::ChainStamp;
use crate::chain::finality::{Class, MOST_CHECKED};
use crate::clock::Moment;
use crate::pages::Page;

/// A stored response, with what a hit needs ready-made.
#[derive(Debug)]
pub struct StoredResponse {
    /// The upstream's status.
    pub status: StatusCode,
    /// The upstream's body, byte for byte.
    pub body: Bytes,
    /// Our ETag of the body.
    pub etag: HeaderValue,
    /// The fields that are the same for every client, with places for those
    /// that are not; shared by all answers of one kind.
    pub fields: Arc<Template>,
    /// When the upstream's answer was received.
    pub received: Moment,
    /// How long it is fresh from then on.
    pub lifetime: Duration,
    /// How long the upstream took.
    pub took: Duration,
    /// How it stands towards the chain, on a route in mode `chain`.
    pub standing: Option<ChainStamp>,
    /// What the body consists of, where pages are cut from it.
    pub page: Option<Box<Page>>,
    /// The last purge that it is known to have survived.
    pub seen: CheckedSequence,
}

impl StoredResponse {
    /// How long it is fresh at the most, counted from when it was received.
    pub fn longest(&self) -> Duration {
        match &self.standing {
            Some(standing) if standing.class == Class::Live => self.lifetime * MOST_CHECKED,
            Some(_) | None => self.lifetime,
        }
    }
}

/// The body, to be lent to answers.
impl AsRef<[u8]> for StoredResponse {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

/// The fields that answers of one kind have in common.
#[derive(Debug, Default)]
pub struct Template {
    /// The fields.
    pub fields: HeaderMap,
    /// What stands in each of them, in their order: a hit fills them from the
    /// first to the last, and looks none up.
    pub places: Box<[FieldRole]>,
    /// The settings that they were made by, as a number: what was stored before
    /// a reload may have others than are said now.
    pub dialect: u64,
}

/// What stands in a field of a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldRole {
    /// What the template has there.
    Constant,
    /// The ETag.
    Tag,
    /// The age.
    Age,
    /// How the answer came about.
    CacheStatus,
    /// The request's id.
    RequestId,
    /// What is left of the caller's limit.
    Limit,
}

impl Deref for Template {
    type Target = HeaderMap;

    fn deref(&self) -> &HeaderMap {
        &self.fields
    }
}

/// The number of the last purge that something is known to have survived.
#[derive(Debug, Default)]
pub struct CheckedSequence(pub(super) AtomicU64);

impl CheckedSequence {
    /// What is asked of the upstream after a mark was taken survives all
    /// purges before it.
    pub const fn until(mark: PurgeSequence) -> Self {
        Self(AtomicU64::new(mark.purge()))
    }

    /// What is made of others has survived what they have.
    pub const fn at(number: u64) -> Self {
        Self(AtomicU64::new(number))
    }

    /// The number.
    pub fn number(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What moka, the allocator's rounding and the shared counters cost for each
/// entry beside what [`StoredResponse`] and its key hold; measured by
/// `benches/memory.rs`.
pub(super) const OVERHEAD: usize = 480;

impl StoredResponse {
    /// What a purge sees of it under a key.
    pub(super) fn sight<'s>(&'s self, key: &'s [u8]) -> PurgeSubject<'s> {
        PurgeSubject {
            key,
            standing: self.standing.as_ref(),
            bodies: vec![&self.body],
        }
    }

    /// The bytes that an entry costs, all counted: key, fields, body, index.
    pub fn weight(&self, key: &[u8]) -> u32 {
        let page = self
            .page
            .as_ref()
            .map_or(0, |page| size_of::<Page>() + page.weight());
        let bytes =
            key.len() + self.body.len() + self.etag.len() + page + size_of::<Self>() + OVERHEAD;
        u32::try_from(bytes).unwrap_or(u32::MAX)
    }
}

/// A stored response of a route in mode `respect`: one of those that a target
/// has, chosen among by what `Vary` nominates.
#[derive(Clone, Debug)]
pub struct Variant {
    /// The upstream's status.
    pub status: StatusCode,
    /// The fields that are stored, none of them of the connection.
    pub fields: HeaderMap,
    /// The whole body.
    pub body: Bytes,
    /// What its `Vary` nominates.
    pub nominated: Nominated,
    /// What the request had in those fields.
    pub secondary: SecondaryKey,
    /// What reuse asks of it.
    pub reuse: reuse::StoredFacts,
    /// When it was received.
    pub received: SystemTime,
}

impl Variant {
    pub(super) fn weight(&self) -> usize {
        // A field costs its place in the map and an allocation, beside its text.
        const FIELD: usize = 160;
        let fields: usize = self
            .fields
            .iter()
            .map(|(name, value)| name.as_str().len() + value.len() + FIELD)
            .sum();
        self.body.len() + fields + self.secondary.as_bytes().len() + size_of::<Self>()
    }
}
