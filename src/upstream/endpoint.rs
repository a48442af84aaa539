//! Endpoints and their health. An endpoint is one base URL of an upstream, with the
//! requests in flight there.
//!
//! [`Endpoint::admit`] admits a request and returns a [`EndpointPermit`], to which the outcome
//! of the request is reported. A dropped permit releases its slot. An endpoint outlives
//! reloads that keep its URL.
//!
//! Invariants: no more requests are in flight than `max_in_flight` allows, except
//! for probes of the tip; nothing is sent while the breaker is open.
//!
//! Deliberately absent: which endpoint a request goes to ([`selection`]), and with
//! which key (`upstream::keys`).

pub mod breaker;
mod failures;
pub(crate) mod heights;
mod permit;
pub mod selection;
mod snapshot;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use http::Uri;
pub(crate) use permit::{EndpointPermit, InFlightSlot, MadeFor};
pub use snapshot::EndpointSnapshot;

use crate::clock::{Clock, Moment};
use crate::sync::lock;
use crate::upstream::admission::queue::{AdmissionQueue, ClientSlot};
use crate::upstream::admission::{Denied, Priority, RequestPriority};
use crate::upstream::failure::{Cause, Failure, RequestOutcome};
use crate::upstream::latency::Latency;
use breaker::{Breaker, BreakerState};
use failures::Failures;
pub use failures::LastFailure;
use heights::Height;
use selection::Condition;

/// Scheme, host and port of a base URL.
pub(crate) type Host = Arc<str>;

/// A base URL, and the health of the server behind it.
pub(crate) struct Endpoint {
    url: Uri,
    /// The path of the URL, which is put before every target.
    prefix: String,
    name: String,
    host: Host,
    state: Mutex<State>,
    queue: Arc<AdmissionQueue>,
    clock: Clock,
    /// Requests sent since the start.
    sent: AtomicU64,
    /// How many of them have failed.
    failed: AtomicU64,
}

struct State {
    breaker: Breaker,
    settings: breaker::Settings,
    /// The most requests in flight.
    max_in_flight: u32,
    latency: Latency,
    in_flight: u32,
    /// It counts as retired until then.
    retired_until: Moment,
    heights: Vec<Height>,
    failures: Failures,
    /// Whether an implausible height of it has been logged.
    is_implausible: bool,
}

/// How long an endpoint that has answered 410 counts as retired.
const RETIRED: Duration = Duration::from_hours(1);
/// A probe that is given up after this time has failed.
const OVERDUE: Duration = Duration::from_secs(2);

