//! Counts of the requests to an upstream, and what `/status`, `/metrics` and `/history` show
//! of it. Keys are named, never shown.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::Upstream;
use super::queue::{Priority, RequestPriority};
use crate::identify::Client;
use crate::meter::LatencyHistogram;
use crate::sync::{Outcomes, lock};

/// The requests sent to an upstream, and their outcomes.
#[derive(Debug)]
pub struct Counters {
    /// By route and by what they are sent for.
    sent: Mutex<BTreeMap<(Arc<str>, &'static str), u64>>,
    /// The names of routes by their numbers, also of those before a reload.
    routes: Mutex<HashMap<u16, Arc<str>>>,
    /// The outcomes of requests: `answered`; `failed`, without a successful retry; the reason
    /// why one was not sent; `unretried`, because there were too many retries; and changes of
    /// the endpoint in use (`switches`).
    pub(crate) results: Outcomes,
}

/// The most clients that are listed, by their use of the budget.
const HEAVIEST: usize = 10;
/// The name of the route of requests that have none.
const NO_ROUTE: &str = "none";

impl Default for Counters {
    fn default() -> Self {
        Self {
            sent: Mutex::default(),
            routes: Mutex::default(),
            results: Outcomes::of([
                "answered",
                "failed",
                "over_budget",
                "no_slot",
                "breaker_open",
                "throttled",
                "key_refused",
                "unretried",
                "switches",
            ]),
        }
    }
}

impl Counters {
    /// Sets the names of the routes with these numbers.
    pub(crate) fn name_routes<'n>(&self, routes: impl Iterator<Item = (u16, &'n str)>) {
        lock(&self.routes).extend(routes.map(|(number, name)| (number, name.into())));
    }

    /// The name of the route with this number.
    pub(super) fn route_name(&self, number: Option<u16>) -> Option<Arc<str>> {
        lock(&self.routes).get(&number?).cloned()
    }

    /// Counts a request that is sent.
    pub(super) fn count_sent(&self, request: &RequestPriority) {
        let route = self.route_name(request.route);
        let route = route.unwrap_or_else(|| NO_ROUTE.into());
        *lock(&self.sent)
            .entry((route, request.purpose))
            .or_default() += 1;
    }

    /// The requests sent since the start, by route and by what they were sent for.
    pub(super) fn sent_for(&self) -> Vec<Value> {
        let sent = lock(&self.sent);
        let rows = sent.iter().map(|((route, reason), requests)| {
            json!({ "route": route, "reason": reason, "requests": requests })
        });
        rows.collect()
    }

    /// All requests sent.
    pub fn all_sent(&self) -> u64 {
        lock(&self.sent).values().sum()
    }
}

impl Upstream {
    /// Its state and its counts. `label` names clients.
    pub(crate) fn snapshot(&self, label: impl Fn(Client) -> String) -> Value {
        let counters = &self.counters;
        let (selected, conditions) = (self.select_endpoint(), self.conditions());
        let endpoints = self.endpoints.iter().zip(conditions).enumerate();
        let endpoints = endpoints.map(|(at, (endpoint, (condition, lag)))| {
            endpoint.snapshot(at == selected, condition, lag)
        });
        let slots = self.slots();
        json!({
            "name": self.name(),
            "url": self.endpoints[selected].name,
            "endpoints": endpoints.collect::<Value>(),
            "in_flight": self.in_flight(),
            // Of the slots, those that only clients without a request in flight get.
            "slots": slots.all,
            "slots_free": slots.free,
            "kept_for_other_clients": slots.kept,
            "queue": self.queue.len(),
            "sent": counters.all_sent(),
            "sent_for": counters.sent_for(),
            "results": counters.results,
            "heaviest_clients": self.queue.busiest_clients(HEAVIEST, self.clock.now(), label),
            "keys": self.key_snapshots(),
        })
    }

    /// How long requests waited, by priority.
    pub(crate) fn waits(&self) -> impl Iterator<Item = (&'static str, LatencyHistogram)> {
        let waited = |priority: Priority| (priority.name(), self.queue.waited(priority));
        Priority::ALL.into_iter().map(waited)
    }

    /// How long each base URL took to the first byte of its answers.
    pub(crate) fn first_bytes(&self) -> impl Iterator<Item = (&str, LatencyHistogram)> {
        let endpoints = self.endpoints.iter();
        endpoints.map(|endpoint| (&*endpoint.name, endpoint.first_byte()))
    }
}
