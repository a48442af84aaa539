//! State on disk: stored responses that outlive the process.
//!
//! ```text
//! keep    a response was stored in memory -> queue -> writer thread -> engine
//! load    memory has none -> queue, fair between clients -> reader thread
//!         -> checked against purges and the chain -> memory
//! ```
//!
//! Kept are final and recent answers of routes in mode `chain`, their windows among them,
//! and responses of modes `override` and `respect` that stay fresh for a while. They are
//! written when they are stored, not when memory evicts them.
//!
//! Invariants, each by a part of its own:
//!
//! - What was purged is never served again, and a purge is never forgotten
//!   ([`purge_log`]).
//! - What was stored for another meaning of a route is absent ([`portable::digest`](crate::portable::digest)).
//! - What names blocks is fresh only while they are known to stand: in the state of the
//!   chain by which it was stored, or after a block of an earlier run was seen again
//!   ([`chain_file`], `Chain::standing_blocks`).
//! - Nothing is fresher after a restart than before it ([`time`]).
//! - No thread that serves requests waits for the disk. No request waits for a write, but
//!   for the record of what it invalidates, and for that and for reads only briefly; no
//!   client delays another's reads ([`reads`], [`writes`]).
//! - No fault of the disk is an error for a client: the tier pauses ([`health`]).
//!
//! Deliberately absent: the form of the files ([`engine`]), and which requests are looked
//! up here (`fill::from_disk`, `gateway::from_disk`).

mod backlog;
mod chain_file;
mod counts;
pub mod engine;
mod files;
mod health;
mod names;
mod purge_log;
mod reads;
mod restore;
mod slot;
mod tier;
mod time;
mod upkeep;
mod writes;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;

pub(crate) use reads::{Loaded, ReadDeadline};
pub(crate) use slot::{DiskSlot, LateTier};
pub use tier::{OpenError, Tier};

use crate::cache::Cache;
use crate::cache::StoredResponse;
use crate::cache::key::Key;
use crate::cache::policy::Mode;
use crate::cache::sequence::PurgeSequence;
use crate::cache::store::Amended;
use crate::cache::targeted::TargetList;
use crate::chain::Chain;
use crate::chain::finality::Class;
use crate::identify::Client;
use crate::portable::codec;
use crate::portable::digest::MeaningDigest;
use crate::portable::meanings::{Meanings, RouteMeaning};
use crate::route::RouteTable;
use crate::upstream::Upstreams;
use writes::{ToKeep, Write};

/// Reads any bytes as a purge log: for the fuzz target.
pub fn parse_purge_log(bytes: &[u8]) -> bool {
    purge_log::parse_any(bytes)
}

/// Decodes any bytes as a stored value: for the fuzz target.
pub fn decode_value(bytes: &[u8]) -> bool {
    codec::decode_any::<purge_log::Checked>(bytes)
}

/// The state on disk as one configuration uses it.
pub(crate) struct Disk {
    tier: Arc<Tier>,
    routes: HashMap<u16, RouteMeaning>,
    /// The tips, by their numbers.
    tips: Vec<MeaningDigest>,
    cache: Cache,
    chain: Arc<Chain>,
    targets: TargetList,
    /// Responses whose freshness goes by time are kept if more than this of it is left.
    min_freshness: Duration,
}

impl Disk {
    /// The state on disk under a configuration, to be used after [`Tier::begin`].
    pub(crate) fn new(
        tier: &Arc<Tier>,
        table: &RouteTable,
        upstreams: &Upstreams,
        (cache, chain): (&Cache, &Arc<Chain>),
        targeted: Option<&HeaderName>,
        min_freshness: Duration,
    ) -> Arc<Self> {
        let meanings = Meanings::of(table, upstreams, chain, targeted);
        Arc::new(Self {
            tier: tier.clone(),
            routes: meanings.routes,
            tips: meanings.tips,
            cache: cache.clone(),
            chain: chain.clone(),
            targets: TargetList::new(targeted.cloned()),
            min_freshness,
        })
    }

    /// The tier.
    pub(crate) fn tier(&self) -> &Arc<Tier> {
        &self.tier
    }

    /// The number that a purge has in the log. Numbers in memory begin anew with each
    /// process.
    pub(crate) fn logged_number(&self, purge: u64) -> u64 {
        self.tier.logged((purge, 0)).0
    }

    /// Keeps a response that was just stored, whose fetch began at a position, if it is
    /// worth it. Never waits.
    pub(crate) fn keep(
        self: &Arc<Self>,
        key: &Key,
        stored: &Arc<StoredResponse>,
        began: PurgeSequence,
    ) {
        let Some(route) = self.routes.get(&key.route()) else {
            return;
        };
        let is_worth_it = match stored.stamp() {
            Some(stamp) => {
                matches!(stamp.class, Class::Recent | Class::Final) && stamp.heights().is_some()
            }
            None => {
                let age = self.tier.age(stored.received);
                route.mode == Mode::Override
                    && stored.lifetime.saturating_sub(age) > self.min_freshness
            }
        };
        // A body that is too long for memory is never stored there.
        if !is_worth_it || stored.body.len() > codec::MOST_BODY {
            return;
        }
        let numbers = (stored.checked.number(), began.removal());
        self.submit(*route, key, ToKeep::One(stored.clone()), numbers);
    }

    /// Keeps what a target has now, as far as it may be kept. Never waits.
    pub(crate) fn keep_variants(self: &Arc<Self>, key: &Key, amended: Amended) {
        let Some(route) = self.routes.get(&key.route()) else {
            return;
        };
        match amended {
            Amended::Nothing => {}
            Amended::Empty => self.submit(*route, key, ToKeep::Nothing, (0, 0)),
            Amended::Variants(variants, checked) => {
                let numbers = (checked.purge(), checked.removal());
                self.submit(*route, key, ToKeep::Variants(variants), numbers);
            }
        }
    }

    fn submit(
        self: &Arc<Self>,
        route: RouteMeaning,
        key: &Key,
        to_keep: ToKeep,
        (purge, removal): (u64, u64),
    ) {
        let Some(checked) = self.tier.checked(purge, removal) else {
            return;
        };
        self.tier.submit(Write {
            disk: self.clone(),
            key: route.digest.key_of(key.target()),
            route,
            target: key.target().into(),
            checked,
            to_keep,
        });
    }

    /// Whether something is kept under a key. It waits for the disk.
    pub(crate) fn has(&self, key: &Key) -> bool {
        let route = self.routes.get(&key.route());
        route.is_some_and(|route| self.tier.has(&route.digest.key_of(key.target())))
    }

    /// Until when a request waits for its reads that begins to wait now.
    pub(crate) fn read_deadline(&self) -> ReadDeadline {
        self.tier.read_deadline()
    }

    /// What is kept for a key. Waits for a reader thread, until the deadline at most.
    pub(crate) async fn load(
        self: &Arc<Self>,
        key: &Key,
        client: Client,
        deadline: ReadDeadline,
    ) -> Loaded {
        let is_stored = |route: &RouteMeaning| route.mode != Mode::Off;
        match self.routes.get(&key.route()).is_some_and(is_stored) {
            true => self.tier.load(self, key, client, deadline).await,
            false => Loaded::Absent,
        }
    }
}
