//! Prefetching with unused budget. Off unless configured (`chain.look_ahead`).
//!
//! Two kinds of responses are prefetched: the next window of a list that a
//! client reads page by page, and, when an epoch begins, the most used
//! responses of the previous epoch.

use std::sync::Arc;

use crate::cache::StoredResponse;
use crate::cache::key::Key;
use crate::chain::TipNumber;
use crate::chain::finality::Class;
use crate::fill::Fill;
use crate::route::canonical::{page as page_of, with_page};
use crate::upstream::{Priority, RequestPriority};

/// One hit in this many is counted as a use.
pub(crate) const SAMPLE: u64 = 8;

/// Fetches the most used responses of a tip again, in descending order of uses.
/// Called when an epoch begins.
pub(crate) fn refresh(fill: &Arc<Fill>, tip: TipNumber) {
    let most = fill.chain.look_ahead().refresh as usize;
    if most == 0 {
        return;
    }
    let mut used: Vec<(u32, Key)> = Vec::new();
    fill.cache.store().each(|key, stored| {
        let Some(stamp) = stored.stamp() else {
            return;
        };
        let may_change = matches!(stamp.class, Class::Live | Class::Recent);
        if stamp.tip == tip && may_change {
            let uses = stamp.halve_uses();
            if uses > 0 {
                used.push((uses, Key::from(key)));
            }
        }
    });
    used.sort_unstable_by_key(|(uses, _)| std::cmp::Reverse(*uses));
    for (_, key) in used.into_iter().take(most) {
        fill.refresh(&key, RequestPriority::own(Priority::LookAhead));
    }
}

/// Fetches the window after a page that was just served to a client, if the list
/// continues and the page is not its first: the client probably reads on.
pub(crate) fn next_window(fill: &Arc<Fill>, key: &Key, stored: &StoredResponse) {
    if !fill.chain.look_ahead().next_window {
        return;
    }
    let Some(next) = next(fill, key, stored) else {
        return;
    };
    let priority = RequestPriority::own(Priority::LookAhead);
    fill.refresh(&next, priority);
}

fn next(fill: &Fill, key: &Key, stored: &StoredResponse) -> Option<Key> {
    let size = u64::from(fill.route(key)?.chain.window?.get());
    let (limit, offset) = page_of(key)?;
    let total = stored.page()?.total;
    let next = (offset + limit).next_multiple_of(size);
    let is_read_on = offset > 0 && next < total;
    is_read_on.then(|| with_page(key, size, next)).flatten()
}
