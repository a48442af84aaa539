//! A stored response of a route in mode `respect`. A target may have several,
//! which `Vary` distinguishes (RFC 9111 §4.1).

use std::time::SystemTime;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};

use super::encoded::BodyId;
use super::purge::PurgeSubject;
use super::reuse;
use super::vary::{Nominated, Received, SecondaryKey};

/// One of the stored responses of a target.
#[derive(Clone, Debug)]
pub struct Variant {
    /// The upstream's status.
    pub(crate) status: StatusCode,
    /// The stored fields, without those of the connection.
    pub(crate) fields: HeaderMap,
    /// The whole body.
    pub(crate) body: Bytes,
    /// The digest of its body.
    pub(crate) body_id: BodyId,
    /// The request fields that its `Vary` nominates.
    pub(crate) nominated: Nominated,
    /// The values that its request had in those fields.
    pub(crate) secondary: SecondaryKey,
    /// The facts that decide its reuse.
    pub(crate) reuse: reuse::StoredFacts,
    /// When it was received.
    pub(crate) received: SystemTime,
    /// The number of the last purge when its request was sent.
    pub(crate) purge: u64,
}

impl Variant {
    /// Whether its `Vary` selects it for a request.
    pub(crate) fn answers(&self, request: &impl Received) -> bool {
        self.nominated.matches(&self.secondary, request)
    }

    /// What a purge compares with it, stored under `key`.
    pub(super) fn purge_subject<'s>(&'s self, key: &'s [u8]) -> PurgeSubject<'s> {
        PurgeSubject {
            key,
            blocks: None,
            bodies: vec![&self.body],
        }
    }

    /// Bytes that it takes.
    pub(super) fn weight(&self) -> usize {
        // A field takes a slot in the map and an allocation, beside its text.
        const FIELD: usize = 160;
        let fields: usize = self
            .fields
            .iter()
            .map(|(name, value)| name.as_str().len() + value.len() + FIELD)
            .sum();
        self.body.len() + fields + self.secondary.as_bytes().len() + size_of::<Self>()
    }
}
