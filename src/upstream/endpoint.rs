//! One base URL of an upstream: its health, and how many requests are in flight there. It
//! outlives reloads that keep its URL.
//!
//! Deliberately absent: which of several is used ([`failover`](super::failover)).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use http::Uri;
use serde::Serialize;
use serde_json::{Value, json};

use super::breaker::{Breaker, Failed};
use super::failover::Condition;
use super::failure::{Failure, hint};
use crate::cache::date;
use crate::clock::{Clock, Moment};
use crate::log_writer::LogInterval;
use crate::meter::LatencyHistogram;
use crate::reason::Reason;
use crate::sync::lock;
use crate::trace;
use crate::wire::request_id::RequestId;

/// Scheme, host and port of a base URL.
pub(crate) type Host = Arc<str>;

/// A base URL, and the health of the server behind it.
pub(crate) struct Endpoint {
    pub(super) url: Uri,
    /// The path of the URL, which is put before every target.
    prefix: String,
    /// The URL as text, for logs and metrics.
    pub(super) name: Arc<str>,
    /// By which what a server says of a key is recorded.
    pub(super) host: Host,
    state: Mutex<State>,
    clock: Clock,
}

#[derive(Default)]
struct State {
    breaker: Breaker,
    counts: EndpointCounts,
    /// It counts as retired until then.
    retired_until: Moment,
    /// Its last height on each status path, and when it reported that.
    heights: BTreeMap<Box<str>, (u32, Moment)>,
    /// Whether its last status was not one.
    is_wrong: bool,
    /// `None` while it is not sound.
    sound_since: Option<Moment>,
    /// When a failure was logged, by reason.
    logged: BTreeMap<Reason, LogInterval>,
}

/// What is counted of an endpoint's requests since the start.
#[derive(Clone, Debug, Default, Serialize)]
pub struct EndpointCounts {
    /// Requests in flight.
    pub in_flight: u32,
    /// Requests sent.
    pub sent: u64,
    /// How many of them failed through the endpoint's fault.
    pub failed: u64,
    /// All failures.
    pub failures: BTreeMap<Reason, u64>,
    /// Its last failure, if there was one.
    #[serde(skip)]
    pub last_failure: Option<LastFailure>,
    /// The times to the first byte of its answers.
    #[serde(skip)]
    pub first_byte: LatencyHistogram,
}

/// An endpoint's last failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastFailure {
    /// The word for it.
    pub reason: Reason,
    /// The error's text with its causes.
    pub cause: String,
    /// When.
    pub at: Moment,
    /// How many requests have failed in a row until now; 0 after an answer.
    pub in_a_row: u32,
    /// The name of the route that it was made for.
    pub(crate) route: Option<Arc<str>>,
    /// The client's request that has caused it.
    pub(crate) request_id: Option<RequestId>,
}

/// The state of an endpoint, for `/status` and `/metrics`.
#[derive(Clone, Debug, Serialize)]
pub struct EndpointSnapshot {
    /// Scheme, authority and path.
    #[serde(rename = "url")]
    pub name: Arc<str>,
    /// Whether requests go to it.
    #[serde(rename = "selected")]
    pub is_selected: bool,
    /// Its condition.
    pub condition: Condition,
    /// How many blocks it lags behind the best endpoint.
    #[serde(rename = "lag_blocks")]
    pub lag: u32,
    /// Its requests.
    #[serde(flatten)]
    pub counts: EndpointCounts,
    /// Its last failure, and when that was.
    last_failure: Option<Value>,
}

/// How long an endpoint that has answered 410 counts as retired.
const RETIRED: Duration = Duration::from_hours(1);
/// The least time between two logged failures of one reason.
const LOG_INTERVAL: Duration = Duration::from_secs(10);
/// How long a reported height counts as the best.
const REMEMBERED: Duration = Duration::from_mins(5);

impl Endpoint {
    /// An endpoint of which nothing is known yet.
    pub(super) fn new(url: Uri, clock: Clock) -> Arc<Self> {
        Arc::new(Self {
            prefix: url.path().trim_end_matches('/').to_owned(),
            name: url.to_string().trim_end_matches('/').into(),
            host: host(&url),
            url,
            state: Mutex::default(),
            clock,
        })
    }

