//! Why there is no key to ask with, and which of several reasons counts.

use std::time::Duration;

use http::StatusCode;

use crate::upstream::admission::shared_budget::BudgetWait;

/// Why there is no key to ask with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Denied {
    /// No budget is left: there will be some after so long, at the earliest.
    For(Duration),
    /// Nor until a request under way has ended: it tries the only key, or too
    /// many of this upstream are not answered.
    UntilRequestEnds,
    /// The upstream has refused every key, with this status at last.
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
    /// The better of two keys' prospects: who waits for one need not wait for
    /// another, and waiting for a key that was refused leads nowhere.
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
