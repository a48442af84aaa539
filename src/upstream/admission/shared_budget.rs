//! The budget of one key, shared by the upstreams that send with it.
//!
//! Each upstream has a [`BudgetHandle`]. Where upstreams have different rates, the
//! strictest apply.
//!
//! An unanswered request counts against each second and each minute, and one that
//! was given up counts for as long as it may still arrive. So that an upstream that
//! hangs does not use up the budget, each of several upstreams may have only so many
//! unanswered requests that a quarter of each second and minute is left when all
//! others hang (`SharedState::max_unanswered_of`). A request that is given up, or
//! takes a second or longer, counts as unanswered for a further second's window.
//!
//! Where replicas share the budget, the rates are those of all of them, and the limits
//! are this process's allowance. It is looked at whenever a request is taken: after a
//! pause of the process no timer has noticed yet that a grant is over.
//!
//! Deliberately absent: what a server reports about a key, which applies to one
//! upstream (`upstream::keys`); and who grants a part of the budget (`shared`).

mod sharing;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::Duration;

use sharing::SharedCooldowns;
pub(super) use sharing::Sharing;

use super::allowance::{Allowance, Limits};
use super::budget::{ARRIVAL_LIMIT, Budget, BudgetEntry, SECOND_WINDOW};
use super::limit_report::ReportedLimit;
use super::queue::AdmissionQueue;
use super::rates::Rates;
use super::reserve::Reserve;
use super::restrictions::{HostCooldown, HostName, Restrictions};
use super::spend_journal::JournalEntry;
use super::spending::{EarlierSpending, PAGE};
use crate::clock::{Clock, Moment};
use crate::sync::lock;

/// A budget, and the upstreams that use it.
pub(crate) struct SharedBudget {
    state: Mutex<SharedState>,
    /// Its place in the spend journal, if there is one, and once this process uses it.
    entry: OnceLock<JournalEntry>,
    /// The clock of its allowance, if replicas share it.
    clock: Option<Clock>,
    /// The number of the last cooldown of another replica.
    received: AtomicU64,
    has_cooldowns: Option<Arc<AtomicBool>>,
}

struct SharedState {
    budget: Budget,
    /// The cooldowns; the limits are the budget's.
    restrictions: Restrictions,
    cooldowns: SharedCooldowns,
    /// The rates of the key.
    total: Limits,
    /// The part of them that this process may use, if replicas share the budget.
    allowance: Option<Allowance>,
    shares: Vec<UpstreamShare>,
    /// The number of the next share.
    next: u64,
}

/// One upstream's part in the budget.
struct UpstreamShare {
    number: u64,
    queue: Weak<AdmissionQueue>,
    /// `None` where the upstream takes no more requests out of the budget.
    demand: Option<BudgetDemand>,
    unanswered: usize,
    /// Until when each slow request that has ended counts as unanswered, the
    /// earliest first.
    slow: VecDeque<Moment>,
}

/// What an upstream requires of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BudgetDemand {
    pub(crate) rates: Rates,
    /// Its tip probes a minute, for which a part is reserved.
    pub(crate) probes: u32,
}

/// One upstream's handle on a budget. Its share ends when this is dropped.
pub(crate) struct BudgetHandle {
    budget: Arc<SharedBudget>,
    number: u64,
}

/// Until when no request can be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BudgetWait {
    /// For this time, unless a request of the upstream ends before.
    For(Duration),
    /// Until a request of the upstream has ended.
    UntilRequestEnds,
}

impl SharedBudget {
    /// A budget without limits until an upstream joins. It begins with what earlier
    /// processes have spent, if that is known or may be anything.
    pub(super) fn new(
        entry: Option<JournalEntry>,
        earlier: &EarlierSpending,
        sharing: Option<&Sharing>,
        now: Moment,
    ) -> Arc<Self> {
        let state = SharedState {
            budget: match entry.is_none() && *earlier == EarlierSpending::default() {
                true => Budget::new(Rates::UNLIMITED),
                false => Budget::after(Rates::UNLIMITED, earlier, now),
            },
            total: Limits::default(),
            allowance: sharing.map(|sharing| Allowance::new(sharing.replicas)),
            restrictions: earlier.restrictions.clone(),
            cooldowns: SharedCooldowns::default(),
            shares: Vec::new(),
            next: 0,
        };
        Arc::new(Self {
            state: Mutex::new(state),
            entry: entry.map_or_else(OnceLock::new, OnceLock::from),
            clock: sharing.map(|sharing| sharing.clock.clone()),
            received: AtomicU64::new(0),
            has_cooldowns: sharing.map(|sharing| sharing.has_cooldowns.clone()),
        })
    }

