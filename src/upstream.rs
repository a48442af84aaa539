//! The server that ordgate calls: the base URLs of one API, asked with a key of
//! the pool, within budget, bounds and deadlines.
//!
//! [`Upstream::fetch`] is what the walk calls for a canonical target. Nothing
//! of a client's request but that target goes out. Redirects are not followed,
//! since the key would follow them. A request waits in the line until an
//! endpoint lets it in and a key has budget for it; what fails is asked again
//! where that is safe, of use, and within bounds (`upstream::again`).
//!
//! Deliberately absent: what is kept of an answer (`cache`) and what a client
//! is told of a failure (`refusal`).

mod admission;
pub mod answer;
pub mod client;
pub mod counters;
pub mod endpoint;
mod failure;
pub mod keys;
mod missing_routes;
mod set;
mod settings;

use std::hash::BuildHasher;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use admission::UnreadableFields;
use admission::budgets::{BudgetOwner, Budgets};
pub use admission::queue::AdmissionQueue;
use admission::queue::{AdmissionRetry, ClientSlot, NotAdmitted};
pub(crate) use admission::{ClientUsage, MIN_SHARED_SLOTS};
pub use admission::{Priority, Rate, Rates, RequestPriority};
use answer::Answer;
use client::attempts::Course;
use client::chance::Chance;
pub use client::key_search::{KeyEchoed, SearchedBody};
pub use client::min_rate::MinRate;
use client::pools::Connections;
use client::resolver::Names;
use client::retry_budget::RetryBudget;
pub use client::streamed::{BodyPermit, RequestBody, ResponseBody, StreamedAnswer, no_body};
pub use client::tls::TlsError;
use client::upload::Uploads;
use counters::Counters;
use endpoint::heights::{Heights, highest_at};
use endpoint::selection::{Condition, EndpointSelection, Switch};
use endpoint::{Endpoint, EndpointSnapshot, Permit};
pub use failure::{Failure, TimedOut, Unreachable};
use foldhash::quality::RandomState;
use http::header::{ACCEPT_ENCODING, IF_RANGE, RANGE};
use http::{HeaderMap, HeaderValue, Method, Uri};
use keys::{ApiKey, BudgetPermit, Denied, Host, KeySnapshot, KeySnapshotAtHost, Keys};
pub use missing_routes::MissingRoutes;
pub use set::{ProviderKeys, Upstreams};
pub use settings::{DEFAULT, Hedge, Retry, Settings, SetupError};
use tokio::sync::watch;

use crate::clock::Clock;

/// Who answers for the API: the upstream, or what stands in for it where a
/// test plays time and network by hand.
pub trait UpstreamClient: Send + Sync {
    /// Asks for a canonical target.
    fn ask<'a>(
        &'a self,
        target: &'a str,
        wish: RequestPriority,
    ) -> Pin<Box<dyn Future<Output = Result<Answer, Failure>> + Send + 'a>>;

    /// Passes a request on as it is, for routes that obey the origin's fields.
    /// With `whole`, the body of an answer of the API's is read first, up to so
    /// many bytes.
    fn exchange<'a>(
        &'a self,
        method: Method,
        target: &'a str,
        fields: HeaderMap,
        body: Option<RequestBody>,
        wish: RequestPriority,
        whole: Option<u64>,
    ) -> Pin<Box<dyn Future<Output = Result<StreamedAnswer, Failure>> + Send + 'a>>;

    /// The longest that either takes until an answer begins.
    fn patience(&self) -> Duration;

    /// Takes in that an answer of a status path says a height: of several
    /// endpoints the one that lags is not asked. Answers whether the height is
    /// believed.
    fn hear_height(&self, answer: &Answer, path: &str, height: u32) -> bool {
        let _alone = (answer, path, height);
        true
    }
}

