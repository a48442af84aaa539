//! Filling: how what memory does not have is found out, for all who ask for it,
//! and stored.
//!
//! The gateway comes here with a key. One leads and asks, the others wait
//! ([`Fill::find`]). On routes in mode `chain` what comes is set against what
//! is known of the chain before anybody sees it (`fill::learn`), and pages are
//! cut from stored windows (`fill::assemble`). Where a new block has come, one
//! look at the block before proves that all below it still stand
//! (`fill::confirm`), and shows a reorg where they do not (`fill::looks`). Where
//! none has come, one token that is fetched again stands for all others
//! (`fill::check`).
//!
//! Clients wait for answers, and answers for exchanges with the upstream; an
//! exchange waits for no other fetch ([`crate::collapse`]). So no two fetches ever
//! wait for each other, whatever keys they share.
//!
//! Invariants: what was overtaken by a reorg or a purge while it was under way
//! is neither stored nor handed out, but asked for again; a client's disconnect
//! cancels nobody's answer, since what is fetched belongs to no connection; no
//! wait is without a deadline, which is the client's own.

mod anchor;
mod assemble;
mod check;
pub mod failure_backoff;
mod ingest;
mod looks;
mod plan;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::cache::etag::etag;
use crate::cache::key::Key;
use crate::cache::metadata::{ClientFreshness, Metadata};
use crate::cache::policy::{Mode, Policy};
use crate::cache::sequence::{CheckedSequence, PurgeSequence};
use crate::cache::{Attached, Cache, JudgedResponse, StoredResponse};
use crate::chain::ledger::Epoch;
use crate::chain::{Chain, Freshness};
use crate::clock::Clock;
use crate::collapse::{Below, ClientLevel, Collapse, ExchangeLevel, FetchError, Lead, Wait};
use crate::route::{Route, RouteTable};
use crate::upstream::answer::Answer;
use crate::upstream::{
    Failure, MissingRoutes, RequestPriority, TimedOut, UpstreamClient, Upstreams,
};
use assemble::Sliceable;
use check::CheckKeys;
use failure_backoff::Lapses;
pub use ingest::LookupKey;
use ingest::own_key;
pub use plan::Plan;

/// What filling needs of the house.
pub struct Fill {
    /// Which requests there are.
    pub routes: Arc<RouteTable>,
    /// What is in memory.
    pub cache: Cache,
    /// What is known of the chain.
    pub chain: Arc<Chain>,
    /// Who asks the upstream for whom.
    pub collapse: Arc<Collapse<FillResult>>,
    /// The upstreams that routes and tips ask.
    pub upstreams: Arc<Upstreams>,
    /// What time it is.
    pub clock: Clock,
    /// Which routes' pages are cut from windows just now.
    sliceable: Sliceable,
    /// What has failed lately.
    lapses: Lapses,
    /// The routes that the upstream says it does not have.
    missing_routes: MissingRoutes,
    /// Which keys are fetched again in place of others.
    check_keys: CheckKeys,
}

/// What a leader finds for all who wait.
pub type FillResult = Result<FillAnswer, Failure>;

/// An answer, and where it is from.
#[derive(Clone)]
pub struct FillAnswer {
    /// The answer.
    pub stored: Arc<StoredResponse>,
    /// Where it is from.
    pub from: AnswerSource,
}

/// Where an answer is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerSource {
    /// Memory, though it may have been put together only now.
    Memory,
    /// The upstream, which was asked; and whether its answer was stored.
    Upstream {
        /// Whether it was stored.
        stored: bool,
    },
}

/// Answers that were overtaken before the upstream is given up on.
const OVERTAKEN: usize = 4;
/// How long the first answers of a start wait for the first probe of the tip.
const FIRST_PROBE: Duration = Duration::from_secs(1);

