//! Purges of other replicas in the numbers of this process, and its own in digests.

use std::io;
use std::sync::Arc;

use super::machine::JournalEffect;
use super::record::JournalRecord;
use crate::cache::Cache;
use crate::cache::purge::Purge;
use crate::portable::meanings::Meanings;
use crate::portable::names::Names;
use crate::portable::purge::LoggedPurge;

/// Where purges are recorded on disk, if anywhere.
pub(crate) trait PurgesOnDisk: Send + Sync {
    /// Makes all purges so far survive the machine's end. It waits for the disk.
    ///
    /// # Errors
    /// If what was purged may come back after a restart.
    fn sync_purges(&self) -> io::Result<()>;
}

/// What purges of other replicas apply to.
#[derive(Default)]
pub(super) struct LocalPurges {
    names: Names,
    cache: Option<Cache>,
    pub(super) disk: Option<Arc<dyn PurgesOnDisk>>,
    /// What is to be purged as soon as there is a cache.
    owed: Vec<JournalEffect>,
}

impl LocalPurges {
    /// One with something to be done first.
    pub(super) fn owing(owed: Vec<JournalEffect>) -> Self {
        Self {
            owed,
            ..Self::default()
        }
    }

    /// Uses a configuration from now on.
    pub(super) fn learn(
        &mut self,
        meanings: &Meanings,
        cache: &Cache,
        disk: Arc<dyn PurgesOnDisk>,
    ) {
        let routes = meanings.routes.iter();
        let routes = routes.map(|(number, route)| (*number, route.name));
        self.names.learn(routes, &meanings.tips);
        self.cache = Some(cache.clone());
        self.disk = Some(disk);
        for owed in std::mem::take(&mut self.owed) {
            self.apply(owed);
        }
    }

    /// A purge in the form that other replicas can apply.
    pub(super) fn logged(&self, purge: &Purge) -> LoggedPurge {
        self.names.logged(purge)
    }

    /// Carries out what the journal requires. Once this returns, it is in force.
    pub(super) fn apply(&self, effect: JournalEffect) {
        let purges = match effect {
            JournalEffect::PurgeEverything(why) => {
                tracing::warn!(why, "everything is purged");
                vec![Purge::All]
            }
            JournalEffect::Apply(JournalRecord::Purge(logged)) => self.names.local(&logged),
            JournalEffect::Apply(JournalRecord::Cooldown(_) | JournalRecord::Unknown)
            | JournalEffect::CoolDown(..) => Vec::new(),
        };
        if let Some(cache) = &self.cache {
            for purge in purges {
                cache.store().purge(purge);
            }
        }
    }
}
