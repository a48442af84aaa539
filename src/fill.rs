//! Filling the cache: fetching what memory does not have, and storing it.
//!
//! ```text
//! answer           cuts a transaction or a page from windows, which it fetches, or
//!   fetch          leads the fetch of a key, or waits for the one that is under way:
//!     lead         a task; from memory, the state directory, another replica, or
//!       send       the request to the upstream, whose answer is stored
//! ```
//!
//! On routes in mode `chain`, an answer is applied to the chain's ledger before it is served
//! (`ingest`), and after a new tip one request for a known block shows that all older
//! responses stand, or that there was a reorg (`block_check`).
//!
//! Invariants: no fetch waits for a fetch; an answer that a reorg has overtaken is neither
//! stored nor served, but requested again; a client's disconnect cancels no fetch; every
//! wait has a deadline.

mod block_check;
mod content;
mod fetch;
mod ingest;
mod kept;
mod lookup;
mod names;
mod pages;
mod purges;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::cache::key::Key;
use crate::cache::{Cache, StoredResponse};
use crate::chain::Chain;
use crate::clock::{Clock, Moment};
use crate::collapse::{Collapse, Wait};
use crate::failure_backoff::{self, FailureBackoff};
use crate::route::{Route, RouteTable};
use crate::upstream::{Failure, RequestPriority, UpstreamClient, Upstreams};
pub(crate) use kept::LowerTiers;
pub(crate) use lookup::LookupKey;
pub(crate) use names::StoredNames;
pub(crate) use purges::{Purging, follow};

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
    /// Until when the pages of routes are not cut from windows, by the routes' numbers.
    suspended: Mutex<BTreeMap<u16, Moment>>,
    /// The keys that failed recently.
    pub(crate) failures: Arc<FailureBackoff>,
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

/// Where an answer is from. Ascending: what is made of several is from the lowest of theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum AnswerSource {
    /// The state directory, of an earlier run of which it is not known yet whether its
    /// blocks stand: it is stale.
    Unconfirmed,
    /// An upstream request.
    Upstream {
        /// Whether the answer was stored.
        stored: bool,
    },
    /// Another replica, by way of the engine.
    Shared,
    /// The state directory.
    Disk,
    /// Stored responses, though it may have been cut from them only now.
    Memory,
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
            suspended: Mutex::default(),
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
    /// known of failures.
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
            suspended: Mutex::default(),
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

    /// The answer to a client's request that memory does not have: from stored windows, or
    /// by a fetch. Also says whether other clients' fetches gave it.
    pub(crate) async fn answer(
        self: &Arc<Self>,
        key: &Key,
        wait: Wait,
        priority: RequestPriority,
    ) -> (FillResult, bool) {
        if let Some(route) = self.route(key) {
            if let Some(stored) = self.cut_transaction(key, route) {
                self.cache.store().insert(key.clone(), stored.clone());
                // The index by which it was cut does not outlive the process.
                self.keep(key, route, &stored);
                let from = AnswerSource::Memory;
                return (Ok(FillAnswer { stored, from }), false);
            }
            if let Some(answered) = self.answer_page(key, route, wait, priority).await {
                return answered;
            }
        }
        self.fetch(key, false, wait, priority).await
    }

    /// How the last fetch for a key has failed, if it was not answered since.
    pub(crate) fn last_failure(&self, key: &Key) -> Option<Failure> {
        let (requests, now) = (self.requests(key), self.clock.now());
        requests.iter().find_map(|key| self.failures.last(key, now))
    }

    /// Whether all that would be requested for a key is being fetched.
    pub(crate) fn is_under_way(&self, key: &Key) -> bool {
        let requests = self.requests(key);
        let is_fetched = |key: &Key| self.collapse.has(key.as_bytes());
        !requests.is_empty() && requests.iter().all(is_fetched)
    }
}
