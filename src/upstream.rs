//! One upstream: the base URLs of one API, and everything that requests to it need.
//!
//! A request's path is in [`fetch`]: it waits in the [`queue`] for a [`permit`] (a slot at an
//! [`endpoint`], and one request of the budget of a [`key`]), is sent on a connection of the
//! [`pool`] in a task of its own ([`exchange`]), its answer is searched for keys
//! ([`key_search`]) and judged ([`answer`]); after a [`failure`] it may be sent again
//! ([`retry`]). Redirects are not followed: the key would be sent to their target.
//!
//! What a key has spent is counted in its [`budget`], of two exact [`window`]s and of what
//! answers report ([`reported`]). An endpoint that does not answer gets no
//! requests ([`breaker`]); of several, the first that is healthy and not behind is used
//! ([`selection`], [`heights`]).
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
mod failover;
pub(crate) mod failure;
mod fetch;
pub(crate) mod heights;
pub(crate) mod key;
mod key_check;
mod key_search;
pub mod keys;
mod permit;
mod pool;
pub(crate) mod queue;
mod rates;
mod reported;
mod request;
pub mod resolver;
mod retry;
pub mod selection;
mod settings;
mod tls;
mod upstreams;
mod window;

use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use answer::Answer;
use body::Uploads;
pub use body::{MinRate, ResponseBodyLimits};
use bytes::Bytes;
use counters::Counters;
use endpoint::{Endpoint, EndpointSnapshot, Host};
pub use failure::Failure;
pub use fetch::StreamedAnswer;
use http::{HeaderMap, HeaderValue, Method, Uri};
use http_body_util::combinators::{BoxBody, UnsyncBoxBody};
use http_body_util::{BodyExt, Empty};
use key::KeyUse;
pub use key_search::SearchedBody;
use keys::{ApiKey, Budgets, KeySnapshot, KeySnapshotAtHost, Keys};
use pool::ConnectionPool;
pub use queue::Slot;
pub(crate) use queue::{AdmissionQueue, ClientUsage, MIN_SHARED_SLOTS};
pub use rates::{Rate, Rates};
pub(crate) use request::Check;
pub use request::{Priority, RequestPriority};
use resolver::Resolver;
use retry::RetryBudget;
use selection::EndpointSelection;
pub use settings::{
    AdmissionSettings, DEFAULT, EndpointSettings, KeySettings, PoolSettings, Settings, SetupError,
    Timeouts,
};
pub(crate) use settings::{PER_MINUTE, PER_SECOND};
pub use tls::TlsError;
use tokio::sync::watch;
pub use upstreams::{ProviderKeys, Upstreams};

use crate::clock::Clock;
use crate::regular_file::{self, MAX_AUTHORITIES};
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

    /// Records the height in a status answer, to find endpoints that lag; `None` if it is no
    /// status. Returns whether the height is plausible.
    fn record_status(&self, answer: &Answer, path: &str, height: Option<u32>) -> bool {
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

    fn record_status(&self, answer: &Answer, path: &str, height: Option<u32>) -> bool {
        let at = usize::from(answer.endpoint);
        if let Some(endpoint) = self.endpoints.get(at) {
            endpoint.record_status(height.is_some());
        }
        height.is_none_or(|height| self.record_height(at, path, height))
    }
}

/// Where a request is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// The endpoint that requests go to at the moment.
    #[default]
    Selected,
    /// Another one, by its number, since it has failed elsewhere.
    Other(usize),
    /// This one and no other.
    Only(usize),
}

