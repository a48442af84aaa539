//! Asking for a canonical target: the attempts, one after another or, where one
//! is slow, beside each other, until an answer can be handed on or nothing more
//! is to be gained.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use http::header::{ACCEPT, ACCEPT_ENCODING, USER_AGENT, VIA};
use http::{HeaderValue, Request, StatusCode};
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout, timeout_at};

use crate::identify::Client;
use crate::upstream::admission::limit_report;
use crate::upstream::answer::{self, Answer, is_no_such_route};
use crate::upstream::client::attempts::{Course, NextAttempt};
use crate::upstream::client::cause::{self, Cause, is_settled};
use crate::upstream::client::connection::{Connection, SendPath};
use crate::upstream::client::response_body;
use crate::upstream::client::retry_budget::pause;
use crate::upstream::client::streamed::{RequestBody, no_body};
use crate::upstream::counters::SendReason;
use crate::upstream::endpoint::{Endpoint, Permit};
use crate::upstream::keys::KeyCheckResult;
use crate::upstream::keys::{BudgetPermit, Denied, RefusalCause, RefusalCheck};
use crate::upstream::{Failure, Priority, RequestPriority, TimedOut, Upstream};

/// Answers of late that the time of a hedge is taken from, at the least.
const LEAST_SAMPLES: u64 = 20;
/// The least that is waited before a hedge: what comes sooner gains nothing.
const LEAST_HEDGE: Duration = Duration::from_millis(5);
/// How long a key check may take. A client waits for it.
const KEY_CHECK: Duration = Duration::from_secs(5);

/// How an attempt has failed.
pub(crate) struct Failed {
    pub(crate) failure: Failure,
    /// The connection that has failed beneath it, if one has.
    pub(crate) lost: Option<Connection>,
}

/// The permit of a request whose target was refused, and the status.
type RefusedTarget = Option<(BudgetPermit, StatusCode)>;

impl Upstream {
    /// Asks for a canonical target and judges the answer.
    ///
    /// # Errors
    /// How it failed. It does so within the sum of `queue_timeout` and
    /// `timeout`.
    pub async fn fetch(&self, target: &str, wish: RequestPriority) -> Result<Answer, Failure> {
        self.fetch_on(target, wish, Course::default()).await
    }

    /// Asks a standby, and nobody else, for a status path.
    ///
    /// # Errors
    /// As [`fetch`](Self::fetch).
    pub async fn ask_standby(&self, at: usize, target: &str) -> Result<Answer, Failure> {
        let course = Course::only(at);
        let wish = RequestPriority::own(Priority::Probe);
        self.fetch_on(target, wish, course).await
    }

    /// Sees whether a standby is there: whatever it answers, it is.
    pub async fn knock(&self, at: usize, target: &str) {
        let (wish, course) = (RequestPriority::own(Priority::Probe), Course::only(at));
        let patience = self.settings.queue_timeout;
        let Ok((mut passage, grant)) = self.admit(wish, &course, patience).await else {
            return;
        };
        let reason = SendReason::First(wish.priority);
        // The target means nothing to the upstream, so that a refusal says
        // nothing of the key.
        let mut refused = None;
        let asked = self.ask_once(target, &mut passage, grant, reason, &mut refused);
        let asked = timeout(self.settings.timeout, asked).await;
        let asked = asked.unwrap_or(Err(Failure::TimedOut(TimedOut::Whole)));
        let failure = asked.err().filter(|failure| !failure.is_answer());
        match failure {
            None => self.tally.count_answered(),
            Some(_) => self.tally.count_failed(),
        }
        drop(passage.end(failure.as_ref()));
    }

    async fn fetch_on(
        &self,
        target: &str,
        wish: RequestPriority,
        mut course: Course,
    ) -> Result<Answer, Failure> {
        let patience = self.settings.queue_timeout;
        let mut admitted = self.admit(wish, &course, patience).await?;
        let deadline = Instant::now() + self.settings.timeout;
        self.retries().deposit(self.clock.now());
        let mut reason = SendReason::First(wish.priority);
        loop {
            let (mut passage, grant) = admitted;
            let at = self.place_of(passage.endpoint());
            if course.is_last_resend() {
                passage.set_last_resend();
            }
            let asked = match self.hedge_after(wish, passage.endpoint()) {
                None => self.attempt(target, passage, grant, reason, deadline).await,
                Some(after) => {
                    self.hedged(
                        target,
                        (passage, grant),
                        (reason, wish.client),
                        deadline,
                        after,
                    )
                    .await
                }
            };
            let failed = match asked {
                Ok(mut answer) => {
                    self.tally.count_answered();
                    answer.endpoint = at as u16;
                    return Ok(answer);
                }
                Err(failed) => failed,
            };
            let Some(next) = self.goes_on(&mut course, &failed, at, wish, deadline).await else {
                self.tally.count_failed();
                return Err(self.when_again(failed.failure, wish));
            };
            (admitted, reason) = (next, SendReason::Retry);
        }
    }

