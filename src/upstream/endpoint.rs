//! One base URL of an upstream: its health, and how many requests are in flight there. It
//! outlives reloads that keep its URL.
//!
//! Deliberately absent: which of several is used ([`failover`](super::failover)).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use http::Uri;
use serde_json::{Value, json};

use super::breaker::Breaker;
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
pub(super) struct State {
    breaker: Breaker,
    in_flight: u32,
    /// Requests sent since the start.
    pub(super) sent: u64,
    /// How many of them failed through the endpoint's fault.
    failed: u64,
    /// All failures.
    failures: BTreeMap<Reason, u64>,
    /// How many have failed in a row until now through its fault.
    in_a_row: u32,
    /// The last of those, as `/status` shows it, and when it was.
    last_failure: Option<(Value, Moment)>,
    /// The times to the first byte of its answers.
    first_byte: LatencyHistogram,
    /// Its last height on each status path.
    heights: BTreeMap<Box<str>, u32>,
    /// Whether its last status was not one.
    is_wrong: bool,
    /// `None` while it is not sound.
    sound_since: Option<Moment>,
    /// When a failure was logged, by reason.
    logged: BTreeMap<Reason, LogInterval>,
}

/// The least time between two logged failures of one reason.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

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
        let mut parts = self.url.clone().into_parts();
        parts.path_and_query = format!("{}{target}", self.prefix).parse().ok();
        let is_target = parts.path_and_query.is_some();
        let uri = Uri::from_parts(parts).ok().filter(|_| is_target);
        uri.ok_or(Failure::new(Reason::Internal))
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
        self.state().in_flight
    }

    /// A request is in flight from now on.
    pub(super) fn begin(&self) {
        let mut state = self.state();
        state.in_flight += 1;
        state.breaker.passed(self.clock.now());
    }

    /// A request is no longer in flight.
    pub(super) fn end(&self) {
        let mut state = self.state();
        state.in_flight = state.in_flight.saturating_sub(1);
    }

    /// The head of an answer has come, after `took`. Returns whether this has closed the breaker.
    pub(super) fn answered(&self, took: Duration) -> bool {
        let mut state = self.state();
        state.first_byte.record(took);
        let closed = state.breaker.answered();
        let failures = std::mem::take(&mut state.in_a_row);
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

    /// The breaker counts that a request has got no answer ([`Breaker::failed`],
    /// [`Breaker::silent`]). Returns the same.
    pub(super) fn unanswered(&self, count: impl Fn(&mut Breaker, Moment) -> bool) -> bool {
        let mut state = self.state();
        let was_open = state.breaker.is_open;
        let is_doubted = count(&mut state.breaker, self.clock.now());
        let is_opened = state.breaker.is_open && !was_open;
        drop(state);
        if is_opened {
            tracing::error!(
                endpoint = &*self.name,
                "the upstream does not answer: until it does, only its tip is asked for; another endpoint is used, or stale answers are served"
            );
        }
        is_doubted
    }

    /// Notes how a request for a route has failed; each reason is logged once in ten seconds.
    pub(super) fn failed(
        &self,
        failure: &Failure,
        route: Option<Arc<str>>,
        request_id: Option<RequestId>,
    ) {
        let (reason, now) = (failure.reason, self.clock.now());
        let status = failure
            .received
            .map(|status| format!("it answers {status}"));
        let cause = failure.cause.as_deref().or(status.as_deref());
        let cause = cause.unwrap_or_default();
        let request_id = request_id.as_ref().map(RequestId::as_str);
        let mut state = self.state();
        let is_of_endpoint = failure.is_of_endpoint();
        if is_of_endpoint {
            state.failed += 1;
            state.in_a_row = state.in_a_row.saturating_add(1);
            let shown = json!({
                "reason": reason,
                "cause": cause,
                "at": date::value(self.clock.wall(now)).to_str().ok(),
                "route": route,
                "request_id": request_id,
            });
            state.last_failure = Some((shown, now));
        }
        *state.failures.entry(reason).or_default() += 1;
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
            request_id,
            trace_id = trace::current_id().map(tracing::field::display),
            is_of_endpoint,
            "a request to the upstream failed; this reason is logged again ten seconds later at the earliest"
        );
    }

    /// Its condition by itself, and the last height that it has reported on each status path.
    pub(super) fn condition(&self) -> (Condition, BTreeMap<Box<str>, u32>) {
        let state = self.state();
        let condition = if state.breaker.is_open {
            Condition::Broken
        } else if state.is_wrong {
            Condition::Wrong
        } else {
            Condition::Sound
        };
        (condition, state.heights.clone())
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
        let mut state = self.state();
        state.is_wrong = height.is_none();
        state
            .heights
            .extend(height.map(|height| (path.into(), height)));
    }

    /// Its state, for `/status` and `/metrics`.
    pub(super) fn snapshot(&self, is_selected: bool, condition: Condition, lag: u32) -> Value {
        let state = self.state();
        let last_failure = state.last_failure.as_ref().map(|(shown, at)| {
            let mut shown = shown.clone();
            shown["ago_seconds"] = self.clock.now().since(*at).as_secs().into();
            shown["in_a_row"] = state.in_a_row.into();
            shown
        });
        json!({
            "url": self.name,
            "selected": is_selected,
            "condition": condition,
            // How many blocks it lags behind the best endpoint.
            "lag_blocks": lag,
            "in_flight": state.in_flight,
            "sent": state.sent,
            "failed": state.failed,
            "failures": state.failures,
            "last_failure": last_failure,
        })
    }

    /// The times to the first byte of its answers.
    pub(super) fn first_byte(&self) -> LatencyHistogram {
        self.state().first_byte.clone()
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
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
