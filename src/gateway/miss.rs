//! A miss: what memory cannot answer. It is fetched; where that fails, takes too long or
//! is over the client's limit, a stale response may answer. The same for all routes.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use http::{Response, StatusCode};
use tokio::time::Instant;

use super::Gateway;
use super::request::RequestRef;
use crate::cache::JudgedResponse;
use crate::cache::outcome::{HitSource, Outcome};
use crate::chain::Freshness;
use crate::collapse::Wait;
use crate::fill::{Answer, AnswerSource, Fetch, FillAnswer};
use crate::meter::RequestKind;
use crate::reason::Reason;
use crate::trace;
use crate::trace::steps::UpstreamStep;
use crate::upstream::{Failure, RequestBody};
use crate::wire::Body;

impl Gateway {
    /// Fetches, and answers with the result or with a stale response.
    pub(super) async fn answer_miss(
        &self,
        request: RequestRef<'_>,
        fetch: &Arc<Fetch>,
        body: Option<RequestBody>,
    ) -> Response<Body> {
        let context = request.context;
        let (client, joins) = (context.client(), fetch.joins());
        let admitted = self.clients.admit_miss(client, joins, self.clock.now());
        let is_counted = admitted.is_ok() && !joins;
        let stale = |reason| {
            let stale = fetch.stale()?;
            let ttl = stale.ttl();
            let answer = Answer::Stored(FillAnswer {
                stored: stale.stored,
                from: AnswerSource::Memory,
            });
            Some((answer, Outcome::StaleIfError { ttl, reason }))
        };
        let answered = match admitted {
            Err(refusal) if !self.fill.requests(fetch.key()).is_empty() => {
                let stale = stale(refusal.reason);
                self.clients.count_limited(stale.is_some());
                stale.ok_or((refusal, None))
            }
            _ => {
                let fetched = self.await_answer(fetch, body).await;
                let collapsed = !fetch.has_led.load(Relaxed);
                let fetched = fetched.map(|answer| {
                    let outcome = self.outcome(fetch, &answer, collapsed);
                    (answer, outcome)
                });
                let is_sent = match &fetched {
                    Ok((_, outcome)) => outcome.is_sent(),
                    Err(_) => !collapsed,
                };
                let now = self.clock.now();
                self.clients.correct_miss(client, is_counted, is_sent, now);
                fetched.or_else(|failure| {
                    let stale = stale(failure.reason);
                    let outcome = Outcome::Forwarded {
                        why: fetch.why,
                        status: failure.received,
                        stored: false,
                        collapsed,
                    };
                    stale.ok_or((failure.into(), Some(outcome)))
                })
            }
        };
        let (response, kind, took) = match answered {
            Ok((answer, outcome)) => {
                let took = match (&answer, outcome) {
                    (_, Outcome::StaleIfError { .. }) => None,
                    (Answer::Stored(found), _) => Some(found.stored.took),
                    (Answer::Coming(..) | Answer::Passed(..), _) => None,
                };
                let response = self.render_answer(request, fetch, (answer, outcome));
                if fetch.is_plain() && response.status().is_server_error() {
                    self.record_passed_error(request, response.status());
                }
                (response, RequestKind::Answer(outcome), took)
            }
            Err((refusal, outcome)) => {
                let response = self.render_refusal(request, &refusal, outcome);
                let reason = refusal.reason;
                let kind = match outcome {
                    Some(outcome) => RequestKind::Failure(outcome, reason),
                    None => RequestKind::Refusal(reason),
                };
                (response, kind, None)
            }
        };
        trace::set("ordgate.cache", kind.name());
        if let Some(reason) = kind.reason() {
            trace::set("ordgate.reason", reason.name());
        }
        let took = trace::step_durations()[UpstreamStep::Upstream as usize].or(took);
        self.finish(request, kind, took, response)
    }

