//! Why no key can be used now.

use std::time::Duration;

use http::StatusCode;

use crate::upstream::admission::shared_budget::BudgetWait;

/// Why no key can be used now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Denied {
    /// No budget is left, or the key is throttled: for at least this time.
    For(Duration),
    /// Until a request in flight has ended: it is the trial of the only key, or too
    /// many requests of this upstream are unanswered.
    UntilRequestEnds,
    /// The upstream has refused every key, the last with this status.
    Refused(StatusCode),
}

impl From<BudgetWait> for Denied {
    fn from(wait: BudgetWait) -> Self {
        match wait {
            BudgetWait::For(time) => Self::For(time),
            BudgetWait::UntilRequestEnds => Self::UntilRequestEnds,
        }
    }
}

impl Denied {
    /// Of the reasons of two keys, the one that ends earlier. Waiting for a refused
    /// key does not help.
    pub(super) fn better(self, other: Self) -> Self {
        match (self, other) {
            (Self::Refused(_), other) => other,
            (one, Self::Refused(_)) => one,
            (Self::For(one), Self::For(other)) => Self::For(one.min(other)),
            (Self::UntilRequestEnds, other) => other,
            (one, Self::UntilRequestEnds) => one,
        }
    }
}
