//! Snapshots of keys and endpoints, for /status and /metrics.

use super::Upstream;
use super::endpoint::{EndpointSnapshot, Host};
use super::keys::{KeySnapshot, KeySnapshotAtHost};

impl Upstream {
    /// The state of each key.
    pub(crate) fn key_snapshots(&self) -> Vec<KeySnapshot> {
        let mut keys = self.keys.snapshots();
        // A key may have been refused by a host that is no longer configured.
        let hosts = || self.endpoints.iter().map(|endpoint| endpoint.host());
        let is_configured =
            |(host, _): &(Host, KeySnapshotAtHost)| hosts().any(|configured| configured == host);
        for key in &mut keys {
            key.hosts.retain(is_configured);
        }
        keys
    }

    /// The state of each endpoint, in the order of preference.
    pub fn endpoint_snapshots(&self) -> Vec<EndpointSnapshot> {
        let (selected, heights) = (self.select_endpoint(), self.heights());
        let conditions = self.conditions_at(&heights);
        let endpoints = self.endpoints.iter().zip(conditions).enumerate();
        let snapshots = endpoints.map(|(at, (endpoint, condition))| {
            endpoint.snapshot(at == selected, condition, &heights.best)
        });
        snapshots.collect()
    }

    /// Requests in flight at all endpoints.
    pub fn in_flight(&self) -> u32 {
        let endpoints = self.endpoints.iter();
        endpoints.map(|endpoint| endpoint.in_flight()).sum()
    }
}