impl UpstreamClient for Upstream {
    fn ask<'a>(
        &'a self,
        target: &'a str,
        wish: RequestPriority,
    ) -> Pin<Box<dyn Future<Output = Result<Answer, Failure>> + Send + 'a>> {
        Box::pin(self.fetch(target, wish))
    }

    fn exchange<'a>(
        &'a self,
        method: Method,
        target: &'a str,
        fields: HeaderMap,
        body: Option<RequestBody>,
        wish: RequestPriority,
        whole: Option<u64>,
    ) -> Pin<Box<dyn Future<Output = Result<StreamedAnswer, Failure>> + Send + 'a>> {
        Box::pin(self.exchange(method, target, fields, body, wish, whole))
    }

    fn patience(&self) -> Duration {
        Self::patience(self)
    }

    fn hear_height(&self, answer: &Answer, path: &str, height: u32) -> bool {
        let (now, at) = (self.clock.now(), usize::from(answer.endpoint));
        if let Some(endpoint) = self.endpoints.get(at) {
            endpoint.says_height(path, height, now);
        }
        self.look();
        let unbelieved = self.heights().unbelieved;
        unbelieved.get(at).is_none_or(Option::is_none)
    }
}

/// The upstream.
pub struct Upstream {
    connections: Connections,
    names: Names,
    /// What `ca_file` held when the connection pools were made.
    authorities: Option<Vec<u8>>,
    settings: Settings,
    /// In the order of preference; never empty.
    endpoints: Box<[Arc<Endpoint>]>,
    choice: Arc<Mutex<EndpointSelection>>,
    /// Says that another endpoint is asked.
    switched: watch::Sender<()>,
    keys: Arc<Keys>,
    /// Whose budget requests without a key count in.
    server: BudgetOwner,
    line: Arc<AdmissionQueue>,
    retries: Arc<Mutex<RetryBudget>>,
    chance: Arc<Mutex<Chance>>,
    tally: Arc<Counters>,
    unreadable: UnreadableFields,
    uploads: Arc<Uploads>,
    /// What key checks ask.
    status_paths: Mutex<Vec<Box<str>>>,
    /// What requests of ordgate's own say in `via`.
    via: OnceLock<HeaderValue>,
    clock: Clock,
}

impl Upstream {
    /// Prepares to call an upstream; no connection is made yet. What it sends
    /// counts in these budgets, which all upstreams of the process share.
    ///
    /// # Errors
    /// Where a key would travel in the clear, or TLS cannot be set up.
    pub(crate) fn new(
        settings: Settings,
        keys: Vec<ApiKey>,
        names: Names,
        budgets: Arc<Budgets>,
        clock: Clock,
    ) -> Result<Self, SetupError> {
        settings.check(&keys)?;
        let line = AdmissionQueue::new(settings.max_queue.get() as usize, clock.clone());
        let (rates, server) = (settings.rates(!keys.is_empty()), server(&settings));
        let sent = sent_keys(&settings, keys);
        let new = Self {
            authorities: authorities(&settings),
            connections: Connections::new(&settings, names.clone())?,
            names,
            endpoints: endpoints(&settings, &[], &line, &clock),
            choice: choice(&settings),
            switched: watch::Sender::new(()),
            keys: Keys::new(
                &settings.name,
                sent,
                server.clone(),
                rates,
                budgets,
                line.clone(),
                clock.clone(),
            ),
            server,
            line,
            retries: Arc::new(Mutex::new(RetryBudget::new(settings.retry.share))),
            chance: Arc::new(Mutex::new(Chance::new(RandomState::default().hash_one(())))),
            tally: Arc::default(),
            unreadable: UnreadableFields::default(),
            via: OnceLock::new(),
            uploads: Arc::default(),
            status_paths: Mutex::default(),
            settings,
            clock,
        };
        new.keys.set_several_hosts(new.has_several_hosts());
        new.keys.set_shares_connections(new.settings.http2);
        Ok(new)
    }