impl Fill {
    /// Puts the parts together.
    pub fn new(
        routes: Arc<RouteTable>,
        cache: Cache,
        chain: Arc<Chain>,
        upstreams: Arc<Upstreams>,
        lapses: failure_backoff::Settings,
        clock: Clock,
    ) -> Arc<Self> {
        Arc::new(Self {
            lapses: Lapses::new(lapses),
            missing_routes: MissingRoutes::default(),
            sliceable: Sliceable::new(routes.given()),
            check_keys: CheckKeys::new(chain.len()),
            routes,
            cache,
            chain,
            collapse: Collapse::new(),
            upstreams,
            clock,
        })
    }

    /// The parts that come after these. What is being fetched is fetched for
    /// both, and what is known of windows stays known.
    pub fn after(
        &self,
        routes: Arc<RouteTable>,
        cache: Cache,
        chain: Arc<Chain>,
        upstreams: Arc<Upstreams>,
        lapses: failure_backoff::Settings,
    ) -> Arc<Self> {
        Arc::new(Self {
            lapses: self.lapses.after(lapses),
            missing_routes: MissingRoutes::default(),
            sliceable: self.sliceable.after(routes.given()),
            check_keys: CheckKeys::new(chain.len()),
            routes,
            cache,
            chain,
            collapse: self.collapse.clone(),
            upstreams,
            clock: self.clock.clone(),
        })
    }

    /// The route of a key.
    pub fn route(&self, key: &Key) -> Option<&Route> {
        self.routes.get(key.route())
    }

    /// Finds out for a client what memory does not have; and says whether
    /// another had asked already. Gives up when the wait is over. What has gone
    /// on failing is not asked for at all.
    pub async fn find(
        self: &Arc<Self>,
        key: &Key,
        wait: Wait,
        wish: RequestPriority,
    ) -> (FillResult, bool) {
        if let Some(failure) = self.remembered(key) {
            return (Err(failure), false);
        }
        let began = self.cache.store().purges();
        let since = self.epoch(key);
        let (mut found, mut collapsed) = self.join(key, wait, wish).await;
        for again in 1..OVERTAKEN {
            let first = again == 1 && collapsed;
            let another = match &found {
                Ok(found) => {
                    self.is_of_before(key, &found.stored, began)
                        || first && self.is_overtaken(&found.stored, since)
                }
                // The leader's client was let ask for no more, or the leader
                // looked ahead. That says nothing of this client.
                Err(Failure::BreakerOpen { .. }) => collapsed && self.chain.look_ahead().is_on(),
                Err(failure) => collapsed && failure.is_of_client(),
            };
            if !another {
                return (found, collapsed);
            }
            (found, collapsed) = self.join(key, wait, wish).await;
        }
        match &found {
            Ok(of_before) if self.is_of_before(key, &of_before.stored, began) => {
                (Err(Failure::Unsettled), collapsed)
            }
            Ok(_) | Err(_) => (found, collapsed),
        }
    }

    /// The present epoch of the tip that a key's route goes by.
    fn epoch(&self, key: &Key) -> Epoch {
        let tip = self.route(key).map_or(u16::MAX, |route| route.cache.tip);
        self.chain.epoch(tip)
    }

    /// What had been asked for before a new block came is no answer to who has
    /// asked since.
    fn is_overtaken(&self, stored: &StoredResponse, since: Epoch) -> bool {
        let is_older = stored
            .stamp()
            .is_some_and(|standing| standing.class.ends_with_epoch() && standing.epoch() < since);
        is_older
            && !matches!(
                self.cache.judge(stored, self.clock.now()),
                Freshness::Fresh { .. }
            )
    }

    /// Nor is what was purged before a request began: its leader may have asked
    /// before that, and have handed it over only now.
    fn is_of_before(&self, key: &Key, stored: &StoredResponse, began: u64) -> bool {
        if stored.checked.number() >= began {
            return false;
        }
        let own = self.route(key).map(|route| own_key(key, route, stored));
        let purged = |key| self.cache.store().has_purged(key, stored);
        purged(key) || own.as_ref().is_some_and(purged)
    }

