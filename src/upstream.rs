//! One upstream: the base URLs of one API, and everything that requests to it need.
//!
//! A request's path is in [`fetch`]: it waits in the [`queue`] for a [`permit`] (a slot at an
//! [`endpoint`], and one request of the budget of a [`key`]), is sent on a connection of the
//! [`pool`] in a task of its own ([`exchange`]), its answer is searched for keys
//! ([`key_search`]) and judged ([`answer`]); after a [`failure`] it may be sent again.
//! Redirects are not followed: the key would be sent to their target.
//!
//! What a key has spent is counted in its exact [`budget`], with what answers report
//! ([`reported`]). An endpoint that does not answer gets no
//! requests ([`breaker`]); of several, the first that is healthy and not behind is used
//! ([`failover`]).
//!
//! Deliberately absent: what is stored of an answer (`cache`), and what a client is answered
//! when a request fails (`refusal`).

pub mod answer;
pub mod body;
mod breaker;
pub(crate) mod budget;
pub mod counters;
pub mod endpoint;
mod exchange;
pub mod failover;
pub(crate) mod failure;
mod fetch;
pub(crate) mod key;
mod key_search;
pub mod keys;
mod permit;
mod pool;
pub(crate) mod queue;
mod reported;
mod settings;
mod upstreams;

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use body::Uploads;
use bytes::Bytes;
use counters::Counters;
use endpoint::{Endpoint, Host};
pub use failure::Failure;
use fetch::RetryBudget;
pub use fetch::{Answer, AnswerBody, UpstreamRequest};
use http::Uri;
use http_body_util::combinators::{BoxBody, UnsyncBoxBody};
use http_body_util::{BodyExt, Empty};
use key::KeyUse;
pub use key_search::SearchedBody;
use keys::{ApiKey, Budgets, Keys};
use pool::ConnectionPool;
pub(crate) use queue::{AdmissionQueue, MIN_SHARED_SLOTS};
pub use queue::{Priority, RequestPriority, Slot};
use serde_json::Value;
pub use settings::{DEFAULT, Rate, Settings, SetupError, base_url, is_name};
use tokio::sync::watch;
pub use upstreams::{ProviderKeys, Upstreams};

use crate::clock::Clock;
use crate::sync::lock;
use crate::wire::body::BodyError;

/// The body of a request to the upstream.
pub type RequestBody = BoxBody<Bytes, BodyError>;

/// The body of a response, as it is received.
pub type ResponseBody = UnsyncBoxBody<Bytes, BodyError>;

/// An empty request body.
pub fn no_body() -> RequestBody {
    Empty::new().map_err(|never| match never {}).boxed()
}

/// An upstream, or a substitute for it in tests that simulate time and network.
pub trait UpstreamClient: Send + Sync {
    /// Sends a request. A safe one without a body is sent again where that is useful.
    ///
    /// # Errors
    /// How it failed before its answer began, or was read whole, within
    /// [`max_wait`](Self::max_wait).
    fn send<'a>(
        &'a self,
        request: UpstreamRequest<'a>,
        priority: RequestPriority,
    ) -> Pin<Box<dyn Future<Output = Result<Answer, Failure>> + Send + 'a>>;

    /// The longest that it takes until an answer begins.
    fn max_wait(&self) -> Duration;
}

/// One upstream. Parts behind an `Arc` outlive a reload.
pub struct Upstream {
    pub(crate) settings: Settings,
    clock: Clock,
    /// In the order of preference; never empty.
    endpoints: Box<[Arc<Endpoint>]>,
    /// The number of the endpoint that requests go to.
    selected: Arc<Mutex<usize>>,
    /// Notified when another endpoint is selected, or one does not answer: the tip is to be
    /// asked for at once.
    doubted: watch::Sender<()>,
    keys: Keys,
    /// The requests that wait for admission.
    pub(crate) queue: Arc<AdmissionQueue>,
    retries: Arc<Mutex<RetryBudget>>,
    pool: Arc<ConnectionPool>,
    /// The request bodies that are in memory.
    pub uploads: Arc<Uploads>,
    tips: Mutex<TipPaths>,
    /// Counts of requests by reason and outcome.
    pub counters: Arc<Counters>,
}

/// How many requests of clients may be in flight.
#[derive(Clone, Copy)]
pub(crate) struct Slots {
    pub(crate) all: u32,
    pub(crate) free: u32,
    /// Those that only clients without a request in flight get.
    pub(crate) kept: u32,
}

/// The status paths of the tips that an upstream is asked for.
#[derive(Default)]
struct TipPaths {
    /// Those that key checks request.
    paths: Vec<Box<str>>,
    /// How many probes there are a minute.
    probes: u32,
    /// How long an answer of one may take; `None` if there is no tip here.
    patience: Option<Duration>,
}