    /// Gives a budget a place in the spend journal, which another process has used until
    /// now. What that one has spent counts from now on.
    pub(super) fn begin_journal(
        &self,
        entry: JournalEntry,
        earlier: &EarlierSpending,
        now: Moment,
    ) {
        let mut state = self.state();
        state.budget.add_earlier(earlier, now);
        state.restrictions.add_earlier(&earlier.restrictions, now);
        let _had_none = self.entry.set(entry);
    }

    /// Its place in the spend journal, if there is one.
    pub(super) fn entry(&self) -> Option<&JournalEntry> {
        self.entry.get()
    }

    /// The number of the last request that was taken, and the page for the journal
    /// with all of them; `None` without a journal.
    pub(super) fn page(&self) -> Option<(u64, Box<[u8; PAGE]>)> {
        let entry = self.entry()?;
        let state = self.state();
        let restrictions = Restrictions {
            cooldowns: state.restrictions.cooldowns.clone(),
            limits: state.budget.limits_in_force().to_vec(),
        };
        let spending = state.budget.spending()?;
        let page = spending.page(&restrictions, entry.name(), &entry.boot_id(), entry.stamp());
        Some((state.budget.sent(), page))
    }

    /// Tells the journal of a change.
    fn changed(&self, is_urgent: bool) {
        if let Some(entry) = self.entry() {
            entry.changed(is_urgent);
        }
    }

    pub(super) fn handle(self: &Arc<Self>, queue: &Arc<AdmissionQueue>) -> Arc<BudgetHandle> {
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        state.shares.push(UpstreamShare {
            number,
            queue: Arc::downgrade(queue),
            demand: None,
            unanswered: 0,
            slow: VecDeque::new(),
        });
        drop(state);
        Arc::new(BudgetHandle {
            budget: self.clone(),
            number,
        })
    }

    /// Wakes the queues of all upstreams that share this budget, but for the share of this
    /// number.
    pub(super) fn wake_but(&self, number: Option<u64>) {
        let queues: Vec<_> = {
            let state = self.state();
            let others = state.shares.iter();
            let others = others.filter(|share| Some(share.number) != number);
            others.map(|share| share.queue.clone()).collect()
        };
        for queue in queues.iter().filter_map(Weak::upgrade) {
            queue.wake();
        }
    }

    /// Whether a request is in flight, or counts against the minute still.
    pub(super) fn is_in_use(&self, now: Moment) -> bool {
        self.state().budget.is_in_use(now)
    }

    /// The state, with a grant that is over removed.
    fn state(&self) -> MutexGuard<'_, SharedState> {
        let mut state = lock(&self.state);
        if let (Some(clock), Some(allowance)) = (&self.clock, &mut state.allowance)
            && allowance.end_grant(|| clock.since_boot())
        {
            state.apply_limits(Some(clock.since_boot()));
        }
        state
    }

    fn since_boot(&self) -> Option<Duration> {
        self.clock.as_ref().map(Clock::since_boot)
    }
}

impl BudgetHandle {
    /// From now on the upstream takes requests out of the budget, with these rates
    /// and probes.
    pub(crate) fn join(&self, demand: BudgetDemand) {
        self.update(|share| share.demand = Some(demand));
    }

    /// Sets the tip probes a minute, if the upstream has joined.
    pub(crate) fn set_probes(&self, probes: u32) {
        self.update(|share| {
            if let Some(demand) = &mut share.demand {
                demand.probes = probes;
            }
        });
    }

    /// From now on the upstream takes no requests out of the budget, except those
    /// that were admitted. Other upstreams may be able to take more then; call
    /// [`wake_others`](Self::wake_others).
    pub(crate) fn leave(&self) {
        self.update(|share| share.demand = None);
    }

