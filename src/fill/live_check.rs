//! Live checks: within an epoch, one key that is fetched again and is unchanged
//! stands for all live responses of its tip.
//!
//! Live responses, such as tokens, change with blocks. An indexer may write them some
//! time before or after its tip moves, so an unchanged tip proves nothing of them.
//! But it writes all of a block at about the same time. So for a request whose stored
//! response is too old, the fill fetches the key that shows such a change best: the
//! one that is being checked already, else the one that last changed, else the
//! request's own. If that is unchanged, all are fresh again
//! ([`LiveChecks`](crate::chain::live_checks::LiveChecks)); if it has changed, each is
//! fetched itself, and once more a while later.

use std::sync::{Arc, Mutex, MutexGuard};

use super::collapsed::Anew;
use super::{AnswerSource, Fill, FillAnswer, FillResult};
use crate::cache::StoredResponse;
use crate::cache::key::Key;
use crate::chain::TipNumber;
use crate::chain::finality::Class;
use crate::clock::Moment;
use crate::collapse::Lead;
use crate::route::Route;
use crate::sync::lock;
use crate::upstream::{Check, Failure, RequestPriority};

/// The keys that are fetched in place of others, by tip.
pub(super) struct CheckKeys(Box<[Mutex<Keys>]>);

#[derive(Default)]
struct Keys {
    /// The key that is being checked.
    present: Option<Key>,
    /// The key that last changed.
    changed: Option<Key>,
}

impl CheckKeys {
    /// No keys, for a number of tips.
    pub(super) fn new(tips: usize) -> Self {
        Self((0..tips).map(|_| Mutex::default()).collect())
    }

    fn of(&self, tip: TipNumber) -> Option<MutexGuard<'_, Keys>> {
        let keys = self.0.get(usize::from(tip))?;
        Some(lock(keys))
    }
}

impl Fill {
    /// Where the stored response of a key is live and only too old, checks whether it
    /// may have changed: by fetching it, or another key that stands for it. `None`
    /// where the key itself has to be fetched.
    ///
    /// # Errors
    /// Where the upstream failed in a way in which it would fail again.
    pub(super) async fn check_live(
        self: &Arc<Self>,
        lead: &Lead<FillResult>,
        key: &Key,
        route: &Route,
        priority: RequestPriority,
    ) -> Result<Option<FillAnswer>, Failure> {
        let Some(chosen) = self.check_key(key, route) else {
            return Ok(None);
        };
        let tip = route.cache.tip;
        if let Some(mut keys) = self.check_keys.of(tip) {
            keys.present = Some(chosen.clone());
        }
        let priority = match chosen == *key {
            true => priority,
            false => priority.check(Check::Live),
        };
        let found = self.exchange(lead, &chosen, priority, Anew::No).await;
        if let Some(mut keys) = self.check_keys.of(tip)
            && keys.present.as_ref() == Some(&chosen)
        {
            keys.present = None;
        }
        if chosen == *key {
            return found.map(Some);
        }
        match found {
            Err(failure) if failure.is_of_all() => return Err(failure),
            Ok(_) | Err(_) => {}
        }
        Ok(self.fresh(key).map(|stored| FillAnswer {
            stored,
            from: AnswerSource::Memory,
        }))
    }

    /// The key to fetch for one that is live and only too old. Another key stands for
    /// it if it has been unchanged since before this one was last known to be, so that
    /// no time is left uncovered. `None` where the key itself has to be fetched.
    pub(super) fn check_key(&self, key: &Key, route: &Route) -> Option<Key> {
        // Cut pages are fetched as windows.
        if route.chain.window.is_some() {
            return None;
        }
        let known = self.checkable_since(key)?;
        let keys = self.check_keys.of(route.cache.tip)?;
        let stands_for_it = |other: &&Key| {
            let stored = self.cache.store().get(other);
            let since =
                stored.and_then(|stored| Some(stored.stamp()?.unchanged_since(stored.received)));
            let covers = since.is_some_and(|since| since <= known);
            covers && self.checkable_since(other).is_some()
        };
        let present = keys.present.as_ref().filter(stands_for_it);
        let other = present.or(keys.changed.as_ref().filter(stands_for_it));
        Some(other.unwrap_or(key).clone())
    }

    /// Until when the stored response of a key is known to be unchanged, where it is
    /// live, too old, and may be checked.
    fn checkable_since(&self, key: &Key) -> Option<Moment> {
        let stored = self.cache.store().get(key)?;
        let stamp = stored.stamp()?;
        let now = self.clock.now();
        self.chain
            .checkable_since(stamp, stored.received, stored.lifetime, now)
    }

    /// Compares a new answer, requested at `sent`, with the live response that is
    /// stored for its key.
    pub(super) fn compare_with_stored(&self, key: &Key, new: &mut StoredResponse, sent: Moment) {
        let may_be = |class| matches!(class, Class::Live | Class::Absent);
        let Some(stamp) = new.attached.stamp.as_mut().filter(|s| may_be(s.class)) else {
            return;
        };
        let Some(old) = self.cache.store().get(key) else {
            return;
        };
        let Some(before) = old.stamp().filter(|s| s.class == Class::Live) else {
            return;
        };
        let unchanged = old.status == new.status && old.body == new.body;
        if stamp.epoch() == before.epoch() {
            let (received, now) = (old.received, self.clock.now());
            let since = self.chain.checked(before, received, sent, unchanged, now);
            if let Some(since) = since {
                stamp.set_unchanged_since(since);
            }
        }
        if !unchanged && let Some(mut keys) = self.check_keys.of(stamp.tip) {
            keys.changed = Some(key.clone());
        }
    }
}
