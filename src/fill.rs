//! Fetching what memory does not have, and storing it, for routes of all modes.
//!
//! ```text
//! answer           on routes in mode `chain`: cuts a transaction or a page from windows
//!                  (`find`, `find_page`), or
//!   share          leads the fetch of a key, or waits for the one that is under way:
//!     lead         a task; looks in memory again, then
//!       recall     in the state directory and at other replicas,
//!       exchange   sends the request, then by the route's mode
//!         ingest      applies the answer to the chain and stores it: `chain`
//!         by_status   stores it for the time of its status: `override`; or not: `off`
//!         stream      may send it on while it is collected: plain routes, by RFC 9111, and
//!                     answers of any content type
//! ```
//!
//! On routes in mode `chain`, an answer is applied to the chain's ledger before it is served
//! (`ingest`), and after a new tip one request for a known block shows that all older
//! responses stand, or that there was a reorg (`check_blocks`). On plain routes the rules are
//! in [`crate::cache`], each quoted beside its code; `plain` and its neighbours apply them.
//!
//! Invariants: no fetch waits for a fetch; an answer that a reorg has overtaken is neither
//! stored nor served, but requested again; a client's disconnect cancels no fetch that others
//! may wait for; only complete responses are stored; every wait has a deadline.

mod body;
mod exchange;
mod fetch;
mod fields;
mod ingest;
mod kept;
mod lookup;
mod names;
mod pages;
mod plain;
mod purges;
mod store;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{HeaderMap, Method, Request, StatusCode, Version};

use crate::cache::key::Key;
use crate::cache::outcome::Forward;
use crate::cache::{Cache, JudgedResponse, StoredResponse};
use crate::chain::Chain;
use crate::clock::Clock;
use crate::collapse::Collapse;
use crate::connections::Activity;
use crate::failure_backoff::FailureBackoff;
use crate::identify::TrustedProxies;
use crate::log_writer::LogInterval;
use crate::route::{Route, RouteTable};
use crate::upstream::{Failure, RequestPriority, Upstreams};
use crate::wire::Body;
pub(crate) use kept::LowerTiers;
pub(crate) use lookup::LookupKey;
pub(crate) use names::StoredNames;
pub(crate) use purges::follow;

/// Fetches what memory does not have.
pub struct Fill {
    /// The routes.
    pub(crate) routes: Arc<RouteTable>,
    /// The responses in memory.
    pub(crate) cache: Cache,
    /// What is known of the chain.
    pub chain: Arc<Chain>,
    /// The fetches under way.
    pub collapse: Arc<Collapse<Announced>>,
    /// The upstreams of routes and tips.
    pub(crate) upstreams: Arc<Upstreams>,
    /// The clock.
    pub(crate) clock: Clock,
    /// Where responses are looked up that memory does not have.
    pub(crate) lower: LowerTiers,
    /// The proxies whose forwarding fields are believed.
    pub(crate) trust: TrustedProxies,
    /// The name of this process in the `via` of requests, by which it recognises
    /// requests that have already passed it. No other process has it, so two
    /// ordgates in a row are no loop.
    pub(crate) pseudonym: Arc<str>,
    /// The keys that failed recently.
    pub(crate) failures: Arc<FailureBackoff>,
    /// When it was last logged that a page cannot be cut from windows.
    not_cut: LogInterval,
    /// The keys of plain routes whose last answer could not be shared.
    unshared: Arc<Mutex<plain::Unshared>>,
    /// The keys that are fetched for one client alone, each as often as it is.
    alone: Arc<Mutex<Vec<Key>>>,
}

/// What is to be fetched, and for whom.
pub(crate) struct Fetch {
    pub(crate) fill: Arc<Fill>,
    /// The key by which it is looked up and fetched.
    pub(crate) lookup: LookupKey,
    /// The client's request, which decides the answer on plain routes only.
    pub(crate) request: ClientRequest,
    /// Why it is not answered from memory: with [`Forward::Request`], although a fresh response
    /// may be stored.
    pub(crate) why: Forward,
    /// The selected stored response: it may be validated, or answer where the upstream
    /// fails.
    pub(crate) stored: Option<JudgedResponse>,
    /// How urgent it is.
    pub(crate) priority: RequestPriority,
    /// Whether something was fetched for it, rather than for another that it waited for.
    pub(crate) has_led: AtomicBool,
}

/// A client's request, as received.
#[derive(Clone)]
pub(crate) struct ClientRequest {
    /// The connection that a body counts for while it is collected.
    pub(crate) activity: Option<Arc<Activity>>,
    pub(crate) method: Method,
    pub(crate) fields: HeaderMap,
    pub(crate) version: Version,
    /// The address of the client's connection.
    pub(crate) peer: IpAddr,
}

/// The answer to one request, to be rendered.
pub(crate) enum Answer {
    /// A stored response, or one that could be.
    Stored(FillAnswer),
    /// The same, while its body is still coming.
    Coming(FillAnswer, Body),
    /// An answer of the origin that is not stored, with its fields.
    Passed(StatusCode, HeaderMap, Body),
}

