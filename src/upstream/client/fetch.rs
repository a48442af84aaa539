//! Fetching a canonical target: attempts one after another, until one is
//! answered or no further attempt is useful.

use tokio::time::{Instant, timeout};

use super::attempt::{Request, Unanswered};
use super::attempts::Attempts;
use crate::upstream::admission::Denied;
use crate::upstream::admit::Admission;
use crate::upstream::answer::Answer;
use crate::upstream::counters::SendReason;
use crate::upstream::{Failure, Priority, RequestPriority, TimedOut, Upstream};

impl Upstream {
    /// Fetches a canonical target and judges the answer.
    ///
    /// # Errors
    /// How it failed, within the sum of `queue_timeout` and `timeout`.
    pub async fn fetch(&self, target: &str, priority: RequestPriority) -> Result<Answer, Failure> {
        let attempts = Attempts::default();
        let queued_until = self.queued_until();
        let admitted = self.admit(priority, &attempts, queued_until).await?;
        self.fetch_with(target, priority, attempts, admitted, queued_until)
            .await
    }

    /// Until when a request that has come now may wait for its admission.
    pub(super) fn queued_until(&self) -> Instant {
        Instant::now() + self.settings.admission.queue_timeout
    }

    /// Fetches a status path from this standby alone.
    ///
    /// # Errors
    /// As [`fetch`](Self::fetch).
    pub async fn fetch_standby(&self, at: usize, target: &str) -> Result<Answer, Failure> {
        let priority = RequestPriority::own(Priority::Probe);
        let attempts = Attempts::only(at);
        let queued_until = self.queued_until();
        let admitted = self.admit(priority, &attempts, queued_until).await?;
        self.fetch_with(target, priority, attempts, admitted, queued_until)
            .await
    }

    /// Checks that a standby answers, whatever the answer is.
    pub async fn check_standby(&self, at: usize, target: &str) {
        let priority = RequestPriority::own(Priority::Probe);
        let attempts = Attempts::only(at);
        let admitted = self.admit(priority, &attempts, self.queued_until()).await;
        let Ok(Admission {
            mut permit,
            sending,
        }) = admitted
        else {
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
        let sent = self.send(request, &mut permit, sending, &mut refused);
        let failure = match timeout(self.settings.timeouts.whole, sent).await {
            Ok(Ok(_)) => None,
            Ok(Err(Unanswered::Failed(failure))) => Some(failure),
            // It is checked again soon.
            Ok(Err(Unanswered::NotWritten)) => return drop(permit.end_without_outcome()),
            Err(_elapsed) => Some(Failure::TimedOut(TimedOut::Whole)),
        };
        let failure = failure.filter(|failure| !failure.is_answer());
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
        mut admitted: Admission,
        queued_until: Instant,
    ) -> Result<Answer, Failure> {
        let deadline = Instant::now() + self.settings.timeouts.whole;
        self.retries().deposit(self.clock.now());
        let mut reason = SendReason::First(priority.priority);
        let mut resends = 0;
        loop {
            let at = self.index_of(admitted.permit.endpoint());
            let request = Request {
                target,
                reason,
                priority,
                resends,
                span: None,
            };
            let failure = match self.attempt(request, admitted, deadline).await {
                Ok(mut answer) => {
                    self.counters.count_answered();
                    answer.endpoint = at as u16;
                    return Ok(answer);
                }
                Err(Unanswered::NotWritten) => {
                    admitted = self.admit(priority, &attempts, queued_until).await?;
                    continue;
                }
                Err(Unanswered::Failed(failure)) => failure,
            };
            let next = self.retry(&mut attempts, &failure, at, priority, deadline);
            let Some(next) = next.await else {
                self.counters.count_failed();
                return Err(self.with_retry_after(failure, priority));
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
