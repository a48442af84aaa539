//! The budgets of all keys.
//!
//! A provider counts the requests of a key, whichever of its servers they go to. So
//! each key has one budget, shared by all upstreams that send with it. Requests
//! without a key are counted by the server that they go to.
//!
//! A budget outlives reloads, and its last upstream by an hour, so that a key that
//! is withdrawn and configured again does not start with an unused budget.

use std::sync::atomic::Ordering::AcqRel;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use std::{fmt, io};

use aws_lc_rs::hmac;
use http::{HeaderValue, Uri};

use super::allowance::Replicas;
use super::budget::LONGEST_WAIT;
use super::queue::AdmissionQueue;
use super::restrictions::CooldownLeft;
use super::shared_budget::{BudgetHandle, SharedBudget, Sharing};
use super::spend_journal::SpendJournal;
use super::spending::EarlierSpending;
use crate::clock::{Clock, Moment};
use crate::state_dir::StateDir;
use crate::sync::lock;

/// How long an unused budget is remembered: far longer than a window.
pub(crate) const REMEMBERED: Duration = Duration::from_hours(1);
/// Above this number of budgets, those are forgotten that no upstream uses and of
/// which nothing was used within a minute.
const MAX_BUDGETS: usize = 1024;

/// Why the spending of other processes is not known.
const BESIDE_ANOTHER: &str = "another process uses the state directory";

/// The bytes of a budget's name among replicas.
const SHARED_NAME: usize = 16;

/// The budgets of all keys. A process has one of these.
#[derive(Default)]
pub(crate) struct Budgets {
    records: Mutex<Vec<BudgetRecord>>,
    /// Where what they spend is kept for the next process, if it is, and once this process
    /// uses it.
    journal: OnceLock<Arc<SpendJournal>>,
    /// Before which moment other processes' spending is not known, and why not.
    unknown: Option<(Moment, &'static str)>,
    /// How replicas share them, if they do.
    sharing: Option<Sharing>,
}

/// A budget that is in use, or was recently.
struct BudgetRecord {
    owner: BudgetOwner,
    budget: Arc<SharedBudget>,
    /// Since when no upstream uses it.
    unused_since: Option<Moment>,
    /// Its name among replicas, and for which prefix: a digest, which is computed once.
    name: Option<(Box<str>, Arc<str>)>,
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

