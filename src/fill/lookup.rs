//! Looking up: the key under which a response is stored (a block's is that of its height,
//! where the height is known, whether clients request it by height or by hash), and what
//! memory has for a request.

use std::net::IpAddr;

use http::{HeaderMap, Method};

use super::Fill;
use crate::cache::key::Key;
use crate::cache::policy::Mode;
use crate::cache::{Decision, StoredResponse};
use crate::clock::Moment;
use crate::pages::Hash;
use crate::route::Route;
use crate::route::canonical::{BlockReference, block, with_segment};

/// The key by which a client's request is looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LookupKey {
    /// The key.
    pub(crate) key: Key,
    /// The block's key by its hash, and that, where the client requested it by hash and its
    /// height is known.
    pub(crate) by_hash: Option<(Key, Hash)>,
}

impl From<Key> for LookupKey {
    fn from(key: Key) -> Self {
        Self { key, by_hash: None }
    }
}

impl LookupKey {
    /// The key of the client's request.
    pub(crate) fn requested(&self) -> &Key {
        self.by_hash.as_ref().map_or(&self.key, |(key, _)| key)
    }
}

/// The hex digits of a hash.
const HEX_DIGITS: usize = 64;

impl Fill {
    /// The key by which a client's request is looked up: a block by its height where
    /// that is known, since both forms share one stored response, and the upstream
    /// answers by height faster.
    #[inline]
    pub(crate) fn lookup_key(&self, route: &Route, key: Key) -> LookupKey {
        // A hash alone is longer than most keys: this is called for every hit.
        if key.as_bytes().len() < HEX_DIGITS || route.cache.mode != Mode::Chain {
            return key.into();
        }
        let by_height = requested_hash(route, &key).and_then(|(at, hash)| {
            let height = self.chain.tip(route.cache.tip).height_of(&hash)?;
            Some((with_segment(&key, at, &height.to_string())?, hash))
        });
        match by_height {
            Some((by_height, hash)) => LookupKey {
                key: by_height,
                by_hash: Some((key, hash)),
            },
            None => key.into(),
        }
    }

    /// What to do with a request, on a route of any mode. `/explain` uses it too.
    #[inline]
    pub(crate) fn decide(
        &self,
        route: &Route,
        lookup: &LookupKey,
        (method, fields, peer): (&Method, &HeaderMap, IpAddr),
        now: Moment,
    ) -> Decision {
        if route.is_plain() {
            return self.decide_plain(route, lookup, (method, fields, peer), now);
        }
        let is_answer = |stored: &_| self.is_answer(lookup, stored);
        self.cache.decide(&lookup.key, &route.cache, is_answer, now)
    }

    /// Whether a response found by height is of the block that the client requested
    /// by hash: after a reorg it may be of another.
    pub(crate) fn is_answer(&self, lookup: &LookupKey, stored: &StoredResponse) -> bool {
        let Some((by_hash, requested)) = &lookup.by_hash else {
            return true;
        };
        match stored.page.as_deref().map_or(&[][..], |page| &page.blocks) {
            [block] => block.hash == *requested,
            // An empty page mentions no block: the hash must still be at that height.
            [] | [_, _, ..] => self.lookup_key(self.route(by_hash), by_hash.clone()) == *lookup,
        }
    }

    /// The key that an answer is stored under: by height, where the request was by hash
    /// and the answer shows the block's height.
    pub(crate) fn own_key(&self, key: &Key, stored: &StoredResponse) -> Key {
        let by_height = || {
            let (at, requested) = requested_hash(self.route(key), key)?;
            match &stored.page.as_deref()?.blocks[..] {
                [block] if block.hash == requested => {
                    with_segment(key, at, &block.height.to_string())
                }
                _ => None,
            }
        };
        by_height().unwrap_or_else(|| key.clone())
    }
}

/// The hash by which a key requests a block, and the number of its segment.
fn requested_hash(route: &Route, key: &Key) -> Option<(usize, Hash)> {
    let at = route.chain.segments.block?;
    match block(key.target(), at)? {
        BlockReference::Hash(hash) => Some((at, hash)),
        BlockReference::Height(_) => None,
    }
}
