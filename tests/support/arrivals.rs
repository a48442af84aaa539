//! Requests that arrived at the upstream, by key: what the provider counts against
//! the key's budget.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

/// When requests arrived, by key.
#[derive(Default)]
pub(crate) struct Arrivals(Mutex<BTreeMap<String, Vec<Instant>>>);

impl Arrivals {
    /// A request arrived with this key.
    pub(crate) fn add(&self, key: &str) {
        let mut keys = self.0.lock().unwrap();
        // The clock is read under the lock, so that arrivals stand in order.
        keys.entry(key.to_owned()).or_default().push(Instant::now());
    }

    /// How many arrived between two moments.
    pub(crate) fn between(&self, from: Instant, to: Instant) -> usize {
        let keys = self.0.lock().unwrap();
        let all = keys.values().flatten();
        all.filter(|at| (from..to).contains(at)).count()
    }

    /// The most arrivals of one key within any span of this length.
    pub(crate) fn busiest(&self, span: Duration) -> usize {
        let keys = self.0.lock().unwrap();
        let most = |arrivals: &Vec<Instant>| {
            let mut oldest = 0;
            let mut most = 0;
            for (place, at) in arrivals.iter().enumerate() {
                while arrivals[oldest] + span <= *at {
                    oldest += 1;
                }
                most = most.max(place + 1 - oldest);
            }
            most
        };
        keys.values().map(most).max().unwrap_or(0)
    }

    /// Every key's arrivals.
    pub(crate) fn keys(&self) -> BTreeMap<String, Vec<Instant>> {
        self.0.lock().unwrap().clone()
    }
}
