//! How a key stands, for the operator.

use std::time::Duration;

use super::Host;
use super::cooldown::CooldownReason;

/// How a key stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeySnapshot {
    /// The key's name, or `none`.
    pub(crate) name: String,
    /// Requests left in this minute; `None` where nothing limits them.
    pub(crate) remaining: Option<usize>,
    /// Requests that a minute takes; `None` for any number.
    pub(crate) per_minute: Option<usize>,
    /// How it stands at each host of the upstream.
    pub(crate) hosts: Vec<(Host, KeySnapshotAtHost)>,
}

/// How a key stands at a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeySnapshotAtHost {
    /// How long the host wants none at all.
    pub(crate) unusable_for: Duration,
    /// Why it is out of service, if it is.
    pub(crate) reason: Option<CooldownReason>,
}

impl KeySnapshot {
    /// How it stands at the host where it stands worst.
    pub(crate) fn worst(&self) -> KeySnapshotAtHost {
        let all = self.hosts.iter().map(|(_, at)| *at);
        all.max_by_key(|at| (at.rank(), at.unusable_for))
            .unwrap_or_default()
    }
}

impl KeySnapshotAtHost {
    /// The words for how a key can stand.
    pub(crate) const STATES: [&str; 4] = ["ready", "cooling", "quota-spent", "quarantined"];

    /// One of them.
    pub(crate) fn state(&self) -> &'static str {
        let [ready, cooling, quota_spent, quarantined] = Self::STATES;
        match self.reason {
            Some(CooldownReason::QuotaSpent) => quota_spent,
            Some(CooldownReason::Refused(_)) => quarantined,
            None if self.unusable_for.is_zero() => ready,
            None => cooling,
        }
    }

    /// The worse it stands, the higher.
    fn rank(&self) -> Option<usize> {
        Self::STATES.iter().position(|state| *state == self.state())
    }
}