    /// A failure that says when to come back, as all keys have it: another may
    /// be free sooner, or this one's budget spent for longer.
    fn when_again(&self, failure: Failure, wish: RequestPriority) -> Failure {
        let host = self.endpoints[self.look()].host();
        match (&failure, self.keys.denied_at(host, wish)) {
            (Failure::Throttled { .. }, Some(Denied::For(retry_after))) => {
                Failure::Throttled { retry_after }
            }
            _ => failure,
        }
    }

    /// The way on for a request that has failed at an endpoint; none where it
    /// has failed for good.
    pub(crate) async fn goes_on(
        &self,
        course: &mut Course,
        Failed { failure, lost }: &Failed,
        at: usize,
        wish: RequestPriority,
        deadline: Instant,
    ) -> Option<(Permit, BudgetPermit)> {
        let another = |been: &[usize]| {
            let mut been = been.to_vec();
            if failure.is_of_host() {
                // What refuses the keys refuses them for all its base URLs.
                let host = self.endpoints[at].host();
                let all = 0..self.endpoints.len();
                been.extend(all.filter(|other| self.endpoints[*other].host() == host));
            }
            let conditions = self.conditions();
            self.choice().another(&conditions, &been)
        };
        let (keys, most) = (self.keys.count(), self.settings.retry.limit);
        let again = course.fail(failure, at, another, keys, most)?;
        // One that was turned away costs no more than a place: the limit of
        // requests under way has fallen, and it waits until it fits.
        let is_excess = matches!(failure, Failure::Excess { .. });
        let may_repeat = || is_excess || self.retries().withdraw(self.clock.now());
        let before = match again {
            NextAttempt::Here(before) => {
                let goes_on = match lost {
                    Some(connection) => connection.goes_on(may_repeat),
                    None => may_repeat(),
                };
                if !goes_on {
                    self.tally.count_unretried();
                    return None;
                }
                Some(before)
            }
            // The first time at once.
            NextAttempt::Unprocessed(before) => before.checked_sub(1),
            NextAttempt::OtherKey | NextAttempt::Elsewhere(_) => None,
        };
        if let Some(before) = before {
            let pause = pause(before, self.chance());
            if Instant::now() + pause >= deadline {
                return None;
            }
            tokio::time::sleep(pause).await;
        }
        if matches!(
            again,
            NextAttempt::Elsewhere(_) | NextAttempt::Unprocessed(_)
        ) && let Ok(admitted) = self.try_admit(wish, course)
        {
            // It has had its turn in the line, and takes nobody's place there.
            return Some(admitted);
        }
        let patience = self.settings.queue_timeout;
        let patience = patience.min(deadline.saturating_duration_since(Instant::now()));
        let admitted = self.admit(wish, course, patience).await;
        // Who may not go on is told why it failed in the first place.
        admitted.ok()
    }

    /// One attempt, and after a while another beside it, if there is much to
    /// spare; the first answer counts.
    async fn hedged(
        &self,
        target: &str,
        (passage, grant): (Permit, BudgetPermit),
        (reason, client): (SendReason, Option<Client>),
        deadline: Instant,
        after: Duration,
    ) -> Result<Answer, Failed> {
        let endpoint = passage.endpoint().clone();
        let first = self.attempt(target, passage, grant, reason, deadline);
        tokio::pin!(first);
        if let Ok(asked) = timeout(after, &mut first).await {
            return asked;
        }
        let spare = Priority::LookAhead;
        // It is one more slot of its client's.
        let beside = self.line.spare_slot(client).and_then(|slot| {
            let passage = endpoint.admit_in(spare, Some(slot)).ok()?;
            Some((passage, self.keys.take_at(endpoint.host(), spare).ok()?))
        });
        let Some((passage, grant)) = beside else {
            return first.await;
        };
        let second = self.attempt(target, passage, grant, SendReason::Hedge, deadline);
        tokio::pin!(second);
        match select(first, second).await {
            Either::Left((Ok(answer), _)) | Either::Right((Ok(answer), _)) => Ok(answer),
            // The other may yet do better.
            Either::Left((Err(_), second)) => second.await,
            Either::Right((Err(_), first)) => first.await,
        }
    }

    /// After what time a request is sent a second time; never for what nobody
    /// waits for.
    fn hedge_after(&self, wish: RequestPriority, endpoint: &Endpoint) -> Option<Duration> {
        let hedge = &self.settings.hedge;
        let is_waited_for = matches!(wish.priority, Priority::Miss | Priority::Revalidation);
        if !hedge.enabled || !is_waited_for {
            return None;
        }
        let share = f64::from(hedge.percentile.get()) / 100.0;
        let after = endpoint.quantile(share, LEAST_SAMPLES)?;
        Some(after.max(LEAST_HEDGE))
    }

