//! The cache key: a route and the canonical request target.
//!
//! `route` makes it, `cache` stores by it, `collapse` joins requests by it, and
//! `upstream` sends its target. Each route has its own policy, so the same target
//! has a different key on another route.

/// A route's number and a canonical target, as one byte string.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key(Vec<u8>);

/// The number of bytes before the target.
const ROUTE: usize = size_of::<u16>();

impl Key {
    /// A key of a route, without target.
    pub fn begin(route: u16) -> Self {
        let mut bytes = Vec::with_capacity(128);
        bytes.extend_from_slice(&route.to_be_bytes());
        Self(bytes)
    }

    /// The key of a route and a canonical target.
    pub(crate) fn of(route: u16, target: &str) -> Self {
        let mut key = Self::begin(route);
        key.buffer().extend_from_slice(target.as_bytes());
        key
    }

    /// The buffer to which the target is appended. It must be ASCII: `validate`
    /// percent-encodes the rest.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.0
    }

    /// The route's number.
    pub fn route(&self) -> u16 {
        match self.0[..] {
            [high, low, ..] => u16::from_be_bytes([high, low]),
            _ => 0,
        }
    }

    /// The canonical target: path and query as sent to the upstream.
    pub fn target(&self) -> &str {
        let target = self.0.get(ROUTE..).unwrap_or_default();
        std::str::from_utf8(target).unwrap_or("")
    }

    /// The whole key.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}
