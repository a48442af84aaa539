//! A stored response: its bytes, its header fields or what they are prepared from, and what
//! decides how long it is fresh.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use super::coding::{CODINGS, Coding};
use super::key::Key;
use super::metadata::{ClientFreshness, Metadata};
use super::purge::{CheckedPurge, PurgeSubject};
use super::reuse::StoredFacts;
use super::validator::etag;
use super::vary::secondary_key;
use crate::chain::ChainStamp;
use crate::clock::Moment;
use crate::pages::Page;

/// A stored response.
#[derive(Clone, Debug)]
pub struct StoredResponse {
    /// The upstream's status.
    pub status: StatusCode,
    /// The upstream's body, unchanged.
    pub body: Bytes,
    /// Whether the body may be sent in content codings.
    pub is_encodable: bool,
    /// The body in the codings in which clients have wanted it.
    pub(crate) encodings: Encodings,
    /// ordgate's ETag of the body, where ordgate prepares the fields.
    pub etag: HeaderValue,
    /// Its header fields.
    pub fields: StoredFields,
    /// When the upstream's answer was received.
    pub received: Moment,
    /// Its freshness lifetime, counted from `received`, where the origin's fields do not
    /// decide.
    pub lifetime: Duration,
    /// How long the upstream took.
    pub took: Duration,
    /// The last purge that it was checked against: at first, that before its request was
    /// sent.
    pub checked: CheckedPurge,
    /// Its relation to the chain, on a route in mode `chain`.
    pub(crate) stamp: Option<ChainStamp>,
    /// The index of its page, from which other pages are cut, where its body is one.
    pub(crate) page: Option<Box<Page>>,
}

/// A stored body in content codings, each of which is made once.
#[derive(Clone, Debug, Default)]
pub struct Encodings(OnceLock<Box<[OnceLock<Option<Bytes>>; CODINGS]>>);

impl Encodings {
    /// What came of encoding the body: `Some(None)` if it would not be smaller, and `None` if
    /// it has not been tried.
    pub(crate) fn get(&self, coding: Coding) -> Option<&Option<Bytes>> {
        self.0.get()?[coding.index()].get()
    }

    /// Sets what came of encoding the body, once.
    pub(super) fn set(&self, coding: Coding, encoded: Option<Bytes>) {
        self.0.get_or_init(Box::default)[coding.index()].get_or_init(|| encoded);
    }

    fn weight(&self) -> usize {
        self.0.get().map_or(0, |all| {
            let made = all.iter().filter_map(|one| one.get()?.as_ref());
            size_of_val(&**all) + made.map(Bytes::len).sum::<usize>()
        })
    }
}

/// The header fields of a stored response.
#[derive(Clone, Debug)]
pub enum StoredFields {
    /// `respond` prepares them from this.
    Prepared(Arc<Metadata>),
    /// The origin's own, on a route in mode `respect`.
    Origin(Box<OriginFields>),
}

/// The fields of a stored response as the origin sent them, and what follows from them. A
/// target may have several such responses, which `Vary` distinguishes (RFC 9111 §4.1).
#[derive(Clone, Debug)]
pub struct OriginFields {
    /// The stored fields, without those of the connection.
    pub(crate) map: HeaderMap,
    /// The request fields that its `Vary` nominates.
    pub(crate) nominated: Box<[HeaderName]>,
    /// The values that its request had in those fields ([`secondary_key`]).
    pub(crate) secondary: Vec<u8>,
    /// The facts that decide its reuse.
    pub(crate) reuse: StoredFacts,
}

impl OriginFields {
    /// Bytes that they take.
    fn weight(&self) -> usize {
        // A field takes a slot in the map and an allocation, beside its text.
        const FIELD: usize = 160;
        let fields = self.map.iter();
        let fields = fields.map(|(name, value)| name.as_str().len() + value.len() + FIELD);
        fields.sum::<usize>() + self.secondary.len() + size_of::<Self>()
    }
}

/// What moka, the allocator's rounding and the shared counters take for each
/// entry, in bytes, beside what [`StoredResponse`] and its key hold. Measured by
/// `benches/memory.rs`.
pub(super) const OVERHEAD: usize = 480;

impl StoredResponse {
    /// A response with these fields, stale and not of a chain. Its ETag is that of its body where
    /// ordgate prepares the fields.
    pub(crate) fn new(status: StatusCode, fields: StoredFields, body: Bytes) -> Self {
        Self {
            status,
            etag: match fields {
                StoredFields::Prepared(_) => etag(&body),
                StoredFields::Origin(_) => HeaderValue::from_static(""),
            },
            body,
            fields,
            received: Moment::default(),
            lifetime: Duration::ZERO,
            took: Duration::ZERO,
            checked: CheckedPurge::default(),
            is_encodable: false,
            encodings: Encodings::default(),
            stamp: None,
            page: None,
        }
    }

    /// A response that is not of a chain, for benchmarks and tests: received at the start,
    /// with a lifetime of 9 s.
    pub fn of_json(body: impl Into<Bytes>) -> Self {
        let content_type = HeaderValue::from_static("application/json");
        let metadata = Metadata::of(content_type, ClientFreshness::Nothing);
        Self {
            etag: HeaderValue::from_static("\"e\""),
            lifetime: Duration::from_secs(9),
            ..Self::new(
                StatusCode::OK,
                StoredFields::Prepared(metadata),
                body.into(),
            )
        }
    }

    /// Its content type; an empty value where it has none.
    pub(crate) fn content_type(&self) -> HeaderValue {
        let value = match &self.fields {
            StoredFields::Prepared(metadata) => Some(&metadata.content_type),
            StoredFields::Origin(origin) => origin.map.get(CONTENT_TYPE),
        };
        value.map_or(HeaderValue::from_static(""), HeaderValue::clone)
    }

    /// The origin's own fields, if it has them.
    pub(crate) fn origin(&self) -> Option<&OriginFields> {
        match &self.fields {
            StoredFields::Prepared(_) => None,
            StoredFields::Origin(origin) => Some(origin),
        }
    }

    /// Whether its `Vary` selects it for a request, if it has the origin's own fields.
    /// `received` gives the fields that the origin receives.
    pub(crate) fn answers<'r>(&self, received: impl Fn() -> &'r HeaderMap) -> bool {
        self.origin()
            .is_some_and(|origin| origin.secondary == secondary_key(&origin.nominated, received))
    }

    /// What a purge compares with this response, stored under `key`.
    pub(crate) fn purge_subject<'s>(&'s self, key: &'s Key) -> PurgeSubject<'s> {
        let stamp = self.stamp.as_ref();
        PurgeSubject {
            key,
            blocks: stamp.and_then(|stamp| Some((stamp.tip, stamp.heights?))),
            body: &self.body,
        }
    }

    /// Bytes that it takes in memory, its key and the entry aside.
    pub(super) fn weight(&self) -> usize {
        let fields = match &self.fields {
            StoredFields::Prepared(metadata) => metadata.weight(),
            StoredFields::Origin(origin) => origin.weight(),
        };
        let page = self.page.as_ref();
        let page = page.map_or(0, |page| size_of::<Page>() + page.weight());
        let body = self.body.len() + self.encodings.weight();
        body + self.etag.len() + fields + page + size_of::<Self>()
    }
}
