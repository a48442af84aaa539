//! A budget that replicas share: its allowance, and permits that have become too old.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::{BudgetHandle, SharedBudget, SharedState};
use crate::clock::{Clock, Moment};
use crate::upstream::admission::Reserve;
use crate::upstream::admission::allowance::{
    self, Allowance, AllowanceSnapshot, BudgetUse, Grant, PERMIT_AGE, Replicas, ShortWindows,
};
use crate::upstream::admission::budget::BudgetEntry;
use crate::upstream::admission::limit_report::{LimitWindow, ReportedLimit};
use crate::upstream::admission::queue::AdmissionQueue;
use crate::upstream::admission::restrictions::{COOLDOWNS, CooldownLeft, HostName};

/// How replicas share budgets.
#[derive(Clone, Debug)]
pub(in crate::upstream::admission) struct Sharing {
    pub(in crate::upstream::admission) replicas: Replicas,
    pub(in crate::upstream::admission) clock: Clock,
    /// Whether a budget has cooldowns that other replicas do not know.
    pub(in crate::upstream::admission) has_cooldowns: Arc<AtomicBool>,
}

/// A cooldown is announced if it lasts this long, or this much longer than is known.
const LEAST_ANNOUNCED: Duration = Duration::from_secs(5);

/// The cooldowns of a key that replicas let each other know of.
#[derive(Debug, Default)]
pub(super) struct SharedCooldowns {
    /// Own ones to be sent, one for each host, with when each began to be that long.
    to_send: Vec<(CooldownLeft, Moment)>,
    /// When the last one of each host that was to be sent ends.
    sent: Vec<(HostName, Moment)>,
    /// Those of other replicas, one for each host, with when they end, and numbered.
    received: Vec<(CooldownLeft, Moment, u64)>,
}

impl SharedBudget {
    /// Own cooldowns that other replicas do not know, as they are now.
    pub(crate) fn take_cooldowns(&self, now: Moment) -> Vec<CooldownLeft> {
        let taken = std::mem::take(&mut self.state().cooldowns.to_send);
        let left = taken
            .into_iter()
            .map(|(left, at)| left.after(now.since(at)));
        left.filter(CooldownLeft::is_in_force).collect()
    }

    /// Takes over a cooldown of another replica. The number is bounded: further hosts are
    /// ignored, since they are none of this process.
    pub(crate) fn receive_cooldown(&self, left: CooldownLeft, now: Moment) {
        let mut state = self.state();
        let received = &mut state.cooldowns.received;
        let mut left = left;
        received.retain(|(known, at, _)| {
            let known = known.after(now.since(*at));
            if known.host == left.host {
                left = left.or_longer(known);
            }
            known.host != left.host && known.is_in_force()
        });
        if received.len() < COOLDOWNS {
            let number = self.received.load(Relaxed) + 1;
            received.push((left, now, number));
            self.received.store(number, Relaxed);
        }
    }
}

impl BudgetHandle {
    /// Lets other replicas know of a cooldown, if they share the budget.
    pub(crate) fn announce_cooldown(&self, left: CooldownLeft, now: Moment) {
        let Some(has_cooldowns) = &self.budget.has_cooldowns else {
            return;
        };
        let mut state = self.state();
        let SharedCooldowns { to_send, sent, .. } = &mut state.cooldowns;
        to_send.retain(|(known, _)| known.host != left.host);
        // Each record takes the place of a purge in the journal.
        sent.retain(|(_, ends)| *ends > now);
        let ends = now + left.longest();
        let has_room = sent.len() < COOLDOWNS;
        let known = sent.iter_mut().find(|(host, _)| *host == left.host);
        let is_news = match &known {
            Some(known) => ends > known.1 + LEAST_ANNOUNCED,
            None => left.longest() >= LEAST_ANNOUNCED,
        };
        if is_news && to_send.len() < COOLDOWNS {
            match known {
                Some(known) => known.1 = ends,
                None if has_room => sent.push((left.host, ends)),
                None => {}
            }
            to_send.push((left, now));
            has_cooldowns.store(true, Release);
        }
    }

    /// The number of the last cooldown of another replica.
    pub(crate) fn last_received(&self) -> u64 {
        self.budget.received.load(Relaxed)
    }

    /// The cooldown at a host that another replica has had and that has a later number.
    pub(crate) fn received_after(
        &self,
        number: u64,
        host: HostName,
        now: Moment,
    ) -> Option<CooldownLeft> {
        let state = self.state();
        let mut received = state.cooldowns.received.iter();
        let (left, at, _) = received.find(|(left, _, at)| left.host == host && *at > number)?;
        Some(left.after(now.since(*at))).filter(CooldownLeft::is_in_force)
    }
}

