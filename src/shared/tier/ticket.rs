//! A ticket for a fetch: by it the response can be stored for other replicas.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::SharedTier;
use super::counts::count;
use super::puts::{PutJob, ToPut, UNLOCKED_MS};
use super::usable::EngineTime;
use super::value::{MOST_PLAIN, SharedPosition};
use crate::cache::StoredResponse;
use crate::cache::key::Key;
use crate::cache::policy::Mode;
use crate::chain::finality::Class;
use crate::portable::meanings::RouteMeaning;
use crate::shared::engine::entries::{EntryName, FillToken, GivenUp};
use crate::shared::journal::JournalPosition;

/// The right to store the response of one fetch. If it has the lock and is dropped, the
/// lock is given up.
pub(crate) struct FillTicket {
    tier: Arc<SharedTier>,
    route: RouteMeaning,
    token: FillToken,
    /// Whether the lock is to be given up.
    is_locked: AtomicBool,
    /// Taken before the fetch.
    position: JournalPosition,
    time: EngineTime,
    name: EntryName,
}

impl FillTicket {
    pub(super) fn new(
        tier: Arc<SharedTier>,
        route: RouteMeaning,
        (token, is_locked): (FillToken, bool),
        (position, time): (JournalPosition, EngineTime),
        name: EntryName,
    ) -> Self {
        Self {
            tier,
            route,
            token,
            is_locked: AtomicBool::new(is_locked),
            position,
            time,
            name,
        }
    }

    /// Stores the response for other replicas: under the key by which it was requested, and
    /// its own if that is another. Never waits.
    pub(crate) fn put(&self, requested: &Key, own: &Key, stored: &Arc<StoredResponse>) {
        let Some(position) = self.position_of(stored) else {
            return self.not_stored();
        };
        let link = &self.tier.link;
        if stored.body.len() > MOST_PLAIN {
            count(&link.counts().too_large);
            return self.not_stored();
        }
        let to_put = |name: EntryName, target: &str| {
            PutJob::Put(ToPut {
                name,
                token: self.token,
                route: self.route.digest,
                target: target.into(),
                position,
                received_ms: self.time.at(stored.received),
                stored: stored.clone(),
            })
        };
        if own != requested {
            let name = self.tier.name(self.route, own);
            link.submit(to_put(name, own.target()));
        }
        // This one gives up the lock.
        if link.submit(to_put(self.name.clone(), requested.target())) {
            self.is_locked.store(false, Relaxed);
        }
    }

    /// Gives up the lock: another replica may fetch. The response can be stored still.
    pub(crate) fn unlock(&self) {
        self.give_up(0);
    }

    /// The response is not stored for other replicas: they fetch for themselves for a
    /// while.
    pub(crate) fn not_stored(&self) {
        self.give_up(UNLOCKED_MS);
    }

    fn give_up(&self, unlocked_ms: u64) {
        if !self.is_locked.swap(false, Relaxed) {
            return;
        }
        let (name, token) = (self.name.clone(), self.token);
        let given_up = GivenUp { token, unlocked_ms };
        let link = &self.tier.link;
        count(&link.counts().given_up);
        link.submit(PutJob::GiveUp(name, given_up));
    }

    /// What the response was checked against; `None` if no other replica could use it.
    fn position_of(&self, stored: &StoredResponse) -> Option<SharedPosition> {
        let (chain, tip) = (&self.tier.chain, self.route.tip);
        let journal = self.position;
        let mark = match (self.route.mode, stored.stamp()) {
            (Mode::Override, None) => None,
            (Mode::Chain, Some(stamp)) => {
                let mark = chain.mark_of(tip, stamp.epoch());
                let is_usable = match stamp.class {
                    Class::Final => stamp.heights().is_some(),
                    Class::Recent => stamp.heights().is_some() && mark.is_some(),
                    Class::Live | Class::Absent => mark.is_some(),
                };
                if !is_usable {
                    return None;
                }
                mark
            }
            _ => return None,
        };
        Some(SharedPosition { journal, mark })
    }
}

impl Drop for FillTicket {
    fn drop(&mut self) {
        self.unlock();
    }
}
