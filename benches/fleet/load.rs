//! What replicas cost the upstream and the engine beside their misses, and how busy
//! that makes one engine process, which uses one core.

use fastrand::Rng;

use crate::layout::{Layout, Variant};
use crate::play::Counts;
use crate::settings::Settings;
use crate::timeline::{BLOCK_EVERY, wait};
use crate::workload::tokens;

/// CPU seconds of the engine (`--engine` measures them; `report` and its list were
/// measured with the script itself).
pub(crate) struct Costs {
    pub(crate) get_of_nothing: f64,
    get: f64,
    get_of_byte: f64,
    put: f64,
    put_of_byte: f64,
    /// That a replica is here, and each row of the others that it reads.
    here: f64,
    here_row: f64,
    /// A report on one key's budget, and each row of a list.
    report: f64,
    report_row: f64,
    /// A journal record, or the wake of those who wait for a fetch, for each reader.
    record: f64,
}

pub(crate) const COSTS: Costs = Costs {
    get_of_nothing: 13e-6,
    get: 10e-6,
    get_of_byte: 1.5e-9,
    put: 12e-6,
    put_of_byte: 2.0e-9,
    here: 20e-6,
    here_row: 0.26e-6,
    report: 46e-6,
    report_row: 8.5e-6,
    record: 25e-6,
};

impl Costs {
    pub(crate) fn get(&self, bytes: f64) -> f64 {
        self.get + self.get_of_byte * bytes
    }

    pub(crate) fn put(&self, bytes: f64) -> f64 {
        self.put + self.put_of_byte * bytes
    }
}

/// Status paths that are probed.
const TIPS: f64 = 2.0;

/// Upstream requests a second beside those for clients' misses.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Upkeep {
    pub(crate) probes: f64,
    /// Requests for the anchor block after a new block.
    pub(crate) anchors: f64,
    /// Checks of live answers.
    pub(crate) checks: f64,
    /// Gets at the engine for these checks.
    check_gets: f64,
}

impl Upkeep {
    pub(crate) fn new(layout: &Layout, settings: &Settings, seed: u64) -> Self {
        let one = Self {
            probes: TIPS / settings.probe_every,
            anchors: 1.0 / BLOCK_EVERY,
            ..Self::default()
        };
        let all = layout.replicas as f64;
        match layout.variant {
            Variant::Separate | Variant::Disks => Self {
                probes: one.probes * all,
                anchors: one.anchors * all,
                checks: all / settings.live_ttl,
                check_gets: 0.0,
            },
            // Edges and shields have their checks answered by the next level.
            Variant::Shields
            | Variant::Tier
            | Variant::LongTier
            | Variant::CdnToday
            | Variant::CdnTags => {
                let (checks, check_gets) = checks(layout.holders(), settings, seed);
                Self {
                    checks,
                    check_gets,
                    ..one
                }
            }
        }
    }

    pub(crate) fn total(&self) -> f64 {
        self.probes + self.anchors + self.checks
    }
}

/// Upstream requests and gets a second for the live checks of replicas with a second
/// tier. Each replica fetches some token every `live_ttl`, which is in the tier if
/// another fetched the same one not longer than that ago.
fn checks(replicas: usize, settings: &Settings, seed: u64) -> (f64, f64) {
    let tokens = tokens();
    let mut sum = 0.0;
    let sums: Vec<f64> = (1..=tokens)
        .map(|rank| {
            sum += 1.0 / rank as f64;
            sum
        })
        .collect();
    let mut rng = Rng::with_seed(seed);
    let mut put_at = vec![f64::NEG_INFINITY; tokens];
    let mut due: Vec<_> = (0..replicas)
        .map(|_| rng.f64() * settings.live_ttl)
        .collect();
    let (warm, end) = (10.0 * settings.live_ttl, 40.0 * settings.live_ttl);
    let (mut fetches, mut gets) = (0_u32, 0_u32);
    let mut at = 0.0;
    while at < end {
        // Replicas in the order of their time; so few that a scan is good enough.
        let first = due.iter().enumerate().min_by(|a, b| a.1.total_cmp(b.1));
        let Some((replica, _)) = first else {
            break;
        };
        at = due[replica];
        let draw = rng.f64() * sum;
        let token = sums.partition_point(|sum| *sum <= draw);
        let is_there = at < put_at[token] + settings.live_ttl;
        if !is_there {
            put_at[token] = at;
        }
        if at >= warm {
            gets += 1;
            fetches += u32::from(!is_there);
        }
        // What was fetched earlier proves nothing of the time since.
        due[replica] = put_at[token] + settings.live_ttl + wait(&mut rng, 1_000.0);
    }
    let time = end - warm;
    (f64::from(fetches) / time, f64::from(gets) / time)
}

/// The part of its core that one engine process needs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EngineLoad {
    /// Operations a second for fills.
    pub(crate) operations: f64,
    /// Gets and puts.
    pub(crate) fills: f64,
    /// Waking all replicas for each fetch that one of them waits for.
    pub(crate) wakes: f64,
    /// That replicas are here, their reports and the journal, with no requests.
    pub(crate) members: f64,
    /// Of which: the table of all replicas, and the list of all rows, that each reads.
    pub(crate) tables: f64,
}

impl EngineLoad {
    pub(crate) fn new(layout: &Layout, counts: &Counts, upkeep: &Upkeep, time: f64) -> Self {
        let members = layout.members() as f64;
        if members == 0.0 {
            return Self::default();
        }
        let tier = layout.engine_level().map(|level| counts.levels[level]);
        let tier = tier.unwrap_or_default();
        let checks = upkeep.check_gets * COSTS.get(1_300.0) + upkeep.checks * COSTS.put(1_300.0);
        let here_every = (members * 0.000_2).max(0.15);
        let holders = layout.holders() as f64;
        let list_every = (holders * 0.05).max(5.0);
        let tables =
            members * members * COSTS.here_row + holders * holders * COSTS.report_row / list_every;
        // A record for each probe.
        let records = upkeep.probes;
        Self {
            operations: (tier.asked + tier.followed + tier.missed) / time
                + upkeep.check_gets
                + upkeep.checks,
            fills: counts.engine_time / time + checks,
            wakes: tier.awaited / time * members * COSTS.record,
            members: members * (COSTS.here / here_every + records * COSTS.record)
                + holders * COSTS.report
                + tables,
            tables,
        }
    }

    /// With followers that are woken, or that poll.
    pub(crate) fn total(&self, woken: bool) -> f64 {
        let wakes = if woken { self.wakes } else { 0.0 };
        self.fills + self.members + wakes
    }
}