/// What a leader gives to all who wait: the answer of a fetch, or why there is none.
pub(crate) type FillResult = Result<FillAnswer, Failure>;

/// The same, or `None` if the answer was for the leader alone: look again.
pub type Announced = Option<FillResult>;

/// An answer, and where it is from.
#[derive(Clone)]
pub struct FillAnswer {
    /// The answer.
    pub(crate) stored: Arc<StoredResponse>,
    /// Where it is from.
    pub(crate) from: AnswerSource,
}

impl FillAnswer {
    /// An answer of the upstream, and whether it is stored.
    fn of_upstream(stored: StoredResponse, is_stored: bool) -> Self {
        Self {
            stored: Arc::new(stored),
            from: AnswerSource::Upstream { stored: is_stored },
        }
    }
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
    /// Memory, after the upstream has said that it is unchanged (304).
    Validated {
        /// Whether the freshened response was stored.
        stored: bool,
    },
    /// Another replica, by way of the engine.
    Shared,
    /// The state directory.
    Disk,
    /// Stored responses, though it may have been cut from them only now.
    Memory,
}

/// How often a fetch is made, or another's is waited for, before it fails or goes alone.
const MOST_ATTEMPTS: usize = 4;
/// How long the first requests after a start wait for the first probe of the tip.
const FIRST_PROBE: Duration = Duration::from_secs(1);
/// How long a look-up in the state directory takes at most, and some more.
const LOOK_UP: Duration = Duration::from_millis(200);

impl Fill {
    /// What fetches under a configuration. After a reload it shares the fetches under way
    /// `before`, and keeps what is known of failures.
    pub(crate) fn new(
        before: Option<&Self>,
        routes: Arc<RouteTable>,
        cache: Cache,
        (chain, upstreams): (Arc<Chain>, Arc<Upstreams>),
        clock: Clock,
        lower: LowerTiers,
        (trust, pseudonym): (TrustedProxies, Arc<str>),
    ) -> Arc<Self> {
        Arc::new(Self {
            failures: before.map_or_else(Arc::default, |fill| fill.failures.clone()),
            not_cut: LogInterval::default(),
            unshared: before.map_or_else(Arc::default, |fill| fill.unshared.clone()),
            alone: before.map_or_else(Arc::default, |fill| fill.alone.clone()),
            collapse: before.map_or_else(Collapse::new, |fill| fill.collapse.clone()),
            routes,
            cache,
            chain,
            upstreams,
            clock,
            lower,
            trust,
            pseudonym,
        })
    }

    /// The fetch of what a client's request misses: its key, why memory does not answer, and the
    /// selected stored response.
    pub(crate) fn fetch_for(
        self: &Arc<Self>,
        request: ClientRequest,
        (lookup, why, stored): (LookupKey, Forward, Option<JudgedResponse>),
        priority: RequestPriority,
    ) -> Arc<Fetch> {
        Arc::new(Fetch {
            fill: self.clone(),
            lookup,
            request,
            why,
            stored,
            priority,
            has_led: AtomicBool::new(false),
        })
    }

    /// The route of a key, which is of its fill's table.
    pub(crate) fn route(&self, key: &Key) -> &Route {
        let route = self.routes.get(key.route());
        route.expect("a request is routed by the table of its fill")
    }

    /// The longest time that [`Fetch::answer`] may take.
    pub(crate) fn longest_wait(&self, key: &Key) -> Duration {
        let (lower, upstream) = (&self.lower, self.route(key).upstream.number);
        let shared = lower.shared.as_ref();
        let other_tiers = LOOK_UP + shared.map_or(Duration::ZERO, |shared| shared.fill_wait());
        // The leader has deadlines of its own; the last second is for a leader whose
        // runtime has stopped.
        let upstream = self.upstreams.client(upstream).max_wait() + Duration::from_secs(1);
        FIRST_PROBE + other_tiers + lower.stale_wait + upstream
    }

    /// Whether all that would be requested for a key is being fetched.
    pub(crate) fn is_under_way(&self, key: &Key) -> bool {
        let requests = self.requests(key);
        let is_fetched = |key: &Key| self.collapse.has(key.as_bytes());
        !requests.is_empty() && requests.iter().all(is_fetched)
    }
}

impl ClientRequest {
    /// The request of a client at an address.
    pub(crate) fn of<B>(request: &Request<B>, peer: IpAddr, activity: &Arc<Activity>) -> Self {
        Self {
            activity: Some(activity.clone()),
            method: request.method().clone(),
            fields: request.headers().clone(),
            version: request.version(),
            peer,
        }
    }

    /// A request of ordgate's own.
    fn own() -> Self {
        Self {
            activity: None,
            method: Method::GET,
            fields: HeaderMap::new(),
            version: Version::HTTP_11,
            peer: Ipv4Addr::UNSPECIFIED.into(),
        }
    }
}
