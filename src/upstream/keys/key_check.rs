//! Key checks: whether a 401 or 403 refuses the key or the target.

use std::hash::BuildHasher;
use std::sync::Arc;

use foldhash::quality::FixedState;
use http::StatusCode;
use tokio::sync::watch;

use super::BudgetPermit;
use super::pool::KeyAtHost;
use super::refusals::KeyCheckResult;
use crate::clock::Clock;

/// What a 401 or 403 refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefusalCause {
    /// The key, which is now in quarantine.
    Key,
    Target,
}

/// How to find out what was refused.
pub(crate) enum RefusalCheck {
    Decided(RefusalCause),
    /// By sending this key check.
    Send(KeyCheck),
    /// By waiting for the key check in flight.
    Wait(watch::Receiver<Option<KeyCheckResult>>),
}

/// A key check. Each key has at most one at a time.
pub(crate) struct KeyCheck {
    at_host: Arc<KeyAtHost>,
    clock: Clock,
    result: watch::Sender<Option<KeyCheckResult>>,
}

impl BudgetPermit {
    /// How to find out what a refusal with this status refuses. `decides`: whether
    /// there is a status path to check the key with.
    pub(crate) fn check_refusal(
        &self,
        target: &str,
        status: StatusCode,
        decides: bool,
    ) -> RefusalCheck {
        if self.key.key.is_none() {
            self.mark_refused(status);
            return RefusalCheck::Decided(RefusalCause::Key);
        }
        let now = self.keys.clock.now();
        let mut state = self.at_host.state();
        if state.is_quarantined() && !self.is_trial(&state) {
            // The key was refused after this request was sent.
            return RefusalCheck::Decided(RefusalCause::Key);
        }
        if !decides || (state.refusals.has_no_status() && !state.refusals.may_check(now)) {
            drop(state);
            return RefusalCheck::Decided(self.count_refusal(target, status));
        }
        if let Some(checking) = &state.checking {
            return RefusalCheck::Wait(checking.clone());
        }
        if !state.refusals.may_check(now) {
            return RefusalCheck::Decided(RefusalCause::Target);
        }
        let (result, checking) = watch::channel(None);
        state.checking = Some(checking);
        RefusalCheck::Send(KeyCheck {
            at_host: self.at_host.clone(),
            clock: self.keys.clock.clone(),
            result,
        })
    }

    /// What was refused, by the result of a key check.
    pub(crate) fn refusal_cause(
        &self,
        result: KeyCheckResult,
        target: &str,
        status: StatusCode,
    ) -> RefusalCause {
        match result {
            KeyCheckResult::Refused => RefusalCause::Key,
            KeyCheckResult::NoStatus => self.count_refusal(target, status),
            KeyCheckResult::Accepted | KeyCheckResult::Unclear | KeyCheckResult::NotSent => {
                RefusalCause::Target
            }
        }
    }

    /// Counts the refusal of a target against the key, and puts the key in quarantine
    /// after enough of them. In a trial after a quarantine one is enough.
    fn count_refusal(&self, target: &str, status: StatusCode) -> RefusalCause {
        let mut state = self.at_host.state();
        let target = FixedState::default().hash_one(target);
        let enough = self.is_trial(&state) || state.refusals.count_target(target);
        drop(state);
        if !enough {
            return RefusalCause::Target;
        }
        self.mark_refused(status);
        RefusalCause::Key
    }
}

impl KeyCheck {
    /// Publishes the result to the requests that wait for it.
    pub(crate) fn finish(self, result: KeyCheckResult) {
        self.result.send_replace(Some(result));
    }
}

impl Drop for KeyCheck {
    fn drop(&mut self) {
        // A check that is given up has no result.
        let result = self.result.borrow().unwrap_or(KeyCheckResult::Unclear);
        let mut state = self.at_host.state();
        state.refusals.record_check(result, self.clock.now());
        state.checking = None;
    }
}
