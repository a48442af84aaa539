//! Fetches that several requests share (`collapse`): clients share answers, and
//! answers share exchanges with the upstream.
//!
//! A follower may get what was requested before something changed: before a new
//! block, or before a purge. It then joins again, a few times at most.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::lookup::own_key;
use super::{AnswerSource, Fill, FillAnswer, FillResult, MOST_ATTEMPTS};
use crate::cache::key::Key;
use crate::cache::{JudgedResponse, StoredResponse};
use crate::chain::ledger::Epoch;
use crate::chain::{Class, Freshness};
use crate::collapse::{Below, ClientLevel, ExchangeLevel, Lead, Wait};
use crate::reason::Reason;
use crate::upstream::{Failure, RequestPriority};

/// Whether an exchange goes to the upstream although a fresh response is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Anew {
    /// A fresh response will do.
    No,
    /// What is stored is in doubt.
    Yes,
}

impl Fill {
    /// The answer to a client's request that memory does not have, and whether
    /// another client's fetch gave it. Fails when the wait is over, or at once where
    /// the key has failed repeatedly.
    pub(crate) async fn answer(
        self: &Arc<Self>,
        key: &Key,
        wait: Wait,
        priority: RequestPriority,
    ) -> (FillResult, bool) {
        if let Some(failure) = self.recent_failure(key) {
            return (Err(failure), false);
        }
        let began = self.cache.store().purges();
        let since = self.epoch(key);
        let (mut found, mut collapsed) = self.follow_or_lead(key, wait, priority).await;
        for attempt in 1..MOST_ATTEMPTS {
            let first = attempt == 1 && collapsed;
            let again = match &found {
                Ok(found) => {
                    self.is_purged_since(key, &found.stored, began)
                        || first && self.predates(&found.stored, since)
                }
                // The leader's client had used up its share of attempts, which does not
                // concern this client.
                Err(failure) => collapsed && failure.is_of_client(),
            };
            if !again {
                return (found, collapsed);
            }
            (found, collapsed) = self.follow_or_lead(key, wait, priority).await;
        }
        match &found {
            Ok(purged) if self.is_purged_since(key, &purged.stored, began) => (
                Err(Failure::until(Reason::Outdated, Duration::from_secs(1))),
                collapsed,
            ),
            Ok(_) | Err(_) => (found, collapsed),
        }
    }

    /// The present epoch of the tip of a key's route.
    fn epoch(&self, key: &Key) -> Epoch {
        let tip = self.route(key).map_or(u16::MAX, |route| route.cache.tip);
        self.chain.epoch(tip)
    }

    /// Whether an answer is of an epoch before the one in which a request began, and
    /// no longer fresh.
    fn predates(&self, stored: &StoredResponse, since: Epoch) -> bool {
        let is_older = stored
            .stamp()
            .is_some_and(|stamp| stamp.class != Class::Final && stamp.epoch < since);
        is_older
            && !matches!(
                self.cache.judge(stored, self.clock.now()),
                Freshness::Fresh { .. }
            )
    }

    /// Whether an answer matches a purge that was done before a request began: its
    /// fetch may have begun before the purge.
    fn is_purged_since(&self, key: &Key, stored: &StoredResponse, began: u64) -> bool {
        if stored.checked.number() >= began {
            return false;
        }
        let own = self.route(key).map(|route| own_key(key, route, stored));
        let purged = |key| self.cache.store().response_was_purged(key, stored);
        purged(key) || own.as_ref().is_some_and(purged)
    }

    /// Leads the fetch of a key for clients, or waits for it.
    async fn follow_or_lead(
        self: &Arc<Self>,
        key: &Key,
        wait: Wait,
        priority: RequestPriority,
    ) -> (FillResult, bool) {
        let (fill, own) = (self.clone(), key.clone());
        let lead = move |lead| fill.lead_answer(own, lead, priority);
        let fetched = self
            .collapse
            .fetch(&ClientLevel, key.as_bytes(), wait, lead);
        match fetched.await {
            Ok(fetched) => (fetched.value, fetched.collapsed),
            Err(error) => (Err(error.into()), false),
        }
    }

    /// Requests a key of a route in mode `chain` from the upstream, or waits for the
    /// request that is under way: for an answer that is made of it. The exchange
    /// waits for no other fetch.
    pub(super) async fn exchange(
        self: &Arc<Self>,
        waiter: &impl Below<ExchangeLevel>,
        key: &Key,
        priority: RequestPriority,
        anew: Anew,
    ) -> FillResult {
        let since = self.epoch(key);
        let wait = Wait::until(Instant::now() + self.longest_wait(key));
        for attempt in 0..MOST_ATTEMPTS {
            let (fill, own) = (self.clone(), key.clone());
            let lead = async move |lead: Lead<FillResult, ExchangeLevel>| {
                let fetch = fill.fetch_and_ingest(&own, priority);
                let found = match (fill.fresh(&own), fill.route(&own)) {
                    _ if anew == Anew::Yes => fetch.await,
                    (Some(stored), _) => Ok(FillAnswer {
                        stored,
                        from: AnswerSource::Memory,
                    }),
                    (None, Some(route)) => fill.recall_or(&own, route, fetch).await,
                    (None, None) => fetch.await,
                };
                lead.finish(found);
            };
            let fetched = self
                .collapse
                .fetch(waiter, key.as_bytes(), wait, lead)
                .await?;
            let again = match &fetched.value {
                Ok(found) => attempt == 0 && self.predates(&found.stored, since),
                Err(failure) => failure.is_of_client(),
            };
            if !fetched.collapsed || !again {
                return fetched.value;
            }
        }
        Err(Failure::until(Reason::Outdated, Duration::from_secs(1)))
    }

    /// Fetches a key again that is stale, unless a fetch is under way.
    pub(crate) fn refresh(self: &Arc<Self>, key: &Key, priority: RequestPriority) {
        if self.recent_failure(key).is_some() {
            return;
        }
        if let Some(lead) = self.collapse.lead(key.as_bytes()) {
            tokio::spawn(self.clone().lead_answer(key.clone(), lead, priority));
        }
    }

    /// Fetches a key for all clients that wait.
    async fn lead_answer(
        self: Arc<Self>,
        key: Key,
        lead: Lead<FillResult>,
        priority: RequestPriority,
    ) {
        // Between the lookup and this fetch, another may have begun and ended.
        let found = match self.fresh(&key) {
            Some(stored) => Ok(FillAnswer {
                stored,
                from: AnswerSource::Memory,
            }),
            None => self.make_answer(&lead, &key, priority).await,
        };
        match &found {
            Ok(_) => self.failures.forget(&key),
            Err(failure) => self.failures.fail(&key, failure, self.clock.now()),
        }
        lead.finish(found);
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
