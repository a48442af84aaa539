//! One upstream: the base URLs of one API, and everything that requests to it
//! need.
//!
//! From the lowest to the highest; each uses only those before it:
//! - [`failure`]: how a request fails;
//! - [`latency`]: quantiles of response times;
//! - [`admission`]: the queue, and the limits that answers report;
//! - [`window`], [`reported`], [`budget`]: what a key has spent and may spend;
//! - [`endpoint`]: the base URLs, their health, and the limit of requests in
//!   flight at each;
//! - [`key`], [`charge`], [`keys`]: each API key of the process, one request against its
//!   budget, and the keys of one upstream;
//! - [`exchange`]: a request that has been sent, whether or not somebody waits for it;
//! - `key_check`: whether a refusal concerns the key;
//! - `key_search`: answers are searched for keys;
//! - [`usage`]: what requests are sent for: routes, reasons, clients, targets;
//! - [`client`]: the exchange with the server.
//!
//! [`Upstream::fetch`] fetches a canonical target; nothing else of a client's
//! request is sent. [`Upstream::forward`] sends a request as it is. Either
//! waits in the admission queue until an endpoint and a key admit it (`admit`),
//! and is sent again after a failure where that is safe and useful, within bounds
//! (`client::retry`). Redirects are not followed: the key would be sent to their
//! target.
//!
//! Deliberately absent: what is stored of an answer (`cache`), and what a client
//! is answered when a request fails (`refusal`).

pub(crate) mod admission;
mod admit;
pub mod answer;
pub(crate) mod budget;
pub(crate) mod charge;
pub mod client;
pub mod counters;
pub mod endpoint;
mod exchange;
mod failover;
pub(crate) mod failure;
pub(crate) mod key;
mod key_check;
mod key_search;
pub mod keys;
pub(crate) mod latency;
mod missing_routes;
mod reload;
mod reported;
mod settings;
mod upstreams;
pub(crate) mod usage;
mod window;

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

pub use admission::queue::AdmissionQueue;
pub(crate) use admission::{Check, ClientUsage, MIN_SHARED_SLOTS};
pub use admission::{Priority, Rate, Rates, RequestOrigin, RequestPriority};
use answer::Answer;
pub use client::forward::{BodyPermit, StreamedAnswer};
pub use client::min_rate::MinRate;
use client::pool::ConnectionPool;
use client::resolver::Resolver;
use client::retry_budget::RetryBudget;
pub use client::tls::TlsError;
use client::upload::Uploads;
pub use client::{RequestBody, ResponseBody, no_body};
use counters::Counters;
use endpoint::selection::EndpointSelection;
use endpoint::{Endpoint, EndpointSnapshot, Host};
pub use failure::{BodyFault, Failure, TimedOut, Unreachable};
use http::{HeaderMap, HeaderValue, Method, Uri};
pub use key_search::SearchedBody;
use keys::Budgets;
use keys::{ApiKey, KeySnapshot, KeySnapshotAtHost, Keys};
pub use latency::Histogram;
pub use missing_routes::MissingRoutes;
pub use settings::{
    AdmissionSettings, DEFAULT, EndpointSettings, KeySettings, PoolSettings, Retry, Settings,
    SetupError, Timeouts,
};
use tokio::sync::watch;
pub use upstreams::{ProviderKeys, Upstreams};
use usage::Usage;

use crate::clock::Clock;
use crate::sync::lock;

/// An upstream, or a substitute for it in tests that simulate time and network.
pub trait UpstreamClient: Send + Sync {
    /// Fetches a canonical target ([`Upstream::fetch`]).
    fn fetch<'a>(
        &'a self,
        target: &'a str,
        priority: RequestPriority,
    ) -> Pin<Box<dyn Future<Output = Result<Answer, Failure>> + Send + 'a>>;

    /// Sends a request as it is ([`Upstream::forward`]), for routes that obey
    /// the origin's header fields.
    fn forward<'a>(
        &'a self,
        method: Method,
        target: &'a str,
        fields: HeaderMap,
        body: Option<RequestBody>,
        priority: RequestPriority,
        max_whole_body: Option<u64>,
    ) -> Pin<Box<dyn Future<Output = Result<StreamedAnswer, Failure>> + Send + 'a>>;

    /// The longest that either takes until an answer begins.
    fn max_wait(&self) -> Duration;

    /// Records the height in a status answer, to find endpoints that lag. Returns whether the height is plausible.
    fn record_reported_height(&self, answer: &Answer, path: &str, height: u32) -> bool {
        let _single_endpoint = (answer, path, height);
        true
    }
}

impl UpstreamClient for Upstream {
    fn fetch<'a>(
        &'a self,
        target: &'a str,
        priority: RequestPriority,
    ) -> Pin<Box<dyn Future<Output = Result<Answer, Failure>> + Send + 'a>> {
        Box::pin(self.fetch(target, priority))
    }

    fn forward<'a>(
        &'a self,
        method: Method,
        target: &'a str,
        fields: HeaderMap,
        body: Option<RequestBody>,
        priority: RequestPriority,
        whole: Option<u64>,
    ) -> Pin<Box<dyn Future<Output = Result<StreamedAnswer, Failure>> + Send + 'a>> {
        Box::pin(self.forward(method, target, fields, body, priority, whole))
    }

    fn max_wait(&self) -> Duration {
        let connect = self.settings.connections.connect_timeout;
        self.settings.admission.queue_timeout + connect + self.settings.timeouts.whole
    }

    fn record_reported_height(&self, answer: &Answer, path: &str, height: u32) -> bool {
        self.record_height(usize::from(answer.endpoint), path, height)
    }
}

