//! The budgets of all keys.
//!
//! A provider counts the requests of a key, whichever of its servers they go to. So
//! each key has one budget, shared by all upstreams that send with it. Requests
//! without a key are counted by the server that they go to.
//!
//! A budget outlives reloads, and its last upstream by an hour, so that a key that
//! is withdrawn and configured again does not start with an unused budget.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{HeaderValue, Uri};

use super::budget::LONGEST_WAIT;
use super::queue::AdmissionQueue;
use super::shared_budget::{BudgetHandle, SharedBudget};
use super::spend_journal::SpendJournal;
use crate::clock::Moment;
use crate::sync::lock;

/// How long an unused budget is remembered: far longer than a window.
pub(crate) const REMEMBERED: Duration = Duration::from_hours(1);
/// Above this number of budgets, those are forgotten that no upstream uses and of
/// which nothing was used within a minute.
const MAX_BUDGETS: usize = 1024;

/// The budgets of all keys. A process has one of these.
#[derive(Default)]
pub(crate) struct Budgets {
    records: Mutex<Vec<BudgetRecord>>,
    /// Where what they spend is kept for the next process, if it is.
    journal: Option<Arc<SpendJournal>>,
    /// When the process began beside another, whose spending is not known.
    beside_another: Option<Moment>,
}

/// A budget that is in use, or was recently.
struct BudgetRecord {
    owner: BudgetOwner,
    budget: Arc<SharedBudget>,
    /// Since when no upstream uses it.
    unused_since: Option<Moment>,
}

/// What a budget belongs to.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum BudgetOwner {
    Key(HeaderValue),
    /// A server to which requests are sent without a key: host and port.
    Server(Box<str>),
}

impl BudgetOwner {
    pub(crate) fn server(url: &Uri) -> Self {
        let host = url.host().unwrap_or_default().to_ascii_lowercase();
        let default = match url.scheme_str() {
            Some("https") => 443,
            _ => 80,
        };
        let port = url.port_u16().unwrap_or(default);
        Self::Server(format!("{host}:{port}").into())
    }
}

impl fmt::Debug for BudgetOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key(_) => f.write_str("a key [redacted]"),
            Self::Server(server) => f.write_str(server),
        }
    }
}

impl Budgets {
    /// No budgets.
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// No budgets; those to come are kept in a journal.
    pub(crate) fn journalled(journal: Arc<SpendJournal>) -> Arc<Self> {
        Arc::new(Self {
            journal: Some(journal),
            ..Self::default()
        })
    }

    /// No budgets; those to come begin as spent, since another process may have used
    /// the keys up to now.
    pub(crate) fn beside_another_process(now: Moment) -> Arc<Self> {
        Arc::new(Self {
            beside_another: Some(now),
            ..Self::default()
        })
    }

    /// How long keys with a limit a minute are not used because their spending before the
    /// start is not known, and why it is not; `None` where it is known.
    pub(crate) fn unknown_spending(&self, now: Moment) -> Option<(Duration, &'static str)> {
        if let Some(began) = self.beside_another {
            let waiting = (began + LONGEST_WAIT).since(now);
            let why = "another process uses the state directory";
            return (!waiting.is_zero()).then_some((waiting, why));
        }
        let journal = self.journal.as_ref()?.snapshot();
        Some((journal.waiting, journal.unknown_because?))
    }

    /// Where what they spend is kept for the next process, if it is.
    pub(crate) const fn journal(&self) -> Option<&Arc<SpendJournal>> {
        self.journal.as_ref()
    }

    /// An upstream's handle on the budget of `owner`. It has no effect on the budget
    /// before [`join`](BudgetHandle::join). `queue` is the upstream's.
    pub(crate) fn handle(
        &self,
        owner: &BudgetOwner,
        queue: &Arc<AdmissionQueue>,
        now: Moment,
    ) -> Arc<BudgetHandle> {
        let mut records = lock(&self.records);
        forget(&mut records, now);
        let known = records.iter().find(|record| record.owner == *owner);
        let known = known.map(|record| record.budget.clone());
        let budget = known.unwrap_or_else(|| {
            let budget = match (&self.journal, self.beside_another) {
                (None, None) => SharedBudget::new(),
                (None, Some(began)) => SharedBudget::unknown_before(began, now),
                (Some(journal), _) => {
                    let (entry, earlier) = journal.entry(owner);
                    let budget = SharedBudget::journalled(entry, &earlier, now);
                    journal.add(&budget);
                    budget
                }
            };
            records.push(BudgetRecord {
                owner: owner.clone(),
                budget: budget.clone(),
                unused_since: None,
            });
            budget
        });
        budget.handle(queue)
    }

    /// How many budgets are remembered.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.records.lock().unwrap().len()
    }
}

/// Forgets the budgets that have been unused for [`REMEMBERED`]; and further unused
/// ones where there are too many, the longest unused first.
fn forget(records: &mut Vec<BudgetRecord>, now: Moment) {
    for record in &mut *records {
        // Every handle may still send requests.
        match Arc::strong_count(&record.budget) {
            1 => _ = record.unused_since.get_or_insert(now),
            _ => record.unused_since = None,
        }
    }
    let mut order: Vec<_> = (0..records.len()).collect();
    order.retain(|at| {
        let record = &records[*at];
        record.unused_since.is_some() && !record.budget.is_in_use(now)
    });
    order.sort_by_key(|at| records[*at].unused_since);
    let mut surplus = (records.len() + 1).saturating_sub(MAX_BUDGETS);
    order.retain(|at| {
        let is_old = records[*at]
            .unused_since
            .is_some_and(|since| now.since(since) >= REMEMBERED);
        let is_forgotten = is_old || surplus > 0;
        surplus = surplus.saturating_sub(usize::from(is_forgotten));
        is_forgotten
    });
    let mut at = 0;
    records.retain(|_| {
        at += 1;
        !order.contains(&(at - 1))
    });
}

#[cfg(test)]
mod tests;
