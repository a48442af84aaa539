//! A transaction's page, cut from the stored windows of its block.

use std::sync::Arc;

use super::Fill;
use super::pages::{is_one_moment, window, windows_of};
use crate::cache::StoredResponse;
use crate::cache::key::Key;
use crate::chain::TransactionLocation;
use crate::pages::{self, Hash, hash, open_edges};
use crate::route::Route;
use crate::route::canonical::{page as page_of, segment, with_page};

impl Fill {
    /// The transaction that a key requests, and the window of its block in which it
    /// was last seen, with the window's key.
    pub(super) fn transaction_window(
        &self,
        key: &Key,
        route: &Route,
    ) -> Option<(Hash, TransactionLocation, Key)> {
        let from = route.chain.derived_from?;
        let source = self.routes.get(from)?;
        let size = u64::from(source.chain.window?.get());
        let tx = hash(segment(key.target(), route.chain.segments.hex64?)?)?;
        let location = self.chain.find_transaction(&tx)?;
        let window = source.key_of_block(location.height, size, location.offset)?;
        (location.route == from).then_some((tx, location, window))
    }

    /// A transaction's page, where the stored windows of its block contain all its
    /// items.
    pub(super) fn cut_transaction(&self, key: &Key, route: &Route) -> Option<Arc<StoredResponse>> {
        let (tx, location, first) = self.transaction_window(key, route)?;
        let size = u64::from(self.route(&first)?.chain.window?.get());
        let (limit, offset) = page_of(key)?;
        let fresh = |offset| self.fresh(&with_page(&first, size, offset)?);
        let mut parts = vec![fresh(location.offset)?];
        let edges = |part: &Arc<StoredResponse>| open_edges(window(part, part.page()?), &tx);
        // The run may continue in the neighbouring windows.
        let mut before = location.offset;
        while edges(parts.first()?)?.before {
            before = before.checked_sub(size)?;
            parts.insert(0, fresh(before)?);
            if edges(parts.first()?).is_none() {
                break;
            }
        }
        let mut after = location.offset;
        while edges(parts.last()?).is_some_and(|edges| edges.after) {
            after += size;
            parts.push(fresh(after)?);
        }
        let windows = windows_of(&parts)?;
        if !is_one_moment(&parts) {
            return None;
        }
        let body = pages::cut_transaction_page(&windows, &tx, offset, limit)?;
        Some(Arc::new(self.response_of(&parts, body)?))
    }
}