    /// The name of its budget among replicas: the same in each replica with this prefix,
    /// and nothing can be learned of the key from it. The key itself is the key of the
    /// digest: any other secret could be changed, and would split the budget in two.
    pub(crate) fn shared_name(&self, prefix: &str) -> String {
        let (secret, server): (&[u8], &str) = match self {
            Self::Key(value) => (value.as_bytes(), ""),
            Self::Server(server) => (b"server", server),
        };
        let mut message = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, secret));
        for part in ["ordgate budget 1", prefix, server] {
            message.update(&(part.len() as u64).to_le_bytes());
            message.update(part.as_bytes());
        }
        let tag = message.sign();
        let digest = tag.as_ref().iter().take(SHARED_NAME);
        digest.map(|byte| format!("{byte:02x}")).collect()
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
            journal: journal.into(),
            ..Self::default()
        })
    }

    /// No budgets; those to come begin as spent, since another process may have used the
    /// keys up to now.
    pub(crate) fn beside_another_process(now: Moment) -> Arc<Self> {
        Self::unknown_before(now, BESIDE_ANOTHER)
    }

    /// The same, where processes may have used the keys for another reason.
    pub(crate) fn unknown_before(now: Moment, why: &'static str) -> Arc<Self> {
        Arc::new(Self {
            unknown: Some((now, why)),
            ..Self::default()
        })
    }

    /// The same budgets, shared by replicas. None is in use yet.
    pub(crate) fn shared(self: Arc<Self>, replicas: Replicas, clock: Clock) -> Arc<Self> {
        Arc::new(Self {
            records: Mutex::default(),
            journal: self.journal.clone(),
            unknown: self.unknown,
            sharing: Some(Sharing {
                replicas,
                clock,
                has_cooldowns: Arc::default(),
            }),
        })
    }

    /// How long keys with a limit a minute are not used because their spending before the
    /// start is not known, and why it is not; `None` where it is known.
    pub(crate) fn unknown_spending(&self, now: Moment) -> Option<(Duration, &'static str)> {
        let of_journal = self.journal().and_then(|journal| {
            let journal = journal.snapshot();
            Some((journal.waiting, journal.unknown_because?))
        });
        // One that has ended says what it has spent itself, not what another replica has
        // in whose place this one has come.
        let is_known = self.journal().is_some() && self.sharing.is_none();
        let own = self.unknown.filter(|_| !is_known).map(|(before, why)| {
            let waiting = (before + LONGEST_WAIT).since(now);
            (waiting, why)
        });
        let own = own.filter(|(waiting, _)| !waiting.is_zero());
        of_journal
            .into_iter()
            .chain(own)
            .max_by_key(|(waiting, _)| *waiting)
    }

    /// Keeps them in the journal of a directory that another process has used until now.
    /// What that one has spent, as far as it is known, counts beside what this one has.
    ///
    /// # Errors
    /// If there is no thread for it.
    pub(crate) fn begin_journal(&self, directory: Arc<StateDir>, clock: Clock) -> io::Result<()> {
        let journal = SpendJournal::open(directory, clock.clone(), self.sharing.is_some())?;
        self.adopt_journal(&journal, clock.now());
        Ok(())
    }

    pub(super) fn adopt_journal(&self, journal: &Arc<SpendJournal>, now: Moment) {
        let records = lock(&self.records);
        let _had_none = self.journal.set(journal.clone());
        // Both were replicas, and this one had a predecessor of its own.
        let unknown = self.unknown.filter(|_| self.sharing.is_some());
        for record in &*records {
            let (entry, mut earlier) = journal.entry(&record.owner);
            let own = unknown.map(|(before, _)| before);
            earlier.unknown_before = earlier.unknown_before.max(own);
            record.budget.begin_journal(entry, &earlier, now);
            journal.add(&record.budget);
        }
        let budgets: Vec<_> = records.iter().map(|record| record.budget.clone()).collect();
        drop(records);
        journal.has_all();
        for budget in budgets {
            budget.wake_but(None);
        }
    }

    /// The replicas that share them, if there are several.
    pub(crate) fn replicas(&self) -> Option<Replicas> {
        Some(self.sharing.as_ref()?.replicas)
    }

    /// Own cooldowns that other replicas do not know, each with the name of its budget
    /// among replicas with this prefix.
    pub(crate) fn take_cooldowns(
        &self,
        prefix: &str,
        now: Moment,
    ) -> Vec<(Arc<str>, CooldownLeft)> {
        let has_some = |sharing: &Sharing| sharing.has_cooldowns.swap(false, AcqRel);
        if !self.sharing.as_ref().is_some_and(has_some) {
            return Vec::new();
        }
        let all = self.all_named(prefix).into_iter();
        let each = all.flat_map(|(name, budget)| {
            let taken = budget.take_cooldowns(now).into_iter();
            taken.map(move |left| (name.clone(), left))
        });
        each.collect()
    }

    /// Takes over a cooldown of another replica, if there is a budget of this name.
    pub(crate) fn receive_cooldown(
        &self,
        (prefix, name): (&str, &str),
        left: CooldownLeft,
        now: Moment,
    ) {
        for (own, budget) in self.all_named(prefix) {
            if *own == *name {
                budget.receive_cooldown(left, now);
            }
        }
    }

    /// Where what they spend is kept for the next process, if it is.
    pub(crate) fn journal(&self) -> Option<&Arc<SpendJournal>> {
        self.journal.get()
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
            let sharing = self.sharing.as_ref();
            let budget = match self.journal() {
                None => {
                    let unknown_before = self.unknown.map(|(before, _)| before);
                    let earlier = EarlierSpending {
                        unknown_before,
                        ..EarlierSpending::default()
                    };
                    SharedBudget::new(None, &earlier, sharing, now)
                }
                Some(journal) => {
                    let (entry, earlier) = journal.entry(owner);
                    let budget = SharedBudget::new(Some(entry), &earlier, sharing, now);
                    journal.add(&budget);
                    budget
                }
            };
            records.push(BudgetRecord {
                owner: owner.clone(),
                budget: budget.clone(),
                unused_since: None,
                name: None,
            });
            budget
        });
        budget.handle(queue)
    }

    /// The budgets of all keys, each with its name among replicas with this prefix.
    pub(crate) fn all_named(&self, prefix: &str) -> Vec<(Arc<str>, Arc<SharedBudget>)> {
        let mut records = lock(&self.records);
        let named = records.iter_mut().map(|record| {
            let known = record.name.take_if(|(of, _)| **of == *prefix);
            let named = known.unwrap_or_else(|| {
                let name = record.owner.shared_name(prefix);
                (prefix.into(), name.into())
            });
            let name = record.name.insert(named).1.clone();
            (name, record.budget.clone())
        });
        named.collect()
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
