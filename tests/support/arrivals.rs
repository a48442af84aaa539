//! Requests that arrived at the upstream, by key: what the provider counts against
//! the key's budget.

use std::collections::BTreeMap;
use std::sync::Mutex;

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

    /// Every key's arrivals.
    pub(crate) fn keys(&self) -> BTreeMap<String, Vec<Instant>> {
        self.0.lock().unwrap().clone()
    }
}
