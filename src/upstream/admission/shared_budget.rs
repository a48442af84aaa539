//! The budgets of all keys, of which each counts what every upstream sends with
//! that key. Pure: `now` is an argument.
//!
//! A provider counts a key's requests, whichever of its servers they go to. So a
//! key has one `SharedBudget`, and each upstream that sends with the key has a
//! [`Holder`] of it. Requests without a key are counted by the server that they
//! go to. Where two upstreams have different rates, the stricter ones hold.
//!
//! A request that is not answered takes one of each second and of each minute, and
//! one that was given up does so for as long as it may still arrive. So that an
//! upstream that hangs does not take all of them, each of several upstreams may have
//! so many unanswered requests that a quarter of a second, and of a minute, is left
//! when all others hang (`Inner::most_unanswered`). A request that is given up, or that took a
//! second or longer, counts for as long as the second's window does.
//!
//! A budget outlives reloads, and its holders by an hour: a key that is withdrawn
//! and comes back has spent what it had spent.
//!
//! Deliberately absent: what a server says of a key, which is each upstream's own
//! (`upstream::keys`).

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use http::{HeaderValue, Uri};

use super::budget::{ARRIVAL_LIMIT, Budget, BudgetEntry, Reserve, SECOND_WINDOW};
use super::limit_report::ReportedLimit;
use super::queue::AdmissionQueue;
use super::rates::Rates;
use crate::clock::Moment;

/// How long a budget that nobody holds is remembered: far longer than a window.
pub const REMEMBERED: Duration = Duration::from_hours(1);
/// With more budgets than this, those are forgotten that nobody holds and that
/// nothing was spent from within a minute.
const MOST: usize = 1024;

/// All budgets. A process has one of these.
#[derive(Default)]
pub struct Budgets {
    known: Mutex<Vec<BudgetRecord>>,
}

/// A budget that is in use, or was lately.
struct BudgetRecord {
    owner: BudgetOwner,
    budget: Arc<SharedBudget>,
    /// Since when nobody is known to hold it.
    released: Option<Moment>,
}

/// Whose budget a request counts against.
#[derive(Clone, PartialEq, Eq)]
pub enum BudgetOwner {
    /// An API key's.
    Key(HeaderValue),
    /// That of asking a server without a key: host and port.
    Server(Box<str>),
}

/// A budget, and the upstreams that send requests out of it.
struct SharedBudget {
    inner: Mutex<SharedState>,
}

struct SharedState {
    budget: Budget,
    shares: Vec<UpstreamShare>,
    /// The number of the next holder.
    next: u64,
}

/// What is known of one holder.
struct UpstreamShare {
    number: u64,
    /// The requests of this upstream that wait.
    queue: Weak<AdmissionQueue>,
    /// `None` where the upstream sends no more with this key, but for what it
    /// had admitted.
    demand: Option<BudgetDemand>,
    unanswered: usize,
    /// Until when slow requests count that have ended, the first first.
    slow: VecDeque<Moment>,
}

/// What an upstream wants of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetDemand {
    /// How much of it there is.
    pub rates: Rates,
    /// Its probes of tips a minute, which a share is kept for.
    pub probes: u32,
}

/// One upstream's part in a budget. The upstream has let go of it when this is
/// dropped.
pub struct BudgetHandle {
    budget: Arc<SharedBudget>,
    number: u64,
}

/// A request that is counted.
#[derive(Clone, Copy, Debug)]
pub struct Counted {
    place: BudgetEntry,
    at: Moment,
}

impl Counted {
    /// Its number among all that were sent out of this budget.
    pub const fn number(self) -> u64 {
        self.place.number()
    }
}

/// Until when no request can be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetWait {
    /// For so long, unless one of the upstream's own ends before.
    For(Duration),
    /// Until one of the upstream's own has ended.
    UntilRequestEnds,
}

impl BudgetOwner {
    /// A server, as a base URL names it.
    pub fn server(url: &Uri) -> Self {
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
    /// None as yet.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// An upstream's part in the budget of a payer; it has no say in it before
    /// it [joins](Holder::join). Requests of it wait in this line.
    pub fn handle(
        &self,
        payer: &BudgetOwner,
        line: &Arc<AdmissionQueue>,
        now: Moment,
    ) -> Arc<BudgetHandle> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        forget(&mut known, now);
        let found = known.iter().find(|known| known.owner == *payer);
        let budget = found.map(|known| known.budget.clone());
        let budget = budget.unwrap_or_else(|| {
            let budget = Arc::new(SharedBudget {
                inner: Mutex::new(SharedState {
                    budget: Budget::new(Rates::UNLIMITED),
                    shares: Vec::new(),
                    next: 0,
                }),
            });
            known.push(BudgetRecord {
                owner: payer.clone(),
                budget: budget.clone(),
                released: None,
            });
            budget
        });
        let mut inner = budget.inner();
        let number = inner.next;
        inner.next += 1;
        inner.shares.push(UpstreamShare {
            number,
            queue: Arc::downgrade(line),
            demand: None,
            unanswered: 0,
            slow: VecDeque::new(),
        });
        drop(inner);
        Arc::new(BudgetHandle { budget, number })
    }