    /// Takes a request out of the budget.
    ///
    /// # Errors
    /// Where too little is left for a request with this reserve.
    pub(crate) fn take(&self, now: Moment, reserve: Reserve) -> Result<BudgetEntry, BudgetWait> {
        let mut state = self.state();
        // Before the request is taken: its permit must not seem younger than it is.
        let since_boot = self.budget.since_boot();
        if let Some(wait) = state.wait(self.number, now, reserve) {
            state.note_denied(now, reserve, since_boot);
            return Err(wait);
        }
        let reserve = reserve.with_probes(state.probes());
        let entry = state.budget.take(now, reserve).map_err(BudgetWait::For)?;
        let entry = entry.taken_since_boot(since_boot);
        if let (Some(allowance), Some(since_boot)) = (&mut state.allowance, since_boot) {
            allowance.take(since_boot);
        }
        if let Some(share) = state.share(self.number) {
            share.unanswered += 1;
        }
        drop(state);
        self.budget.changed(true);
        Ok(entry)
    }

    /// Until when no request with this reserve can be taken; `None` where one can
    /// be taken now.
    pub(crate) fn wait(&self, now: Moment, reserve: Reserve) -> Option<BudgetWait> {
        self.state().wait(self.number, now, reserve)
    }

    /// Applies the limits reported in the answer to a request that has not ended
    /// yet.
    pub(crate) fn apply_report(&self, limits: &[ReportedLimit], entry: BudgetEntry, now: Moment) {
        let mut state = self.state();
        match state.allowance {
            None => state.budget.apply_report(limits, entry, now),
            Some(_) => {
                let parts: Vec<_> = limits.iter().map(|limit| state.part_of(*limit)).collect();
                state.budget.apply_report(&parts, entry, now);
            }
        }
    }

    /// The cooldown of the key at a host, of an earlier process or of this one.
    pub(crate) fn cooldown_at(&self, host: HostName) -> Option<HostCooldown> {
        self.state().restrictions.at(host).copied()
    }

    /// Lets the next process know of a cooldown.
    pub(crate) fn set_cooldown(&self, cooldown: HostCooldown, now: Moment) {
        self.state().restrictions.set(cooldown, now);
        self.budget.changed(true);
    }

    /// Counts the end of a request that was answered, or never sent.
    pub(crate) fn end(&self, entry: BudgetEntry, now: Moment) {
        let mut state = self.state();
        state.budget.end(now);
        let is_slow = now.since(entry.taken_at()) >= Duration::from_secs(1);
        state.count_end(self.number, is_slow, now);
        drop(state);
        self.budget.changed(false);
    }

    /// Counts a request that was sent and then given up unanswered, where the server
    /// runs or nothing is known of it.
    pub(crate) fn give_up(&self, now: Moment) {
        let mut state = self.state();
        state.budget.give_up(now);
        state.count_end(self.number, true, now);
        drop(state);
        self.budget.changed(false);
    }

    /// Waits until the next process would count a request, if there is a spend journal.
    /// No request may be sent before.
    pub(crate) async fn journalled(&self, entry: BudgetEntry) {
        if let Some(journal) = self.budget.entry() {
            journal.written(entry.number()).await;
        }
    }

    /// How many requests are left; `None` for any number.
    pub(crate) fn remaining(&self, now: Moment) -> Option<usize> {
        self.state().budget.remaining(now)
    }

    /// Whether no request can be taken since it is not known what was spent before the
    /// start.
    pub(crate) fn is_blocked(&self, now: Moment) -> bool {
        self.state().budget.is_blocked(now)
    }

    /// The limit per minute; `None` for any number.
    pub(crate) fn per_minute(&self) -> Option<usize> {
        self.state().budget.per_minute()
    }

    /// How many requests of this upstream may be unanswered at any time within a
    /// second; `None` for any number.
    pub(crate) fn max_per_second(&self) -> Option<usize> {
        let state = self.state();
        let own = state.max_unanswered_of(self.number);
        own.into_iter().chain(state.budget.per_second()).min()
    }

    /// How many requests of all upstreams together may be unanswered; `None` for any
    /// number.
    pub(crate) fn max_unanswered(&self) -> Option<usize> {
        self.state().smaller_rate()
    }

    /// Wakes the queues of the other upstreams that share this budget.
    pub(crate) fn wake_others(&self) {
        self.budget.wake_but(Some(self.number));
    }

    fn update(&self, update: impl FnOnce(&mut UpstreamShare)) {
        let mut state = self.state();
        if let Some(share) = state.share(self.number) {
            update(share);
        }
        state.apply_demands(self.budget.since_boot());
    }