    /// Host, and port unless the scheme has it by itself.
    pub(super) fn authority(&self) -> &str {
        let (_scheme, authority) = self.host.split_once("://").unwrap_or_default();
        authority
    }

    /// The absolute form of a target here.
    ///
    /// # Errors
    /// If the target is malformed.
    pub(super) fn uri(&self, target: &str) -> Result<Uri, Failure> {
        let malformed = || Failure::new(Reason::Internal);
        let mut parts = self.url.clone().into_parts();
        let target = format!("{}{target}", self.prefix);
        parts.path_and_query = Some(target.parse().map_err(|_checked| malformed())?);
        Uri::from_parts(parts).map_err(|_checked| malformed())
    }

    /// The target of a path and query that it has named: without the path of the base
    /// URL.
    pub(super) fn target_of<'a>(&self, path_and_query: &'a str) -> &'a str {
        let target = path_and_query.strip_prefix(&*self.prefix);
        target.unwrap_or(path_and_query)
    }

    /// How long its breaker holds a request back; `None` where it passes.
    pub(super) fn wait(&self, is_tip: bool, has_tip: bool) -> Option<Duration> {
        self.state().breaker.wait(is_tip, has_tip, self.clock.now())
    }

    pub(super) fn in_flight(&self) -> u32 {
        self.state().counts.in_flight
    }

    /// A request is in flight from now on.
    pub(super) fn begin(&self) {
        let mut state = self.state();
        state.counts.in_flight += 1;
        state.breaker.passed(self.clock.now());
    }

    /// A request is no longer in flight.
    pub(super) fn end(&self) {
        let mut state = self.state();
        state.counts.in_flight = state.counts.in_flight.saturating_sub(1);
    }

    /// A request is sent.
    pub(super) fn sent(&self) {
        self.state().counts.sent += 1;
    }

    /// The head of an answer has come, after `took`.
    pub(super) fn answered(&self, took: Duration) -> bool {
        let mut state = self.state();
        state.counts.first_byte.record(took);
        let closed = state.breaker.answered();
        let last = state.counts.last_failure.as_mut();
        let failures = last.map(|last| std::mem::take(&mut last.in_a_row));
        drop(state);
        if closed {
            tracing::info!(
                endpoint = &*self.name,
                failures,
                "the upstream answers again"
            );
        }
        closed
    }

    /// No connection could be made, or it has ended before an answer ([`Breaker::failed`]).
    pub(super) fn unanswered(&self, is_decisive: bool) -> Failed {
        let failed = self.state().breaker.failed(is_decisive, self.clock.now());
        self.log_opened(failed)
    }

    /// A request of a tip's status has got nothing for this time.
    pub(super) fn silent(&self, time: Duration) -> Failed {
        let failed = self.state().breaker.silent(time, self.clock.now());
        self.log_opened(failed)
    }

    fn log_opened(&self, failed: Failed) -> Failed {
        if failed == Failed::Opened {
            tracing::error!(
                endpoint = &*self.name,
                "the upstream does not answer: until it does, only its tip is asked for; another endpoint is used, or stale answers are served"
            );
        }
        failed
    }

    /// Notes how a request has failed; each reason is logged once in ten seconds.
    pub(super) fn failed(
        &self,
        failure: &Failure,
        cause: Option<String>,
        (route, request_id): (Option<Arc<str>>, Option<RequestId>),
    ) {
        let (reason, now) = (failure.reason, self.clock.now());
        let status = || {
            failure
                .received
                .map(|status| format!("it answers {status}"))
        };
        let cause = cause.or_else(status).unwrap_or_default();
        let mut state = self.state();
        let is_of_endpoint = failure.is_of_endpoint();
        let counts = &mut state.counts;
        if is_of_endpoint {
            counts.failed += 1;
            let in_a_row = counts.last_failure.as_ref().map_or(0, |last| last.in_a_row);
            counts.last_failure = Some(LastFailure {
                reason,
                cause: cause.clone(),
                at: now,
                in_a_row: in_a_row.saturating_add(1),
                route: route.clone(),
                request_id,
            });
        }
        *counts.failures.entry(reason).or_default() += 1;
        let logged = state.logged.entry(reason).or_default();
        if !logged.is_due(LOG_INTERVAL, now) {
            return;
        }
        drop(state);
        tracing::warn!(
            endpoint = &*self.name,
            reason = reason.name(),
            cause,
            hint = hint(reason),
            route = route.as_deref(),
            request_id = request_id.as_ref().map(RequestId::as_str),
            trace_id = trace::current_id().map(tracing::field::display),
            is_of_endpoint,
            "a request to the upstream failed; this reason is logged again ten seconds later at the earliest"
        );
    }

    /// Its condition by itself.
    pub(super) fn condition(&self) -> Condition {
        self.state().condition(self.clock.now())
    }

    /// How long it has been sound, if it is in this condition now.
    pub(super) fn sound_for(&self, condition: Condition) -> Duration {
        let (mut state, now) = (self.state(), self.clock.now());
        if condition != Condition::Sound {
            state.sound_since = None;
            return Duration::ZERO;
        }
        now.since(*state.sound_since.get_or_insert(now))
    }

    /// Takes in the height that it has reported on a status path; `None` if what it answered
    /// there was no status.
    pub(super) fn record_status(&self, path: &str, height: Option<u32>) {
        let (mut state, now) = (self.state(), self.clock.now());
        state.is_wrong = height.is_none();
        if let Some(height) = height {
            state.heights.insert(path.into(), (height, now));
        }
    }

    /// Adds its heights to the best ones by status path. One that cannot be used must not make
    /// the others seem to lag.
    pub(super) fn join_heights(&self, best: &mut BTreeMap<Box<str>, u32>) {
        let (state, now) = (self.state(), self.clock.now());
        if state.condition(now) != Condition::Sound {
            return;
        }
        for (path, (height, at)) in &state.heights {
            if now.since(*at) <= REMEMBERED {
                let best = best.entry(path.clone()).or_default();
                *best = (*best).max(*height);
            }
        }
    }

    /// How many blocks it lags behind the best heights; zero for a tip whose height it
    /// has not reported.
    pub(super) fn lag(&self, best: &BTreeMap<Box<str>, u32>) -> u32 {
        let state = self.state();
        let behind = state.heights.iter().map(|(path, (height, _))| {
            let best = best.get(path);
            best.map_or(0, |best| best.saturating_sub(*height))
        });
        behind.max().unwrap_or(0)
    }

    /// It has answered 410 Gone.
    pub(super) fn retire(&self) {
        let now = self.clock.now();
        let before = std::mem::replace(&mut self.state().retired_until, now + RETIRED);
        if before <= now {
            tracing::error!(
                endpoint = &*self.name,
                "the upstream answers 410 Gone: it has been retired, and another is needed; final answers in the cache are still served"
            );
        }
    }

    /// Its state.
    pub(super) fn snapshot(
        &self,
        is_selected: bool,
        (condition, lag): (Condition, u32),
    ) -> EndpointSnapshot {
        let counts = self.state().counts.clone();
        let last_failure = counts.last_failure.as_ref().map(|last| {
            json!({
                "reason": last.reason,
                "cause": last.cause,
                "at": date::value(self.clock.wall(last.at)).to_str().ok(),
                "ago_seconds": self.clock.now().since(last.at).as_secs(),
                "in_a_row": last.in_a_row,
                "route": last.route,
                "request_id": last.request_id.as_ref().map(RequestId::as_str),
            })
        });
        EndpointSnapshot {
            name: self.name.clone(),
            is_selected,
            condition,
            lag,
            counts,
            last_failure,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    fn condition(&self, now: Moment) -> Condition {
        if self.retired_until > now {
            Condition::Retired
        } else if self.breaker.is_open {
            Condition::Broken
        } else if self.is_wrong {
            Condition::Wrong
        } else {
            Condition::Sound
        }
    }
}

/// Scheme, host and port of a URL.
pub(crate) fn host(url: &Uri) -> Host {
    let scheme = url.scheme_str().unwrap_or("http");
    let host = url.host().unwrap_or_default().to_ascii_lowercase();
    let usual = usual_port(scheme == "https");
    match url.port_u16().filter(|port| *port != usual) {
        Some(port) => format!("{scheme}://{host}:{port}").into(),
        None => format!("{scheme}://{host}").into(),
    }
}

/// The port that a URL without one has.
pub(super) fn usual_port(is_https: bool) -> u16 {
    if is_https { 443 } else { 80 }
}
