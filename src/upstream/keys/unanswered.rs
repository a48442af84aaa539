//! How many requests of a key may be unanswered at one host, so that a host or
//! connection that does not answer leaves budget for others.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{KeyAtHost, Keys, PooledKey};

/// Where at least this many requests may be unanswered, one is held back for a new
/// connection; or two, since the first may be a probe that is given up early.
const ONE_LEFT: usize = 3;
const TWO_LEFT: usize = 8;

/// Counts an unanswered request to a host until this is dropped.
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

    /// The request is given up, and may still arrive.
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
    /// Sets whether the upstream has several hosts. Then a host that does not answer
    /// leaves budget for another.
    pub(crate) fn set_several_hosts(&self, are_several: bool) {
        self.has_several_hosts.store(are_several, Ordering::Relaxed);
    }

    /// Sets whether connections carry several requests at once. Then a silent
    /// connection leaves budget for a request on another.
    pub(crate) fn set_shares_connections(&self, shares: bool) {
        self.shares_connections.store(shares, Ordering::Relaxed);
    }

    /// Whether a key has as many requests at a host as it may have, by the counter
    /// `of`: three quarters of the limit, less those at other hosts.
    pub(super) fn is_full(
        &self,
        key: &PooledKey,
        at_host: &KeyAtHost,
        of: impl Fn(&KeyAtHost) -> &AtomicUsize,
    ) -> bool {
        if !self.has_several_hosts.load(Ordering::Relaxed) {
            return false;
        }
        let Some(most) = key.budget.max_unanswered() else {
            return false;
        };
        let at_others: usize = {
            let hosts = key.hosts();
            let others = hosts.iter().filter(|other| other.host != at_host.host);
            others.map(|other| of(other).load(Ordering::Relaxed)).sum()
        };
        let most = (most.saturating_sub(at_others) * 3 / 4).max(1);
        of(at_host).load(Ordering::Relaxed) >= most
    }

    /// Whether one more request would leave too few for another connection. Requests
    /// on a silent connection may arrive as long as nothing is answered; the ones held
    /// back are sent on another connection, one at a time, after those are given up.
    fn leaves_too_few(&self, key: &PooledKey, at_host: &KeyAtHost) -> bool {
        if !self.shares_connections.load(Ordering::Relaxed) {
            return false;
        }
        let budget = &key.budget;
        let rates = [budget.max_per_second(), budget.max_unanswered()];
        let most = rates.into_iter().flatten().min();
        let unanswered = at_host.unanswered.load(Ordering::Relaxed);
        // A probe is given up before its connection is.
        let are_given_up = at_host.given_up.load(Ordering::Relaxed) == unanswered;
        most.filter(|most| *most >= ONE_LEFT).is_some_and(|most| {
            let left = if most >= TWO_LEFT { 2 } else { 1 };
            !are_given_up && unanswered + left >= most
        })
    }

    /// Whether a request to a host must wait until another is answered or given up.
    pub(super) fn is_held_up(&self, key: &PooledKey, at_host: &KeyAtHost) -> bool {
        self.leaves_too_few(key, at_host) || self.is_full(key, at_host, |at| &at.unanswered)
    }
}
