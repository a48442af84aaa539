//! Whether a 401 or 403 is about the target or about the API key: a status path
//! is requested with the same key.

use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use http::StatusCode;
use tokio::time::{Instant, timeout};

use super::attempt::Request;
use crate::client_tokens::shown_path;
use crate::sync::lock;
use crate::upstream::admission::Denied;
use crate::upstream::counters::SendReason;
use crate::upstream::endpoint::Endpoint;
use crate::upstream::keys::{BudgetPermit, KeyCheckResult, RefusalCause, RefusalCheck};
use crate::upstream::{Failure, Priority, TimedOut, Upstream};

/// How long a key check may take: a client waits for it.
const KEY_CHECK: Duration = Duration::from_secs(5);

impl Upstream {
    /// Finds out whether the target or the key was refused; a key that was is in
    /// quarantine then.
    pub(super) async fn resolve_refusal(
        &self,
        request: Request<'_>,
        endpoint: &Arc<Endpoint>,
        mut budget: BudgetPermit,
        status: StatusCode,
    ) -> Failure {
        let target = request.target;
        let path = self.status_path(target);
        let refused = match budget.check_refusal(target, status, path.is_some()) {
            RefusalCheck::Send(check) => {
                let path = path.as_deref().unwrap_or(target);
                let check_request = Request {
                    target: path,
                    reason: SendReason::KeyCheck,
                    ..request
                };
                let result = self.check_key(check_request, endpoint, &mut budget).await;
                if result == KeyCheckResult::Accepted {
                    tracing::warn!(
                        target_path = &*shown_path(target),
                        %status,
                        key = budget.name(),
                        "the upstream refuses a target and accepts the API key at {path}: the key stays in service"
                    );
                }
                check.finish(result);
                budget.refusal_cause(result, target, status)
            }
            RefusalCheck::Wait(mut result) => {
                // A check that was given up has shown nothing.
                let result = result.wait_for(Option::is_some).await;
                let result = result.map_or(None, |result| *result);
                budget.refusal_cause(result.unwrap_or(KeyCheckResult::Unclear), target, status)
            }
            RefusalCheck::Decided(refused) => refused,
        };
        match refused {
            RefusalCause::Key => Failure::KeyRefused(status),
            RefusalCause::Target => Failure::TargetRefused(status),
        }
    }

    /// Requests a status path with the key of a request that was refused.
    async fn check_key(
        &self,
        request: Request<'_>,
        endpoint: &Arc<Endpoint>,
        refused: &mut BudgetPermit,
    ) -> KeyCheckResult {
        let max_wait = self.settings.admission.queue_timeout.min(KEY_CHECK);
        let deadline = Instant::now() + max_wait;
        let budget = loop {
            match refused.renew(Priority::Miss) {
                Ok(budget) => break budget,
                Err(Denied::SpentFor(wait)) if Instant::now() + wait < deadline => {
                    tokio::time::sleep(wait).await;
                }
                Err(_) => return KeyCheckResult::NotSent,
            }
        };
        // Like a probe of the tip it takes no slot.
        let Ok(mut permit) = endpoint.admit(Priority::Probe) else {
            return KeyCheckResult::NotSent;
        };
        // Stays empty: a refusal by a status path is recorded against the key.
        let mut refused = None;
        let sent = self.send(request, &mut permit, budget, &mut refused);
        let sent = timeout(KEY_CHECK, sent).await;
        let answer = sent.unwrap_or(Err(Failure::TimedOut(TimedOut::FirstByte)));
        drop(permit.end(answer.as_ref().err()));
        match answer {
            Ok(answer) if answer.status == StatusCode::OK => KeyCheckResult::Accepted,
            Err(Failure::Throttled { .. }) => KeyCheckResult::Accepted,
            Err(Failure::KeyRefused(_)) => KeyCheckResult::Refused,
            Ok(_) => KeyCheckResult::NoStatus,
            Err(failure) if failure.is_answer() => KeyCheckResult::NoStatus,
            Err(_) => KeyCheckResult::Unclear,
        }
    }

    /// Sets the status paths that key checks request.
    pub fn set_status_paths(&self, paths: Vec<Box<str>>) {
        *self.status_paths() = paths;
    }

    /// The status path for a target: the one that has the longest prefix in common
    /// with it, the first of several.
    fn status_path(&self, target: &str) -> Option<Box<str>> {
        let common = |path: &str| {
            let pairs = path.bytes().zip(target.bytes());
            pairs.take_while(|(one, other)| one == other).count()
        };
        let paths = self.status_paths();
        // `max_by_key` returns the last of several maxima.
        let best = paths.iter().rev().max_by_key(|path| common(path));
        best.cloned()
    }

    pub(super) fn is_status_path(&self, target: &str) -> bool {
        self.status_paths().iter().any(|path| **path == *target)
    }

    fn status_paths(&self) -> MutexGuard<'_, Vec<Box<str>>> {
        lock(&self.status_paths)
    }
}
