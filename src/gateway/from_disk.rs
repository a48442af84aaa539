//! Requests that memory cannot answer, but the disk can. They are no misses: they count
//! against no client's limit of misses, and spend no budget.

use http::{HeaderMap, Response};

use super::miss::Miss;
use super::{Gateway, RequestContext, Session};
use crate::cache::JudgedResponse;
use crate::cache::decision::Decision;
use crate::cache::directives::RequestDirectives;
use crate::cache::outcome::Outcome;
use crate::cache::policy::Mode;
use crate::cache::reuse::Reuse;
use crate::cache::status::Forward;
use crate::chain::Freshness;
use crate::fill::FromDisk;
use crate::meter::RequestKind;
use crate::refusal::Refusal;
use crate::relay::{self, Recall};
use crate::upstream::Priority;
use crate::wire::Body;

impl Gateway {
    /// A response on disk that answers a miss. One that is stale becomes the miss's
    /// stale response.
    pub(super) async fn recall_from_disk(
        &self,
        context: &RequestContext,
        miss: &mut Miss,
    ) -> Option<JudgedResponse> {
        // What memory has is newer.
        let may_be_there = miss.why == Forward::UriMiss && miss.stale.is_none();
        let disk = self.fill.disk.get().filter(|_| may_be_there)?;
        let policy = &self.route(&miss.lookup.key)?.cache;
        let lookup = &miss.lookup;
        let stale = match self.fill.recall_from_disk(lookup, context.client()).await {
            FromDisk::Nothing => return None,
            FromDisk::Unchecked(stored) => {
                // It was fresh before the start, as far as is known.
                let age = self.clock.now().since(stored.received);
                let expired = age.saturating_sub(stored.lifetime);
                let by = disk.tier().since_opened().max(expired);
                let is_usable = by < policy.stale_if_error;
                let freshness = Freshness::Stale { by };
                is_usable.then_some(JudgedResponse { stored, freshness })
            }
            FromDisk::Usable(stored) => {
                match self.cache.decide_on(stored, policy, self.clock.now()) {
                    Decision::Serve { mut stored, reuse } => {
                        let key = &lookup.key;
                        if let Freshness::BecameFinal { .. } = stored.freshness {
                            stored.stored = self.fill.store_as_final(key, &stored.stored);
                        }
                        if reuse == Reuse::WhileRevalidate {
                            let priority = context.priority(Priority::Revalidation);
                            self.fill.refresh(key, priority);
                        }
                        return Some(stored);
                    }
                    Decision::Fetch { stored, .. } => stored,
                    Decision::OnlyIfCached => None,
                }
            }
        };
        if stale.is_some() {
            miss.why = Forward::Stale;
            miss.stale = stale;
        }
        None
    }

    /// Answers with a response that was on disk.
    pub(super) fn answer_from_disk(
        &self,
        session: &Session,
        context: &RequestContext,
        miss: &Miss,
        judged: JudgedResponse,
        fields: &HeaderMap,
    ) -> Response<Body> {
        let now = self.clock.now();
        session.activity.record(now);
        let outcome = Outcome::FromDisk { ttl: judged.ttl() };
        let for_response = context.for_response(&self.clients, fields);
        let response = self.render_miss(judged, miss, outcome, &for_response, now);
        self.finish_waiting(
            session,
            context,
            RequestKind::Answer(outcome),
            None,
            response,
        )
    }

    /// A response on disk that answers a request on a plain route; or a refusal, where
    /// the client forbids that the upstream is asked. A stored response that is to be
    /// validated becomes part of the fetch.
    pub(super) async fn recall_plain_from_disk(
        &self,
        context: &RequestContext,
        fetch: &mut relay::Fetch,
    ) -> Option<Result<(Response<Body>, Outcome), Refusal>> {
        let disk = self.relay.disk.get()?;
        let request = &fetch.request;
        let route = self.route(&request.key)?;
        if fetch.why != Forward::UriMiss || route.cache.mode != Mode::Respect {
            return None;
        }
        let client = context.client();
        let deadline = disk.read_deadline();
        let loaded = disk.load(&request.key, client, deadline).await;
        if !loaded.is_some() {
            let directives = RequestDirectives::of(&request.fields);
            return (directives.only_if_cached).then_some(Err(Refusal::OnlyIfCached));
        }
        let (method, fields, key) = (&request.method, &request.fields, &request.key);
        let from = (request.peer, client);
        let now = self.clock.now();
        match relay::recall(&self.relay, route, method, fields, from, key, now) {
            Recall::Answer {
                mut response,
                outcome,
                refresh,
            } => {
                if refresh {
                    tokio::spawn(fetch.for_refresh().refresh(self.relay.clone()));
                }
                let outcome = relay::mark_as_from_disk(&self.relay, &mut response, key, outcome);
                Some(Ok((response, outcome)))
            }
            Recall::Forward { why, chosen } => {
                fetch.why = why;
                fetch.to_validate = chosen;
                None
            }
            Recall::OnlyIfCached => Some(Err(Refusal::OnlyIfCached)),
        }
    }
}
