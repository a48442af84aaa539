//! What `/status`, `/metrics` and `/history` show of an upstream. Keys are named, never
//! shown.

use serde_json::{Value, json};

use super::endpoint::Host;
use super::key::{KeySnapshot, KeySnapshotAtHost};
use super::{ClientUsage, Priority, Upstream};
use crate::identify::Client;
use crate::meter::LatencyHistogram;

/// The most clients that are listed, by their use of the budget.
const HEAVIEST: usize = 10;
/// The results that are counted.
const RESULTS: [&str; 8] = [
    "answered",
    "failed",
    "over_budget",
    "budget_unknown",
    "no_slot",
    "breaker_open",
    "unretried",
    "switches",
];

impl Upstream {
    /// Its state and its counts. `label` names clients.
    pub(crate) fn snapshot(&self, label: impl Fn(Client) -> String) -> Value {
        let counters = &self.counters;
        let endpoints = self.endpoint_snapshots();
        let current = endpoints.iter().find(|endpoint| endpoint.is_selected);
        let slots = self.slots();
        let sent = counters.sent().into_iter().map(
            |(route, reason, requests)| json!({ "route": route, "reason": reason, "requests": requests }),
        );
        let results = RESULTS.map(|result| (result.to_owned(), counters.results(result).into()));
        let client = |usage: ClientUsage| {
            json!({
                "client": usage.client.map(&label),
                "recent": (usage.recent * 10.0).round() / 10.0,
                "waiting": usage.waiting,
                "in_flight": usage.in_flight,
            })
        };
        let clients = self.queue.busiest_clients(HEAVIEST).into_iter().map(client);
        json!({
            "name": self.name(),
            "url": current.map(|endpoint| &endpoint.name),
            "endpoints": endpoints,
            "in_flight": self.in_flight(),
            "in_flight_limit": self.settings.max_in_flight,
            // Of the slots, those that only clients without a request in flight get.
            "slots": slots.all,
            "slots_free": slots.free,
            "kept_for_other_clients": slots.kept,
            "queue": self.queue.len(),
            "sent": counters.all_sent(),
            "sent_for": sent.collect::<Value>(),
            "results": Value::Object(results.into_iter().collect()),
            "clients": self.queue.active_clients(),
            "heaviest_clients": clients.collect::<Value>(),
            "keys": self.key_snapshots().iter().map(key).collect::<Value>(),
        })
    }

    /// How long requests waited, by priority.
    pub(crate) fn waits(&self) -> impl Iterator<Item = (&'static str, LatencyHistogram)> {
        let waited = |priority: Priority| (priority.name(), self.queue.waited(priority));
        Priority::ALL.into_iter().map(waited)
    }
}

fn key(key: &KeySnapshot) -> Value {
    let worst = key.worst();
    json!({
        "name": key.name,
        "budget_left": key.remaining,
        // The part of it that only probes of the tip may use, and how long the next request
        // for a client has to wait.
        "kept_for_probes": key.kept,
        "paused_seconds": key.paused_for.as_secs_f64(),
        "budget": key.per_minute,
        "unusable_seconds": worst.unusable_for.as_secs_f64(),
        "state": worst.state(),
        "hosts": key.hosts.iter().map(key_at).collect::<Value>(),
    })
}

/// A key's state at a host.
fn key_at((host, key): &(Host, KeySnapshotAtHost)) -> Value {
    json!({
        "host": host,
        "state": key.state(),
        "unusable_seconds": key.unusable_for.as_secs_f64(),
    })
}
