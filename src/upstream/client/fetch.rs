//! Fetching a canonical target: attempts one after another, until one is
//! answered or no further attempt is useful.

use std::pin::pin;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::attempt::Request;
use super::attempts::Attempts;
use crate::upstream::admission::Denied;
use crate::upstream::answer::Answer;
use crate::upstream::charge::Charge;
use crate::upstream::counters::SendReason;
use crate::upstream::endpoint::EndpointPermit;
use crate::upstream::{Failure, Priority, QueueWatch, RequestPriority, TimedOut, Upstream};

/// A request that waits for longer for its admission may be replaced.
const SHORT_WAIT: Duration = Duration::from_millis(250);

impl Upstream {
    /// Fetches a canonical target and judges the answer.
    ///
    /// # Errors
    /// How it failed, within the sum of `queue_timeout` and `timeout`.
    pub async fn fetch(&self, target: &str, priority: RequestPriority) -> Result<Answer, Failure> {
        let attempts = Attempts::default();
        let max_wait = self.settings.admission.queue_timeout;
        let admitted = self.admit(priority, &attempts, max_wait).await?;
        self.fetch_with(target, priority, attempts, admitted).await
    }

    /// Fetches a canonical target; `None` if that is no longer needed, as `watch` knows,
    /// before the request is admitted.
    ///
    /// # Errors
    /// As [`fetch`](Self::fetch).
    pub async fn fetch_if_needed(
        &self,
        target: &str,
        priority: RequestPriority,
        watch: &dyn QueueWatch,
    ) -> Result<Option<Answer>, Failure> {
        let attempts = Attempts::default();
        let max_wait = self.settings.admission.queue_timeout;
        let admitted = {
            let mut admission = pin!(self.admit(priority, &attempts, max_wait));
            match timeout(SHORT_WAIT, admission.as_mut()).await {
                Ok(admitted) => admitted?,
                Err(_) => tokio::select! {
                    biased;
                    admitted = admission => admitted?,
                    () = watch.replaced() => return Ok(None),
                },
            }
        };
        let answer = self.fetch_with(target, priority, attempts, admitted);
        answer.await.map(Some)
    }

    /// Fetches a status path from this standby alone.
    ///
    /// # Errors
    /// As [`fetch`](Self::fetch).
    pub async fn fetch_standby(&self, at: usize, target: &str) -> Result<Answer, Failure> {
        let priority = RequestPriority::own(Priority::Probe);
        let attempts = Attempts::only(at);
        let max_wait = self.settings.admission.queue_timeout;
        let admitted = self.admit(priority, &attempts, max_wait).await?;
        self.fetch_with(target, priority, attempts, admitted).await
    }

    /// Checks that a standby answers, whatever the answer is.
    pub async fn check_standby(&self, at: usize, target: &str) {
        let priority = RequestPriority::own(Priority::Probe);
        let max_wait = self.settings.admission.queue_timeout;
        let attempts = Attempts::only(at);
        let Ok((mut permit, budget)) = self.admit(priority, &attempts, max_wait).await else {
            return;
        };
        let request = Request {
            target,
            reason: SendReason::First(priority.priority),
            priority,
            resends: 0,
            span: None,
        };
        // A refusal of this target would mean nothing for the key.
        let mut refused = None;
        let sent = self.send(request, &mut permit, budget, &mut refused);
        let sent = timeout(self.settings.timeouts.whole, sent).await;
        let answer = sent.unwrap_or(Err(Failure::TimedOut(TimedOut::Whole)));
        let failure = answer.err().filter(|failure| !failure.is_answer());
        match failure {
            None => self.counters.count_answered(),
            Some(_) => self.counters.count_failed(),
        }
        drop(permit.end(failure.as_ref()));
    }

    async fn fetch_with(
        &self,
        target: &str,
        priority: RequestPriority,
        mut attempts: Attempts,
        mut admitted: (EndpointPermit, Charge),
    ) -> Result<Answer, Failure> {
        let deadline = Instant::now() + self.settings.timeouts.whole;
        self.retries().deposit(self.clock.now());
        let mut reason = SendReason::First(priority.priority);
        let mut resends = 0;
        loop {
            let at = self.index_of(admitted.0.endpoint());
            if attempts.is_last_resend() {
                admitted.0.set_last_resend();
            }
            let request = Request {
                target,
                reason,
                priority,
                resends,
                span: None,
            };
            let failed = match self.attempt(request, admitted, deadline).await {
                Ok(mut answer) => {
                    self.counters.count_answered();
                    answer.endpoint = at as u16;
                    return Ok(answer);
                }
                Err(failed) => failed,
            };
            let next = self.retry(&mut attempts, &failed, at, priority, deadline);
            let Some(next) = next.await else {
                self.counters.count_failed();
                return Err(self.with_retry_after(failed.failure, priority));
            };
            (admitted, reason) = (next, SendReason::Retry);
            resends += 1;
        }
    }

    /// The failure with the `retry-after` of all keys together: another key may be
    /// usable sooner, or the budget of this one be spent for longer.
    fn with_retry_after(&self, failure: Failure, priority: RequestPriority) -> Failure {
        let host = self.endpoints[self.select_endpoint()].host();
        match (&failure, self.keys.denied_at(host, priority)) {
            (Failure::Throttled { .. }, Some(Denied::SpentFor(retry_after))) => {
                Failure::Throttled { retry_after }
            }
            _ => failure,
        }
    }
}
