//! A miss: what memory cannot answer. It is fetched; where that fails, takes too long or
//! is over the client's limit, a stale response may answer. The same for all routes.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Response, StatusCode};
use tokio::time::Instant;

use super::{Gateway, RequestContext, RequestRef, Session};
use crate::cache::JudgedResponse;
use crate::cache::key::Key;
use crate::cache::outcome::{Forward, Outcome};
use crate::chain::Freshness;
use crate::collapse::Wait;
use crate::fill::{AnswerSource, FillAnswer, FillResult, LookupKey};
use crate::identify::Client;
use crate::meter::RequestKind;
use crate::reason::Reason;
use crate::refusal::Refusal;
use crate::relay;
use crate::respond::ResponseContext;
use crate::route::HeaderMode;
use crate::upstream::{Failure, Priority, RequestBody, RequestPriority};
use crate::wire::Body;

/// What is to be fetched.
pub(super) enum Miss {
    /// On a route in mode `chain`, `override` or `off`.
    Typed(TypedMiss),
    /// On a plain route.
    Plain(Arc<relay::Fetch>),
}

/// A miss on a route in mode `chain`, `override` or `off`.
pub(super) struct TypedMiss {
    /// The key to fetch by.
    pub(super) lookup: LookupKey,
    /// Why memory does not answer.
    pub(super) why: Forward,
    /// A stale response that may answer where the fetch fails.
    pub(super) stale: Option<JudgedResponse>,
    pub(super) priority: RequestPriority,
}

/// An answer to a miss.
enum Answered {
    /// A stored response, which is to be rendered.
    Stored(JudgedResponse, Outcome),
    /// A response with its origin's fields.
    Response(Response<Body>, Outcome),
}

impl Answered {
    fn outcome(&self) -> Outcome {
        match self {
            Self::Stored(_, outcome) | Self::Response(_, outcome) => *outcome,
        }
    }

    /// How long the upstream took, where that is known of the stored response.
    fn took(&self) -> Option<Duration> {
        match self {
            Self::Stored(_, Outcome::StaleIfError { .. }) | Self::Response(..) => None,
            Self::Stored(judged, _) => Some(judged.stored.took),
        }
    }
}

impl TypedMiss {
    fn bypasses(&self) -> bool {
        self.why == Forward::Bypass
    }

    /// The key of the client's request.
    fn requested(&self) -> &Key {
        self.lookup.by_hash.as_ref().unwrap_or(&self.lookup.key)
    }
}

impl Miss {
    /// The key of the client's request.
    pub(super) fn requested(&self) -> &Key {
        match self {
            Self::Typed(miss) => miss.requested(),
            Self::Plain(fetch) => &fetch.request.key,
        }
    }

    fn why(&self) -> Forward {
        match self {
            Self::Typed(miss) => miss.why,
            Self::Plain(fetch) => fetch.why,
        }
    }

    /// Whether a fetch is under way that it would wait for.
    fn joins(&self, gateway: &Gateway) -> bool {
        match self {
            Self::Typed(miss) => !miss.bypasses() && gateway.fill.is_under_way(&miss.lookup.key),
            Self::Plain(fetch) => fetch.joins(),
        }
    }

    /// Whether a request goes to the upstream for it.
    fn is_sent(&self, gateway: &Gateway) -> bool {
        match self {
            Self::Typed(miss) => {
                let key = &miss.lookup.key;
                miss.bypasses() || !gateway.fill.requests(key).is_empty()
            }
            Self::Plain(_) => true,
        }
    }

    /// The stale response that may answer though the upstream has not, for a reason; it may
    /// have answered with an error status. Not one that was purged meanwhile, or whose
    /// height and hash a reorg has separated.
    fn stale(
        &self,
        gateway: &Gateway,
        received: Option<StatusCode>,
        reason: Reason,
    ) -> Option<Answered> {
        match self {
            Self::Typed(miss) => {
                let (key, stale) = (&miss.lookup.key, miss.stale.as_ref()?);
                let is_usable = gateway.fill.is_answer(&miss.lookup, &stale.stored)
                    && !(gateway.cache.store()).response_was_purged(key, &stale.stored);
                let ttl = stale.ttl();
                let outcome = Outcome::StaleIfError { ttl, reason };
                is_usable.then(|| Answered::Stored(stale.clone(), outcome))
            }
            Self::Plain(fetch) => {
                let (response, outcome) = fetch.stale(received, reason)?;
                Some(Answered::Response(response, outcome))
            }
        }
    }

