//! Looking ahead: fetching what will be asked for, with what the budget has to
//! spare. Off unless configured (`chain.look_ahead`).
//!
//! Two things are foreseen: that one who walks a list asks for its next window,
//! and that what was hot in one epoch is asked for in the next.

use std::sync::Arc;

use crate::cache::StoredResponse;
use crate::cache::key::Key;
use crate::chain::finality::Class;
use crate::fill::Fill;
use crate::route::canonical::{page as page_of, with_page};
use crate::upstream::{Priority, RequestPriority};

/// One hit in so many is counted as heat.
pub const SAMPLE: u64 = 8;

/// Fetches anew what was hot when an epoch begins, the hottest first, each once.
pub fn refresh(fill: &Arc<Fill>, tip: u16) {
    let most = fill.chain.look_ahead().refresh as usize;
    if most == 0 {
        return;
    }
    let mut hot: Vec<(u32, Key)> = Vec::new();
    fill.cache.store().each(|key, stored| {
        let Some(standing) = stored.stamp() else {
            return;
        };
        let may_change = matches!(standing.class, Class::Live | Class::Recent);
        if standing.tip == tip && may_change {
            let heat = standing.cool();
            if heat > 0 {
                hot.push((heat, Key::from(key)));
            }
        }
    });
    hot.sort_unstable_by_key(|(heat, _)| std::cmp::Reverse(*heat));
    for (_, key) in hot.into_iter().take(most) {
        fill.refresh(&key, RequestPriority::own(Priority::LookAhead));
    }
}

/// Fetches the window after a page that was just cut, where the list goes on
/// and the one before is stored: somebody walks it.
pub fn next_window(fill: &Arc<Fill>, key: &Key, stored: &StoredResponse) {
    if !fill.chain.look_ahead().next_window {
        return;
    }
    let Some(next) = next(fill, key, stored) else {
        return;
    };
    fill.refresh(&next, RequestPriority::own(Priority::LookAhead));
}

fn next(fill: &Fill, key: &Key, stored: &StoredResponse) -> Option<Key> {
    let size = u64::from(fill.route(key)?.pages?.get());
    let (limit, offset) = page_of(key)?;
    let total = stored.page()?.total;
    let next = (offset + limit).next_multiple_of(size);
    // A walk has begun before this page, and goes on behind it.
    let is_walk = offset > 0 && next < total;
    is_walk.then(|| with_page(key, size, next)).flatten()
}
