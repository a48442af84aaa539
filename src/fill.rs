//! Filling the cache: fetching what memory does not have, and storing it.
//!
//! ```text
//! answer             waits for the answer that is under way, or begins it:
//!   lead_answer      a task; answers all that wait, from memory or by
//!     make_answer    the route's mode: fetch_and_store, or
//!       exchange     in mode `chain`, one collapsed request: fetch_and_ingest
//!         share_or_fetch   unless another replica has the response
//!         send       the request to the upstream
//! ```
//!
//! Beside it, `fetch_unshared` sends a request that is neither shared nor stored. On
//! routes in mode `chain`:
//!
//! - an answer is applied to the chain's ledger before it is served (`fill::ingest`),
//! - pages are cut from stored windows (`fill::windows`, `fill::page`), and a
//!   transaction from the windows of its block (`fill::transaction`),
//! - after a new tip, one request for a known block shows that all older responses
//!   stand, or that there was a reorg (`fill::block_check`).
//!
//! A client waits for an answer's task, which waits for exchanges with the upstream;
//! an exchange waits for no other fetch ([`crate::collapse`]). So fetches never wait for
//! each other in a circle, whatever keys they share.
//!
//! Invariants: an answer that a reorg or a purge has overtaken is neither stored nor
//! served, but requested again; a client's disconnect cancels no collapsed fetch; every
//! wait has a deadline.

mod block_check;
mod collapsed;
mod content;
mod ingest;
mod kept;
mod lookup;
mod names;
mod page;
mod plan;
mod purges;
mod transaction;
mod window_support;
mod windows;

use std::sync::Arc;
use std::time::Duration;

use crate::cache::encoded::BodyId;
use crate::cache::etag::etag;
use crate::cache::key::Key;
use crate::cache::metadata::{ClientFreshness, Metadata};
use crate::cache::policy::Mode;
use crate::cache::purge::CheckedPurge;
use crate::cache::{Cache, StoredResponse};
use crate::chain::Chain;
use crate::clock::Clock;
use crate::collapse::{Collapse, FetchError, Lead};
use crate::failure_backoff::{self, FailureBackoff};
use crate::log_writer::LogInterval;
use crate::reason::Reason;
use crate::route::{Route, RouteTable};
use crate::trace;
use crate::trace::span::SpanKind;
use crate::upstream::answer::Answer;
use crate::upstream::{Failure, RequestPriority, UpstreamClient, Upstreams};
use collapsed::Anew;
pub(crate) use kept::LowerTiers;
pub(crate) use lookup::LookupKey;
pub(crate) use names::StoredNames;
pub(crate) use plan::Plan;
pub(crate) use purges::{Purging, follow};
use window_support::WindowSupport;
use windows::List;

/// Fetches what memory does not have.
pub struct Fill {
    /// The routes.
    pub(crate) routes: Arc<RouteTable>,
    /// The responses in memory.
    pub(crate) cache: Cache,
    /// What is known of the chain.
    pub chain: Arc<Chain>,
    /// The fetches under way.
    pub collapse: Arc<Collapse<FillResult>>,
    /// The upstreams of routes and tips.
    pub(crate) upstreams: Arc<Upstreams>,
    /// The clock.
    pub(crate) clock: Clock,
    /// Where responses are looked up that memory does not have.
    pub(crate) lower: LowerTiers,
    /// Which routes' pages are cut from windows at present.
    window_support: WindowSupport,
    /// The keys that failed recently.
    pub(crate) failures: Arc<FailureBackoff>,
    /// When a list was last logged whose windows are inconsistent.
    inconsistent_windows: LogInterval,
}

/// What a leader gives to all who wait.
pub(crate) type FillResult = Result<FillAnswer, Failure>;

/// An answer, and where it is from.
#[derive(Clone)]
pub struct FillAnswer {
    /// The answer.
    pub(crate) stored: Arc<StoredResponse>,
    /// Where it is from.
    pub(crate) from: AnswerSource,
}

/// Where an answer is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnswerSource {
    /// Stored responses, though it may have been cut from them only now.
    Memory,
    /// The state directory.
    Disk,
    /// The state directory, of an earlier run of which it is not known yet whether its
    /// blocks stand: it is stale.
    Unconfirmed,
    /// Another replica, by way of the engine.
    Shared,
    /// An upstream request.
    Upstream {
        /// Whether the answer was stored.
        stored: bool,
    },
}

/// How often a fetch is made if a reorg or a purge overtakes each answer.
const MOST_ATTEMPTS: usize = 4;
/// How long the first requests after a start wait for the first probe of the tip.
const FIRST_PROBE: Duration = Duration::from_secs(1);

impl Fill {
    /// A fill with nothing under way.
    pub(crate) fn new(
        routes: Arc<RouteTable>,
        cache: Cache,
        chain: Arc<Chain>,
        upstreams: Arc<Upstreams>,
        failures: failure_backoff::Settings,
        clock: Clock,
        lower: LowerTiers,
    ) -> Arc<Self> {
        Arc::new(Self {
            failures: Arc::new(FailureBackoff::new(failures)),
            inconsistent_windows: LogInterval::default(),
            window_support: WindowSupport::new(routes.assigned()),
            routes,
            cache,
            chain,
            collapse: Collapse::new(),
            upstreams,
            clock,
            lower,
        })
    }

