//! A stored response of a route in mode `respect`. A target may have several,
//! which `Vary` distinguishes (RFC 9111 §4.1).

use std::time::SystemTime;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};

use super::encodings::Encodings;
use super::reuse;
use super::vary::{Nominated, SecondaryKey};

/// One of the stored responses of a target.
#[derive(Clone, Debug)]
pub struct Variant {
    /// The upstream's status.
    pub(crate) status: StatusCode,
    /// The stored fields, without those of the connection.
    pub(crate) fields: HeaderMap,
    /// The whole body.
    pub(crate) body: Bytes,
    /// The encoded forms of its body.
    pub(crate) encodings: Encodings,
    /// The request fields that its `Vary` nominates.
    pub(crate) nominated: Nominated,
    /// The values that its request had in those fields.
    pub(crate) secondary: SecondaryKey,
    /// The facts that decide its reuse.
    pub(crate) reuse: reuse::StoredFacts,
    /// When it was received.
    pub(crate) received: SystemTime,
}

impl Variant {
    /// Bytes that it takes.
    pub(super) fn weight(&self) -> usize {
        // A field takes a slot in the map and an allocation, beside its text.
        const FIELD: usize = 160;
        let fields: usize = self
            .fields
            .iter()
            .map(|(name, value)| name.as_str().len() + value.len() + FIELD)
            .sum();
        self.body.len()
            + self.encodings.weight()
            + fields
            + self.secondary.as_bytes().len()
            + size_of::<Self>()
    }
}