impl SharedBudget {
    /// Replaces what this process is granted beside its floor; `grant` is given what
    /// the windows count, and the time since boot. No request is taken in between.
    /// Returns what `grant` returns beside the grant; `None` where replicas do not share
    /// the budget.
    pub(crate) fn update_grant<T>(
        &self,
        now: Moment,
        grant: impl FnOnce(&BudgetUse, Duration) -> (Grant, T),
    ) -> Option<T> {
        let clock = self.clock.as_ref()?;
        // Before the lock: an admission queue may be locked by whoever takes a request.
        let waiting = self.waiting();
        let mut state = self.state();
        let (total, counted) = (state.total, state.budget.counted(now));
        let since_boot = clock.since_boot();
        let allowance = state.allowance.as_mut()?;
        let in_use = allowance.in_use(total, counted, waiting, since_boot);
        let (new, result) = grant(&in_use, since_boot);
        let is_raised = new.exceeds(allowance.granted(since_boot));
        allowance.set_grant(new);
        state.apply_limits(Some(since_boot));
        drop(state);
        if is_raised {
            self.wake_but(None);
        }
        Some(result)
    }

    /// The allowance, if replicas share the budget.
    pub(super) fn allowance(&self) -> Option<AllowanceSnapshot> {
        let since_boot = self.clock.as_ref()?.since_boot();
        let state = self.state();
        let allowance = state.allowance.as_ref()?;
        Some(allowance.snapshot(state.total, since_boot))
    }

    /// Whether this process could use more now: requests wait, or were denied lately.
    pub(crate) fn is_short(&self) -> bool {
        let is_denied = self.since_boot().is_some_and(|since_boot| {
            let state = self.state();
            let allowance = state.allowance.as_ref();
            allowance
                .is_some_and(|allowance| allowance.short(since_boot) != ShortWindows::default())
        });
        is_denied || self.waiting() > 0
    }

    /// How many requests wait for admission at the upstreams that use it.
    pub(crate) fn waiting(&self) -> usize {
        self.queues().iter().map(|queue| queue.len()).sum()
    }

    /// The queues of the upstreams that use it.
    fn queues(&self) -> Vec<Arc<AdmissionQueue>> {
        let state = self.state();
        let queues = state.shares.iter().map(|share| &share.queue);
        queues.filter_map(Weak::upgrade).collect()
    }
}

impl BudgetHandle {
    /// Whether a request may still be sent, `longer` than usual after it was taken.
    /// Always where replicas do not share the budget: the request counts until it has
    /// ended. They may grant it to others if this process is stopped for long.
    pub(crate) fn is_current(&self, entry: BudgetEntry, longer: Duration) -> bool {
        let (Some(taken), Some(now)) = (entry.since_boot(), self.budget.since_boot()) else {
            return true;
        };
        now.saturating_sub(taken) <= PERMIT_AGE + longer
    }

    /// The allowance, if replicas share the budget.
    pub(crate) fn allowance(&self) -> Option<AllowanceSnapshot> {
        self.budget.allowance()
    }
}

impl SharedState {
    /// Notes that a request was denied, so that more is asked for. A request that is ahead
    /// of clients leaves half of the budget, whatever that is: it needs no more.
    pub(super) fn note_denied(
        &mut self,
        now: Moment,
        reserve: Reserve,
        since_boot: Option<Duration>,
    ) {
        let reserve = reserve.with_probes(self.probes());
        if let (Some(allowance), Some(since_boot)) = (&mut self.allowance, since_boot)
            && reserve != Reserve::Half
        {
            allowance.deny(self.budget.short(now, reserve), since_boot);
        }
    }

    /// This process's part of a reported limit, which is that of all replicas.
    pub(super) fn part_of(&self, limit: ReportedLimit) -> ReportedLimit {
        let (own, all) = match limit.window {
            LimitWindow::Second => (self.budget.per_second(), self.total.per_second),
            LimitWindow::Minute => (self.budget.per_minute(), self.total.per_minute),
            // What is granted now says little of a longer window.
            LimitWindow::Unnamed | LimitWindow::Hour | LimitWindow::Day | LimitWindow::Month => {
                let per_minute = self.total.per_minute;
                let even = |allowance: &Allowance| allowance.even_part(per_minute);
                let own = self.allowance.as_ref().map_or(per_minute, even);
                (own, per_minute)
            }
        };
        let remaining = allowance::part(limit.remaining, own, all);
        ReportedLimit { remaining, ..limit }
    }
}
