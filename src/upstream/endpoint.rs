//! One base URL of the upstream: where it is, how it fares, and how many
//! requests it has under way.
//!
//! [`Endpoint::admit`] lets a request go there, as a [`Permit`]; what comes of
//! the request is told to the passage, which gives its place back when it is
//! dropped. An endpoint outlives reloads that keep its URL.
//!
//! Invariants: no more requests are under way than the adaptive limit has, but
//! for probes of the tip; nothing is sent while the breaker is open.
//!
//! Deliberately absent: which endpoint is asked (`upstream::choice`), and with
//! what key.

pub mod breaker;
pub mod concurrency;
mod failures;
pub(crate) mod given_up;
pub(crate) mod heights;
pub mod latency;
mod permit;
pub mod selection;
pub mod sketch;
mod under_way;

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foldhash::quality::RandomState;
use http::Uri;
pub use permit::{InFlightSlot, Permit};

use super::keys::Host;
use super::{Failure, Priority, RequestPriority};
use crate::clock::{Clock, Moment};
use crate::upstream::admission::queue::{AdmissionQueue, AdmissionRetry, ClientSlot, NotAdmitted};
use crate::upstream::client::cause::Cause;
use crate::upstream::endpoint::breaker::{Breaker, BreakerState, RequestOutcome};
use crate::upstream::endpoint::concurrency::Concurrency;
use crate::upstream::endpoint::failures::Failures;
pub use crate::upstream::endpoint::failures::LastFailure;
use crate::upstream::endpoint::given_up::GivenUpRequests;
use crate::upstream::endpoint::heights::Height;
use crate::upstream::endpoint::latency::Latency;
use crate::upstream::endpoint::selection::Condition;
use crate::upstream::endpoint::under_way::UnderWay;

/// A base URL, and how the server behind it fares.
pub struct Endpoint {
    url: Uri,
    /// What stands before every target.
    prefix: String,
    name: String,
    host: Host,
    state: Mutex<State>,
    line: Arc<AdmissionQueue>,
    clock: Clock,
    /// What has been sent here, and how much of that has failed.
    sent: AtomicU64,
    failed: AtomicU64,
    lates: Arc<GivenUpRequests>,
}

struct State {
    breaker: Breaker,
    settings: breaker::Settings,
    concurrency: Concurrency,
    latency: Latency,
    in_flight: u32,
    under_way: UnderWay,
    /// Until when it counts as retired.
    retired_until: Moment,
    heights: Vec<Height>,
    failures: Failures,
    /// Whether it has been told that its height is not believed.
    is_unbelieved: bool,
}

/// How many requests an endpoint may have under way, at the least and at the
/// most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlight {
    /// However slow it gets.
    pub least: u32,
    /// However well it fares.
    pub most: u32,
}

/// How an endpoint fares, for those who look.
#[derive(Clone, Debug)]
pub struct EndpointSnapshot {
    /// Scheme, authority and path.
    pub name: String,
    /// Whether it is the one that is asked.
    pub is_present: bool,
    /// In what condition it is.
    pub condition: Condition,
    /// Whether its breaker lets anything pass.
    pub stance: BreakerState,
    /// Requests under way.
    pub in_flight: u32,
    /// How many there may be just now.
    pub limit: u32,
    /// Requests sent since the start.
    pub sent: u64,
    /// How many of them failed for reasons of the endpoint's.
    pub failed: u64,
    /// Requests that were given up and may still arrive, so that they count in
    /// the budget.
    pub given_up: usize,
    /// By how many blocks it lags behind the best.
    pub lag: u32,
    /// The time to the first byte that half, nine in ten and ninety-nine in a
    /// hundred of the answers of late have taken at the most.
    pub quantiles: [(f64, Option<Duration>); 3],
    /// All of these times since the start.
    pub histogram: Histogram,
    /// How it failed the last time, if it has.
    pub last_failure: Option<LastFailure>,
    /// How often it has failed since the start, by reason and kind.
    pub failures: Vec<(&'static str, &'static str, u64)>,
}

/// The sum in seconds, the count, and how many took so many seconds at the most.
pub type Histogram = (f64, u64, Vec<(f64, u64)>);

/// The quantiles that are shown.
const SHOWN: [f64; 3] = [0.5, 0.9, 0.99];
/// How long an endpoint that has answered 410 counts as retired.
const RETIRED: Duration = Duration::from_hours(1);
/// A probe that is given up after so long has failed.
const OVERDUE: Duration = Duration::from_secs(2);

