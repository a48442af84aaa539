//! A miss: what memory cannot answer, on a route in mode `chain`, `override` or
//! `off`. The fill fetches it. Where that fails, is over the client's limit, or takes too long, a stale
//! response may answer.

use std::time::Duration;

use http::{HeaderMap, Response};
use tokio::time::Instant;

use super::{Gateway, RequestContext, RequestRef, Session};
use crate::cache::JudgedResponse;
use crate::cache::key::Key;
use crate::cache::outcome::Outcome;
use crate::cache::status::Forward;
use crate::chain::Freshness;
use crate::clock::Moment;
use crate::collapse::Wait;
use crate::fill::{AnswerSource, FillAnswer, FillResult, LookupKey};
use crate::meter::RequestKind;
use crate::reason::Reason;
use crate::refusal::Refusal;
use crate::respond::ResponseContext;
use crate::upstream::{Priority, RequestPriority};
use crate::wire::Body;

/// What is to be fetched.
pub(super) struct Miss {
    /// The key to fetch by.
    pub(super) lookup: LookupKey,
    /// Why memory does not answer.
    pub(super) why: Forward,
    /// A stale response that may answer where the fetch fails.
    pub(super) stale: Option<JudgedResponse>,
}

/// What came of fetching.
struct Fetched {
    result: FillResult,
    /// Whether the request joined the fetch of another.
    collapsed: bool,
    /// The stale response, where it may still answer.
    stale: Option<JudgedResponse>,
}

impl Miss {
    /// The key of the client's request.
    pub(super) fn requested(&self) -> &Key {
        self.lookup.by_hash.as_ref().unwrap_or(&self.lookup.key)
    }

    fn bypasses(&self) -> bool {
        self.why == Forward::Bypass
    }
}

impl Gateway {
    /// Fetches, and answers with the result or with the stale response. `fields`
    /// are the request's.
    pub(super) async fn answer_miss(
        &self,
        session: &Session,
        (context, uri): RequestRef<'_>,
        mut miss: Miss,
        fields: HeaderMap,
    ) -> Response<Body> {
        let arrived = Instant::now();
        let (client, key) = (context.client(), &miss.lookup.key);
        let joins = !miss.bypasses() && self.fill.collapse.has(key.as_bytes());
        let admitted = self.clients.admit_miss(client, joins, self.clock.now());
        let is_counted = admitted.is_ok() && !joins;
        if let Err(refusal) = admitted
            && (miss.bypasses() || self.fill.plan(key).fetches())
        {
            return self.answer_over_limit(session, (context, uri), miss, &refusal, &fields);
        }
        let priority = self.priority(context, &miss);
        let stale = miss.stale.take();
        let fetched = self.fetch(&miss, stale, arrived, priority).await;
        let is_kept = (fetched.result.as_ref())
            .is_ok_and(|found| !matches!(found.from, AnswerSource::Upstream { .. }));
        if is_counted && (fetched.collapsed || is_kept) {
            self.clients.refund_miss(client);
        }
        let now = self.clock.now();
        session.activity.record(now);
        let took = match &fetched.result {
            Ok(found) => Some(found.stored.took),
            Err(_) => None,
        };
        let for_response = context.for_response(&self.clients, &fields);
        let (response, kind) =
            self.render_fetched((context, uri), &miss, fetched, &for_response, now);
        self.finish_waiting(session, context, kind, took, response)
    }

    /// Answers a request over its client's limit on misses: with the stale
    /// response, or with the refusal.
    fn answer_over_limit(
        &self,
        session: &Session,
        request: RequestRef<'_>,
        mut miss: Miss,
        refusal: &Refusal,
        fields: &HeaderMap,
    ) -> Response<Body> {
        let (context, now) = (request.0, self.clock.now());
        let for_response = context.for_response(&self.clients, fields);
        let stale = miss.stale.take();
        self.clients.count_limited(stale.is_some());
        let (response, kind) = match stale {
            Some(stale) => self.render_stale(&miss, stale, refusal.reason(), &for_response, now),
            None => {
                let response = self.render_refusal(refusal, None, request, &for_response);
                (response, RequestKind::Refusal(refusal.reason()))
            }
        };
        self.finish_waiting(session, context, kind, None, response)
    }

    /// How urgent a miss is.
    fn priority(&self, context: &RequestContext, miss: &Miss) -> RequestPriority {
        // A stale response that may soon no longer answer is as urgent as none.
        let may_wait = miss.stale.as_ref().is_some_and(|stale| {
            let route = self.route(&miss.lookup.key);
            let bound = route.map_or(Duration::ZERO, |route| route.cache.stale_if_error);
            stale.staleness() < bound / 2
        });
        let priority = match may_wait {
            true => Priority::Revalidation,
            false => Priority::Miss,
        };
        context.priority(priority)
    }

    async fn fetch(
        &self,
        miss: &Miss,
        stale: Option<JudgedResponse>,
        arrived: Instant,
        priority: RequestPriority,
    ) -> Fetched {
        let key = &miss.lookup.key;
        if miss.bypasses() {
            return Fetched {
                result: self.fill.fetch_unshared(key, priority).await,
                collapsed: false,
                stale: None,
            };
        }
        match stale {
            Some(stale) => {
                self.fetch_or_stale(&miss.lookup, stale, arrived, priority)
                    .await
            }
            None => {
                let wait = Wait::until(arrived + self.fill.longest_wait(key));
                let (result, collapsed) = self.answer_by(&miss.lookup, wait, priority).await;
                Fetched {
                    result,
                    collapsed,
                    stale: None,
                }
            }
        }
    }