    /// Fetches. Where a stale response may answer, the wait is short: there is none if the fetch
    /// cannot be sent now or has just failed, but it keeps its place in the queue.
    async fn await_answer(
        &self,
        fetch: &Arc<Fetch>,
        body: Option<RequestBody>,
    ) -> Result<Answer, Failure> {
        let arrived = Instant::now();
        let has_stale = || fetch.stale().is_some();
        if body.is_none() && has_stale() {
            let upstream = self.upstreams.get(fetch.route().upstream.number);
            if let Some(why) = upstream.held(fetch.priority.client) {
                fetch.refresh();
                return Err(why);
            }
            let wait = Wait {
                deadline: arrived + self.stale_wait,
                // If another request has waited for as long already, the upstream is slow:
                // there is no point in waiting for it again.
                since_began: Some(self.stale_wait),
            };
            match fetch.answer(None, wait).await {
                // The wait was cut short for a response that may no longer answer.
                Err(why) if why.reason == Reason::UpstreamTimeout && !has_stale() => {}
                fetched => return fetched,
            }
        }
        let wait = Wait::until(arrived + self.fill.longest_wait(fetch.key()));
        fetch.answer(body, wait).await
    }

    /// How an answer came about.
    fn outcome(&self, fetch: &Fetch, answer: &Answer, collapsed: bool) -> Outcome {
        let sent = |status, stored| Outcome::Forwarded {
            why: fetch.why,
            status: Some(status),
            stored,
            collapsed,
        };
        let found = match answer {
            Answer::Stored(found) | Answer::Coming(found, ..) => found,
            Answer::Passed(status, ..) => return sent(*status, false),
        };
        let ttl = self.judge(found).ttl();
        let hit = |from| Outcome::Hit { ttl, from };
        match found.from {
            AnswerSource::Unconfirmed => Outcome::StaleIfError {
                ttl,
                reason: Reason::Unconfirmed,
            },
            AnswerSource::Disk => hit(HitSource::Disk),
            AnswerSource::Shared => hit(HitSource::Shared),
            // It was made of stored responses.
            AnswerSource::Memory => hit(HitSource::Memory),
            AnswerSource::Upstream { stored } => sent(found.stored.status, stored),
            AnswerSource::Validated { stored } => sent(StatusCode::NOT_MODIFIED, stored),
        }
    }

    /// How fresh an answer is.
    fn judge(&self, found: &FillAnswer) -> JudgedResponse {
        let now = self.clock.now();
        let mut judged = self.cache.judged(found.stored.clone(), now);
        if found.from == AnswerSource::Unconfirmed {
            let by = self.fill.running_for();
            judged.freshness = Freshness::Stale { by };
            judged.age = now.since(judged.stored.received);
        }
        judged
    }

    fn render_answer(
        &self,
        request: RequestRef<'_>,
        fetch: &Fetch,
        (answer, outcome): (Answer, Outcome),
    ) -> Response<Body> {
        let mut fields = request.context.for_response(&self.clients, request.fields);
        fields.headers = fetch.route().headers;
        let fields = &fields;
        let (key, now) = (fetch.lookup.requested(), self.clock.now());
        let mut response = match answer {
            Answer::Stored(found) => {
                // Its compressed body is looked for under the key by which it is stored.
                let key = self.fill.own_key(key, &found.stored);
                let JudgedResponse { stored, age, .. } = self.judge(&found);
                (self.responder).stored(&stored, &key, outcome, fields, age)
            }
            Answer::Coming(found, body) => {
                let stored = found.stored;
                let age = self.cache.judge(&stored, now).1;
                (self.responder).coming(&stored, body, (key, outcome), fields, age)
            }
            Answer::Passed(status, origin, body) => {
                (self.responder).passed((status, origin, body), outcome, fields)
            }
        };
        if let Body::Streamed(reader) = response.body_mut() {
            // While the body is sent, the connection is not idle.
            reader.serve(&request.session.activity);
        }
        fetch.route().disarm(&mut response);
        response
    }
}
