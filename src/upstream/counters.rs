//! Counts of the requests to the upstreams of the process.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use super::failure::Failure;
use super::request::RequestPriority;
use crate::clock::Moment;
use crate::reason::Reason;
use crate::sync::lock;

/// The requests sent to an upstream, and their outcomes.
#[derive(Debug, Default)]
pub struct Counters {
    /// By route and by what they are sent for.
    sent: Mutex<BTreeMap<(Arc<str>, &'static str), u64>>,
    /// The names of routes by their numbers, also of those before a reload.
    routes: Mutex<HashMap<u16, Arc<str>>>,
    /// Answers that could be passed on.
    pub answered: AtomicU64,
    /// Requests that failed after sending, without a successful retry.
    pub failed: AtomicU64,
    /// Not sent: no budget was left.
    pub no_budget: AtomicU64,
    /// Not sent: too many were in flight, or waited.
    pub no_slot: AtomicU64,
    /// Not sent: the breaker was open.
    pub broken: AtomicU64,
    /// Not retried: there were too many retries.
    pub unretried: AtomicU64,
    last_failover: Mutex<Option<Failover>>,
    /// How often the endpoint in use changed.
    pub switches: AtomicU64,
}

/// A change of the endpoint in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failover {
    pub(crate) at: Moment,
    /// The base URL of the endpoint before.
    pub(crate) from: Arc<str>,
    /// The base URL of the endpoint from then on.
    pub(crate) to: Arc<str>,
    /// Why: the condition of the endpoint before, and its last failure.
    pub(crate) cause: String,
}

/// The name of the route of requests that have none.
const NO_ROUTE: &str = "none";

impl Counters {
    /// Sets the names of the routes with these numbers.
    pub(crate) fn name_routes<'n>(&self, routes: impl Iterator<Item = (u16, &'n str)>) {
        lock(&self.routes).extend(routes.map(|(number, name)| (number, name.into())));
    }

    /// The name of the route with this number.
    pub(super) fn route_name(&self, number: Option<u16>) -> Option<Arc<str>> {
        lock(&self.routes).get(&number?).cloned()
    }

    /// Counts a request that is sent; `reason` is what it is sent for.
    pub(super) fn count_sent(&self, request: &RequestPriority, reason: &'static str) {
        let route = self.route_name(request.route);
        let route = route.unwrap_or_else(|| NO_ROUTE.into());
        *lock(&self.sent).entry((route, reason)).or_default() += 1;
    }

    /// Counts a request that is not sent.
    pub(super) fn count_denied(&self, failure: &Failure) {
        if failure.reason == Reason::NoSlot {
            self.no_slot.fetch_add(1, Relaxed);
        } else if failure.reason == Reason::BreakerOpen {
            self.broken.fetch_add(1, Relaxed);
        } else if failure.is_of_client() {
            self.no_budget.fetch_add(1, Relaxed);
        }
    }

    /// Counts the outcome of a request that was sent.
    pub(super) fn count_outcome(&self, is_answered: bool) {
        let count = if is_answered {
            &self.answered
        } else {
            &self.failed
        };
        count.fetch_add(1, Relaxed);
    }

    /// Counts a change of the endpoint in use.
    pub(super) fn count_switch(&self, failover: Failover) {
        self.switches.fetch_add(1, Relaxed);
        *lock(&self.last_failover) = Some(failover);
    }

    /// The last change of the endpoint in use.
    pub(crate) fn last_failover(&self) -> Option<Failover> {
        lock(&self.last_failover).clone()
    }

    /// The requests sent since the start: the route's name, what they were sent for, and
    /// how many.
    pub(crate) fn sent(&self) -> Vec<(Arc<str>, &'static str, u64)> {
        let sent = lock(&self.sent);
        let each = sent.iter();
        each.map(|((route, reason), count)| (route.clone(), *reason, *count))
            .collect()
    }

    /// All requests sent.
    pub fn all_sent(&self) -> u64 {
        lock(&self.sent).values().sum()
    }
}