    /// Prepares to call the upstream that comes after another: the same with
    /// other settings, or another one. Connections are kept where they are made
    /// in the same way; what is known of an endpoint stays known; the count goes
    /// on. It has the other's keys, or none where the other's must not go, and
    /// the other's bounds, until [`take_over`](Self::take_over).
    ///
    /// # Errors
    /// As [`new`](Self::new), with these keys; nothing has changed then.
    pub fn after(before: &Self, settings: Settings, keys: &[ApiKey]) -> Result<Self, SetupError> {
        settings.check(keys)?;
        let authorities = authorities(&settings);
        let own = &before.settings;
        let connects_alike = authorities == before.authorities && settings.connects_as(own);
        let connections = match connects_alike {
            true => before.connections.clone(),
            false => Connections::new(&settings, before.names.clone())?,
        };
        // Who waits to ask the one before is given keys of the one after: they
        // must go to no place that is not named any more.
        let stays = |url: &Uri| settings.urls.contains(url);
        let carries_alike =
            own.urls.iter().all(stays) && settings.api_key_header == own.api_key_header;
        let chooses_alike = settings.urls == own.urls && settings.return_after == own.return_after;
        let place = |url: &Uri| own.urls.iter().position(|known| known == url);
        let places: Vec<_> = settings.urls.iter().map(place).collect();
        Ok(Self {
            connections,
            names: before.names.clone(),
            authorities,
            endpoints: endpoints(&settings, &before.endpoints, &before.line, &before.clock),
            choice: match chooses_alike {
                true => before.choice.clone(),
                false => {
                    let next = before.choice().next(&places, settings.return_after);
                    Arc::new(Mutex::new(next))
                }
            },
            switched: before.switched.clone(),
            keys: match carries_alike {
                true => before.keys.clone(),
                false => before.keys.elsewhere(),
            },
            server: match settings.urls.iter().any(|url| own.urls.contains(url)) {
                // Whichever of several is the first, they were sent to all.
                true => before.server.clone(),
                false => server(&settings),
            },
            line: before.line.clone(),
            retries: before.retries.clone(),
            chance: before.chance.clone(),
            tally: before.tally.clone(),
            unreadable: UnreadableFields::default(),
            via: before.via.clone(),
            uploads: before.uploads.clone(),
            status_paths: Mutex::default(),
            settings,
            clock: before.clock.clone(),
        })
    }

    /// Asks with these keys, within its own bounds, from now on.
    pub fn take_over(&self, keys: Vec<ApiKey>) {
        let settings = &self.settings;
        for endpoint in &self.endpoints {
            endpoint.bound(&settings.breaker, settings.in_flight());
        }
        self.line.set_capacity(settings.max_queue.get() as usize);
        self.retries().bound(settings.retry.share);
        let rates = settings.rates(!keys.is_empty());
        let sent = sent_keys(settings, keys);
        self.keys.set_several_hosts(self.has_several_hosts());
        self.keys.set_shares_connections(settings.http2);
        self.keys.replace(sent, self.server.clone(), rates);
    }

    fn has_several_hosts(&self) -> bool {
        let first = self.endpoints[0].host();
        self.endpoints.iter().any(|other| other.host() != first)
    }

    /// It is not among the upstreams any more: others that have its keys may have
    /// its share of their budgets. What is under way, or waits, goes on.
    pub fn retire(&self) {
        self.keys.retire();
    }

    /// The budgets that its requests count in.
    pub(crate) fn budgets(&self) -> &Arc<Budgets> {
        self.keys.budgets()
    }

    /// Says this name in the `via` of requests of ordgate's own (RFC 9110
    /// §7.6.3), by which a loop back to here is recognized.
    pub fn set_pseudonym(&self, pseudonym: &str) {
        if let Ok(via) = HeaderValue::try_from(format!("1.1 {pseudonym}")) {
            // A process keeps its name.
            let _ = self.via.set(via);
        }
    }

    /// Whether another asks at some place that this one asks at, so that what
    /// one has said is what the other would say.
    pub fn is_where(&self, other: &Self) -> bool {
        let urls = &other.settings.urls;
        self.settings.urls.iter().any(|url| urls.contains(url))
    }

    /// Whether another asks at some server that this one asks at: they have one
    /// origin (RFC 9110 §4.3.1), whatever paths stand before their targets.
    pub fn has_origin_of(&self, other: &Self) -> bool {
        let server = |url: &Uri| (url.scheme().cloned(), BudgetOwner::server(url));
        let others = || other.settings.urls.iter().map(server);
        self.name() == other.name()
            || self
                .settings
                .urls
                .iter()
                .any(|url| others().any(|other| other == server(url)))
    }

    /// Keeps a share of the budget for so many probes of the tip a minute from
    /// now on.
    pub fn keep_for_probes(&self, probes: u32) {
        let ways = u32::try_from(self.keys.count()).unwrap_or(u32::MAX).max(1);
        self.keys.set_probes(probes.div_ceil(ways));
    }

