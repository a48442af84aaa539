//! One request to the upstream, and the stored response that may be used where
//! it fails.

use std::sync::Arc;
use std::time::SystemTime;

use http::{Method, Response, StatusCode};
use tokio::time::Instant;

use super::request_fields::RequestFields;
use super::serve::serve;
use super::shared::Announced;
use super::{ExchangeRecord, Fetch, Relay, RelayAnswer, RelayResult, forwarded};
use crate::cache::decision::stale_bounds;
use crate::cache::directives::RequestDirectives;
use crate::cache::outcome::Outcome;
use crate::cache::reuse::{Origin, Reuse, may_reuse};
use crate::cache::variant::Variant;
use crate::collapse::Lead;
use crate::reason::Reason;
use crate::refusal::Refusal;
use crate::route::{HeaderMode, Route};
use crate::upstream::{Failure, Priority, RequestBody, RequestPriority};
use crate::wire::Body;

impl Fetch {
    /// Whether another request for the same response is under way, which this
    /// one would wait for.
    pub(crate) fn joins(&self, relay: &Relay) -> bool {
        let route = relay.routes.get(self.request.key.route());
        let key = route.and_then(|route| self.shared_key(relay, route, None));
        key.is_some_and(|key| relay.state.fetching.has(&key))
    }

    /// The stored response that may be served stale because no request to the
    /// upstream is possible, and why it is not.
    pub(crate) fn stale(&self, relay: &Relay, reason: Reason) -> Option<(Response<Body>, Outcome)> {
        let route = relay.routes.get(self.request.key.route())?;
        let answer = self.stale_if_error(relay, route, Origin::Disconnected, reason)?;
        Some((answer.response, answer.outcome))
    }

    /// Gets the response from the upstream: collapsed with other requests where
    /// one response may answer all, alone otherwise.
    ///
    /// # Errors
    /// Why the upstream failed, if no stored response may be used instead.
    pub(crate) async fn run(
        mut self,
        relay: &Arc<Relay>,
    ) -> Result<(Response<Body>, Outcome), (Refusal, Outcome)> {
        let deadline = Instant::now() + relay.max_wait(&self.request.key);
        let body = self.request.body.take();
        let result = match body {
            None => Arc::new(self).share(relay, deadline).await,
            Some(_) => match relay.routes.get(self.request.key.route()) {
                Some(route) => self.forward(relay, route, body, false, &mut None).await,
                None => Err((
                    Failure::new(Reason::Internal),
                    forwarded(self.why, None, false, false),
                )),
            },
        };
        match result {
            Ok(answer) => Ok((answer.response, answer.outcome)),
            Err((failure, outcome)) => Err((Refusal::Upstream(failure), outcome)),
        }
    }

    /// Sends the request and applies the rules to the answer. A leader announces
    /// an answer that is stored while it is sent as soon as its head has come.
    pub(super) async fn forward(
        &self,
        relay: &Arc<Relay>,
        route: &Route,
        body: Option<RequestBody>,
        unconditional: bool,
        lead: &mut Option<Lead<Announced>>,
    ) -> RelayResult {
        let had_body = body.is_some();
        let RequestFields { fields, validates } =
            self.request_fields(relay, route, unconditional, had_body);
        let method = match route.headers {
            // A HEAD costs the upstream as much as a GET.
            HeaderMode::Typed => Method::GET,
            HeaderMode::All => self.request.method.clone(),
        };
        let priority = match self.to_validate {
            Some(_) => Priority::Revalidation,
            None => Priority::Miss,
        };
        let priority = RequestPriority::of(self.request.client, priority)
            .caused_by(self.request.request_id)
            .on_route(route.number);
        // Whether a body is JSON is known only at its end.
        let max_body = (route.headers == HeaderMode::Typed).then(|| relay.max_stored(route));
        let sequence = relay.cache.store().sequence();
        let requested = relay.clock.wall(relay.clock.now());
        let target = self.request.key.target();
        let forwarded = relay
            .upstreams
            .client(route.upstream.number)
            .forward(method, target, fields, body, priority, max_body)
            .await;
        let times = ExchangeRecord {
            sequence,
            requested,
            received: relay.clock.wall(relay.clock.now()),
        };
        let answer = match forwarded {
            Ok(answer) => answer,
            Err(failure) => return self.failed(relay, route, failure, Origin::Disconnected),
        };
        if !validates || answer.head.status != StatusCode::NOT_MODIFIED {
            if Origin::after(answer.head.status) == Origin::Failed
                && let Some(stale) =
                    self.stale_if_error(relay, route, Origin::Failed, Reason::ServerError)
            {
                return Ok(stale);
            }
            return self.receive(relay, route, answer, times, lead).await;
        }
        match self.apply_not_modified(relay, route, &answer.head, times) {
            Some(answer) => Ok(answer),
            // The 304 is about a response that is not stored (any more).
            None if !unconditional && !had_body => {
                Box::pin(self.forward(relay, route, None, true, lead)).await
            }
            None => self.failed(relay, route, Failure::new(Reason::NotHttp), Origin::Failed),
        }
    }

    /// A stale stored response in place of an answer, where the rules and the
    /// bounds allow it (RFC 5861 §4, RFC 9111 §4.2.4).
    pub(super) fn stale_if_error(
        &self,
        relay: &Relay,
        route: &Route,
        origin: Origin,
        reason: Reason,
    ) -> Option<RelayAnswer> {
        let chosen = self.to_validate.as_ref()?;
        let now = relay.clock.wall(relay.clock.now());
        let directives = RequestDirectives::of(&self.request.fields);
        let bounds = stale_bounds(&route.cache);
        let reuse = may_reuse(&directives, &chosen.reuse, now, origin, &bounds);
        if reuse != Ok(Reuse::IfError) {
            return None;
        }
        let outcome = Outcome::StaleIfError {
            ttl: chosen.reuse.ttl(now),
            reason,
        };
        let announced = Announced::Failed(None, origin, reason);
        Some(self.answer_from(relay, route, chosen, outcome, now, announced))
    }

    /// A response to this request from a stored one.
    pub(super) fn answer_from(
        &self,
        relay: &Relay,
        route: &Route,
        variant: &Variant,
        outcome: Outcome,
        now: SystemTime,
        announced: Announced,
    ) -> RelayAnswer {
        let (method, fields) = (&self.request.method, &self.request.fields);
        let (client, key) = (self.request.client, &self.request.key);
        RelayAnswer {
            response: serve(
                relay, route, variant, method, fields, client, key, outcome, now,
            ),
            outcome,
            announced,
        }
    }

    /// A stale stored response where that is allowed, the failure otherwise.
    pub(super) fn failed(
        &self,
        relay: &Relay,
        route: &Route,
        failure: Failure,
        origin: Origin,
    ) -> RelayResult {
        failure.report(self.request.key.target());
        let outcome = forwarded(self.why, failure.received, false, false);
        self.stale_if_error(relay, route, origin, failure.reason)
            .ok_or((failure, outcome))
    }
}
