//! Whether a 401 or 403 is about the target, which clients choose, or about the API
//! key: a status path is requested with the same key. Only its refusal sets the key
//! aside, so that a target never costs a key.
//!
//! A key is checked at a host at most once a minute, so that a client that repeats a
//! refused request costs little. Requests that are refused meanwhile wait for the check.

use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use http::StatusCode;
use tokio::time::{Instant, timeout};

use super::admission::Denied;
use super::admit::Admission;
use super::charge::Charge;
use super::client::attempt::{Request, Unanswered};
use super::counters::SendReason;
use super::endpoint::Endpoint;
use super::key::LastCheck;
use super::{Failure, Priority, TimedOut, Upstream};
use crate::client_tokens::shown_path;
use crate::sync::lock;

/// How long a check may take: a client waits for it.
const KEY_CHECK: Duration = Duration::from_secs(5);
/// How long its result holds.
const HOLDS: Duration = Duration::from_secs(60);

impl Upstream {
    /// Finds out whether the target or the key was refused; a key that was is set aside
    /// then.
    pub(super) async fn resolve_refusal(
        &self,
        request: Request<'_>,
        endpoint: &Arc<Endpoint>,
        mut charge: Charge,
        status: StatusCode,
    ) -> Failure {
        charge.end();
        if charge.header().is_none() {
            charge.mark_refused(status);
            return Failure::KeyRefused(status);
        }
        let Some(path) = self.status_path(request.target) else {
            return Failure::TargetRefused(status);
        };
        let mut last = charge.key().last_check.lock().await;
        let now = self.clock.now();
        let known = last
            .as_ref()
            .filter(|last| last.host == *charge.host() && now.since(last.at) < HOLDS);
        let is_refused = match known {
            Some(known) => known.is_refused,
            None => {
                let check = Request {
                    target: &path,
                    reason: SendReason::KeyCheck,
                    ..request
                };
                let Some(is_refused) = self.check_key(check, endpoint, &charge).await else {
                    return Failure::TargetRefused(status);
                };
                *last = Some(LastCheck {
                    host: charge.host().clone(),
                    at: self.clock.now(),
                    is_refused,
                });
                if !is_refused {
                    tracing::warn!(
                        target_path = &*shown_path(request.target),
                        %status,
                        key = charge.name(),
                        "the upstream refuses a target, and does not refuse the API key at {path}: the key stays in service"
                    );
                }
                is_refused
            }
        };
        match is_refused {
            true => Failure::KeyRefused(status),
            false => Failure::TargetRefused(status),
        }
    }

    /// Requests a status path with the key of a request that was refused. Returns whether
    /// it is refused too; `None` if the budget allowed no request.
    async fn check_key(
        &self,
        request: Request<'_>,
        endpoint: &Arc<Endpoint>,
        refused: &Charge,
    ) -> Option<bool> {
        let deadline = Instant::now() + KEY_CHECK;
        let charge = loop {
            match refused.again() {
                Ok(charge) => break charge,
                Err(Denied::SpentFor(wait)) if Instant::now() + wait < deadline => {
                    tokio::time::sleep(wait).await;
                }
                // Another request has found out.
                Err(Denied::KeyRefused(_)) => return Some(true),
                Err(_) => return None,
            }
        };
        // Like a probe of the tip it takes no slot.
        let permit = endpoint.admit(Priority::Probe).ok()?;
        let Admission {
            mut permit,
            sending,
        } = self.make_ready(permit, charge).await.ok()?;
        // Stays empty: a refusal by a status path sets the key aside.
        let mut refused = None;
        let sent = self.send(request, &mut permit, sending, &mut refused);
        let failure = match timeout(KEY_CHECK, sent).await {
            Ok(Ok(_)) => None,
            Ok(Err(Unanswered::Failed(failure))) => Some(failure),
            Ok(Err(Unanswered::NotWritten)) => {
                drop(permit.end_without_outcome());
                return None;
            }
            Err(_elapsed) => Some(Failure::TimedOut(TimedOut::FirstByte)),
        };
        drop(permit.end(failure.as_ref()));
        Some(matches!(failure, Some(Failure::KeyRefused(_))))
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
