//! What `/status`, `/metrics` and `/history` show of an upstream. Keys are named, never
//! shown.

use serde_json::{Value, json};

use super::{Priority, Upstream};
use crate::identify::Client;
use crate::meter::LatencyHistogram;

/// The most clients that are listed, by their use of the budget.
const HEAVIEST: usize = 10;
/// The results that are counted.
const RESULTS: [&str; 7] = [
    "answered",
    "failed",
    "over_budget",
    "no_slot",
    "breaker_open",
    "unretried",
    "switches",
];

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
        let results = RESULTS.map(|result| (result.to_owned(), counters.results(result).into()));
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
            "results": Value::Object(results.into_iter().collect()),
            "heaviest_clients": self.queue.busiest_clients(HEAVIEST, label),
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
