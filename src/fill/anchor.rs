//! Revalidation by anchor block: after a new block, one request proves that all
//! responses that mention only the blocks before it are still valid.
//!
//! A block's hash commits to all blocks below it. So where the highest block that
//! was seen in the previous epoch is seen again, no response that mentions it or
//! lower blocks has to be fetched again.

use std::sync::Arc;

use super::collapsed::Anew;
use super::{Fill, FillResult};
use crate::cache::StoredResponse;
use crate::cache::key::Key;
use crate::cache::policy::Mode;
use crate::chain::TipNumber;
use crate::collapse::Lead;
use crate::route::Route;
use crate::route::canonical::{page, with_page};
use crate::upstream::{Check, Failure, RequestPriority};

/// Windows up to this many items are fetched whole to see their block, since clients
/// will request them. Of larger windows one item is fetched.
const MOST_ITEMS: u64 = 100;

impl Fill {
    /// Requests the anchor block of what is stored for a key, or would make an answer
    /// for it. Returns whether there is one.
    ///
    /// # Errors
    /// If the upstream failed, and would fail the same way again.
    pub(super) async fn revalidate_by_anchor(
        self: &Arc<Self>,
        lead: &Lead<FillResult>,
        key: &Key,
        route: &Route,
        priority: RequestPriority,
    ) -> Result<bool, Failure> {
        let Some((anchor, _)) = self.anchor_key(key, route) else {
            return Ok(false);
        };
        let priority = priority.check(Check::Anchor);
        // The ledger has the result. If there is none, the key itself is requested, and
        // fails for the same reason.
        match self.exchange(lead, &anchor, priority, Anew::Yes).await {
            Err(failure) if failure.is_of_all() => Err(failure),
            Ok(_) | Err(_) => Ok(true),
        }
    }

    /// The key of the anchor block, and its route.
    pub(super) fn anchor_key(&self, key: &Key, route: &Route) -> Option<(Key, &Route)> {
        let height = self
            .stored_for(key, route)
            .into_iter()
            .find_map(|stored| self.chain.anchor(stored.stamp()?))?;
        let (anchor, source) = self.block_key(route.cache.tip, height)?;
        // Requesting the key itself is as good.
        (anchor != *key && self.are_pages_cut(anchor.route())).then_some((anchor, source))
    }

    /// What is stored for a key, or could be cut into an answer for it.
    fn stored_for(&self, key: &Key, route: &Route) -> Vec<Arc<StoredResponse>> {
        let store = self.cache.store();
        let own = store.get(key);
        let window = route.chain.window.and_then(|size| {
            let size = u64::from(size.get());
            let (_, offset) = page(key)?;
            store.get(&with_page(key, size, offset - offset % size)?)
        });
        let source = self
            .transaction_window(key, route)
            .and_then(|(_, _, window)| store.get(&window));
        [own, window, source].into_iter().flatten().collect()
    }

    /// The key that shows the block at a height, and its route: one of those of a tip
    /// that list whole blocks.
    pub(super) fn block_key(&self, tip: TipNumber, height: u32) -> Option<(Key, &Route)> {
        let mut routes = self.routes.routes().iter();
        routes.find_map(|source| {
            let size = u64::from(source.chain.window?.get());
            source.chain.segments.block?;
            if source.cache.mode != Mode::Chain || source.cache.tip != tip {
                return None;
            }
            let is_window = size <= MOST_ITEMS && self.are_pages_cut(source.number);
            let items = if is_window { size } else { 1 };
            Some((source.key_of_block(height, items, 0)?, source))
        })
    }

    /// The key that shows the block at a height by its first item: no client's request waits
    /// for it.
    pub(super) fn first_item_key(&self, tip: TipNumber, height: u32) -> Option<Key> {
        let (_, source) = self.block_key(tip, height)?;
        source.key_of_block(height, 1, 0)
    }
}