impl Upstream {
    /// An upstream whose requests count in these budgets, which all upstreams of the process
    /// share. One that follows `before`, of the same name, keeps the state of each endpoint whose
    /// URL is kept, and the counts.
    /// Requests go to `before` until the queue serves this one.
    ///
    /// # Errors
    /// If a key would be sent unencrypted, or TLS cannot be set up; nothing has changed then.
    pub(crate) fn new(
        settings: Settings,
        mut keys: Vec<ApiKey>,
        before: Option<&Self>,
        budgets: &Arc<Budgets>,
        clock: &Clock,
    ) -> Result<Arc<Self>, SetupError> {
        settings.check(&keys)?;
        if !settings.send_api_key {
            keys.clear();
        }
        let urls = &settings.urls;
        let known = before.map_or(&[][..], |before| &before.endpoints);
        let endpoint = |url: &Uri| match known.iter().find(|known| known.url == *url) {
            Some(known) => known.clone(),
            None => Endpoint::new(url.clone(), clock.clone()),
        };
        // Of other URLs, the first is preferred, whatever was selected.
        let same = before.filter(|before| before.settings.urls == *urls);
        Ok(Arc::new(Self {
            endpoints: urls.iter().map(endpoint).collect(),
            selected: same.map_or_else(Arc::default, |before| before.selected.clone()),
            doubted: before.map_or_else(Default::default, |before| before.doubted.clone()),
            keys: Keys::new(keys, budgets.clone(), clock.clone()),
            queue: before.map_or_else(Arc::default, |before| before.queue.clone()),
            retries: before.map_or_else(Arc::default, |before| before.retries.clone()),
            pool: ConnectionPool::new(&settings)?,
            uploads: before.map_or_else(Arc::default, |before| before.uploads.clone()),
            tips: Mutex::default(),
            counters: before.map_or_else(Arc::default, |before| before.counters.clone()),
            settings,
            clock: clock.clone(),
        }))
    }

    /// How it uses each of its keys.
    fn key_use(&self) -> KeyUse {
        let has_keys = self.keys.of_process().any(|key| key.value.is_some());
        let ways = u32::try_from(self.keys.keys.len())
            .unwrap_or(u32::MAX)
            .max(1);
        KeyUse {
            limits: self.settings.limits(has_keys),
            probes: lock(&self.tips).probes.div_ceil(ways),
            hosts: self.hosts(),
        }
    }

    /// Whether both have an origin in common (RFC 9110 §4.3.1), whatever the paths
    /// of their base URLs.
    pub fn shares_origin_with(&self, other: &Self) -> bool {
        let others = other.hosts();
        self.name() == other.name() || self.hosts().iter().any(|own| others.contains(own))
    }

    /// Sets the status paths that key checks request; how many probes of a tip there are a
    /// minute, for which budget is kept; and how long an answer to one may take, which is
    /// `None` if it has no tip.
    pub fn set_tips(&self, paths: Vec<Box<str>>, probes: u32, patience: Option<Duration>) {
        *lock(&self.tips) = TipPaths {
            paths,
            probes,
            patience,
        };
    }

    /// Whether the status of a tip is asked for here.
    fn has_tip(&self) -> bool {
        lock(&self.tips).patience.is_some()
    }

    /// How long the first byte of an answer may take.
    fn patience(&self, request: &RequestPriority) -> Duration {
        let of_tip = lock(&self.tips).patience.filter(|_| request.is_probe());
        of_tip.unwrap_or(self.settings.first_byte_timeout)
    }

    /// A status path, if there is one.
    fn status_path(&self) -> Option<Box<str>> {
        lock(&self.tips).paths.first().cloned()
    }

    fn is_status_path(&self, target: &str) -> bool {
        lock(&self.tips).paths.iter().any(|path| **path == *target)
    }

    /// The base URL of an endpoint by its number in an answer.
    pub fn base_url(&self, at: u16) -> &str {
        &self.endpoints[usize::from(at)].name
    }

    /// The absolute form of a target at the preferred endpoint.
    ///
    /// # Errors
    /// If the target is malformed.
    pub fn uri(&self, target: &str) -> Result<Uri, Failure> {
        self.endpoints[0].uri(target)
    }

    /// The target of a path and query that the preferred endpoint has named:
    /// without the path of its base URL.
    pub fn target_of<'a>(&self, path_and_query: &'a str) -> &'a str {
        self.endpoints[0].target_of(path_and_query)
    }

    /// Its name: `default`, or that of its table in proxy.toml.
    pub fn name(&self) -> &str {
        &self.settings.name
    }

    /// The state of each key at its hosts.
    pub(crate) fn key_snapshots(&self) -> Vec<Value> {
        self.keys.snapshots(&self.hosts())
    }

    /// The base URLs, in the order of preference.
    pub(crate) fn base_urls(&self) -> impl Iterator<Item = &str> {
        self.endpoints.iter().map(|endpoint| &*endpoint.name)
    }

    /// The hosts of its endpoints.
    fn hosts(&self) -> Vec<Host> {
        let mut hosts: Vec<_> = self.endpoints.iter().map(|one| one.host.clone()).collect();
        hosts.sort_unstable();
        hosts.dedup();
        hosts
    }

    /// Requests in flight at all endpoints.
    pub fn in_flight(&self) -> u32 {
        self.endpoints.iter().map(|one| one.in_flight()).sum()
    }

    /// The slots that clients share at the endpoint in use. An unanswered request counts
    /// against every second, so that there are no more than the budget has requests a second.
    pub(crate) fn slots(&self) -> Slots {
        let most = self.settings.max_in_flight.get();
        let all = most.min(self.keys.max_per_second().max(MIN_SHARED_SLOTS));
        let in_flight = self.endpoints[self.select_endpoint()].in_flight();
        Slots {
            all,
            free: all.saturating_sub(in_flight),
            kept: if all < MIN_SHARED_SLOTS { 0 } else { all / 4 },
        }
    }
}
