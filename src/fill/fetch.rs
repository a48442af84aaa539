//! One fetch at a time for each key: from memory, the state directory, another replica,
//! or the upstream, in this order. Whoever wants the key meanwhile waits for it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{AnswerSource, Fill, FillAnswer, FillResult, MOST_ATTEMPTS};
use crate::cache::encoded::BodyId;
use crate::cache::etag::etag;
use crate::cache::key::Key;
use crate::cache::metadata::{ClientFreshness, Metadata};
use crate::cache::policy::Mode;
use crate::cache::purge::CheckedPurge;
use crate::cache::{JudgedResponse, StoredResponse};
use crate::chain::Freshness;
use crate::collapse::{FetchError, Follow, Lead, Mark, Role, Wait};
use crate::reason::Reason;
use crate::route::Route;
use crate::trace;
use crate::trace::span::SpanKind;
use crate::upstream::answer::Answer;
use crate::upstream::{Failure, RequestPriority};

impl Fill {
    /// Fetches a key, or waits for the fetch that is under way, and says which. With `anew`
    /// it goes to the upstream although a fresh response is stored. Fails when the wait is
    /// over, or at once where the key has failed repeatedly.
    pub(super) async fn fetch(
        self: &Arc<Self>,
        key: &Key,
        anew: bool,
        wait: Wait,
        priority: RequestPriority,
    ) -> (FillResult, bool) {
        for _ in 0..MOST_ATTEMPTS {
            if let Some(failure) = self.failures.recent(key, self.clock.now()) {
                return (Err(failure), false);
            }
            let follow = match self.collapse.join(key.as_bytes(), self.mark(key)) {
                Role::Lead(lead) => {
                    let follow = lead.follow();
                    let lead = self.clone().lead(lead, key.clone(), anew, priority);
                    tokio::spawn(trace::inherit(lead));
                    let found = follow.wait(wait).await;
                    return (found.unwrap_or_else(|error| Err(error.into())), false);
                }
                Role::Follow(follow) => follow,
            };
            let is_outdated = self.is_outdated(key, &follow);
            match follow.wait_beside(wait).await {
                Ok(_) if is_outdated => {}
                // The leader's client had used up its share, which does not concern this
                // one.
                Ok(Err(failure)) if failure.is_of_client() => {}
                Ok(found) => return (found, true),
                Err(FetchError::Abandoned) => {}
                Err(error) => return (Err(error.into()), true),
            }
        }
        let outdated = Failure::until(Reason::Outdated, Duration::from_secs(1));
        (Err(outdated), true)
    }

    /// Where a key is in the order of purges and epochs.
    fn mark(&self, key: &Key) -> Mark {
        let tip = self.route(key).map_or(u16::MAX, |route| route.cache.tip);
        Mark {
            purges: self.cache.store().purges(),
            epoch: self.chain.epoch(tip),
        }
    }

    /// Whether the answer of a fetch is not for those who come now: it may have been
    /// requested before a purge, or before the present tip.
    fn is_outdated(&self, key: &Key, fetch: &Follow<FillResult>) -> bool {
        let (began, now) = (fetch.mark(), self.mark(key));
        began.epoch != now.epoch || self.cache.store().may_be_purged(key, began.purges)
    }

    /// Fetches for all that wait.
    async fn lead(
        self: Arc<Self>,
        lead: Lead<FillResult>,
        key: Key,
        anew: bool,
        priority: RequestPriority,
    ) {
        // Between the look-up and this fetch, another may have begun and ended.
        let found = match (self.fresh(&key), self.route(&key)) {
            (Some(stored), _) if !anew => Ok(FillAnswer {
                stored,
                from: AnswerSource::Memory,
            }),
            (_, None) => Err(Failure::new(Reason::Internal)),
            (_, Some(route)) => {
                let sent = self.send_and_store(&key, route, priority);
                match anew {
                    true => sent.await,
                    false => self.recall_or(&key, route, sent).await,
                }
            }
        };
        match &found {
            Ok(_) => self.failures.forget(&key),
            Err(failure) => self.failures.fail(&key, failure, self.clock.now()),
        }
        lead.finish(found);
    }