/// One upstream. Parts behind an `Arc` outlive a reload ([`Upstream::after`]).
pub struct Upstream {
    settings: Settings,
    clock: Clock,
    /// In the order of preference; never empty.
    endpoints: Box<[Arc<Endpoint>]>,
    selection: Arc<Mutex<EndpointSelection>>,
    /// Notified when another endpoint is selected, or one does not answer: the tip is to be
    /// asked for at once.
    doubted: watch::Sender<()>,
    keys: Keys,
    queue: Arc<AdmissionQueue>,
    retries: Arc<Mutex<RetryBudget>>,
    pool: Arc<ConnectionPool>,
    resolver: Resolver,
    /// The content of `ca_file` when the connection pool was made.
    authorities: Option<Vec<u8>>,
    uploads: Arc<Uploads>,
    tips: Mutex<TipPaths>,
    /// The `via` field of requests that ordgate makes itself.
    via: OnceLock<HeaderValue>,
    counters: Arc<Counters>,
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
        clock: Clock,
    ) -> Result<Arc<Self>, SetupError> {
        settings.check(&keys)?;
        let queue = AdmissionQueue::new(clock.clone());
        let endpoints = endpoints(&settings, &[], &clock);
        let urls = &settings.endpoints;
        let selection = EndpointSelection::new(urls.urls.len(), urls.return_after);
        Ok(Arc::new(Self {
            selection: Arc::new(Mutex::new(selection)),
            doubted: watch::Sender::new(()),
            keys: Keys::new(sent_keys(&settings, keys), budgets, clock.clone()),
            endpoints,
            queue,
            retries: Arc::default(),
            pool: ConnectionPool::new(&settings, resolver.clone())?,
            resolver,
            authorities: authorities(&settings),
            uploads: Arc::default(),
            tips: Mutex::default(),
            via: OnceLock::new(),
            counters: Arc::default(),
            settings,
            clock,
        }))
    }

    /// The upstream that follows `before`: the same one with other settings, or another one
    /// of the same name. It keeps the connections if they are made in the same way, the state
    /// of each endpoint whose URL is kept, and the counts. Until
    /// [`take_over`](Self::take_over) requests go to `before`.
    ///
    /// # Errors
    /// As [`new`](Self::new), with these keys; nothing has changed then.
    pub fn after(
        before: &Self,
        settings: Settings,
        keys: Vec<ApiKey>,
    ) -> Result<Arc<Self>, SetupError> {
        settings.check(&keys)?;
        let authorities = authorities(&settings);
        let connects_alike = authorities == before.authorities
            && settings.connections == before.settings.connections;
        let pool = match connects_alike {
            true => before.pool.clone(),
            false => ConnectionPool::new(&settings, before.resolver.clone())?,
        };
        Ok(Arc::new(Self {
            endpoints: endpoints(&settings, &before.endpoints, &before.clock),
            selection: before.next_selection(&settings),
            doubted: before.doubted.clone(),
            keys: before.keys.after(sent_keys(&settings, keys)),
            queue: before.queue.clone(),
            retries: before.retries.clone(),
            pool,
            resolver: before.resolver.clone(),
            authorities,
            uploads: before.uploads.clone(),
            tips: Mutex::default(),
            via: before.via.clone(),
            counters: before.counters.clone(),
            settings,
            clock: before.clock.clone(),
        }))
    }

    /// How it uses each of its keys.
    fn key_use(&self) -> KeyUse {
        let has_keys = self.keys.of_process().any(|key| key.value.is_some());
        let ways = u32::try_from(self.keys.count()).unwrap_or(u32::MAX).max(1);
        KeyUse {
            rates: self.settings.rates(has_keys),
            probes: lock(&self.tips).probes.div_ceil(ways),
            hosts: hosts(&self.endpoints),
            queues: vec![Arc::downgrade(&self.queue)],
        }
    }

    /// Whether both have an endpoint in common, so that an answer of one is what
    /// the other would answer.
    pub fn shares_endpoint_with(&self, other: &Self) -> bool {
        let urls = &other.settings.endpoints.urls;
        let mut own = self.settings.endpoints.urls.iter();
        own.any(|url| urls.contains(url))
    }

    /// Whether both have an origin in common (RFC 9110 §4.3.1), whatever the paths
    /// of their base URLs.
    pub fn shares_origin_with(&self, other: &Self) -> bool {
        let mut own = self.endpoints.iter();
        let is_of_other = |host| other.endpoints.iter().any(|one| one.host == host);
        self.name() == other.name() || own.any(|own| is_of_other(own.host.clone()))
    }

    /// Sets the name in the `via` field of requests that ordgate makes itself
    /// (RFC 9110 §7.6.3), by which it recognizes a loop.
    pub fn set_pseudonym(&self, pseudonym: &str) {
        if let Ok(via) = HeaderValue::try_from(format!("1.1 {pseudonym}")) {
            // The name of a process does not change.
            let _ = self.via.set(via);
        }
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
        of_tip.unwrap_or(self.settings.timeouts.first_byte)
    }

    /// The status path for a target: the one that has the longest prefix in common
    /// with it, the first of several.
    fn status_path(&self, target: &str) -> Option<Box<str>> {
        let common = |path: &str| {
            let pairs = path.bytes().zip(target.bytes());
            pairs.take_while(|(one, other)| one == other).count()
        };
        let tips = lock(&self.tips);
        // `max_by_key` returns the last of several maxima.
        let best = tips.paths.iter().rev().max_by_key(|path| common(path));
        best.cloned()
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

    /// Its settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Counts of requests by reason and outcome.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The request bodies that are in memory.
    pub fn uploads(&self) -> &Uploads {
        &self.uploads
    }

    /// The requests that wait for admission.
    pub(crate) fn queue(&self) -> &AdmissionQueue {
        &self.queue
    }

    /// The budgets that its requests count in.
    pub(crate) fn budgets(&self) -> &Arc<Budgets> {
        &self.keys.budgets
    }

    /// The state of each key.
    pub(crate) fn key_snapshots(&self) -> Vec<KeySnapshot> {
        let mut keys = self.keys.snapshots();
        // A key may have been refused by a host that is no longer configured.
        let is_configured = |(host, _): &(Host, KeySnapshotAtHost)| {
            self.endpoints.iter().any(|endpoint| endpoint.host == *host)
        };
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
        self.endpoints
            .iter()
            .map(|endpoint| endpoint.in_flight())
            .sum()
    }

    /// The slots that clients share at the endpoint in use. An unanswered request counts
    /// against every second, so that there are no more than the budget has requests a second.
    pub(crate) fn slots(&self) -> Slots {
        let most = self.settings.admission.max_in_flight.get();
        let all = most.min(self.keys.max_per_second().max(MIN_SHARED_SLOTS));
        let in_flight = self.endpoints[self.select_endpoint()].in_flight();
        Slots {
            all,
            free: all.saturating_sub(in_flight),
            kept: if all < MIN_SHARED_SLOTS { 0 } else { all / 4 },
        }
    }

    /// The endpoint of a request.
    fn place(&self, place: Place) -> usize {
        match place {
            Place::Other(at) | Place::Only(at) if at < self.endpoints.len() => at,
            Place::Selected | Place::Other(_) | Place::Only(_) => self.select_endpoint(),
        }
    }

    fn is_selected(&self, place: Place) -> bool {
        place == Place::Selected || self.place(place) == self.select_endpoint()
    }

    /// A breaker has closed.
    fn recovered(&self) {
        self.select_endpoint();
        self.queue.pump();
    }

    fn retries(&self) -> MutexGuard<'_, RetryBudget> {
        lock(&self.retries)
    }
}

