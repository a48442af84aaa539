//! The state of an endpoint, for /status and /metrics.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::Endpoint;
use super::breaker::BreakerState;
use super::failures::LastFailure;
use super::selection::Condition;
use crate::upstream::latency::Histogram;

/// A snapshot of an endpoint.
#[derive(Clone, Debug)]
pub struct EndpointSnapshot {
    /// Scheme, authority and path.
    pub name: String,
    /// Whether requests go to it.
    pub is_selected: bool,
    /// Its condition.
    pub condition: Condition,
    /// The state of its breaker.
    pub breaker: BreakerState,
    /// Requests in flight.
    pub in_flight: u32,
    /// The most requests in flight.
    pub limit: u32,
    /// Requests sent since the start.
    pub sent: u64,
    /// How many of them failed through the endpoint's fault.
    pub failed: u64,
    /// How many blocks it lags behind the best endpoint.
    pub lag: u32,
    /// Quantiles of the recent times to the first byte.
    pub quantiles: [(f64, Option<Duration>); 3],
    /// These times since the start.
    pub histogram: Histogram,
    /// Its last failure, if there was one.
    pub last_failure: Option<LastFailure>,
    /// Failures since the start, by reason and kind.
    pub failures: Vec<(&'static str, &'static str, u64)>,
}

const QUANTILES: [f64; 3] = [0.5, 0.9, 0.99];

impl Endpoint {
    /// Its state. `best` are the best heights of all endpoints.
    pub(crate) fn snapshot(
        &self,
        is_selected: bool,
        condition: Condition,
        best: &[(Box<str>, u32)],
    ) -> EndpointSnapshot {
        let now = self.clock.now();
        let state = self.state();
        EndpointSnapshot {
            name: self.name.clone(),
            is_selected,
            condition,
            breaker: state.breaker.state(now),
            in_flight: state.in_flight,
            limit: state.max_in_flight,
            sent: self.sent.load(Relaxed),
            failed: self.failed.load(Relaxed),
            lag: state.lag(best),
            quantiles: QUANTILES.map(|share| (share, state.latency.quantile(share, now))),
            histogram: state.latency.histogram(),
            last_failure: state.failures.last().cloned(),
            failures: state.failures.counts(),
        }
    }
}