    /// Requests a key from the upstream and stores the answer, in mode `chain` or
    /// `override`.
    async fn send_and_store(
        self: &Arc<Self>,
        key: &Key,
        route: &Route,
        priority: RequestPriority,
    ) -> FillResult {
        if route.cache.mode == Mode::Chain {
            return self.fetch_and_ingest(key, priority).await;
        }
        let purges = self.cache.store().purges();
        let answer = self.send(key, priority).await?;
        let times = &route.cache.times;
        let lifetime = times.lifetime(answer.status, answer.index.empty);
        let stored = Arc::new(self.prepare(answer, lifetime, purges));
        let _storing = trace::begin("store", SpanKind::Internal);
        let store = self.cache.store();
        let is_stored = lifetime.is_some()
            && !store.response_was_purged(key, &stored)
            && store.insert(key.clone(), stored.clone());
        if is_stored {
            self.keep(key, route, &stored);
        }
        Ok(FillAnswer {
            stored,
            from: AnswerSource::Upstream { stored: is_stored },
        })
    }

    /// Requests a key from the upstream, for routes that neither store nor collapse.
    pub(crate) async fn fetch_unshared(&self, key: &Key, priority: RequestPriority) -> FillResult {
        let answer = trace::alone(self.send(key, priority)).await?;
        Ok(FillAnswer {
            stored: Arc::new(self.prepare(answer, None, 0)),
            from: AnswerSource::Upstream { stored: false },
        })
    }

    /// Sends a request to the upstream.
    pub(super) async fn send(
        &self,
        key: &Key,
        priority: RequestPriority,
    ) -> Result<Answer, Failure> {
        let priority = RequestPriority {
            route: Some(key.route()),
            ..priority
        };
        self.upstream_of(key).fetch(key.target(), priority).await
    }

    /// What is stored of an answer, in modes other than `chain`.
    fn prepare(&self, answer: Answer, lifetime: Option<Duration>, purges: u64) -> StoredResponse {
        let freshness = lifetime.map_or(ClientFreshness::Nothing, ClientFreshness::For);
        let etag = etag(&answer.body);
        StoredResponse {
            status: answer.status,
            metadata: Metadata::of(answer.content_type, freshness),
            received: self.clock.now(),
            lifetime: lifetime.unwrap_or_default(),
            took: answer.took,
            body: answer.body,
            body_id: BodyId::of(&etag, !answer.no_transform),
            etag,
            checked: CheckedPurge::at(purges),
            stamp: None,
            page: None,
        }
    }

    /// Fetches a key again that is stale, unless a fetch is under way.
    pub(crate) fn refresh(self: &Arc<Self>, key: &Key, priority: RequestPriority) {
        let requests = self.requests(key);
        let is_needless = |key: &Key| {
            let failed = self.failures.recent(key, self.clock.now());
            failed.is_some() || self.collapse.has(key.as_bytes())
        };
        if !requests.iter().any(is_needless) {
            let (fill, key) = (self.clone(), key.clone());
            let wait = Wait::until(Instant::now() + self.longest_wait(&key));
            tokio::spawn(async move { fill.answer(&key, wait, priority).await });
        }
    }

    /// What is stored for a key and fresh.
    pub(super) fn fresh(&self, key: &Key) -> Option<Arc<StoredResponse>> {
        let JudgedResponse { stored, freshness } = self.cache.get(key, self.clock.now())?;
        match freshness {
            Freshness::Fresh { .. } => Some(stored),
            // The next lookup would report it as recent, so it is stored as final now.
            Freshness::BecameFinal { .. } => Some(self.store_as_final(key, &stored)),
            Freshness::Stale { .. } => None,
        }
    }
}

impl From<FetchError> for Failure {
    fn from(error: FetchError) -> Self {
        match error {
            FetchError::Abandoned => Self::new(Reason::Internal),
            FetchError::TooLate | FetchError::NotSoon => Self::new(Reason::UpstreamTimeout),
        }
    }
}