impl Endpoint {
    /// An endpoint that nothing is known of.
    pub(crate) fn new(
        url: Uri,
        settings: breaker::Settings,
        in_flight: InFlight,
        line: Arc<AdmissionQueue>,
        clock: Clock,
    ) -> Arc<Self> {
        let prefix = url.path().trim_end_matches('/').to_owned();
        let name = url.to_string().trim_end_matches('/').to_owned();
        Arc::new(Self {
            prefix,
            name,
            host: host(&url),
            url,
            state: Mutex::new(State {
                breaker: Breaker::new(settings.clone(), chance()),
                settings,
                concurrency: Concurrency::new(in_flight.least, in_flight.most),
                latency: Latency::default(),
                in_flight: 0,
                under_way: UnderWay::default(),
                retired_until: Moment::default(),
                heights: Vec::new(),
                failures: Failures::default(),
                is_unbelieved: false,
            }),
            line,
            clock,
            sent: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            lates: Arc::default(),
        })
    }

    /// Holds to these from now on. How it has fared by other measures says
    /// nothing.
    pub fn bound(&self, settings: &breaker::Settings, in_flight: InFlight) {
        let mut state = self.state();
        if state.settings != *settings {
            state.breaker = Breaker::new(settings.clone(), chance());
            state.settings = settings.clone();
        }
        state.concurrency.bound(in_flight.least, in_flight.most);
    }

    /// Its base URL.
    pub fn url(&self) -> &Uri {
        &self.url
    }

    /// Its base URL as a text, in logs and metrics.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The host that it is at, by which the refusals of keys are kept.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// The absolute form of a target, as it has it.
    ///
    /// # Errors
    /// Where a target is none; those of the walk were checked before.
    pub fn uri(&self, target: &str) -> Result<Uri, Failure> {
        let mut parts = self.url.clone().into_parts();
        let target = format!("{}{target}", self.prefix);
        parts.path_and_query = Some(target.parse().map_err(|_checked| Failure::Protocol)?);
        Uri::from_parts(parts).map_err(|_checked| Failure::Protocol)
    }

