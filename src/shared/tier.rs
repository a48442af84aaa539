//! The second tier: responses that replicas keep for each other in the engine.
//!
//! ```text
//! look_up    memory and disk have none -> the engine: a usable value, or the lock
//!            (fetch it), or another replica has the lock (wait, then ask again)
//! put        a response was fetched under a ticket -> queue -> the engine
//! ```
//!
//! Kept are responses of modes `chain` and `override`. A value is used only while
//! the replica is in sync with the journal, and only if no later record of it matches: so a purge reaches what
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
//!   before the fetch, by the one who fetches, and after it, by the one who reads. If that
//!   clock is set back by more than a second, the journal begins a new generation, in which no
//!   older value is used.
//! - Every wait has a bound: a call `shared.timeout`, all together `shared.fill_wait` and
//!   a few calls more.

mod client_waits;
mod counts;
mod invalidated;
mod link;
mod look_up;
mod puts;
mod ticket;
mod usable;
mod value;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use link::{CONNECTIONS, TierLink};
pub(crate) use look_up::SharedAnswer;
pub(crate) use ticket::FillTicket;
pub(crate) use usable::{PeekedEntry, SharedResponse};
pub(crate) use value::decode_any;

use super::engine::entries::EntryName;
use crate::cache::Cache;
use crate::cache::key::Key;
use crate::cache::policy::Mode;
use crate::chain::Chain;
use crate::portable::meanings::{Meanings, RouteMeaning};

/// The second tier as one configuration uses it.
pub(crate) struct SharedTier {
    link: Arc<TierLink>,
    routes: HashMap<u16, RouteMeaning>,
    cache: Cache,
    chain: Arc<Chain>,
}

impl SharedTier {
    /// The tier under a configuration.
    pub(crate) fn new(
        link: &Arc<TierLink>,
        meanings: &Meanings,
        (cache, chain): (&Cache, &Arc<Chain>),
    ) -> Arc<Self> {
        let routes = meanings.routes.iter();
        let routes = routes.filter(|(_, route)| matches!(route.mode, Mode::Chain | Mode::Override));
        Arc::new(Self {
            link: link.clone(),
            routes: routes.map(|(number, route)| (*number, *route)).collect(),
            cache: cache.clone(),
            chain: chain.clone(),
        })
    }

    /// The longest time that a look-up may take.
    pub(crate) fn longest_wait(&self) -> Duration {
        self.link.longest_wait()
    }

    /// Uses nothing any more that was requested under this key so far.
    pub(crate) fn invalidate(&self, key: &Key) {
        if let Some(route) = self.route(key) {
            let name = self.name(route, key).value;
            self.link.invalidated().push(name, self.link.now());
        }
    }

    fn route(&self, key: &Key) -> Option<RouteMeaning> {
        self.routes.get(&key.route()).copied()
    }

    fn name(&self, route: RouteMeaning, key: &Key) -> EntryName {
        EntryName::new(self.link.prefix(), route.digest.key_of(key.target()))
    }
}

#[cfg(test)]
mod tests;
