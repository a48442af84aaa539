//! A ticket for a fetch: by it the response can be stored for other replicas.

use std::sync::Arc;

use super::SharedTier;
use super::counts::count;
use super::puts::{PutJob, ToPut};
use super::usable::EngineTime;
use super::value::{MOST_PLAIN, SharedPosition};
use crate::cache::StoredResponse;
use crate::cache::key::Key;
use crate::cache::policy::Mode;
use crate::chain::finality::Class;
use crate::portable::meanings::RouteMeaning;
use crate::shared::engine::entries::{EntryName, FillToken};
use crate::shared::journal::JournalPosition;

/// The right to store the response of one fetch. If it has the lock and is dropped, the
/// lock is given up.
pub(crate) struct FillTicket {
    tier: Arc<SharedTier>,
    route: RouteMeaning,
    token: FillToken,
    /// Whether the lock is to be given up.
    is_locked: bool,
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
            is_locked,
            position,
            time,
            name,
        }
    }

    /// Stores the response for other replicas: under the key by which it was requested, and
    /// its own if that is another. Never waits.
    pub(crate) fn put(mut self, requested: &Key, own: &Key, stored: &Arc<StoredResponse>) {
        let Some(position) = self.position_of(stored) else {
            return;
        };
        let link = &self.tier.link;
        if stored.body.len() > MOST_PLAIN {
            count(&link.counts().too_large);
            return;
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
            self.is_locked = false;
        }
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
        if !self.is_locked {
            return;
        }
        count(&self.tier.link.counts().given_up);
        self.tier.link.submit(PutJob::GiveUp {
            name: self.name.clone(),
            token: self.token,
        });
    }
}
