//! A budget that replicas share: its allowance, and permits that have become too old.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::{BudgetHandle, SharedBudget, SharedState};
use crate::clock::{Clock, Moment};
use crate::upstream::admission::allowance::{
    self, Allowance, AllowanceSnapshot, BudgetUse, Grant, PERMIT_AGE, Replicas,
};
use crate::upstream::admission::budget::BudgetEntry;
use crate::upstream::admission::limit_report::{LimitWindow, ReportedLimit};
use crate::upstream::admission::queue::AdmissionQueue;

/// How replicas share budgets.
#[derive(Clone, Debug)]
pub(in crate::upstream::admission) struct Sharing {
    pub(in crate::upstream::admission) replicas: Replicas,
    pub(in crate::upstream::admission) clock: Clock,
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
