//! Checking live answers: within an epoch, one key that is fetched again and
//! has not changed stands for all others of its tip.
//!
//! Live answers, such as tokens, change with blocks. An indexer may write them
//! some time before or after its tip moves, so an unchanged tip does not prove
//! them. But it writes all of them at about the same time. So for a request whose
//! stored answer is too old, the fill fetches the key that shows such writing best:
//! the one that is being checked already, else the one that was last seen to
//! change, else the request's own. If that has not changed, all are fresh again
//! ([`crate::chain::finality::Checks`]); if it has, each is fetched itself, and
//! once more a while later.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{AnswerSource, Fill, FillAnswer, FillResult};
use crate::cache::StoredResponse;
use crate::cache::key::Key;
use crate::chain::finality::Class;
use crate::clock::Moment;
use crate::collapse::Lead;
use crate::route::Route;
use crate::upstream::{Failure, RequestPriority};

/// The keys that are fetched in place of others, by tip.
pub(super) struct CheckKeys(Box<[Mutex<Keys>]>);

#[derive(Default)]
struct Keys {
    /// What is being checked now.
    present: Option<Key>,
    /// What was last seen to change.
    changed: Option<Key>,
}

impl CheckKeys {
    /// None so far.
    pub(super) fn new(tips: usize) -> Self {
        Self((0..tips).map(|_| Mutex::default()).collect())
    }

    fn of(&self, tip: u16) -> Option<MutexGuard<'_, Keys>> {
        let keys = self.0.get(usize::from(tip))?;
        Some(keys.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Fill {
    /// Where what is stored for a key is live and only too old, checks whether
    /// it may have changed: by a fetch of it, or of another key that stands for
    /// it. `None` where the key has to be asked for itself.
    ///
    /// # Errors
    /// Where the upstream failed in a way in which it would fail again.
    pub(super) async fn check(
        self: &Arc<Self>,
        lead: &Lead<FillResult>,
        key: &Key,
        route: &Route,
        wish: RequestPriority,
    ) -> Result<Option<FillAnswer>, Failure> {
        let Some(chosen) = self.check_key(key, route) else {
            return Ok(None);
        };
        let tip = route.cache.tip;
        if let Some(mut keys) = self.check_keys.of(tip) {
            keys.present = Some(chosen.clone());
        }
        let found = self.exchange(lead, &chosen, wish, false).await;
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

    /// Which key to fetch for one that is live and only too old: one that has
    /// been the same for as long as this one is not known to have been, so that
    /// no time is left out. `None` where a key has to be asked for itself.
    pub(super) fn check_key(&self, key: &Key, route: &Route) -> Option<Key> {
        // What is cut from windows is fetched by windows.
        if route.pages.is_some() {
            return None;
        }
        let known = self.unchecked(key)?;
        let keys = self.check_keys.of(route.cache.tip)?;
        let stands_for_it = |other: &&Key| {
            let stored = self.cache.store().get(other);
            let since = stored.and_then(|stored| Some(stored.stamp()?.since(stored.received)));
            let is_as_old = since.is_some_and(|since| since <= known);
            is_as_old && self.unchecked(other).is_some()
        };
        let present = keys.present.as_ref().filter(stands_for_it);
        let other = present.or(keys.changed.as_ref().filter(stands_for_it));
        Some(other.unwrap_or(key).clone())
    }

    /// Up to when what is stored for a key is known not to have changed, where
    /// it is live, too old, and may be checked.
    fn unchecked(&self, key: &Key) -> Option<Moment> {
        let stored = self.cache.store().get(key)?;
        let standing = stored.stamp()?;
        let now = self.clock.now();
        self.chain
            .may_be_checked(standing, stored.received, stored.lifetime, now)
    }

    /// What is to be stored for a key, by a request that was sent at a moment,
    /// is set against what is stored already.
    pub(super) fn compare(&self, key: &Key, new: &mut StoredResponse, sent: Moment) {
        let may_be = |class| matches!(class, Class::Live | Class::Absent);
        let Some(standing) = new.attached.stamp.as_mut().filter(|s| may_be(s.class)) else {
            return;
        };
        let Some(old) = self.cache.store().get(key) else {
            return;
        };
        let Some(before) = old.stamp().filter(|s| s.class == Class::Live) else {
            return;
        };
        let same = old.status == new.status && old.body == new.body;
        if standing.epoch() == before.epoch() {
            let (received, now) = (old.received, self.clock.now());
            let since = self.chain.checked(before, received, sent, same, now);
            if let Some(since) = since {
                standing.unchanged_since(since);
            }
        }
        if !same && let Some(mut keys) = self.check_keys.of(standing.tip) {
            keys.changed = Some(key.clone());
        }
    }
}