    /// Fetches the response to a request within a time. Returns whether it joined
    /// the fetch of another as well.
    async fn answer_by(
        &self,
        lookup: &LookupKey,
        wait: Wait,
        priority: RequestPriority,
    ) -> (FillResult, bool) {
        let (result, collapsed) = self.fill.answer(&lookup.key, wait, priority).await;
        match (&result, &lookup.by_hash) {
            // Another block has this height by now: fetch by the hash.
            (Ok(found), Some(by_hash)) if !self.fill.is_answer(lookup, &found.stored) => {
                self.fill.answer(by_hash, wait, priority).await
            }
            (Ok(_) | Err(_), _) => (result, collapsed),
        }
    }

    /// Fetches where a stale response may answer, so that the wait is shorter.
    /// The stale response is dropped if it was purged meanwhile, or if a reorg
    /// has separated the height and the hash of its block.
    async fn fetch_or_stale(
        &self,
        lookup: &LookupKey,
        stale: JudgedResponse,
        arrived: Instant,
        priority: RequestPriority,
    ) -> Fetched {
        if let Some(why) = self.fill.refresh_if_held(&lookup.key, priority) {
            return Fetched {
                result: Err(why),
                collapsed: false,
                stale: Some(stale),
            };
        }
        let wait_for_fresh = self.stale_wait;
        // If another request has waited for as long already, the upstream is
        // slow: there is no point in waiting for it again.
        let wait = Wait {
            deadline: arrived + wait_for_fresh,
            since_began: Some(wait_for_fresh),
        };
        let (result, collapsed) = self.answer_by(lookup, wait, priority).await;
        let is_purged = self
            .cache
            .store()
            .response_was_purged(&lookup.key, &stale.stored);
        if self.fill.is_answer(lookup, &stale.stored) && !is_purged {
            return Fetched {
                result,
                collapsed,
                stale: Some(stale),
            };
        }
        let (result, collapsed) = match result {
            // The wait was cut short for a response that may no longer answer.
            Err(failure) if failure.reason == Reason::UpstreamTimeout => {
                let wait = Wait::until(arrived + self.fill.longest_wait(&lookup.key));
                let priority = RequestPriority {
                    priority: Priority::Miss,
                    ..priority
                };
                self.answer_by(lookup, wait, priority).await
            }
            Ok(_) | Err(_) => (result, collapsed),
        };
        Fetched {
            result,
            collapsed,
            stale: None,
        }
    }

    fn render_fetched(
        &self,
        request: RequestRef<'_>,
        miss: &Miss,
        fetched: Fetched,
        fields: &ResponseContext<'_>,
        now: Moment,
    ) -> (Response<Body>, RequestKind) {
        let forwarded = |status, stored| Outcome::Forwarded {
            why: miss.why,
            status,
            stored,
            collapsed: fetched.collapsed,
        };
        match (fetched.result, fetched.stale) {
            (Ok(FillAnswer { stored, from }), _) => {
                let freshness = match from {
                    AnswerSource::Unconfirmed => Freshness::Stale {
                        by: self.fill.running_for(),
                    },
                    AnswerSource::Memory
                    | AnswerSource::Disk
                    | AnswerSource::Shared
                    | AnswerSource::Upstream { .. } => self.cache.judge(&stored, now),
                };
                let judged = JudgedResponse { stored, freshness };
                let outcome = match from {
                    AnswerSource::Unconfirmed => {
                        return self.render_stale(miss, judged, Reason::Unconfirmed, fields, now);
                    }
                    AnswerSource::Disk => Outcome::FromDisk { ttl: judged.ttl() },
                    AnswerSource::Shared => Outcome::FromShared { ttl: judged.ttl() },
                    AnswerSource::Upstream { stored } => {
                        forwarded(Some(judged.stored.status), stored)
                    }
                    // It was made of stored responses.
                    AnswerSource::Memory => Outcome::Hit { ttl: judged.ttl() },
                };
                let response = self.render_miss(judged, miss, outcome, fields, now);
                (response, RequestKind::Answer(outcome))
            }
            // RFC 5861 §4.
            (Err(failure), Some(stale)) => {
                self.render_stale(miss, stale, failure.reason, fields, now)
            }
            (Err(failure), None) => {
                let outcome = forwarded(failure.received, false);
                let refusal = Refusal::Upstream(failure);
                let response = self.render_refusal(&refusal, Some(outcome), request, fields);
                (response, RequestKind::Failure(outcome, refusal.reason()))
            }
        }
    }

    fn render_stale(
        &self,
        miss: &Miss,
        stale: JudgedResponse,
        reason: Reason,
        fields: &ResponseContext<'_>,
        now: Moment,
    ) -> (Response<Body>, RequestKind) {
        let ttl = stale.ttl();
        let outcome = Outcome::StaleIfError { ttl, reason };
        let response = self.render_miss(stale, miss, outcome, fields, now);
        (response, RequestKind::Answer(outcome))
    }

    /// Renders the response to a miss.
    pub(super) fn render_miss(
        &self,
        judged: JudgedResponse,
        miss: &Miss,
        outcome: Outcome,
        fields: &ResponseContext<'_>,
        now: Moment,
    ) -> Response<Body> {
        // Its compressed body is looked for under the key by which it is stored.
        let key = self.fill.stored_key(miss.requested(), &judged.stored);
        self.render(judged, &key, outcome, fields, now)
    }
}
