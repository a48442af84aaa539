//! The cache key: a route and the canonical request target. Pure.
//!
//! `route` makes it; `cache` stores by it, `collapse` joins by it, `upstream`
//! sends its target. A route has its own policy, so the same target on two
//! routes is two keys.

use std::borrow::Borrow;

/// A route's number and a canonical target, in one run of bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key(Vec<u8>);

/// The bytes in front of the target.
const ROUTE: usize = size_of::<u16>();

impl Key {
    /// A key of a route, whose target is yet to be written.
    pub fn begin(route: u16) -> Self {
        let mut bytes = Vec::with_capacity(128);
        bytes.extend_from_slice(&route.to_be_bytes());
        Self(bytes)
    }

    /// Where the target is written. It is ASCII: `validate` encodes the rest.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.0
    }

    /// The route's number.
    pub fn route(&self) -> u16 {
        route_of(&self.0)
    }

    /// The canonical target: path and query as they are sent upstream.
    pub fn target(&self) -> &str {
        target_of(&self.0)
    }

    /// The whole key, without spare capacity: the form that is kept.
    pub fn into_boxed(self) -> Box<[u8]> {
        self.0.into_boxed_slice()
    }

    /// The whole key.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The route's number of a whole key.
pub fn route_of(key: &[u8]) -> u16 {
    match key {
        [high, low, ..] => u16::from_be_bytes([*high, *low]),
        _ => 0,
    }
}

/// The canonical target of a whole key.
pub fn target_of(key: &[u8]) -> &str {
    let target = key.get(ROUTE..).unwrap_or_default();
    std::str::from_utf8(target).unwrap_or("")
}

impl From<&[u8]> for Key {
    /// A whole key, as it was kept.
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }
}

impl Borrow<[u8]> for Key {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_holds_route_and_target() {
        let mut key = Key::begin(300);
        key.buffer().extend_from_slice(b"/a?b=c");
        assert_eq!((key.route(), key.target()), (300, "/a?b=c"));
        assert_eq!(key.clone().into_boxed()[..], *key.as_bytes());
    }
}
