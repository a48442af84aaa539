//! The state of a key, for `/status` and `/metrics`.

use std::time::Duration;

use super::suspension::SuspensionReason;
use crate::upstream::admission::allowance::AllowanceSnapshot;
use crate::upstream::endpoint::Host;

/// The state of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeySnapshot {
    /// The key's name, or `none`.
    pub(crate) name: String,
    /// Requests left of this minute; `None` for any number.
    pub(crate) remaining: Option<usize>,
    /// The limit per minute; `None` for any number.
    pub(crate) per_minute: Option<usize>,
    /// The part of the budget that this process may use, if replicas share it.
    pub(crate) allowance: Option<AllowanceSnapshot>,
    /// Its state at each host of the upstream.
    pub(crate) hosts: Vec<(Host, KeySnapshotAtHost)>,
}

/// The state of a key at a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeySnapshotAtHost {
    /// How long the key is unusable at this host.
    pub(crate) unusable_for: Duration,
    /// Why the key is suspended, if it is.
    pub(crate) reason: Option<SuspensionReason>,
}

impl KeySnapshot {
    /// The worst of its states at the hosts.
    pub(crate) fn worst(&self) -> KeySnapshotAtHost {
        let all = self.hosts.iter().map(|(_, at)| *at);
        all.max_by_key(|at| (at.rank(), at.unusable_for))
            .unwrap_or_default()
    }
}

impl KeySnapshotAtHost {
    /// The names of the states, the best first. `cooling` is a cooldown: the host has
    /// asked for no request until some moment (429). `quota-spent` and `quarantined`
    /// (401, 403) are suspensions, which end with a successful trial.
    pub(crate) const STATES: [&str; 4] = ["ready", "cooling", "quota-spent", "quarantined"];

    /// One of [`STATES`](Self::STATES).
    pub(crate) fn state(&self) -> &'static str {
        let [ready, cooling, quota_spent, quarantined] = Self::STATES;
        match self.reason {
            Some(SuspensionReason::QuotaSpent) => quota_spent,
            Some(SuspensionReason::Refused(_)) => quarantined,
            None if self.unusable_for.is_zero() => ready,
            None => cooling,
        }
    }

    /// The index in [`STATES`](Self::STATES).
    fn rank(&self) -> Option<usize> {
        Self::STATES.iter().position(|state| *state == self.state())
    }
}
