//! Plain routes: those in mode `respect` or with `headers = "all"`. They obey
//! the origin's fields, and the relay fetches for them.

use http::header::ORIGIN;
use http::{HeaderMap, Request, Response};

use super::clients::was_sent;
use super::{Gateway, NextStep, RequestContext, RequestRef, Session};
use crate::cache::key::Key;
use crate::cache::outcome::Outcome;
use crate::cache::policy::Mode;
use crate::cache::status::Forward;
use crate::clock::Moment;
use crate::meter::RequestKind;
use crate::reason::Reason;
use crate::refusal::Refusal;
use crate::relay::{self, ClientRequest, Recall};
use crate::route::{HeaderMode, Route};
use crate::wire::Body;

/// Whether a route is plain.
#[inline]
pub(crate) fn is_plain(route: &Route) -> bool {
    route.headers == HeaderMode::All || route.cache.mode == Mode::Respect
}

impl Gateway {
    /// Answers from memory, on a plain route.
    pub(super) fn recall_plain<B>(
        &self,
        session: &Session,
        route: &Route,
        request: &Request<B>,
        key: Key,
        context: &RequestContext,
        now: Moment,
    ) -> Result<NextStep, Refusal> {
        let (method, fields) = (request.method(), request.headers());
        let fetch = |key, why, chosen| relay::Fetch {
            request: ClientRequest {
                method: method.clone(),
                // The request's fields and body are moved in afterwards.
                fields: HeaderMap::new(),
                version: request.version(),
                key,
                body: None,
                client: context.client(),
                peer: session.peer,
                request_id: context.request_id,
            },
            why,
            to_validate: chosen,
            unconditional: false,
        };
        let from = (session.peer, context.client());
        match relay::recall(&self.relay, route, method, fields, from, &key, now) {
            Recall::Answer {
                mut response,
                outcome,
                refresh,
            } => {
                if refresh {
                    let mut fetch = fetch(key, Forward::Stale, None);
                    fetch.request.fields = fields.clone();
                    tokio::spawn(fetch.refresh(self.relay.clone()));
                }
                if route.headers == HeaderMode::Typed {
                    let own = context.for_response(&self.clients, fields);
                    self.responder
                        .add_own_fields(response.headers_mut(), outcome, &own);
                }
                Ok(NextStep::Done(response, RequestKind::Answer(outcome)))
            }
            Recall::Forward { why, chosen } => {
                Ok(NextStep::Relay(Box::new(fetch(key, why, chosen))))
            }
            Recall::OnlyIfCached => Err(Refusal::OnlyIfCached),
        }
    }

    /// Fetches through the relay, and answers with the result.
    pub(super) async fn answer_plain(
        &self,
        session: &Session,
        (context, uri): RequestRef<'_>,
        fetch: relay::Fetch,
    ) -> Response<Body> {
        // Of the request's fields the response depends only on this one from here
        // on (CORS).
        let fields = match fetch.request.fields.get(ORIGIN) {
            Some(origin) => HeaderMap::from_iter([(ORIGIN, origin.clone())]),
            None => HeaderMap::new(),
        };
        let route = self.route(&fetch.request.key);
        let is_typed = route.is_some_and(|route| route.headers == HeaderMode::Typed);
        let joins = fetch.joins(&self.relay);
        let admitted = self
            .clients
            .admit_miss(context.client(), joins, self.clock.now());
        let fetched = match admitted {
            Ok(()) => self.fetch_plain(context, fetch, joins).await,
            Err(refusal) => {
                let stale = fetch.stale(&self.relay, refusal.reason());
                self.clients.count_limited(stale.is_some());
                stale.ok_or((refusal, None))
            }
        };
        let now = self.clock.now();
        session.activity.record(now);
        let own = context.for_response(&self.clients, &fields);
        let (response, kind) = match fetched {
            Ok((mut response, outcome)) => {
                if let Body::Streamed(reader) = response.body_mut() {
                    // While the body is sent, the connection is not idle.
                    reader.serve(&session.activity);
                }
                let status = response.status();
                if status.is_server_error() {
                    let why = (
                        Reason::UpstreamAnswer,
                        "the upstream's own answer, passed on as it is",
                    );
                    self.record_error((context, uri), &fields, status, why);
                }
                if is_typed {
                    self.responder
                        .add_own_fields(response.headers_mut(), outcome, &own);
                }
                (response, RequestKind::Answer(outcome))
            }
            Err((refusal, outcome)) => {
                let response = self.render_refusal(&refusal, outcome, (context, uri), &own);
                let reason = refusal.reason();
                let kind = match outcome {
                    Some(outcome) => RequestKind::Failure(outcome, reason),
                    None => RequestKind::Refusal(reason),
                };
                (response, kind)
            }
        };
        self.finish_waiting(session, context, kind, None, response)
    }

    async fn fetch_plain(
        &self,
        context: &RequestContext,
        fetch: relay::Fetch,
        joins: bool,
    ) -> Result<(Response<Body>, Outcome), (Refusal, Option<Outcome>)> {
        let fetched = fetch.run(&self.relay).await;
        let outcome = fetched.as_ref().ok().map(|(_, outcome)| *outcome);
        let is_sent = was_sent(outcome, joins);
        let now = self.clock.now();
        self.clients
            .correct_miss(context.client(), joins, is_sent, now);
        fetched.map_err(|(refusal, outcome)| (refusal, Some(outcome)))
    }
}
