//! Stored bodies in content codings. Each is an entry of the cache of its own, and
//! belongs to one body, by its digest: whatever tag the origin gives it.

use bytes::Bytes;
use http::HeaderValue;

/// A digest of a stored body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyId([u8; 16]);

impl BodyId {
    /// That of a body that must not be encoded.
    pub(crate) const FIXED: Self = Self([0; 16]);

    /// That of the body with this tag ([`etag`](super::etag::etag)), of which it is a part.
    pub fn of(etag: &HeaderValue, is_encodable: bool) -> Self {
        let digits = etag.as_bytes().get(1..17).filter(|_| is_encodable);
        let digits = digits.and_then(|digits| digits.try_into().ok());
        digits.map_or(Self::FIXED, Self)
    }

    /// Whether the body may be encoded.
    pub(crate) fn is_encodable(self) -> bool {
        self != Self::FIXED
    }
}

/// What came of encoding a body.
#[derive(Debug)]
pub(crate) struct EncodedBody {
    /// The body that was encoded.
    pub(crate) of: BodyId,
    /// The encoded body; `None` if there is none yet, or if it would not be smaller.
    pub(crate) bytes: Option<Bytes>,
}

/// `wire::Body` sends it from here without a copy.
impl AsRef<[u8]> for EncodedBody {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_deref().unwrap_or_default()
    }
}