    /// How many are remembered.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.known.lock().unwrap().len()
    }
}

/// Forgets the budgets that nobody has held for long; and more, where there are
/// too many.
fn forget(known: &mut Vec<BudgetRecord>, now: Moment) {
    for known in &mut *known {
        // Whoever holds it may send yet.
        match Arc::strong_count(&known.budget) {
            1 => _ = known.released.get_or_insert(now),
            _ => known.released = None,
        }
    }
    // Those that may go, the one first that was released first.
    let mut order: Vec<_> = (0..known.len()).collect();
    order.retain(|at| {
        let BudgetRecord {
            budget, released, ..
        } = &known[*at];
        released.is_some() && !budget.inner().budget.is_in_use(now)
    });
    order.sort_by_key(|at| known[*at].released);
    let mut too_many = (known.len() + 1).saturating_sub(MOST);
    order.retain(|at| {
        let is_old = known[*at]
            .released
            .is_some_and(|released| now.since(released) >= REMEMBERED);
        let goes = is_old || too_many > 0;
        too_many = too_many.saturating_sub(usize::from(goes));
        goes
    });
    let mut at = 0;
    known.retain(|_| {
        at += 1;
        !order.contains(&(at - 1))
    });
}

impl BudgetHandle {
    /// Sends with this key from now on, on these terms.
    pub fn join(&self, terms: BudgetDemand) {
        self.change(|held| held.demand = Some(terms));
    }

    /// Keeps a share for so many probes a minute, where it has a say.
    pub fn set_probes(&self, probes: u32) {
        self.change(|held| {
            if let Some(terms) = &mut held.demand {
                terms.probes = probes;
            }
        });
    }

    /// Sends with it no more, but for what was admitted. Others that hold it may
    /// have more of it then: [wake](Self::wake_others) them.
    pub fn leave(&self) {
        self.change(|held| held.demand = None);
    }

    /// Takes a request out of the budget.
    ///
    /// # Errors
    /// Where there is nothing for one that leaves this share.
    pub fn take(&self, now: Moment, keep: Reserve) -> Result<Counted, BudgetWait> {
        let mut inner = self.inner();
        if let Some(wait) = inner.wait(self.number, now, keep) {
            return Err(wait);
        }
        let keep = keep.with_probes(inner.probes());
        inner.budget.take(now, keep).map_err(BudgetWait::For)?;
        let place = inner.budget.last_entry();
        if let Some(held) = inner.held(self.number) {
            held.unanswered += 1;
        }
        Ok(Counted { place, at: now })
    }

    /// Until when there is nothing for a request that leaves this share; `None`
    /// where there is.
    pub fn wait(&self, now: Moment, keep: Reserve) -> Option<BudgetWait> {
        self.inner().wait(self.number, now, keep)
    }

    /// Takes in what the upstream has said in its answer to a request, which
    /// has not ended yet.
    pub fn apply_report(&self, words: &[ReportedLimit], counted: Counted, now: Moment) {
        self.inner().budget.apply_report(words, counted.place, now);
    }

    /// Says that a request has been answered, or never sent.
    pub fn end(&self, counted: Counted, now: Moment) {
        let mut inner = self.inner();
        inner.budget.end(now);
        let is_slow = now.since(counted.at) >= Duration::from_secs(1);
        inner.answered(self.number, is_slow, now);
    }

    /// Says that a request which was sent has been given up unanswered, and that
    /// the server runs or nobody can know.
    pub fn give_up(&self, now: Moment) {
        let mut inner = self.inner();
        inner.budget.give_up(now);
        inner.answered(self.number, true, now);
    }

    /// How many requests are left; `None` where nothing limits them.
    pub fn remaining(&self, now: Moment) -> Option<usize> {
        self.inner().budget.remaining(now)
    }

    /// How many requests a minute takes; `None` for any number.
    pub fn per_minute(&self) -> Option<usize> {
        self.inner().budget.per_minute()
    }

    /// How many requests this upstream may have in a second that are not
    /// answered; `None` for any number.
    pub fn max_per_second(&self) -> Option<usize> {
        let inner = self.inner();
        let own = inner.max_unanswered_of(self.number);
        own.into_iter().chain(inner.budget.per_second()).min()
    }

    /// How many of all requests may be unanswered; `None` for any number.
    pub fn max_unanswered(&self) -> Option<usize> {
        self.inner().smaller_rate()
    }