    async fn join(
        self: &Arc<Self>,
        key: &Key,
        wait: Wait,
        wish: RequestPriority,
    ) -> (FillResult, bool) {
        let (fill, own) = (self.clone(), key.clone());
        let lead = move |lead| fill.lead(own, lead, wish);
        let fetched = self
            .collapse
            .fetch(&ClientLevel, key.as_bytes(), wait, lead);
        match fetched.await {
            Ok(fetched) => (fetched.value, fetched.collapsed),
            Err(unfetched) => (Err(unfetched.into()), false),
        }
    }

    /// Asks the upstream for exactly a key of a route in mode `chain`, or waits
    /// for who does: for an answer that is made of it. The request waits for no
    /// other fetch. What is stored and fresh will do, unless it is to be
    /// fetched anew.
    async fn exchange(
        self: &Arc<Self>,
        waiter: &impl Below<ExchangeLevel>,
        key: &Key,
        wish: RequestPriority,
        anew: bool,
    ) -> FillResult {
        let since = self.epoch(key);
        let wait = Wait::until(Instant::now() + self.patience(key));
        for again in 0..OVERTAKEN {
            let (fill, own) = (self.clone(), key.clone());
            let lead = async move |lead: Lead<FillResult, ExchangeLevel>| {
                let found = match fill.fresh(&own).filter(|_| !anew) {
                    Some(stored) => Ok(FillAnswer {
                        stored,
                        from: AnswerSource::Memory,
                    }),
                    None => fill.ingest(&own, wish).await,
                };
                lead.finish(found);
            };
            let fetched = self
                .collapse
                .fetch(waiter, key.as_bytes(), wait, lead)
                .await?;
            let another = match &fetched.value {
                Ok(found) => again == 0 && self.is_overtaken(&found.stored, since),
                Err(failure) => failure.is_of_client(),
            };
            if !fetched.collapsed || !another {
                return fetched.value;
            }
        }
        Err(Failure::Unsettled)
    }

    /// How a key has gone on failing, where it is not asked for again yet.
    pub fn remembered(&self, key: &Key) -> Option<Failure> {
        self.lapses.remembered(key, self.clock.now())
    }

    /// How many keys have failed lately.
    pub fn lapses(&self) -> usize {
        self.lapses.len()
    }

    /// The longest that [`find`](Self::find) has to wait for.
    pub fn patience(&self, key: &Key) -> Duration {
        // The leader has deadlines of its own, so that the longest patience is
        // for the case that its runtime has stopped.
        self.upstream_of(key).patience() + FIRST_PROBE + Duration::from_secs(1)
    }

    /// Who answers for the upstream of a key's route.
    fn upstream_of(&self, key: &Key) -> &Arc<dyn UpstreamClient> {
        let number = self.route(key).map_or(0, |route| route.upstream);
        self.upstreams.asked(number)
    }

    /// Asks the upstream alone: for routes that neither store nor collapse.
    pub async fn pass(&self, key: &Key, wish: RequestPriority) -> FillResult {
        let answer = self.ask(key, wish).await?;
        let mark = self.cache.store().sequence();
        Ok(FillAnswer {
            stored: Arc::new(self.prepare(answer, None, mark)),
            from: AnswerSource::Upstream { stored: false },
        })
    }

    /// Fetches anew what is stale, unless another does so already.
    pub fn refresh(self: &Arc<Self>, key: &Key, wish: RequestPriority) {
        if self.remembered(key).is_some() {
            return;
        }
        if let Some(lead) = self.collapse.lead(key.as_bytes()) {
            tokio::spawn(self.clone().lead(key.clone(), lead, wish));
        }
    }