    /// Sends a request, and tells the passage what came of it.
    async fn attempt(
        &self,
        target: &str,
        mut passage: Permit,
        grant: BudgetPermit,
        reason: SendReason,
        deadline: Instant,
    ) -> Result<Answer, Failed> {
        let mut refused = None;
        let endpoint = passage.endpoint().clone();
        let asked = self.ask_once(target, &mut passage, grant, reason, &mut refused);
        let asked = timeout_at(deadline, asked).await;
        let asked = asked.unwrap_or(Err(Failure::TimedOut(TimedOut::Whole)));
        let asked = asked.map_err(|failure| passage.weigh(failure, self.is_alone()));
        self.note_retirement(&passage, asked.as_ref().err());
        passage.overdue(asked.as_ref().err());
        let lost = passage.lost();
        drop(passage.end(asked.as_ref().err()));
        let Some((grant, status)) = refused else {
            return asked.map_err(|failure| Failed { failure, lost });
        };
        // Its slot is free by now.
        let weighed = self.weigh_refusal(target, &endpoint, grant, status);
        let weighed = timeout_at(deadline, weighed).await;
        Err(Failed {
            failure: weighed.unwrap_or(Failure::TargetRefused(status)),
            lost,
        })
    }

    /// Whether a target was refused or the key, which then is in quarantine.
    async fn weigh_refusal(
        &self,
        target: &str,
        endpoint: &Arc<Endpoint>,
        mut grant: BudgetPermit,
        status: StatusCode,
    ) -> Failure {
        let path = self.status_path(target);
        let refused = match grant.check_refusal(target, status, path.is_some()) {
            RefusalCheck::Send(check) => {
                let path = path.as_deref().unwrap_or(target);
                let verdict = self.check_key(path, endpoint, &mut grant).await;
                if verdict == KeyCheckResult::Accepted {
                    tracing::warn!(
                        target_path = target,
                        %status,
                        key = grant.name(),
                        "the upstream refuses a target and accepts the API key at {path}: the key stays in service"
                    );
                }
                check.finish(verdict);
                grant.refusal_cause(verdict, target, status)
            }
            RefusalCheck::Wait(mut verdict) => {
                // One that was given up has shown nothing.
                let verdict = verdict.wait_for(Option::is_some).await;
                let verdict = verdict.map_or(None, |verdict| *verdict);
                grant.refusal_cause(verdict.unwrap_or(KeyCheckResult::Unclear), target, status)
            }
            RefusalCheck::Decided(refused) => refused,
        };
        match refused {
            RefusalCause::Key => Failure::KeyRefused(status),
            RefusalCause::Target => Failure::TargetRefused(status),
        }
    }

    /// Asks a status path with the key of a request that was refused.
    async fn check_key(
        &self,
        path: &str,
        endpoint: &Arc<Endpoint>,
        grant: &mut BudgetPermit,
    ) -> KeyCheckResult {
        let patience = Instant::now() + self.settings.queue_timeout.min(KEY_CHECK);
        let grant = loop {
            match grant.renew(Priority::Miss) {
                Ok(grant) => break grant,
                Err(Denied::For(wait)) if Instant::now() + wait < patience => {
                    tokio::time::sleep(wait).await;
                }
                Err(_) => return KeyCheckResult::NotSent,
            }
        };
        // Like a probe of the tip it takes no slot.
        let Ok(mut passage) = endpoint.admit(Priority::Probe) else {
            return KeyCheckResult::NotSent;
        };
        // Stays empty: a refusal by a status path is recorded against the key.
        let (reason, mut refused) = (SendReason::KeyCheck, None);
        let asked = self.ask_once(path, &mut passage, grant, reason, &mut refused);
        let asked = timeout(KEY_CHECK, asked).await;
        let asked = asked.unwrap_or(Err(Failure::TimedOut(TimedOut::FirstByte)));
        let asked = asked.map_err(|failure| passage.weigh(failure, self.is_alone()));
        drop(passage.end(asked.as_ref().err()));
        match asked {
            Ok(answer) if answer.status == StatusCode::OK => KeyCheckResult::Accepted,
            Err(Failure::Throttled { .. }) => KeyCheckResult::Accepted,
            Err(Failure::KeyRefused(_)) => KeyCheckResult::Refused,
            Ok(_) => KeyCheckResult::NoStatus,
            Err(failure) if failure.is_answer() => KeyCheckResult::NoStatus,
            Err(_) => KeyCheckResult::Unclear,
        }
    }