    /// Fetches for nobody in particular, unless a fetch is under way.
    fn refresh(&self, gateway: &Gateway) {
        match self {
            Self::Typed(miss) => gateway.fill.refresh(&miss.lookup.key, miss.priority),
            Self::Plain(fetch) => drop(tokio::spawn(fetch.clone().refresh())),
        }
    }
}

impl Gateway {
    /// Fetches, and answers with the result or with a stale response. `fields` are those
    /// of the request that the response still depends on.
    pub(super) async fn answer_miss(
        &self,
        session: &Session,
        (context, uri): RequestRef<'_>,
        (miss, body): (Miss, Option<RequestBody>),
        fields: HeaderMap,
    ) -> Response<Body> {
        let (client, joins) = (context.client(), miss.joins(self));
        let admitted = self.clients.admit_miss(client, joins, self.clock.now());
        let is_counted = admitted.is_ok() && !joins;
        let answered = match admitted {
            Err(refusal) if miss.is_sent(self) => {
                let stale = miss.stale(self, None, refusal.reason());
                self.clients.count_limited(stale.is_some());
                stale.ok_or((refusal, None))
            }
            _ => {
                let (fetched, collapsed) = self.fetch(&miss, body, client).await;
                let is_sent = match &fetched {
                    Ok(answered) => answered.outcome().is_sent(),
                    Err(_) => !collapsed,
                };
                let now = self.clock.now();
                self.clients.correct_miss(client, is_counted, is_sent, now);
                fetched.or_else(|failure| {
                    let stale = miss.stale(self, failure.received, failure.reason);
                    let outcome = Outcome::Forwarded {
                        why: miss.why(),
                        status: failure.received,
                        stored: false,
                        collapsed,
                    };
                    stale.ok_or((Refusal::Upstream(failure), Some(outcome)))
                })
            }
        };
        session.activity.record(self.clock.now());
        let for_response = context.for_response(&self.clients, &fields);
        let (response, kind, took) = match answered {
            Ok(answered) => {
                let (outcome, took) = (answered.outcome(), answered.took());
                let response = self.render_answered(session, &miss, answered, &for_response);
                if matches!(miss, Miss::Plain(_)) && response.status().is_server_error() {
                    let why = "the upstream's own answer, passed on as it is";
                    let why = (Reason::UpstreamAnswer, why);
                    self.record_error((context, uri), &fields, response.status(), why);
                }
                (response, RequestKind::Answer(outcome), took)
            }
            Err((refusal, outcome)) => {
                let response =
                    self.render_refusal(&refusal, outcome, (context, uri), &for_response);
                let reason = refusal.reason();
                let kind = match outcome {
                    Some(outcome) => RequestKind::Failure(outcome, reason),
                    None => RequestKind::Refusal(reason),
                };
                (response, kind, None)
            }
        };
        self.finish_waiting(session, context, kind, took, response)
    }

    /// Fetches, and says whether another request's fetch was joined. Where a stale response
    /// may answer, the wait is short: there is none if the fetch cannot be sent now or has
    /// just failed, but it keeps its place in the queue.
    async fn fetch(
        &self,
        miss: &Miss,
        mut body: Option<RequestBody>,
        client: Client,
    ) -> (Result<Answered, Failure>, bool) {
        let arrived = Instant::now();
        let has_stale = || miss.stale(self, None, Reason::UpstreamTimeout).is_some();
        if body.is_none() && has_stale() {
            if !miss.joins(self)
                && let Some(why) = self.held(miss, client)
            {
                miss.refresh(self);
                return (Err(why), false);
            }
            let wait = Wait {
                deadline: arrived + self.stale_wait,
                // If another request has waited for as long already, the upstream is slow:
                // there is no point in waiting for it again.
                since_began: Some(self.stale_wait),
            };
            match self.fetch_within(miss, None, wait).await {
                // The wait was cut short for a response that may no longer answer.
                (Err(why), _) if why.reason == Reason::UpstreamTimeout && !has_stale() => {}
                fetched => return fetched,
            }
        }
        let wait = Wait::until(arrived + self.fill.longest_wait(miss.requested()));
        self.fetch_within(miss, body.take(), wait).await
    }