    /// Finds out for all who wait.
    async fn lead(self: Arc<Self>, key: Key, lead: Lead<FillResult>, wish: RequestPriority) {
        // Between our looking and our leading, another leader may have come
        // and gone.
        let found = match self.fresh(&key) {
            Some(stored) => Ok(FillAnswer {
                stored,
                from: AnswerSource::Memory,
            }),
            None => self.obtain(&lead, &key, wish).await,
        };
        match &found {
            Ok(_) => self.lapses.forget(&key),
            Err(failure) => self.lapses.fail(&key, failure, self.clock.now()),
        }
        lead.finish(found);
    }

    /// What is stored and fresh.
    fn fresh(&self, key: &Key) -> Option<Arc<StoredResponse>> {
        let JudgedResponse { stored, freshness } = self.cache.get(key, self.clock.now())?;
        match freshness {
            Freshness::Fresh { .. } => Some(stored),
            // It is told once: from now on it would pass for recent.
            Freshness::Revalidated { .. } => Some(self.mark_revalidated(key, &stored)),
            Freshness::Stale { .. } => None,
        }
    }

    async fn obtain(
        self: &Arc<Self>,
        lead: &Lead<FillResult>,
        key: &Key,
        wish: RequestPriority,
    ) -> FillResult {
        let Some(route) = self.route(key) else {
            return Err(Failure::Abandoned);
        };
        match route.cache.mode {
            Mode::Chain => self.obtain_of_chain(lead, key, route, wish).await,
            // What obeys the origin goes another way.
            Mode::Off | Mode::Respect | Mode::Override => self.fetch(key, &route.cache, wish).await,
        }
    }

    /// Asks the upstream, and stores what it says for the time that its status
    /// has.
    async fn fetch(&self, key: &Key, policy: &Policy, wish: RequestPriority) -> FillResult {
        for _ in 0..OVERTAKEN {
            let mark = self.cache.store().sequence();
            let answer = self.ask(key, wish).await?;
            let lifetime = match policy.mode {
                Mode::Override => policy.times.lifetime(answer.status, answer.index.empty),
                Mode::Off | Mode::Respect | Mode::Chain => None,
            };
            let stored = Arc::new(self.prepare(answer, lifetime, mark));
            if self.cache.store().has_purged(key, &stored) {
                continue;
            }
            let kept = lifetime.is_some() && self.cache.store().insert(key.clone(), stored.clone());
            return Ok(FillAnswer {
                stored,
                from: AnswerSource::Upstream { stored: kept },
            });
        }
        Err(Failure::Unsettled)
    }

    async fn ask(&self, key: &Key, wish: RequestPriority) -> Result<Answer, Failure> {
        let asked = self.upstream_of(key).ask(key.target(), wish).await;
        match &asked {
            Ok(_) => self.missing_routes.answered(key.route()),
            Err(failure) => {
                if let (Failure::NoSuchRoute { endpoint }, Some(route)) = (failure, self.route(key))
                {
                    let target = key.target();
                    let now = self.clock.now();
                    self.missing_routes.report(route, target, endpoint, now);
                }
                failure.report(key.target());
            }
        }
        asked
    }

    /// Makes of an answer what a hit needs.
    fn prepare(
        &self,
        answer: Answer,
        lifetime: Option<Duration>,
        mark: PurgeSequence,
    ) -> StoredResponse {
        let promise = lifetime.map_or(ClientFreshness::Nothing, ClientFreshness::For);
        StoredResponse {
            status: answer.status,
            etag: etag(&answer.body),
            metadata: Metadata::of(answer.content_type, promise),
            received: self.clock.now(),
            lifetime: lifetime.unwrap_or_default(),
            took: answer.took,
            body: answer.body,
            checked: CheckedSequence::until(mark),
            attached: Attached::default(),
        }
    }
}

impl From<FetchError> for Failure {
    fn from(unfetched: FetchError) -> Self {
        match unfetched {
            FetchError::Abandoned => Self::Abandoned,
            FetchError::TooLate => Self::TimedOut(TimedOut::Whole),
        }
    }
}