    /// Sets the status paths that key checks ask.
    pub fn set_status_paths(&self, paths: Vec<Box<str>>) {
        *self.status_paths() = paths;
    }

    /// The status path for a target: of several the one that begins most like
    /// it.
    fn status_path(&self, target: &str) -> Option<Box<str>> {
        let shared = |path: &str| {
            let pairs = path.bytes().zip(target.bytes());
            pairs.take_while(|(one, other)| one == other).count()
        };
        let paths = self.status_paths();
        // Of several that are alike the last would be taken.
        let best = paths.iter().rev().max_by_key(|path| shared(path));
        best.cloned()
    }

    fn is_status_path(&self, target: &str) -> bool {
        self.status_paths().iter().any(|path| **path == *target)
    }

    fn status_paths(&self) -> MutexGuard<'_, Vec<Box<str>>> {
        let paths = self.status_paths.lock();
        paths.unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until an endpoint lets a request in that has not been where
    /// `course` has, and a key has budget for it.
    async fn admit(
        &self,
        wish: RequestPriority,
        course: &Course,
        patience: Duration,
    ) -> Result<(Permit, BudgetPermit), Failure> {
        let admitted = self
            .line
            .admit(wish, patience, |slot| self.try_admit_in(slot, wish, course))
            .await;
        if let Err(failure) = &admitted {
            self.tally.refuse(failure);
            self.count_share(wish, failure);
        }
        admitted
    }

    /// Counts a refusal as one for a client's share, where another client could
    /// have gone.
    fn count_share(&self, wish: RequestPriority, failure: &Failure) {
        if wish.client.is_none() {
            return;
        }
        let is_spent = matches!(failure, Failure::Spent { .. });
        let host = self.endpoints[self.look()].host();
        if is_spent && self.keys.denied_at(host, Priority::Miss).is_none() {
            self.tally.count_over_budget_share();
        }
        if *failure == Failure::TooManyInFlight && !self.line.may_take_slot(wish.client) {
            self.tally.count_over_slot_share();
        }
    }

    /// Admits a request that has had its turn already.
    fn try_admit(
        &self,
        wish: RequestPriority,
        course: &Course,
    ) -> Result<(Permit, BudgetPermit), NotAdmitted> {
        self.try_admit_in(self.line.client_slot(wish), wish, course)
    }

    fn try_admit_in(
        &self,
        slot: Option<ClientSlot>,
        wish: RequestPriority,
        course: &Course,
    ) -> Result<(Permit, BudgetPermit), NotAdmitted> {
        let present = self.look();
        let at = course.next().unwrap_or(present);
        let passage =
            self.endpoints[at]
                .admit_in(wish.priority, slot)
                .map_err(|hold| match at {
                    at if at == present => hold,
                    // The others in the line wait for the one that is asked: who waited
                    // at their head for a place elsewhere would hold them up.
                    _ => NotAdmitted {
                        retry: AdmissionRetry::Never,
                        ..hold
                    },
                })?;
        match self.keys.take_at(passage.endpoint().host(), wish) {
            Ok(grant) => Ok((passage, grant)),
            Err(denied) => {
                passage.back_out();
                Err(hold(denied))
            }
        }
    }

    /// The place of the endpoint that is asked, after a look at all of them.
    fn look(&self) -> usize {
        if self.endpoints.len() == 1 {
            return 0;
        }
        let conditions = self.conditions();
        let mut choice = self.choice();
        let switch = choice.look(&conditions, self.clock.now());
        let present = choice.present();
        drop(choice);
        if let Some(Switch { from, to }) = switch {
            let name = |at: usize| self.endpoints[at].name();
            tracing::warn!(
                upstream = self.name(),
                endpoint = name(to),
                before = name(from),
                which_is = conditions[from].name(),
                "another endpoint is asked from now on"
            );
            self.tally.switches.fetch_add(1, Relaxed);
            self.switched.send_replace(());
        }
        present
    }

    /// In what condition each endpoint is.
    fn conditions(&self) -> Vec<Condition> {
        self.conditions_at(&self.heights())
    }