/// One upstream. Parts behind an `Arc` outlive a reload ([`Upstream::after`]).
pub struct Upstream {
    settings: Settings,
    clock: Clock,
    /// In the order of preference; never empty.
    endpoints: Box<[Arc<Endpoint>]>,
    selection: Arc<Mutex<EndpointSelection>>,
    /// Notified when another endpoint is selected.
    switched: watch::Sender<()>,
    keys: Arc<Keys>,
    queue: Arc<AdmissionQueue>,
    retries: Arc<Mutex<RetryBudget>>,
    pool: Arc<ConnectionPool>,
    resolver: Resolver,
    /// The content of `ca_file` when the connection pool was made.
    authorities: Option<Vec<u8>>,
    uploads: Arc<Uploads>,
    /// The targets of key checks.
    status_paths: Mutex<Vec<Box<str>>>,
    /// The `via` field of requests that ordgate makes itself.
    via: OnceLock<HeaderValue>,
    counters: Arc<Counters>,
    /// That of all upstreams of the process.
    usage: Arc<Usage>,
}

impl Upstream {
    /// An upstream whose requests count in these budgets, which all upstreams of
    /// the process share. No connection is made yet.
    ///
    /// # Errors
    /// If a key would be sent unencrypted, or TLS cannot be set up.
    pub(crate) fn new(
        settings: Settings,
        keys: Vec<ApiKey>,
        resolver: Resolver,
        budgets: Arc<Budgets>,
        usage: Arc<Usage>,
        clock: Clock,
    ) -> Result<Self, SetupError> {
        settings.check(&keys)?;
        let max_queue = settings.admission.max_queue.get() as usize;
        let queue = AdmissionQueue::new(max_queue, clock.clone());
        let rates = settings.rates(!keys.is_empty());
        let endpoints = reload::endpoints(&settings, &[], &queue, &clock);
        Ok(Self {
            selection: reload::selection(&settings),
            switched: watch::Sender::new(()),
            keys: Keys::new(
                &settings.name,
                (reload::sent_keys(&settings, keys), rates),
                reload::hosts(&endpoints),
                budgets,
                queue.clone(),
                clock.clone(),
            ),
            endpoints,
            queue,
            retries: Arc::new(Mutex::new(RetryBudget::new(settings.retry.share))),
            pool: ConnectionPool::new(&settings, resolver.clone())?,
            resolver,
            authorities: reload::authorities(&settings),
            uploads: Arc::default(),
            status_paths: Mutex::default(),
            via: OnceLock::new(),
            counters: Arc::default(),
            usage,
            settings,
            clock,
        })
    }

    /// Sets the name in the `via` field of requests that ordgate makes itself
    /// (RFC 9110 §7.6.3), by which it recognizes a loop.
    pub fn set_pseudonym(&self, pseudonym: &str) {
        if let Ok(via) = HeaderValue::try_from(format!("1.1 {pseudonym}")) {
            // The name of a process does not change.
            let _ = self.via.set(via);
        }
    }

    /// Reserves budget for this many probes of the tip per minute.
    pub fn reserve_for_probes(&self, probes: u32) {
        let ways = u32::try_from(self.keys.count()).unwrap_or(u32::MAX).max(1);
        self.keys.set_probes(probes.div_ceil(ways));
    }

    /// The absolute form of a target at the preferred endpoint.
    ///
    /// # Errors
    /// [`Failure::Protocol`] if the target is malformed.
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

    /// Its settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Counts of requests by reason and outcome.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The request bodies that are being received or sent.
    pub fn uploads(&self) -> &Uploads {
        &self.uploads
    }

    /// The requests that wait for admission.
    pub fn queue(&self) -> &AdmissionQueue {
        &self.queue
    }

    /// The budgets that its requests count in.
    pub(crate) fn budgets(&self) -> &Arc<Budgets> {
        self.keys.budgets()
    }

    /// The state of each key.
    pub(crate) fn key_snapshots(&self) -> Vec<KeySnapshot> {
        let mut keys = self.keys.snapshots();
        // A key may have been refused by a host that is no longer configured.
        let hosts = || self.endpoints.iter().map(|endpoint| endpoint.host());
        let is_configured =
            |(host, _): &(Host, KeySnapshotAtHost)| hosts().any(|configured| configured == host);
        for key in &mut keys {
            key.hosts.retain(is_configured);
        }
        keys
    }

    /// The state of each endpoint, in the order of preference.
    pub fn endpoint_snapshots(&self) -> Vec<EndpointSnapshot> {
        let (selected, heights) = (self.select_endpoint(), self.heights());
        let conditions = self.conditions_at(&heights);
        let endpoints = self.endpoints.iter().zip(conditions).enumerate();
        let snapshots = endpoints.map(|(at, (endpoint, condition))| {
            endpoint.snapshot(at == selected, condition, &heights.best)
        });
        snapshots.collect()
    }

    /// Requests in flight at all endpoints.
    pub fn in_flight(&self) -> u32 {
        let endpoints = self.endpoints.iter();
        endpoints.map(|endpoint| endpoint.in_flight()).sum()
    }

    fn retries(&self) -> MutexGuard<'_, RetryBudget> {
        lock(&self.retries)
    }
}