/// The keys that requests carry.
fn sent_keys(settings: &Settings, keys: Vec<ApiKey>) -> Vec<ApiKey> {
    match settings.keys.send {
        true => keys,
        false => Vec::new(),
    }
}

/// The hosts of these endpoints.
fn hosts(endpoints: &[Arc<Endpoint>]) -> Vec<Host> {
    let mut hosts: Vec<Host> = endpoints.iter().map(|one| one.host.clone()).collect();
    hosts.sort_unstable();
    hosts.dedup();
    hosts
}

/// The endpoints of these settings: those of `known` with the same URL, else new ones.
fn endpoints(settings: &Settings, known: &[Arc<Endpoint>], clock: &Clock) -> Box<[Arc<Endpoint>]> {
    let endpoint = |url: &Uri| match known.iter().find(|known| known.url == *url) {
        Some(known) => known.clone(),
        None => Endpoint::new(url.clone(), clock.clone()),
    };
    settings.endpoints.urls.iter().map(endpoint).collect()
}

/// The content of `ca_file`, to find out whether it has changed. A file that cannot be read
/// is reported when it is used.
fn authorities(settings: &Settings) -> Option<Vec<u8>> {
    let path: &Path = settings.connections.ca_file.as_deref()?;
    regular_file::read(path, MAX_AUTHORITIES).ok()
}
