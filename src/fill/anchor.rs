//! Confirming: after a new block has come, one request proves that everything
//! that was known of the blocks before it still holds.
//!
//! A block's hash commits to all blocks below it. So where the highest block
//! that was seen in the epoch before is seen again, no answer that names it or
//! lower ones has to be fetched anew, be there one or thousands.

use std::sync::Arc;

use super::{Fill, FillResult};
use crate::cache::StoredResponse;
use crate::cache::key::Key;
use crate::cache::policy::Mode;
use crate::collapse::Lead;
use crate::route::Route;
use crate::route::canonical::{page, with_page};
use crate::upstream::{Failure, RequestPriority};

/// Windows up to this size are fetched whole to see their block: somebody will
/// want them. Of larger ones a single item does.
const MOST_ITEMS: u64 = 100;

impl Fill {
    /// Where what is stored for a key, or would make an answer for it, only
    /// lacks the proof that its blocks still stand, gets that proof. Answers
    /// whether anything was looked for.
    ///
    /// # Errors
    /// Where the upstream failed in a way in which it would fail again.
    pub(super) async fn revalidate_by_anchor(
        self: &Arc<Self>,
        lead: &Lead<FillResult>,
        key: &Key,
        route: &Route,
        wish: RequestPriority,
    ) -> Result<bool, Failure> {
        let Some((anchor, _)) = self.proof(key, route) else {
            return Ok(false);
        };
        // Whatever comes of it, the ledger has learned it; where nothing does,
        // the key itself is asked for, and tells why.
        match self.exchange(lead, &anchor, wish, true).await {
            Err(failure) if failure.is_of_all() => Err(failure),
            Ok(_) | Err(_) => Ok(true),
        }
    }

    /// The key that would prove it, and its route.
    pub(super) fn proof(&self, key: &Key, route: &Route) -> Option<(Key, &Route)> {
        let height = self
            .doubtful(key, route)
            .into_iter()
            .find_map(|stored| self.chain.anchor(stored.stamp()?))?;
        let (anchor, source) = self.block_key(route.cache.tip, height)?;
        // To fetch the very thing is as good.
        (anchor != *key && self.is_sliceable(anchor.route())).then_some((anchor, source))
    }

    /// What is stored for a key, or that an answer for it could be cut from.
    fn doubtful(&self, key: &Key, route: &Route) -> Vec<Arc<StoredResponse>> {
        let store = self.cache.store();
        let own = store.get(key);
        let window = route.pages.and_then(|size| {
            let size = u64::from(size.get());
            let (_, offset) = page(key)?;
            store.get(&with_page(key, size, offset - offset % size)?)
        });
        let source = self
            .hint(key, route)
            .and_then(|(_, _, window)| store.get(&window));
        [own, window, source].into_iter().flatten().collect()
    }

    /// The key that shows the block at a height, and its route: of those with
    /// whole blocks' lists that go by a tip.
    pub(super) fn block_key(&self, tip: u16, height: u32) -> Option<(Key, &Route)> {
        let mut routes = self.routes.routes().iter();
        routes.find_map(|source| {
            let size = u64::from(source.pages?.get());
            source.places.block?;
            if source.cache.mode != Mode::Chain || source.cache.tip != tip {
                return None;
            }
            let is_window = size <= MOST_ITEMS && self.is_sliceable(source.number);
            let items = if is_window { size } else { 1 };
            Some((source.key_of_block(height, items, 0)?, source))
        })
    }
}