    /// Has the other upstreams that hold this budget look again whether one of
    /// their requests may go.
    pub fn wake_others(&self) {
        let others = {
            let inner = self.inner();
            let others = inner.shares.iter();
            let others = others.filter(|held| held.number != self.number);
            others.map(|held| held.queue.clone()).collect::<Vec<_>>()
        };
        for line in others.iter().filter_map(Weak::upgrade) {
            line.wake();
        }
    }

    fn change(&self, change: impl FnOnce(&mut UpstreamShare)) {
        let mut inner = self.inner();
        if let Some(held) = inner.held(self.number) {
            change(held);
        }
        inner.apply_demands();
    }

    fn inner(&self) -> MutexGuard<'_, SharedState> {
        self.budget.inner()
    }
}

impl Drop for BudgetHandle {
    fn drop(&mut self) {
        let mut inner = self.inner();
        inner.shares.retain(|held| held.number != self.number);
        inner.apply_demands();
        drop(inner);
        self.wake_others();
    }
}

impl SharedBudget {
    fn inner(&self) -> MutexGuard<'_, SharedState> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SharedState {
    fn held(&mut self, number: u64) -> Option<&mut UpstreamShare> {
        self.shares.iter_mut().find(|held| held.number == number)
    }

    /// Holds to the strictest of the rates. Where nobody has a say any more, what
    /// is still sent holds to the last ones.
    fn apply_demands(&mut self) {
        let rates = self.shares.iter().filter_map(|held| held.demand);
        let rates = rates.map(|terms| terms.rates).reduce(Rates::stricter);
        if let Some(rates) = rates {
            self.budget.set_rates(rates);
        }
    }

    /// How many probes a minute a share is kept for.
    fn probes(&self) -> u32 {
        let terms = self.shares.iter().filter_map(|held| held.demand);
        terms.fold(0, |sum, terms| terms.probes.saturating_add(sum))
    }

    /// How many requests a second takes, or a minute where that is fewer; `None`
    /// where both take any number.
    fn smaller_rate(&self) -> Option<usize> {
        let rates = [self.budget.per_second(), self.budget.per_minute()];
        rates.into_iter().flatten().min()
    }

    /// How many unanswered requests a holder may have, such that a quarter of a
    /// second, and of a minute, is left where all others have as many; one at the
    /// least. `None` where it is alone, or both take any number.
    fn max_unanswered_of(&self, number: u64) -> Option<usize> {
        let most = self.smaller_rate()?;
        let others = self
            .shares
            .iter()
            .filter(|held| held.number != number && (held.demand.is_some() || held.counts() > 0));
        match others.count() {
            0 => None,
            others => Some((most * 3 / (4 * others)).max(1)),
        }
    }

    fn wait(&mut self, number: u64, now: Moment, keep: Reserve) -> Option<BudgetWait> {
        for held in &mut self.shares {
            held.remove_ended(now);
        }
        let keep = keep.with_probes(self.probes());
        let spent = self.budget.wait(now, keep);
        let unanswered = self.unanswered_wait(number, now, keep);
        match (spent, unanswered) {
            (Some(one), Some(BudgetWait::For(other))) => Some(BudgetWait::For(one.max(other))),
            (Some(wait), _) => Some(BudgetWait::For(wait)),
            (None, unanswered) => unanswered,
        }
    }

    /// Until when a holder has too many unanswered requests.
    fn unanswered_wait(&mut self, number: u64, now: Moment, keep: Reserve) -> Option<BudgetWait> {
        let most = self.max_unanswered_of(number)?;
        let all = self.smaller_rate()? as u64;
        let kept = usize::try_from(keep.of_second(all)).unwrap_or(usize::MAX);
        let kept = kept.min(most / 4);
        let held = self.held(number)?;
        let short = (held.counts() + kept + 1).checked_sub(most + 1)?;
        Some(match held.slow.get(short) {
            Some(until) => BudgetWait::For(until.since(now)),
            None => BudgetWait::UntilRequestEnds,
        })
    }

    fn answered(&mut self, number: u64, is_slow: bool, now: Moment) {
        if let Some(held) = self.held(number) {
            held.unanswered = held.unanswered.saturating_sub(1);
            if is_slow {
                held.slow.push_back(now + ARRIVAL_LIMIT + SECOND_WINDOW);
            }
        }
    }
}

impl UpstreamShare {
    /// How many of its requests are unanswered, or were for long.
    fn counts(&self) -> usize {
        self.unanswered + self.slow.len()
    }

    fn remove_ended(&mut self, now: Moment) {
        while self.slow.pop_front_if(|until| *until <= now).is_some() {}
    }
}

#[cfg(test)]
mod tests;