impl Endpoint {
    /// An endpoint of which nothing is known yet.
    pub(crate) fn new(
        url: Uri,
        settings: breaker::Settings,
        max_in_flight: u32,
        queue: Arc<AdmissionQueue>,
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
                breaker: Breaker::new(settings.clone(), fastrand::u64(..)),
                settings,
                max_in_flight,
                latency: Latency::default(),
                in_flight: 0,
                retired_until: Moment::default(),
                heights: Vec::new(),
                failures: Failures::default(),
                is_implausible: false,
            }),
            queue,
            clock,
            sent: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        })
    }

    /// Changes the settings. A breaker with other settings starts anew: earlier
    /// outcomes were judged by other bounds.
    pub(crate) fn bound(&self, settings: &breaker::Settings, max_in_flight: u32) {
        let mut state = self.state();
        if state.settings != *settings {
            state.breaker = Breaker::new(settings.clone(), fastrand::u64(..));
            state.settings = settings.clone();
        }
        state.max_in_flight = max_in_flight;
    }

    pub(crate) fn url(&self) -> &Uri {
        &self.url
    }

    /// Its base URL as text, for logs and metrics.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Its host, by which refusals of keys are recorded.
    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    /// The absolute form of a target here.
    ///
    /// # Errors
    /// [`Failure::Protocol`] if the target is malformed.
    pub(crate) fn uri(&self, target: &str) -> Result<Uri, Failure> {
        let mut parts = self.url.clone().into_parts();
        let target = format!("{}{target}", self.prefix);
        parts.path_and_query = Some(target.parse().map_err(|_checked| Failure::Protocol)?);
        Uri::from_parts(parts).map_err(|_checked| Failure::Protocol)
    }

    /// The target of a path and query that it has named: without the path of the base
    /// URL.
    pub(crate) fn target_of<'a>(&self, path_and_query: &'a str) -> &'a str {
        path_and_query
            .strip_prefix(&*self.prefix)
            .unwrap_or(path_and_query)
    }

    /// Admits a request of ordgate's own.
    ///
    /// # Errors
    /// If the breaker is open, or no slot is free.
    pub(crate) fn admit(self: &Arc<Self>, priority: Priority) -> Result<EndpointPermit, Denied> {
        self.admit_in(
            priority,
            self.queue.client_slot(RequestPriority::own(priority)),
        )
    }

    /// Admits a request, in a slot that counts for its client. Probes need no slot:
    /// they are few, and every answer depends on what they report.
    ///
    /// # Errors
    /// If the breaker is open, or no slot is free.
    pub(crate) fn admit_in(
        self: &Arc<Self>,
        priority: Priority,
        slot: Option<ClientSlot>,
    ) -> Result<EndpointPermit, Denied> {
        let now = self.clock.now();
        let mut state = self.state();
        let breaker_permit = state.breaker.admit(now);
        let breaker_permit = breaker_permit.map_err(Denied::BreakerOpen)?;
        if slot.is_some() {
            self.queue.set_slots(state.max_in_flight);
        }
        if slot.is_some() && state.in_flight >= state.max_in_flight {
            state
                .breaker
                .end(breaker_permit, RequestOutcome::Unknown, now);
            return Err(Denied::NoSlot);
        }
        let slot = slot.map(|slot| {
            state.in_flight += 1;
            Arc::new(InFlightSlot::new(self, slot))
        });
        drop(state);
        let is_probe = priority == Priority::Probe;
        Ok(EndpointPermit::new(self, breaker_permit, slot, is_probe))
    }

    /// Its condition. `best` are the best heights of all endpoints.
    pub(crate) fn condition(
        &self,
        best: &[(Box<str>, u32)],
        max_lag: u32,
        now: Moment,
    ) -> Condition {
        let state = self.state();
        if state.retired_until > now {
            return Condition::Retired;
        }
        match state.breaker.state(now) {
            BreakerState::Open(_) => Condition::Broken,
            BreakerState::HalfOpen => Condition::Doubtful,
            BreakerState::Closed if state.lag(best) > max_lag => Condition::Lagging,
            BreakerState::Closed => Condition::Sound,
        }
    }

    /// Takes in a height that it has reported on a status path.
    pub(crate) fn record_height(&self, path: &str, height: u32, now: Moment) {
        let mut state = self.state();
        let reported = Height {
            path: path.into(),
            height,
            at: now,
        };
        match state.heights.iter_mut().find(|known| *known.path == *path) {
            Some(known) => *known = reported,
            None => state.heights.push(reported),
        }
    }

    pub(super) fn heights(&self) -> Vec<Height> {
        self.state().heights.clone()
    }

    /// Logs an implausible height of its own once.
    pub(super) fn log_implausible(&self, implausible: Option<u32>) {
        let before = std::mem::replace(&mut self.state().is_implausible, implausible.is_some());
        if let Some(height) = implausible.filter(|_| !before) {
            tracing::warn!(
                endpoint = self.name(),
                height,
                "the endpoint reports a height that the chain cannot have yet, far above the others: it is ignored"
            );
        }
    }

    /// Marks it as retired, after 410 Gone. Returns whether it was not before.
    pub(crate) fn retire(&self) -> bool {
        let now = self.clock.now();
        let mut state = self.state();
        let is_new = state.retired_until <= now;
        state.retired_until = now + RETIRED;
        is_new
    }

    pub(crate) fn breaker_state(&self) -> BreakerState {
        self.state().breaker.state(self.clock.now())
    }

    pub(crate) fn in_flight(&self) -> u32 {
        self.state().in_flight
    }

    /// Counts an outcome, and logs failures at most once in ten seconds for each kind.
    fn count_outcome(
        &self,
        mut state: MutexGuard<'_, State>,
        outcome: RequestOutcome,
        failed: Option<(&'static str, Cause)>,
        made_for: &MadeFor,
        now: Moment,
    ) {
        if let Some((reason, cause)) = failed {
            self.failed.fetch_add(1, Relaxed);
            let (kind, error) = (cause.kind, cause.texts.join(": "));
            let left_out = state.failures.failed(reason, cause, made_for, now);
            drop(state);
            if let Some(left_out) = left_out {
                tracing::warn!(
                    endpoint = self.name(),
                    reason,
                    kind,
                    error,
                    route = made_for.route(),
                    request_id = made_for.request_id(),
                    left_out,
                    "requests to the endpoint fail"
                );
            }
        } else if outcome == RequestOutcome::Success {
            let answered = state.failures.answered();
            drop(state);
            if let Some(failures) = answered {
                tracing::info!(
                    endpoint = self.name(),
                    failures,
                    "the endpoint answers again"
                );
            }
        }
    }

    /// What kind of failure its last one was, if there was one.
    pub(super) fn last_failure_kind(&self) -> Option<&'static str> {
        let state = self.state();
        state.failures.last().map(|last| last.kind)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    /// How many blocks it lags behind the best heights; zero for a tip whose height it
    /// has not reported.
    fn lag(&self, best: &[(Box<str>, u32)]) -> u32 {
        let behind = |own: &Height| {
            let best = best.iter().find(|(path, _)| *path == own.path);
            best.map_or(0, |(_, height)| height.saturating_sub(own.height))
        };
        self.heights.iter().map(behind).max().unwrap_or(0)
    }
}

/// Scheme, host and port of a URL.
pub(crate) fn host(url: &Uri) -> Host {
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