    /// Why a fetch could not be sent now, or how the last one has failed.
    fn held(&self, miss: &Miss, client: Client) -> Option<Failure> {
        let key = match miss {
            Miss::Typed(miss) => &miss.lookup.key,
            Miss::Plain(_) => miss.requested(),
        };
        let upstream = self.route(key).map_or(0, |route| route.upstream.number);
        let failed = self.fill.last_failure(key);
        failed.or_else(|| self.upstreams.get(upstream).held(Some(client)))
    }

    async fn fetch_within(
        &self,
        miss: &Miss,
        body: Option<RequestBody>,
        wait: Wait,
    ) -> (Result<Answered, Failure>, bool) {
        let miss = match miss {
            Miss::Typed(miss) => miss,
            Miss::Plain(fetch) => {
                let (result, collapsed) = fetch.run(body, wait).await;
                let answer = |(response, outcome)| Answered::Response(response, outcome);
                return (result.map(answer), collapsed);
            }
        };
        let (fill, key, priority) = (&self.fill, &miss.lookup.key, miss.priority);
        if miss.bypasses() {
            let found = fill.fetch_unshared(key, priority).await;
            return (self.answered(miss, found, false), false);
        }
        let (mut found, mut collapsed) = fill.answer(key, wait, priority).await;
        if let (Ok(answer), Some(by_hash)) = (&found, &miss.lookup.by_hash)
            && !fill.is_answer(&miss.lookup, &answer.stored)
        {
            // Another block has this height by now: fetch by the hash.
            (found, collapsed) = fill.answer(by_hash, wait, priority).await;
        }
        (self.answered(miss, found, collapsed), collapsed)
    }

    /// What the fill has found, with its outcome.
    fn answered(
        &self,
        miss: &TypedMiss,
        found: FillResult,
        collapsed: bool,
    ) -> Result<Answered, Failure> {
        let FillAnswer { stored, from } = found?;
        let freshness = match from {
            AnswerSource::Unconfirmed => Freshness::Stale {
                by: self.fill.running_for(),
            },
            AnswerSource::Memory
            | AnswerSource::Disk
            | AnswerSource::Shared
            | AnswerSource::Upstream { .. } => self.cache.judge(&stored, self.clock.now()),
        };
        let judged = JudgedResponse { stored, freshness };
        let ttl = judged.ttl();
        let outcome = match from {
            AnswerSource::Unconfirmed => Outcome::StaleIfError {
                ttl,
                reason: Reason::Unconfirmed,
            },
            AnswerSource::Disk => Outcome::FromDisk { ttl },
            AnswerSource::Shared => Outcome::FromShared { ttl },
            // It was made of stored responses.
            AnswerSource::Memory => Outcome::Hit { ttl },
            AnswerSource::Upstream { stored } => Outcome::Forwarded {
                why: miss.why,
                status: Some(judged.stored.status),
                stored,
                collapsed,
            },
        };
        Ok(Answered::Stored(judged, outcome))
    }

    fn render_answered(
        &self,
        session: &Session,
        miss: &Miss,
        answered: Answered,
        fields: &ResponseContext<'_>,
    ) -> Response<Body> {
        let key = miss.requested();
        match answered {
            Answered::Stored(judged, outcome) => {
                // Its compressed body is looked for under the key by which it is stored.
                let key = self.fill.stored_key(key, &judged.stored);
                self.render(judged, &key, outcome, fields, self.clock.now())
            }
            Answered::Response(mut response, outcome) => {
                if let Body::Streamed(reader) = response.body_mut() {
                    // While the body is sent, the connection is not idle.
                    reader.serve(&session.activity);
                }
                let route = self.route(key);
                if route.is_some_and(|route| route.headers == HeaderMode::Typed) {
                    let own = response.headers_mut();
                    self.responder.add_own_fields(own, outcome, fields);
                }
                response
            }
        }
    }

    /// How urgent a typed miss is.
    pub(super) fn miss_priority(
        &self,
        context: &RequestContext,
        key: &Key,
        stale: Option<&JudgedResponse>,
    ) -> RequestPriority {
        // A stale response that may soon no longer answer is as urgent as none.
        let may_wait = stale.is_some_and(|stale| {
            let route = self.route(key);
            let bound = route.map_or(Duration::ZERO, |route| route.cache.stale_if_error);
            stale.staleness() < bound / 2
        });
        context.priority(match may_wait {
            true => Priority::Revalidation,
            false => Priority::Miss,
        })
    }
}
