//! Answers, and what they report about a key.

use std::time::Duration;

use http::StatusCode;

use super::{ActiveReport, BudgetModel, KEYS, KeySuspension, MAX_REPORTS, ModelRequest};
use crate::upstream::admission::limit_report::{LimitReport, ReportedLimit};
use crate::upstream::keys::proof::ScriptedAnswer;

impl BudgetModel {
    pub(super) fn answer(&mut self, at: usize, answer: &ScriptedAnswer) {
        let now = self.now();
        self.mark_answered(at);
        if let ScriptedAnswer::Limits(limits) = answer {
            if self.report_limits(at, limits) {
                self.end(at);
            }
            return;
        }
        let request = &self.under_way[at];
        let ModelRequest {
            budget, upstream, ..
        } = self.history[request.at];
        let state = &mut self.upstreams[upstream].states[budget];
        let tries = |suspension: &KeySuspension| suspension.tried_by == Some(request.at);
        let suspension = |until, is_refused| KeySuspension {
            until,
            tried_by: None,
            is_refused,
        };
        match answer {
            ScriptedAnswer::Limits(_) => {}
            ScriptedAnswer::QuotaSpent(seconds) => {
                request.permit.apply_report(&LimitReport {
                    quota_spent: Some(Duration::from_secs(*seconds)),
                    ..LimitReport::default()
                });
                if state.suspension.as_ref().is_none_or(tries) {
                    state.suspension = Some(suspension(now + seconds * 1_000, false));
                }
            }
            ScriptedAnswer::Throttled(seconds) => {
                request.permit.start_cooldown(Duration::from_secs(*seconds));
                state.cooldown_until = state.cooldown_until.max(now + seconds * 1_000);
            }
            ScriptedAnswer::Refused => {
                request.permit.mark_refused(StatusCode::FORBIDDEN);
                if budget < KEYS.len() && state.suspension.as_ref().is_none_or(tries) {
                    state.suspension = Some(suspension(now + 60_000, true));
                }
            }
            ScriptedAnswer::Accepted => {
                request.permit.mark_accepted();
                if state.suspension.as_ref().is_some_and(tries) {
                    state.suspension = None;
                }
            }
        }
        self.end(at);
    }

    /// Reports limits, unless there are too many in force to know which [`Keys`]
    /// keeps. Returns whether it did.
    ///
    /// [`Keys`]: crate::upstream::keys::Keys
    fn report_limits(&mut self, at: usize, limits: &[ReportedLimit]) -> bool {
        let now = self.now();
        let request = &self.under_way[at];
        let ModelRequest { budget, from, .. } = self.history[request.at];
        // The upstream may not have counted these: the requests that were under way
        // when this one was sent, and those sent since.
        let before = self.counted(budget, Some(from)) as u64 - 1;
        let uncounted = before.max(self.sent_after(request.at, budget));
        let reports = &mut self.reports[budget];
        reports.retain(|report| report.until > now);
        if reports.len() + limits.len() > MAX_REPORTS {
            return false;
        }
        request.permit.apply_report(&LimitReport {
            limits: limits.to_vec(),
            ..LimitReport::default()
        });
        for limit in limits {
            // A report without a known end is replaced by the next of its window.
            let is_replaced =
                |report: &ActiveReport| report.window == limit.window && !report.end_is_known;
            reports.retain(|report| limit.end_is_known || !is_replaced(report));
            let is_long = limit.valid_for > Duration::from_secs(1);
            let uncounted = if is_long { uncounted } else { 0 };
            reports.push(ActiveReport {
                left: limit.remaining.saturating_sub(uncounted),
                until: now + u64::try_from(limit.valid_for.as_millis()).unwrap(),
                window: limit.window,
                end_is_known: limit.end_is_known,
            });
        }
        true
    }

    /// The number of requests of a budget sent after one of them.
    fn sent_after(&self, at: usize, budget: usize) -> u64 {
        let later = self.history[at + 1..].iter();
        later.filter(|sent| sent.budget == budget).count() as u64
    }
}
