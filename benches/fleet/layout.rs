//! Layouts of a fleet: the caches between clients and the upstream, level by level.

use crate::workload::Key;

/// How many regions there are.
pub(crate) const REGIONS: usize = 3;
/// Replicas for each shield of a region.
const EACH_SHIELD: usize = 32;
/// Budget holders behind shields.
const HOLDERS: usize = 3;
/// Locations of the CDN.
const LOCATIONS: usize = 100;
/// What a location of the CDN can store, in bytes.
const CDN_BYTES: f64 = 1e12;

/// How much caches can store, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// A replica, in memory.
    pub(crate) replica: f64,
    /// The engine.
    pub(crate) engine: f64,
    /// A shield or a budget holder, on disk.
    pub(crate) disk: f64,
}

/// What stands between clients and the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variant {
    /// Replicas that share nothing.
    Separate,
    /// The same, each with a disk.
    Disks,
    /// Replicas with a second tier and its fill lock.
    Tier,
    /// The same, where the engine keeps live answers for their whole epoch.
    LongTier,
    /// Replicas, then one shield of each region for a key, then one budget holder.
    Shields,
    /// A CDN that obeys the fields sent today, then replicas with a second tier.
    CdnToday,
    /// A CDN that keeps answers until they are purged by tag, then the same.
    CdnTags,
}

impl Variant {
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Separate => "no sharing",
            Self::Disks => "no sharing, a disk each",
            Self::Tier => "second tier",
            Self::LongTier => "second tier, live for an epoch",
            Self::Shields => "regional shields",
            Self::CdnToday => "CDN, today's fields",
            Self::CdnTags => "CDN, purged by tag",
        }
    }
}

/// What a cache of a level is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// A location of a CDN; purged by tag, or not.
    Cdn { tags: bool },
    /// An ordgate; by whose probes it learns of blocks.
    Ordgate { own_probes: bool },
    /// The second tier; how it keeps live answers.
    Engine { whole_epoch: bool },
}

/// Which cache of the next level is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The only one, or the one that the key's hash chooses.
    Only,
    /// The one of the same region that the key's hash chooses.
    OfRegion,
    /// Any.
    Any,
}

/// A level of caches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Level {
    pub(crate) role: Role,
    /// How many of its caches may be asked for one key.
    pub(crate) count: usize,
    pub(crate) next: Next,
    /// How long an entry that is not requested stays in memory.
    pub(crate) idle: f64,
}

/// The levels that a request passes, the one of the clients first.
pub(crate) struct Layout {
    pub(crate) variant: Variant,
    pub(crate) replicas: usize,
    pub(crate) levels: Vec<Level>,
}

impl Layout {
    /// The levels of a variant with so many replicas, under this many requests a
    /// second of these keys.
    pub(crate) fn new(
        variant: Variant,
        replicas: usize,
        load: f64,
        keys: &[Key],
        sizes: Sizes,
    ) -> Self {
        let level = |role, count: usize, memory: f64, next| Level {
            role,
            count,
            next,
            idle: idle_time(keys, load / count as f64, memory),
        };
        let ordgate = |own_probes, count, bytes, next| {
            level(Role::Ordgate { own_probes }, count, bytes, next)
        };
        let engine = |whole_epoch| {
            let role = Role::Engine { whole_epoch };
            level(role, 1, sizes.engine, Next::Only)
        };
        let cdn = |tags| level(Role::Cdn { tags }, LOCATIONS, CDN_BYTES, Next::Any);
        let replica = |own_probes, next| ordgate(own_probes, replicas, sizes.replica, next);
        let disks = |machines: usize| sizes.disk * machines as f64;
        let levels = match variant {
            Variant::Separate => vec![replica(true, Next::Only)],
            Variant::Disks => vec![ordgate(true, replicas, disks(1), Next::Only)],
            Variant::Tier => vec![replica(false, Next::Only), engine(false)],
            Variant::LongTier => vec![replica(false, Next::Only), engine(true)],
            Variant::Shields => vec![
                replica(false, Next::OfRegion),
                ordgate(
                    false,
                    REGIONS,
                    disks(shields_of_region(replicas)),
                    Next::Only,
                ),
                ordgate(false, 1, disks(HOLDERS), Next::Only),
            ],
            Variant::CdnToday => vec![cdn(false), replica(false, Next::Only), engine(true)],
            Variant::CdnTags => vec![cdn(true), replica(false, Next::Only), engine(true)],
        };
        Self {
            variant,
            replicas,
            levels,
        }
    }

    /// The level of the replicas.
    pub(crate) fn replica_level(&self) -> usize {
        usize::from(matches!(self.levels[0].role, Role::Cdn { .. }))
    }

    /// The level of the second tier.
    pub(crate) fn engine_level(&self) -> Option<usize> {
        let is_engine = |level: &Level| matches!(level.role, Role::Engine { .. });
        self.levels.iter().position(is_engine)
    }

    /// The processes that follow the engine's journal. All levels do: an ordgate that
    /// learns of a reorg before the one that it asks would store the orphan's answer.
    pub(crate) fn members(&self) -> usize {
        match self.variant {
            Variant::Separate | Variant::Disks => 0,
            Variant::Shields => {
                self.replicas + REGIONS * shields_of_region(self.replicas) + HOLDERS
            }
            Variant::Tier | Variant::LongTier | Variant::CdnToday | Variant::CdnTags => {
                self.replicas
            }
        }
    }

    /// Of which those that hold a part of the budget.
    pub(crate) fn holders(&self) -> usize {
        match self.variant {
            Variant::Shields => HOLDERS,
            Variant::Separate
            | Variant::Disks
            | Variant::Tier
            | Variant::LongTier
            | Variant::CdnToday
            | Variant::CdnTags => self.members(),
        }
    }
}

/// The shields of a region.
fn shields_of_region(replicas: usize) -> usize {
    replicas.div_ceil(REGIONS * EACH_SHIELD).max(1)
}

/// How long an entry stays that is not requested, where the least recently used one
/// is evicted: the time within which as many bytes are requested as there is memory
/// for (Che's approximation).
fn idle_time(keys: &[Key], load: f64, memory: f64) -> f64 {
    let held = |time: f64| -> f64 {
        let of_key = |key: &Key| {
            let requested = 1.0 - (-key.usual_share() * load * time).exp();
            key.weight * key.bytes * requested
        };
        keys.iter().map(of_key).sum()
    };
    let (mut low, mut high) = (0.0, 1e9);
    if held(high) <= memory {
        return f64::INFINITY;
    }
    for _ in 0..80 {
        let middle = (low + high) / 2.0;
        match held(middle) <= memory {
            true => low = middle,
            false => high = middle,
        }
    }
    low
}
