//! Purges: in memory, in what outlives the process, and at other replicas.

use std::sync::Arc;
use std::time::Duration;

use super::Fill;
use crate::cache::purge::Purge;
use crate::chain::TipNumber;
use crate::shared::Shared;
use crate::shared::purges::{Acknowledged, Generation};
use crate::state::StateError;

/// How long the answer to a purge waits for other replicas.
const ACKNOWLEDGED: Duration = Duration::from_millis(500);

/// What became of a purge outside of memory.
pub(crate) struct PurgeReport {
    /// Whether it outlives the process.
    pub(crate) durable: Result<(), StateError>,
    /// Which replicas have applied it; `None` without an engine.
    pub(crate) replicas: Option<Acknowledged>,
}

impl Fill {
    /// Purges. Once this returns, no request that begins later is answered with a matching
    /// response. Also returns the number of the last purge, and what resolves once it outlives the
    /// process and the replicas have applied it, or have not in time.
    pub(crate) fn purge(
        &self,
        purges: &[Purge],
    ) -> (u64, impl Future<Output = PurgeReport> + Send + use<>) {
        let announced = self.announce(purges);
        let (number, durable) = self.purge_here(purges);
        let report = async move {
            let durable = durable.await;
            let replicas = match announced {
                Some((own, shared)) => Some(shared.purges.acknowledged(own, ACKNOWLEDGED).await),
                None => None,
            };
            PurgeReport { durable, replicas }
        };
        (number, report)
    }

    /// Sends purges to other replicas, if there are any: before anything is purged here, so
    /// that what was fetched before is not put into the engine any more.
    fn announce(&self, purges: &[Purge]) -> Option<(u64, Arc<Shared>)> {
        let shared = self.lower.shared.clone();
        let shared = shared.filter(|_| !purges.is_empty())?;
        let record = self.lower.names.record(purges);
        Some((shared.purges.announce(record), shared))
    }

    /// Purges in memory and on disk.
    fn purge_here(
        &self,
        purges: &[Purge],
    ) -> (u64, impl Future<Output = Result<(), StateError>> + use<>) {
        let (store, lower) = (self.cache.store(), &self.lower);
        let rows = purges.iter().flat_map(|purge| lower.names.rows(purge));
        let rows: Vec<_> = rows.collect();
        // The rows first: a look-up that memory does not see as older finds none of them.
        store.purge(purges, |number| lower.answers.purge(rows, number))
    }

    /// Purges whatever mentions a block at a height or above, which the chain has reported
    /// as orphaned, and waits until that outlives the process; then listeners are told. Answers
    /// with the purge's number.
    pub(crate) async fn purge_from(&self, tip: TipNumber, height: u32) -> u64 {
        let purge = Purge::Heights {
            tip: Some(tip),
            from: height,
            to: u32::MAX,
        };
        self.announce(std::slice::from_ref(&purge));
        let (number, durable) = self.purge_here(&[purge]);
        if let Err(error) = durable.await {
            tracing::error!(%error, "what a reorg has orphaned may come back after a restart");
        }
        (self.chain.events).reorg(&self.chain.tip(tip).source.name, height);
        number
    }

    /// Purges what other replicas have purged. That they need not send it again is on disk
    /// only if the purge is.
    async fn apply_heard(&self, heard: Vec<Vec<u8>>, generation: Generation) {
        let names = &self.lower.names;
        let purges = heard.iter().flat_map(|record| names.purges(record));
        let purges: Vec<_> = purges.collect();
        let (_, durable) = self.purge_here(&purges);
        match durable.await {
            Ok(()) => {
                let Generation { life, number } = generation;
                self.lower.answers.set_generation(life, number);
            }
            Err(error) => {
                tracing::error!(%error, "what other replicas have purged may come back after a restart");
            }
        }
    }
}

/// Follows what other replicas purge, until it is dropped. `fill` is the present one.
pub(crate) async fn follow(fill: impl Fn() -> Arc<Fill>) {
    let shared = fill().lower.shared.clone();
    if let Some(shared) = shared {
        let apply = async |heard, generation| fill().apply_heard(heard, generation).await;
        shared.run(apply).await;
    }
    std::future::pending().await
}
