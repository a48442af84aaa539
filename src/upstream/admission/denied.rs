//! Why a request is not admitted.

use std::time::Duration;

use http::StatusCode;

/// Why a request is not admitted now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Denied {
    /// No slot is free, or too many requests wait.
    NoSlot,
    /// No budget is left, or the key is not usable: for at least this time.
    SpentFor(Duration),
    /// Too many requests to this host are unanswered: no budget is left until one has
    /// ended.
    SpentUntilRequestEnds,
    /// The breaker is open for this time.
    BreakerOpen(Duration),
    /// The upstream has refused every key, the last with this status.
    KeyRefused(StatusCode),
}

impl Denied {
    /// When there may be budget again, if none is left.
    pub(crate) fn budget_after(self) -> Option<Duration> {
        match self {
            Self::SpentFor(time) => Some(time),
            Self::SpentUntilRequestEnds => Some(Duration::from_secs(1)),
            Self::NoSlot | Self::BreakerOpen(_) | Self::KeyRefused(_) => None,
        }
    }

    /// Whether the cause may end within this time.
    pub(super) fn may_end_within(self, max_wait: Duration) -> bool {
        match self {
            Self::SpentFor(time) => time <= max_wait,
            Self::NoSlot | Self::SpentUntilRequestEnds => !max_wait.is_zero(),
            Self::BreakerOpen(_) | Self::KeyRefused(_) => false,
        }
    }

    /// Of the reasons of two keys, the one that ends earlier. Waiting for a refused
    /// key does not help.
    pub(crate) fn better(self, other: Self) -> Self {
        match (self, other) {
            (Self::SpentFor(one), Self::SpentFor(other)) => Self::SpentFor(one.min(other)),
            (one @ Self::SpentFor(_), _) => one,
            (_, other @ Self::SpentFor(_)) => other,
            (one @ Self::SpentUntilRequestEnds, _) => one,
            (_, other) => other,
        }
    }
}