    fn state(&self) -> MutexGuard<'_, SharedState> {
        self.budget.state()
    }
}

impl Drop for BudgetHandle {
    fn drop(&mut self) {
        let mut state = self.state();
        state.shares.retain(|share| share.number != self.number);
        state.apply_demands(self.budget.since_boot());
        drop(state);
        self.wake_others();
    }
}

impl SharedState {
    fn share(&mut self, number: u64) -> Option<&mut UpstreamShare> {
        self.shares.iter_mut().find(|share| share.number == number)
    }

    /// Applies the strictest of the rates. Where no upstream has joined, the last
    /// rates stay in force.
    fn apply_demands(&mut self, since_boot: Option<Duration>) {
        let demands = self.shares.iter().filter_map(|share| share.demand);
        let rates = demands.map(|demand| demand.rates).reduce(Rates::stricter);
        if let Some(rates) = rates {
            self.total = rates.into();
            self.apply_limits(since_boot);
        }
    }

    /// Applies the rates, or this process's part of them.
    fn apply_limits(&mut self, since_boot: Option<Duration>) {
        let limits = match (&self.allowance, since_boot) {
            (Some(allowance), Some(since_boot)) => allowance.limits(self.total, since_boot),
            _ => self.total,
        };
        self.budget.set_limits(limits);
    }

    /// The tip probes a minute of all upstreams.
    fn probes(&self) -> u32 {
        let demands = self.shares.iter().filter_map(|share| share.demand);
        demands.fold(0, |sum, demand| demand.probes.saturating_add(sum))
    }

    /// The limit per second, or per minute where that is lower; `None` where both
    /// are unlimited.
    fn smaller_rate(&self) -> Option<usize> {
        let rates = [self.budget.per_second(), self.budget.per_minute()];
        rates.into_iter().flatten().min()
    }

    /// How many unanswered requests an upstream may have, such that a quarter of each
    /// second and minute is left where all others have as many; at least one. `None`
    /// where it is the only upstream, or nothing is limited.
    fn max_unanswered_of(&self, number: u64) -> Option<usize> {
        let limit = self.smaller_rate()?;
        let others = self.shares.iter().filter(|share| {
            share.number != number && (share.demand.is_some() || share.counted() > 0)
        });
        match others.count() {
            0 => None,
            others => Some((limit * 3 / (4 * others)).max(1)),
        }
    }

    fn wait(&mut self, number: u64, now: Moment, reserve: Reserve) -> Option<BudgetWait> {
        for share in &mut self.shares {
            share.remove_ended(now);
        }
        let reserve = reserve.with_probes(self.probes());
        let budget = self.budget.wait(now, reserve);
        let unanswered = self.unanswered_wait(number, now, reserve);
        match (budget, unanswered) {
            (Some(one), Some(BudgetWait::For(other))) => Some(BudgetWait::For(one.max(other))),
            (Some(wait), _) => Some(BudgetWait::For(wait)),
            (None, unanswered) => unanswered,
        }
    }

    /// Until when an upstream has too many unanswered requests.
    fn unanswered_wait(
        &mut self,
        number: u64,
        now: Moment,
        reserve: Reserve,
    ) -> Option<BudgetWait> {
        let limit = self.max_unanswered_of(number)?;
        let all = self.smaller_rate()? as u64;
        let reserved = usize::try_from(reserve.of_second(all)).unwrap_or(usize::MAX);
        let reserved = reserved.min(limit / 4);
        let share = self.share(number)?;
        let short = (share.counted() + reserved + 1).checked_sub(limit + 1)?;
        Some(match share.slow.get(short) {
            Some(until) => BudgetWait::For(until.since(now)),
            None => BudgetWait::UntilRequestEnds,
        })
    }

    fn count_end(&mut self, number: u64, is_slow: bool, now: Moment) {
        if let Some(share) = self.share(number) {
            share.unanswered = share.unanswered.saturating_sub(1);
            if is_slow {
                share.slow.push_back(now + ARRIVAL_LIMIT + SECOND_WINDOW);
            }
        }
    }
}

impl UpstreamShare {
    /// How many requests count as unanswered.
    fn counted(&self) -> usize {
        self.unanswered + self.slow.len()
    }

    fn remove_ended(&mut self, now: Moment) {
        while self.slow.pop_front_if(|until| *until <= now).is_some() {}
    }
}

#[cfg(test)]
mod tests;