    fn conditions_at(&self, heights: &Heights) -> Vec<Condition> {
        let (now, most) = (self.clock.now(), self.settings.max_lag);
        let endpoints = self.endpoints.iter().zip(&heights.unbelieved);
        let conditions = endpoints.map(|(endpoint, unbelieved)| {
            endpoint.note_unbelieved(*unbelieved);
            let condition = endpoint.condition(&heights.best, most, now);
            // Longer than that, no request waits for a key.
            let patience = self.settings.queue_timeout;
            let refuses = self.keys.all_unusable_at(endpoint.host(), patience);
            let signs = [
                unbelieved.map(|_| Condition::Implausible),
                refuses.then_some(Condition::Refusing),
            ];
            signs.into_iter().flatten().fold(condition, Ord::max)
        });
        conditions.collect()
    }

    /// What the endpoints that are asked have said of tips, in comparison.
    fn heights(&self) -> Heights {
        let now = self.clock.now();
        let said = self.endpoints.iter().map(|endpoint| {
            // What cannot be asked must not make the others seem to lag.
            match endpoint.condition(&[], 0, now) == Condition::Sound {
                true => endpoint.heights(),
                false => Vec::new(),
            }
        });
        let said: Vec<_> = said.collect();
        Heights::compare(&said, highest_at(self.clock.wall(now)), now)
    }

    /// The endpoints beside the one that is asked, by their places.
    pub fn standbys(&self) -> Vec<usize> {
        let present = self.look();
        (0..self.endpoints.len())
            .filter(|at| *at != present)
            .collect()
    }

    /// Whether nothing speaks against any of them.
    pub fn standbys_are_sound(&self) -> bool {
        let (present, conditions) = (self.look(), self.conditions());
        let mut standbys = conditions
            .iter()
            .enumerate()
            .filter(|(at, _)| *at != present);
        standbys.all(|(_, condition)| *condition == Condition::Sound)
    }

    /// Notes that a standby says a height.
    pub fn hear_standby(&self, at: usize, path: &str, height: u32) {
        self.endpoints[at].says_height(path, height, self.clock.now());
        self.look();
    }

    /// Whether there is no other endpoint to ask.
    fn is_alone(&self) -> bool {
        self.endpoints.len() == 1
    }

    /// Waits until another endpoint is asked.
    pub fn switches(&self) -> watch::Receiver<()> {
        self.switched.subscribe()
    }

    /// The absolute form of a target, as the preferred endpoint has it.
    ///
    /// # Errors
    /// Where a target is none; those of the walk were checked before.
    pub fn uri(&self, target: &str) -> Result<Uri, Failure> {
        self.endpoints[0].uri(target)
    }

