//! Records purges and removals in the purge log, with digests in place of the numbers of
//! routes and tips.

use std::collections::HashMap;
use std::sync::MutexGuard;

use super::purge_log::NO_KEY;
use super::tier::Tier;
use super::{Disk, RouteMeaning};
use crate::cache::key::{route_of, target_of};
use crate::cache::purge::{Purge, PurgeRecorder};
use crate::portable::digest::MeaningDigest;
use crate::portable::names::Names;
use crate::sync::lock;

/// A number that no route has: it stands for one that was not there last.
const NEW: u16 = u16::MAX;

impl Tier {
    /// Learns what the numbers of routes and tips mean.
    pub(super) fn learn(&self, routes: &HashMap<u16, RouteMeaning>, tips: &[MeaningDigest]) {
        let digests = routes.iter().map(|(number, route)| (*number, route.digest));
        self.names().learn(digests, tips);
    }

    /// Purges what was kept for routes that were not there last: they have been there
    /// before, and what was kept may have been purged meanwhile under another meaning.
    pub(super) fn forget_routes(&self, disk: &Disk) {
        let mut present: Vec<_> = disk.routes.values().map(|route| route.digest).collect();
        present.sort_unstable_by_key(|digest| digest.0);
        let before = self.log.routes();
        if before == present {
            return;
        }
        let is_new = |route: &&MeaningDigest| !before.is_empty() && !before.contains(route);
        for new in present.iter().filter(is_new) {
            self.names().routes.insert(NEW, *new);
            disk.cache.store().purge(Purge::Route(NEW));
        }
        self.log.set_routes(present);
    }

    /// Whether the route of a key is known.
    pub(super) fn knows_route_of(&self, key: &[u8]) -> bool {
        self.names().routes.contains_key(&route_of(key))
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        lock(&self.names)
    }
}

impl PurgeRecorder for Tier {
    fn purge(&self, number: u64, purge: &Purge) {
        let logged = self.names().logged(purge);
        let (number, _) = self.logged((number, 0));
        self.log.purge(number, logged);
    }

    fn remove(&self, number: u64, key: &[u8]) {
        let digest = self.names().routes.get(&route_of(key)).copied();
        // Every number is recorded, even of a route that nothing is kept for.
        let key = digest.map_or(NO_KEY, |digest| digest.key_of(target_of(key)));
        let (_, number) = self.logged((0, number));
        self.log.remove(number, key);
    }
}