    /// The target of a path and query that it has named: without the base
    /// URL's path.
    pub fn target_of<'a>(&self, path_and_query: &'a str) -> &'a str {
        path_and_query
            .strip_prefix(&*self.prefix)
            .unwrap_or(path_and_query)
    }

    /// Lets a request go there that counts as nobody's.
    ///
    /// # Errors
    /// Where it is left alone, or has enough to do.
    pub(crate) fn admit(self: &Arc<Self>, priority: Priority) -> Result<Permit, NotAdmitted> {
        self.admit_in(
            priority,
            self.line.client_slot(RequestPriority::own(priority)),
        )
    }

    /// Lets a request go there, in a slot that counts as its client's. Probes
    /// have none: they are few, one for each tip, and what they learn is worth
    /// more than any answer. Where the server takes so many at once and no more,
    /// it would turn them away: there they take a slot, before all others.
    ///
    /// # Errors
    /// Where it is left alone, or has enough to do.
    pub(crate) fn admit_in(
        self: &Arc<Self>,
        priority: Priority,
        slot: Option<ClientSlot>,
    ) -> Result<Permit, NotAdmitted> {
        let now = self.clock.now();
        let is_capped = self.state().concurrency.is_capped();
        let slot = slot.or_else(|| is_capped.then(|| self.line.probe_slot()));
        let mut state = self.state();
        let is_spare = priority == Priority::LookAhead;
        let pass = state
            .breaker
            .admit(now, is_spare)
            .map_err(|retry_after| NotAdmitted {
                failure: Failure::BreakerOpen { retry_after },
                retry: AdmissionRetry::Never,
            })?;
        if slot.is_some() && state.in_flight >= state.concurrency.limit() {
            state.concurrency.wanted(now);
        }
        let limit = state.concurrency.limit();
        if slot.is_some() {
            self.line.set_slots(limit);
        }
        if slot.is_some() && state.in_flight >= limit {
            state.breaker.end(pass, RequestOutcome::Unknown, now);
            return Err(NotAdmitted {
                failure: Failure::TooManyInFlight,
                retry: AdmissionRetry::WhenRequestEnds,
            });
        }
        let place = slot.map(|slot| {
            state.in_flight += 1;
            InFlightSlot::new(self, slot)
        });
        drop(state);
        let is_probe = priority == Priority::Probe;
        Ok(Permit::new(self, pass, place, is_probe))
    }

    /// In what condition it is, where the best of all endpoints have these
    /// heights.
    pub fn condition(&self, best: &[(Box<str>, u32)], max_lag: u32, now: Moment) -> Condition {
        let state = self.state();
        if state.retired_until > now {
            return Condition::Retired;
        }
        match state.breaker.stance(now) {
            BreakerState::Open(_) => Condition::Broken,
            BreakerState::HalfOpen => Condition::Doubtful,
            BreakerState::Closed if state.lag(best) > max_lag => Condition::Lagging,
            BreakerState::Closed => Condition::Sound,
        }
    }

    /// What it has said of a tip lately.
    pub fn says_height(&self, path: &str, height: u32, now: Moment) {
        let mut state = self.state();
        let said = Height {
            path: path.into(),
            height,
            at: now,
        };
        match state.heights.iter_mut().find(|known| *known.path == *path) {
            Some(known) => *known = said,
            None => state.heights.push(said),
        }
    }

    /// The requests to it that were given up, and may still arrive.
    pub(super) fn lates(&self) -> &Arc<GivenUpRequests> {
        &self.lates
    }

    /// What it has said of tips.
    pub(super) fn heights(&self) -> Vec<Height> {
        self.state().heights.clone()
    }

    /// Takes in which height of its own is not believed, if one is, and tells
    /// the operator once.
    pub(super) fn note_unbelieved(&self, unbelieved: Option<u32>) {
        let before = std::mem::replace(&mut self.state().is_unbelieved, unbelieved.is_some());
        if let Some(height) = unbelieved.filter(|_| !before) {
            tracing::warn!(
                upstream = self.name(),
                height,
                "the endpoint says a height that the chain cannot have yet, far above the others: it is not believed"
            );
        }
    }

    /// It has said that it serves no longer; answers whether that is news.
    pub fn retire(&self) -> bool {
        let now = self.clock.now();
        let mut state = self.state();
        let is_news = state.retired_until <= now;
        state.retired_until = now + RETIRED;
        is_news
    }

    /// Whether its breaker lets anything pass.
    pub fn stance(&self) -> BreakerState {
        self.state().breaker.stance(self.clock.now())
    }

    /// Requests under way.
    pub fn in_flight(&self) -> u32 {
        self.state().in_flight
    }

    /// The time to the first byte that this share of the answers of late has
    /// taken at the most; `None` where there are too few to say.
    pub fn quantile(&self, share: f64, least_samples: u64) -> Option<Duration> {
        let now = self.clock.now();
        let state = self.state();
        state
            .latency
            .quantile_of_at_least(share, least_samples, now)
    }

    /// How it fares.
    pub fn snapshot(
        &self,
        is_present: bool,
        condition: Condition,
        best: &[(Box<str>, u32)],
    ) -> EndpointSnapshot {
        let now = self.clock.now();
        let state = self.state();
        EndpointSnapshot {
            name: self.name.clone(),
            is_present,
            condition,
            stance: state.breaker.stance(now),
            in_flight: state.in_flight,
            limit: state.concurrency.limit(),
            sent: self.sent.load(Relaxed),
            failed: self.failed.load(Relaxed),
            given_up: self.lates.len(),
            lag: state.lag(best),
            quantiles: SHOWN.map(|share| (share, state.latency.quantile(share, now))),
            histogram: state.latency.buckets(),
            last_failure: state.failures.last().cloned(),
            failures: state.failures.counts(),
        }
    }

    /// Counts a failure or that there is none, and tells the operator of it now
    /// and then.
    fn note_failure(
        &self,
        mut state: MutexGuard<'_, State>,
        health: RequestOutcome,
        failed: Option<(&'static str, Cause)>,
        now: Moment,
    ) {
        if let Some((reason, cause)) = failed {
            self.failed.fetch_add(1, Relaxed);
            let (kind, error) = (cause.kind, cause.texts.join(": "));
            let told = state.failures.failed(reason, cause, now);
            drop(state);
            if let Some(left_out) = told {
                tracing::warn!(
                    upstream = self.name(),
                    reason,
                    kind,
                    error,
                    left_out,
                    "requests to the endpoint fail"
                );
            }
        } else if health == RequestOutcome::Well {
            let answered = state.failures.answered();
            drop(state);
            if let Some(failures) = answered {
                tracing::info!(
                    upstream = self.name(),
                    failures,
                    "the endpoint answers again"
                );
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// By how many blocks it lags behind the best; one that has said nothing
    /// of a tip does not lag.
    fn lag(&self, best: &[(Box<str>, u32)]) -> u32 {
        let behind = |said: &Height| {
            let best = best.iter().find(|(path, _)| *path == said.path);
            best.map_or(0, |(_, height)| height.saturating_sub(said.height))
        };
        self.heights.iter().map(behind).max().unwrap_or(0)
    }
}

/// Scheme, host and port of a URL.
fn host(url: &Uri) -> Host {
    let scheme = url.scheme_str().unwrap_or("http");
    let host = url.host().unwrap_or_default().to_ascii_lowercase();
    let usual = match scheme {
        "https" => 443,
        _ => 80,
    };
    match url.port_u16().filter(|port| *port != usual) {
        Some(port) => format!("{scheme}://{host}:{port}").into(),
        None => format!("{scheme}://{host}").into(),
    }
}

/// A number that differs between processes, of which jitter is made.
fn chance() -> u64 {
    RandomState::default().hash_one(())
}

#[cfg(test)]
mod tests;