    /// 410: an alarm, and others are asked.
    pub(crate) fn note_retirement(&self, passage: &Permit, failure: Option<&Failure>) {
        if failure == Some(&Failure::Retired) && passage.endpoint().retire() {
            tracing::error!(
                endpoint = passage.endpoint().name(),
                "the upstream answers 410 Gone: it has been retired, and another is needed; what is final goes on being served"
            );
        }
    }

    async fn ask_once(
        &self,
        target: &str,
        passage: &mut Permit,
        mut grant: BudgetPermit,
        reason: SendReason,
        refused: &mut RefusedTarget,
    ) -> Result<Answer, Failure> {
        let begun = self.clock.now();
        let mut request = self.request(target, passage.endpoint(), &grant)?;
        let way = SendPath::of(&mut request, self.settings.http2);
        passage.send(way.clone());
        // Several clients may wait for the answer, and none of them ends this.
        grant.detach_client();
        grant.mark_sent(way, passage.endpoint().lates());
        self.tally.send(reason);
        let head = timeout(
            self.settings.first_byte_timeout,
            self.connections.request(request),
        );
        let head = head.await;
        match &head {
            Ok(Ok(_)) => grant.mark_answered(),
            Ok(Err(error)) if is_settled(error, passage.has_ended()) => grant.mark_resolved(),
            Ok(Err(_)) | Err(_) => {}
        }
        let response = match head {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(self.failure(passage, target, &error)),
            Err(_elapsed) => return Err(Failure::TimedOut(TimedOut::FirstByte)),
        };
        passage.heard(response.status());
        let (head, body) = response.into_parts();
        let wall = self.clock.system_time();
        let judged = answer::check_head(head.status, &head.headers, wall);
        let said = limit_report::read(head.status, &head.headers, wall);
        self.unreadable
            .log(passage.endpoint().name(), &said, |value| {
                self.keys.find_key_in(value).is_some()
            });
        grant.apply_report(&said);
        match &judged {
            // A quota that is spent has its own rest.
            Ok(()) | Err(Failure::Throttled { .. } | Failure::KeyRefused(_))
                if said.quota_spent.is_some() => {}
            // No status path: it says nothing of the key.
            Ok(()) if reason == SendReason::KeyCheck && head.status != StatusCode::OK => {}
            Ok(()) => grant.mark_accepted(),
            Err(Failure::Throttled { retry_after }) => {
                grant.mark_accepted();
                grant.throttle(*retry_after);
            }
            Err(Failure::KeyRefused(status)) if self.is_status_path(target) => {
                grant.mark_refused(*status);
            }
            Err(Failure::KeyRefused(status)) => {
                *refused = Some((grant, *status));
                return Err(Failure::KeyRefused(*status));
            }
            Err(_) => {}
        }
        // The upstream has counted the request by now, so its window begins.
        drop(grant);
        if judged == Err(Failure::NotJson) {
            return Err(cause::not_json(passage, head.status, body).await);
        }
        judged?;
        let mut broken: Option<(Cause, bool)> = None;
        let body = body.map_err(|error| {
            broken = Some(self.broken_body(target, &error));
            error
        });
        let body = response_body::Framed::new(body, head.version);
        let (most, limits) = (self.settings.max_body_bytes, &self.settings.response_body);
        let read = response_body::read(body, most, limits).await;
        if let Some((cause, is_lost)) = broken {
            passage.failed_by(cause);
            if is_lost {
                passage.lose_connection();
            }
        }
        let body = read?;
        let took = self.clock.now().since(begun);
        let answer = answer::read(head.status, &head.headers, body, took)?;
        if is_no_such_route(answer.status, &answer.body) {
            let endpoint = passage.endpoint().name().into();
            return Err(Failure::NoSuchRoute { endpoint });
        }
        self.keep_secret(answer)
    }

    /// Lets an answer pass that has no key of ours in it. These two are all of
    /// an answer that is handed on; it is searched once, however often it is
    /// served.
    fn keep_secret(&self, answer: Answer) -> Result<Answer, Failure> {
        self.search([&*answer.body, answer.content_type.as_bytes()])?;
        Ok(answer)
    }

    fn request(
        &self,
        target: &str,
        endpoint: &Endpoint,
        grant: &BudgetPermit,
    ) -> Result<Request<RequestBody>, Failure> {
        let mut request = Request::new(no_body());
        *request.uri_mut() = endpoint.uri(target)?;
        let fields = request.headers_mut();
        fields.insert(ACCEPT, HeaderValue::from_static("application/json"));
        // No codings are undone here, so none may come.
        fields.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        fields.insert(
            USER_AGENT,
            HeaderValue::from_static(concat!("ordgate/", env!("CARGO_PKG_VERSION"))),
        );
        if let Some(via) = self.via.get() {
            fields.insert(VIA, via.clone());
        }
        self.add_key(grant, fields);
        Ok(request)
    }
}