    /// The fill after a reload. It shares the fetches under way, and keeps what is
    /// known of failures and windows.
    pub(crate) fn after(
        &self,
        routes: Arc<RouteTable>,
        cache: Cache,
        chain: Arc<Chain>,
        upstreams: Arc<Upstreams>,
        failures: failure_backoff::Settings,
        lower: LowerTiers,
    ) -> Arc<Self> {
        Arc::new(Self {
            failures: Arc::new(self.failures.after(failures)),
            inconsistent_windows: LogInterval::default(),
            window_support: self.window_support.after(routes.assigned()),
            routes,
            cache,
            chain,
            collapse: self.collapse.clone(),
            upstreams,
            clock: self.clock.clone(),
            lower,
        })
    }

    /// The route of a key.
    pub(crate) fn route(&self, key: &Key) -> Option<&Route> {
        self.routes.get(key.route())
    }

    /// How a key failed, if it has failed repeatedly and is not fetched again yet.
    pub(crate) fn recent_failure(&self, key: &Key) -> Option<Failure> {
        self.failures.recent(key, self.clock.now())
    }

    /// The number of keys that failed recently.
    pub(crate) fn failing_keys(&self) -> usize {
        self.failures.len()
    }

    /// The longest time that [`answer`](Self::answer) may take.
    pub(crate) fn longest_wait(&self, key: &Key) -> Duration {
        // The leader has deadlines of its own; the last second is for a leader whose
        // runtime has stopped.
        let lower = self.lower.longest_wait();
        self.upstream_of(key).max_wait() + FIRST_PROBE * 2 + lower + Duration::from_secs(1)
    }

    /// The client of the upstream of a key's route.
    fn upstream_of(&self, key: &Key) -> &Arc<dyn UpstreamClient> {
        let number = self.route(key).map_or(0, |route| route.upstream.number);
        self.upstreams.client(number)
    }

    /// Requests a key from the upstream, for routes that neither store nor collapse.
    pub(crate) async fn fetch_unshared(&self, key: &Key, priority: RequestPriority) -> FillResult {
        let answer = trace::alone(self.send(key, priority)).await?;
        let sequence = self.cache.store().purges();
        Ok(FillAnswer {
            stored: Arc::new(self.prepare(answer, None, sequence)),
            from: AnswerSource::Upstream { stored: false },
        })
    }

    /// Makes the answer for a key, by the mode of its route.
    async fn make_answer(
        self: &Arc<Self>,
        lead: &Lead<FillResult>,
        key: &Key,
        priority: RequestPriority,
    ) -> FillResult {
        let Some(route) = self.route(key) else {
            return Err(Failure::new(Reason::Internal));
        };
        match route.cache.mode == Mode::Chain {
            true => self.make_chain_answer(lead, key, route, priority).await,
            // Mode `override`: `off` is fetched unshared, and `respect` by `relay`.
            false => {
                let fetch = self.fetch_and_store(key, route, priority);
                self.recall_or(key, route, fetch).await
            }
        }
    }

    /// Makes the answer for a key of a route in mode `chain`: from stored windows, or by a
    /// request.
    async fn make_chain_answer(
        self: &Arc<Self>,
        lead: &Lead<FillResult>,
        key: &Key,
        route: &Route,
        priority: RequestPriority,
    ) -> FillResult {
        let from = AnswerSource::Memory;
        if let Some(stored) = self.cut_transaction(key, route) {
            self.cache.store().insert(key.clone(), stored.clone());
            // The index by which it was cut does not outlive the process.
            self.keep(key, route, &stored);
            return Ok(FillAnswer { stored, from });
        }
        if self.are_pages_cut(key.route())
            && let Some(list) = List::of(key, route, priority)
        {
            return self.answer_page(lead, &list).await;
        }
        self.exchange(lead, key, priority, Anew::No).await
    }

    /// Requests a key from the upstream, and stores the answer for the lifetime of its
    /// status.
    async fn fetch_and_store(
        &self,
        key: &Key,
        route: &Route,
        priority: RequestPriority,
    ) -> FillResult {
        for _ in 0..MOST_ATTEMPTS {
            let sequence = self.cache.store().purges();
            let answer = self.send(key, priority).await?;
            let lifetime = route
                .cache
                .times
                .lifetime(answer.status, answer.index.empty);
            let stored = Arc::new(self.prepare(answer, lifetime, sequence));
            if self.cache.store().response_was_purged(key, &stored) {
                continue;
            }
            let _storing = trace::begin("store", SpanKind::Internal);
            let is_stored =
                lifetime.is_some() && self.cache.store().insert(key.clone(), stored.clone());
            if is_stored {
                self.keep(key, route, &stored);
            }
            return Ok(FillAnswer {
                stored,
                from: AnswerSource::Upstream { stored: is_stored },
            });
        }
        Err(Failure::until(Reason::Outdated, Duration::from_secs(1)))
    }

    /// Sends a request to the upstream, and reports a failure.
    async fn send(&self, key: &Key, priority: RequestPriority) -> Result<Answer, Failure> {
        let priority = priority.on_route(key.route());
        let upstream = self.upstream_of(key);
        let answer = upstream.fetch(key.target(), priority).await;
        if let Err(failure) = &answer {
            failure.report(key.target());
        }
        answer
    }

    /// What is stored of an answer, in modes other than `chain`.
    fn prepare(&self, answer: Answer, lifetime: Option<Duration>, sequence: u64) -> StoredResponse {
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
            checked: CheckedPurge::at(sequence),
            stamp: None,
            page: None,
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
