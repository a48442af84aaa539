//! How many requests of a key may be unanswered at one host, so that a host or a
//! connection which answers nothing leaves some for others.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{KeyAtHost, Keys, PooledKey};

/// Where at least so many may be unanswered, one of them is left for later; or two,
/// since the first may be a probe that is given up before it is answered.
const ONE_LEFT: usize = 3;
const TWO_LEFT: usize = 8;

/// A request to a host that is not answered, as long as this is there.
pub(super) struct Unanswered {
    at_host: Arc<KeyAtHost>,
    is_given_up: bool,
}

impl Unanswered {
    pub(super) fn new(at_host: &Arc<KeyAtHost>) -> Self {
        at_host.unanswered.fetch_add(1, Ordering::Relaxed);
        Self {
            at_host: at_host.clone(),
            is_given_up: false,
        }
    }

    /// It is given up, and may still arrive.
    pub(super) fn given_up(mut self) -> Self {
        self.at_host.given_up.fetch_add(1, Ordering::Relaxed);
        self.is_given_up = true;
        self
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        self.at_host.unanswered.fetch_sub(1, Ordering::Relaxed);
        if self.is_given_up {
            self.at_host.given_up.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Keys {
    /// Whether there are several hosts to ask from now on. Then one that answers
    /// nothing leaves budget for another.
    pub(in crate::upstream) fn set_several_hosts(&self, are_several: bool) {
        self.has_several_hosts.store(are_several, Ordering::Relaxed);
    }

    /// Whether many requests may be on one connection from now on. Then one that
    /// is silent leaves budget for a request on another.
    pub(in crate::upstream) fn set_shares_connections(&self, shares: bool) {
        self.shares_connections.store(shares, Ordering::Relaxed);
    }

    /// Whether a key has at a host what it may have there, of those that are not
    /// answered.
    pub(super) fn is_full(
        &self,
        slot: &PooledKey,
        at_host: &KeyAtHost,
        of: impl Fn(&KeyAtHost) -> &AtomicUsize,
    ) -> bool {
        if !self.has_several_hosts.load(Ordering::Relaxed) {
            return false;
        }
        let Some(most) = slot.budget.max_unanswered() else {
            return false;
        };
        let at_others: usize = {
            let hosts = slot.hosts();
            let others = hosts.iter().filter(|other| other.host != at_host.host);
            others.map(|other| of(other).load(Ordering::Relaxed)).sum()
        };
        let most = (most.saturating_sub(at_others) * 3 / 4).max(1);
        of(at_host).load(Ordering::Relaxed) >= most
    }

    /// Whether one request more would leave too few for later. All that are on a
    /// silent connection may arrive for as long as nothing is answered: some are left
    /// to be sent on another connection, one at a time, once they are given up.
    fn leaves_too_few(&self, slot: &PooledKey, at_host: &KeyAtHost) -> bool {
        if !self.shares_connections.load(Ordering::Relaxed) {
            return false;
        }
        let holder = &slot.budget;
        let rates = [holder.max_per_second(), holder.max_unanswered()];
        let most = rates.into_iter().flatten().min();
        let unanswered = at_host.unanswered.load(Ordering::Relaxed);
        // A probe is given up sooner than its connection.
        let are_given_up = at_host.given_up.load(Ordering::Relaxed) == unanswered;
        most.filter(|most| *most >= ONE_LEFT).is_some_and(|most| {
            let left = if most >= TWO_LEFT { 2 } else { 1 };
            !are_given_up && unanswered + left >= most
        })
    }

    /// Whether a request to a host has to wait until one there is answered, or is
    /// given up.
    pub(super) fn is_held_up(&self, slot: &PooledKey, at_host: &KeyAtHost) -> bool {
        self.leaves_too_few(slot, at_host) || self.is_full(slot, at_host, |at| &at.unanswered)
    }
}
