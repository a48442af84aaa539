//! Whether a 401 or 403 is about the target, which clients choose, or about the API key: a
//! status path is requested with the same key. Only its refusal sets the key aside, so that
//! a target never costs a key.
//!
//! A key is checked at a host at most once a minute, so that a client that repeats a refused
//! request costs little. Requests that are refused meanwhile wait for the check.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;

use super::failure::Failure;
use super::permit::Asked;
use super::request::{Priority, RequestPriority};
use super::{Upstream, UpstreamRequest};
use crate::reason::Reason;
use crate::trace::Attempt;

/// How long a check may take: a client waits for it.
const KEY_CHECK: Duration = Duration::from_secs(5);
/// How long its result holds.
const HOLDS: Duration = Duration::from_secs(60);

impl Upstream {
    /// Finds out whether the target or the key was refused; a key that was is set aside then.
    pub(super) async fn resolve_refusal(
        self: &Arc<Self>,
        asked: &Asked,
        request: RequestPriority,
        target: &str,
        refused: Failure,
    ) -> Failure {
        let status = refused.received.unwrap_or(StatusCode::FORBIDDEN);
        if self.is_status_path(target) || asked.key.api.is_none() {
            asked.mark_refused(status);
            return refused;
        }
        let of_target = Failure::status(Reason::TargetRefused, status);
        let Some(path) = self.status_path() else {
            return of_target;
        };
        let (key, host) = (&asked.key.key, &asked.endpoint.host);
        let mut checks = key.checks.lock().await;
        let now = self.clock.now();
        checks.retain(|(_, checked)| now.since(*checked) < HOLDS);
        let is_known = checks.iter().any(|(at, _)| at == host);
        if !is_known && self.check_key(asked, request, &path).await {
            checks.push((host.clone(), self.clock.now()));
        }
        match key.refused(host) {
            Some(_) => refused,
            None => of_target,
        }
    }

    /// Requests a status path with the key of a request that was refused, which is set aside
    /// if that is refused too. Returns whether a request was sent.
    async fn check_key(
        self: &Arc<Self>,
        asked: &Asked,
        request: RequestPriority,
        path: &str,
    ) -> bool {
        let request = RequestPriority {
            priority: Priority::Probe,
            client: None,
            purpose: "key-check",
            ..request
        };
        // Like a probe of the tip it takes no slot.
        let Ok(permit) = asked.again(request) else {
            return false;
        };
        let span = Attempt::begin(Vec::new);
        let Ok(sent) = self.outgoing(&UpstreamRequest::typed(path), &permit, &span) else {
            return false;
        };
        let checked = permit.asked.clone();
        let exchanged = self.exchange(permit, sent, false, KEY_CHECK);
        let answered = match exchanged.await {
            Ok(Some(answered)) => answered,
            Ok(None) => return false,
            Err(_) => return true,
        };
        let status = answered.response.status();
        if matches!(status.as_u16(), 401 | 403) {
            checked.mark_refused(status);
        }
        true
    }
}