    /// The target of a path and query that the preferred endpoint has named:
    /// without its base URL's path.
    pub fn target_of<'a>(&self, path_and_query: &'a str) -> &'a str {
        self.endpoints[0].target_of(path_and_query)
    }

    fn add_key(&self, grant: &BudgetPermit, fields: &mut HeaderMap) {
        if let Some(key) = grant.header() {
            fields.insert(self.settings.api_key_header.clone(), key.clone());
            // An answer is searched for the key: it must not come compressed, nor
            // in parts of which each has a part of the key.
            fields.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
            fields.remove(RANGE);
            fields.remove(IF_RANGE);
        }
    }

    /// Searches what would be passed on for our keys.
    ///
    /// # Errors
    /// Where one is in it.
    pub fn search<'a>(&self, parts: impl IntoIterator<Item = &'a [u8]>) -> Result<(), Failure> {
        match parts
            .into_iter()
            .find_map(|part| self.keys.find_key_in(part))
        {
            None => Ok(()),
            Some(name) => {
                let KeyEchoed = client::key_search::echoed(&name);
                Err(Failure::KeyEchoed)
            }
        }
    }

    fn choice(&self) -> MutexGuard<'_, EndpointSelection> {
        self.choice.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The place of an endpoint in the order of preference.
    fn place_of(&self, endpoint: &Arc<Endpoint>) -> usize {
        let at = self
            .endpoints
            .iter()
            .position(|own| Arc::ptr_eq(own, endpoint));
        at.unwrap_or(0)
    }

    fn retries(&self) -> MutexGuard<'_, RetryBudget> {
        self.retries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn chance(&self) -> u64 {
        let mut chance = self.chance.lock().unwrap_or_else(PoisonError::into_inner);
        chance.draw()
    }

    /// Its name: `default`, or that of its table in proxy.toml.
    pub fn name(&self) -> &str {
        &self.settings.name
    }

    /// Its settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// What has been sent and what came of it.
    pub fn tally(&self) -> &Counters {
        &self.tally
    }

    /// The request bodies that are on their way to it.
    pub fn uploads(&self) -> &Uploads {
        &self.uploads
    }

    /// How its keys stand.
    pub(crate) fn standings(&self) -> Vec<KeySnapshot> {
        let mut standings = self.keys.snapshots();
        // A host that is named no more may have refused one.
        let hosts = || self.endpoints.iter().map(|endpoint| endpoint.host());
        for standing in &mut standings {
            let is_named =
                |(host, _): &(Host, KeySnapshotAtHost)| hosts().any(|named| named == host);
            standing.hosts.retain(is_named);
        }
        standings
    }

    /// How its endpoints fare, in the order of preference.
    pub fn fares(&self) -> Vec<EndpointSnapshot> {
        let (present, heights) = (self.look(), self.heights());
        let conditions = self.conditions_at(&heights);
        let endpoints = self.endpoints.iter().zip(conditions).enumerate();
        let fares = endpoints.map(|(at, (endpoint, condition))| {
            endpoint.snapshot(at == present, condition, &heights.best)
        });
        fares.collect()
    }

    /// Those who wait to ask it.
    pub fn line(&self) -> &AdmissionQueue {
        &self.line
    }

    /// Requests under way.
    pub fn in_flight(&self) -> u32 {
        let endpoints = self.endpoints.iter();
        endpoints.map(|endpoint| endpoint.in_flight()).sum()
    }

    /// The longest that [`fetch`](Self::fetch) takes.
    pub fn patience(&self) -> Duration {
        self.settings.queue_timeout + self.settings.timeout
    }
}

/// Why one cannot pass for want of a key.
fn hold(denied: Denied) -> NotAdmitted {
    match denied {
        Denied::For(retry_after) => NotAdmitted {
            failure: Failure::Spent { retry_after },
            retry: AdmissionRetry::After(retry_after),
        },
        Denied::UntilRequestEnds => NotAdmitted {
            failure: Failure::Spent {
                retry_after: Duration::from_secs(1),
            },
            retry: AdmissionRetry::WhenRequestEnds,
        },
        Denied::Refused(status) => NotAdmitted {
            failure: Failure::KeyRefused(status),
            retry: AdmissionRetry::Never,
        },
    }
}

/// The keys that requests carry.
fn sent_keys(settings: &Settings, keys: Vec<ApiKey>) -> Vec<ApiKey> {
    match settings.send_api_key {
        true => keys,
        false => Vec::new(),
    }
}

/// Whose budget requests without a key count in.
fn server(settings: &Settings) -> BudgetOwner {
    let url = settings.urls.first();
    url.map_or(BudgetOwner::Server("".into()), BudgetOwner::server)
}

/// The endpoints of these settings; those that are known go on.
fn endpoints(
    settings: &Settings,
    known: &[Arc<Endpoint>],
    line: &Arc<AdmissionQueue>,
    clock: &Clock,
) -> Box<[Arc<Endpoint>]> {
    let in_flight = settings.in_flight();
    let endpoint = |url: &Uri| match known.iter().find(|known| known.url() == url) {
        Some(known) => known.clone(),
        None => {
            let (line, clock) = (line.clone(), clock.clone());
            Endpoint::new(
                url.clone(),
                settings.breaker.clone(),
                in_flight,
                line,
                clock,
            )
        }
    };
    settings.urls.iter().map(endpoint).collect()
}

fn choice(settings: &Settings) -> Arc<Mutex<EndpointSelection>> {
    let choice = EndpointSelection::new(settings.urls.len(), settings.return_after);
    Arc::new(Mutex::new(choice))
}

/// The bytes of `ca_file`, to see whether they have changed; one that cannot be
/// read is told of where it is used.
fn authorities(settings: &Settings) -> Option<Vec<u8>> {
    let path: &Path = settings.ca_file.as_deref()?;
    std::fs::read(path).ok()
}

#[cfg(test)]
mod crowd_tests;
