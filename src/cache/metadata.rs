//! What the header fields of a stored response are made from.
//!
//! The store keeps these inputs and not the fields: `respond` renders them, with
//! the configuration that is current when the response is served. Responses with
//! the same inputs share one [`Metadata`], whose number lets `respond` find the
//! fields it has prepared.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use http::HeaderValue;

use crate::sync::lock;

/// How long clients may reuse a response: its `cache-control`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClientFreshness {
    /// Not at all: `no-store`.
    Nothing,
    /// For this long after it was received, in whole seconds: `max-age`.
    For(Duration),
    /// For this long, and it does not change meanwhile: `immutable` (RFC 8246).
    Immutable(Duration),
}

/// Content type and client freshness of stored responses.
#[derive(Debug)]
pub struct Metadata {
    pub(crate) content_type: HeaderValue,
    pub(crate) client_freshness: ClientFreshness,
    /// A number that no other metadata has, or [`NUMBERED`] where it is not shared.
    pub(crate) number: usize,
}

/// How many different [`Metadata`] are shared and numbered. An upstream has one
/// or two content types and a route a few lifetimes; the bound protects against
/// an upstream that sends a new content type in every answer.
pub(crate) const NUMBERED: usize = 256;

/// The shared metadata, process-wide, so that numbers stay valid across reloads.
static SHARED: LazyLock<Mutex<Table>> = LazyLock::new(Mutex::default);

type Table = HashMap<(HeaderValue, ClientFreshness), Arc<Metadata>>;

impl Metadata {
    /// The shared metadata of these inputs, or metadata of its own once the table
    /// is full.
    pub fn of(content_type: HeaderValue, client_freshness: ClientFreshness) -> Arc<Self> {
        Self::among(&mut lock(&SHARED), (content_type, client_freshness))
    }

    fn among(shared: &mut Table, key: (HeaderValue, ClientFreshness)) -> Arc<Self> {
        if let Some(metadata) = shared.get(&key) {
            return metadata.clone();
        }
        let metadata = Arc::new(Self {
            content_type: key.0.clone(),
            client_freshness: key.1,
            number: shared.len(),
        });
        if metadata.number < NUMBERED {
            shared.insert(key, metadata.clone());
        }
        metadata
    }

    /// Bytes that a response which does not share its metadata adds.
    pub(super) fn weight(&self) -> usize {
        match self.number < NUMBERED {
            true => 0,
            false => size_of::<Self>() + self.content_type.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_inputs_share_one_number() {
        let json = HeaderValue::from_static("application/json");
        let mut table = Table::default();
        let mut of = |seconds| {
            let freshness = ClientFreshness::For(Duration::from_secs(seconds));
            Metadata::among(&mut table, (json.clone(), freshness))
        };
        let one = of(7);
        assert!(Arc::ptr_eq(&one, &of(7)));
        assert_ne!(one.number, of(8).number);
        assert_eq!(one.weight(), 0);
        // Beyond the bound, each response has metadata of its own.
        let last = (0..NUMBERED as u64 + 9).map(&mut of).last().unwrap();
        assert_eq!(last.number, NUMBERED);
        assert!(last.weight() > 0);
        assert!(!Arc::ptr_eq(&last, &of(NUMBERED as u64 + 8)));
        assert!(Arc::ptr_eq(&one, &of(7)));
    }
}
