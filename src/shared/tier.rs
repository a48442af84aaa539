//! The second tier: responses that replicas keep for each other in the engine.
//!
//! ```text
//! look_up    memory and disk have none -> the engine: a usable value, or the lock
//!            (fetch it), or another replica has the lock (wait, then ask again)
//! put        a response was fetched under a ticket -> queue -> the engine
//! ```
//!
//! Kept are responses of modes `chain` and `override`. A value is used only while the
//! journal is heard, and only if no later record of it matches: so a purge reaches what
//! is stored here, and what is stored late, without the engine removing anything. What
//! it says of the chain is compared with what is known here (`usable`), so that no
//! answer depends on another replica's view.
//!
//! The lock saves requests. Nothing depends on it: it expires, and who has waited for
//! `shared.fill_wait` fetches without it. A call that fails means that there is no tier.
//!
//! Invariants:
//!
//! - The position in the journal is read before the upstream is asked, and before the
//!   engine: a value never claims to have been checked against more.
//! - Nothing is younger here than it was where it was fetched: the engine's clock is read
//!   before the fetch, by the one who fetches, and after it, by the one who reads.
//! - Every wait has a bound: a call `shared.timeout`, all together `shared.fill_wait` and
//!   a few calls more.

mod counts;
mod link;
mod look_up;
mod puts;
mod ticket;
mod usable;
mod value;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;

pub(crate) use counts::TierSnapshot;
pub(crate) use link::TierLink;
pub(crate) use look_up::SharedAnswer;
pub(crate) use ticket::FillTicket;
pub(crate) use usable::PeekedEntry;

use super::engine::entries::EntryName;
use crate::cache::Cache;
use crate::cache::key::Key;
use crate::cache::policy::Mode;
use crate::chain::{Chain, TipNumber};
use crate::portable::digest::{MeaningDigest, of_route, of_tip};
use crate::route::{Route, RouteTable};
use crate::upstream::Upstreams;

/// The second tier as one configuration uses it.
pub(crate) struct SharedTier {
    link: Arc<TierLink>,
    routes: HashMap<u16, SharedRoute>,
    cache: Cache,
    chain: Arc<Chain>,
}

/// A route, as far as its shared responses are concerned.
#[derive(Clone, Copy, Debug)]
struct SharedRoute {
    digest: MeaningDigest,
    mode: Mode,
    tip: TipNumber,
    tip_digest: Option<MeaningDigest>,
}

impl SharedTier {
    /// The tier under a configuration.
    pub(crate) fn new(
        link: &Arc<TierLink>,
        table: &RouteTable,
        upstreams: &Upstreams,
        (cache, chain): (&Cache, &Arc<Chain>),
        targeted: Option<&HeaderName>,
    ) -> Arc<Self> {
        let depth = chain.finality().final_depth;
        let route = |route: &Route| {
            let mode = route.cache.mode;
            if !matches!(mode, Mode::Chain | Mode::Override) {
                return None;
            }
            let source = chain.source(route.cache.tip);
            let source = source.filter(|_| mode == Mode::Chain);
            let tip_digest =
                source.map(|tip| of_tip(tip, upstreams.get(tip.upstream).settings()));
            let settings = upstreams.get(route.upstream.number).settings();
            let tip = tip_digest.map(|tip| (tip, depth));
            let shared = SharedRoute {
                digest: of_route(route, settings, tip, targeted),
                mode,
                tip: route.cache.tip,
                tip_digest,
            };
            Some((route.number, shared))
        };
        Arc::new(Self {
            link: link.clone(),
            routes: table.routes().iter().filter_map(route).collect(),
            cache: cache.clone(),
            chain: chain.clone(),
        })
    }

    /// The longest time that a look-up may take.
    pub(crate) fn longest_wait(&self) -> Duration {
        self.link.longest_wait()
    }

    fn route(&self, key: &Key) -> Option<SharedRoute> {
        self.routes.get(&key.route()).copied()
    }

    fn name(&self, route: SharedRoute, key: &Key) -> EntryName {
        EntryName::new(self.link.prefix(), route.digest.key_of(key.target()))
    }
}

#[cfg(test)]
mod tests;
