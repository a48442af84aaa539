//! Counts of the requests to the upstreams of the process.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::request::RequestPriority;
use crate::sync::lock;

/// The requests sent to an upstream, and their outcomes.
#[derive(Debug, Default)]
pub struct Counters {
    /// By route and by what they are sent for.
    sent: Mutex<BTreeMap<(Arc<str>, &'static str), u64>>,
    /// The names of routes by their numbers, also of those before a reload.
    routes: Mutex<HashMap<u16, Arc<str>>>,
    /// The outcomes of requests: `answered`; `failed`, without a successful retry; the reason
    /// why one was not sent; `unretried`, because there were too many retries; and changes of
    /// the endpoint in use (`switches`).
    results: Mutex<BTreeMap<&'static str, u64>>,
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

    /// Counts a request that is sent.
    pub(super) fn count_sent(&self, request: &RequestPriority) {
        let route = self.route_name(request.route);
        let route = route.unwrap_or_else(|| NO_ROUTE.into());
        *lock(&self.sent)
            .entry((route, request.purpose))
            .or_default() += 1;
    }

    /// Counts a result.
    pub(super) fn count(&self, result: &'static str) {
        *lock(&self.results).entry(result).or_default() += 1;
    }

    /// How many requests had this result.
    pub(crate) fn results(&self, result: &str) -> u64 {
        lock(&self.results).get(result).copied().unwrap_or(0)
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
