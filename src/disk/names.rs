//! What the numbers of routes and tips mean, for the purge log. Their numbers are valid in
//! this process alone.

use std::collections::HashMap;
use std::sync::MutexGuard;

use super::digest::MeaningDigest;
use super::purge_log::{LoggedPurge, NO_KEY};
use super::tier::Tier;
use super::{Disk, RouteOnDisk};
use crate::cache::key::{route_of, target_of};
use crate::cache::purge::{Purge, PurgeRecorder};
use crate::sync::lock;

/// A number that no route has: it stands for one that was not there last.
const NEW: u16 = u16::MAX;

/// What the numbers of routes and tips mean.
#[derive(Default)]
pub(super) struct Names {
    /// A number means the same for as long as the process runs.
    routes: HashMap<u16, MeaningDigest>,
    /// `None` where a number has meant several tips.
    tips: Vec<Option<MeaningDigest>>,
}

impl Tier {
    /// Learns what the numbers of routes and tips mean.
    pub(super) fn learn(&self, routes: &HashMap<u16, RouteOnDisk>, tips: &[MeaningDigest]) {
        let mut names = self.names();
        for (number, route) in routes {
            names.routes.insert(*number, route.digest);
        }
        for (at, tip) in tips.iter().enumerate() {
            match names.tips.get_mut(at) {
                Some(known) if *known != Some(*tip) => *known = None,
                Some(_) => {}
                None => names.tips.push(Some(*tip)),
            }
        }
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

    fn names(&self) -> MutexGuard<'_, Names> {
        lock(&self.names)
    }
}

impl PurgeRecorder for Tier {
    fn purge(&self, number: u64, purge: &Purge) {
        let logged = self.names().logged(purge);
        self.log.purge(number, logged);
    }

    fn remove(&self, number: u64, key: &[u8]) {
        let digest = self.names().routes.get(&route_of(key)).copied();
        // Every number is recorded, even of a route that nothing is kept for.
        let key = digest.map_or(NO_KEY, |digest| digest.key_of(target_of(key)));
        self.log.remove(number, key);
    }
}

impl Names {
    fn logged(&self, purge: &Purge) -> LoggedPurge {
        let (route, tip) = match purge {
            Purge::All | Purge::Text(_) => (None, None),
            Purge::Heights { tip, .. } => {
                let tip = tip.and_then(|tip| self.tips.get(usize::from(tip)).copied());
                (None, tip.flatten())
            }
            Purge::Route(route)
            | Purge::Target { route, .. }
            | Purge::Segment { route, .. }
            | Purge::Path { route, .. } => match self.routes.get(route) {
                Some(digest) => (Some(*digest), None),
                // No route of the process has it.
                None => return LoggedPurge::new(&Purge::All, None, None),
            },
        };
        LoggedPurge::new(purge, route, tip)
    }
}
