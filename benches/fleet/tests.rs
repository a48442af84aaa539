//! Checks of the model of `cargo bench --bench fleet`: what goes in comes out, it agrees
//! with a cache that is played request by request, and no variant needs less than the
//! perfect cache.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "these are tests throughout, helpers included: a failure is a panic"
)]
#![allow(dead_code, reason = "the bench uses the rest")]

mod budget;
mod layout;
mod load;
mod oracle;
mod play;
mod purge;
mod region;
mod settings;
mod timeline;
mod workload;

use fastrand::Rng;

use layout::{Layout, Level, Next, Role, Sizes, Variant};
use load::{EngineLoad, Upkeep};
use play::{Counts, Loss, Play};
use settings::Settings;
use timeline::{Timeline, wait};
use workload::{ByClass, CLASSES, Key, Kind};

/// Counting begins here.
const WARM: f64 = 1_800.0;
const VARIANTS: [Variant; 7] = [
    Variant::Separate,
    Variant::Disks,
    Variant::Tier,
    Variant::LongTier,
    Variant::Shields,
    Variant::CdnToday,
    Variant::CdnTags,
];
const SIZES: Sizes = Sizes {
    replica: 1e9,
    engine: 64e9,
    disk: 64e9,
};

struct World {
    timeline: Timeline,
    keys: Vec<Key>,
    settings: Settings,
}

impl World {
    fn new() -> Self {
        let timeline = Timeline::new(3, 2.0 * WARM);
        Self {
            keys: workload::keys(&timeline),
            settings: Settings::shipped().unwrap(),
            timeline,
        }
    }

    /// Where each simulated key stands for itself alone, so that chance matters less.
    fn of_single_keys() -> Self {
        let mut world = Self::new();
        for key in &mut world.keys {
            key.weight = 1.0;
        }
        world
    }

    fn layout(&self, variant: Variant, replicas: usize, load: f64) -> Layout {
        Layout::new(variant, replicas, load, &self.keys, SIZES)
    }

    fn play(&self, layout: &Layout, load: f64) -> Counts {
        self.play_after(layout, load, WARM)
    }

    fn play_after(&self, layout: &Layout, load: f64, warm: f64) -> Counts {
        self.with(layout, load, warm, None).run(&self.keys)
    }

    fn with<'p>(
        &'p self,
        layout: &'p Layout,
        load: f64,
        warm: f64,
        loss: Option<Loss>,
    ) -> Play<'p> {
        Play {
            layout,
            timeline: &self.timeline,
            settings: &self.settings,
            load,
            warm,
            loss,
            bin: 10.0,
            seed: 5,
        }
    }
}

fn sum(of: &ByClass) -> f64 {
    of.iter().sum()
}

#[test]
fn shares_add_up_to_the_load_at_any_time() {
    let world = World::new();
    assert!(world.timeline.blocks.len() >= 3);
    for blocks in 0..=world.timeline.blocks.len() {
        let share = |key: &Key| key.weight * key.share(blocks);
        let all: f64 = world.keys.iter().map(share).sum();
        assert!((all - 1.0).abs() < 1e-9, "{all} after {blocks} blocks");
    }
    let final_keys = world.keys.iter().filter(|key| key.kind == Kind::Final);
    let keys: f64 = final_keys.map(|key| key.weight).sum();
    assert_eq!(keys, 5_320_000.0);
}

#[test]
fn each_request_is_a_hit_or_waits_or_is_sent_on() {
    let world = World::new();
    for variant in VARIANTS {
        let layout = world.layout(variant, 6, 6_000.0);
        let counts = world.play(&layout, 6_000.0);
        for (level, of) in counts.levels.iter().enumerate() {
            let parts = of.hits + of.followed + of.missed;
            assert!((of.asked - parts).abs() < 1.0, "{variant:?} {level} {of:?}");
            assert!(of.awaited <= of.followed, "{variant:?} {level} {of:?}");
        }
        // Of a CDN that cannot reuse live answers, these are not sent on by its level.
        let first = usize::from(variant == Variant::CdnToday);
        for pair in counts.levels[first..].windows(2) {
            let lost = (pair[0].missed - pair[1].asked).abs();
            assert!(lost < 1.0, "{variant:?} {pair:?}");
        }
        let last = counts.levels.last().unwrap().missed;
        let upstream = sum(&counts.upstream);
        assert!(
            (last - upstream).abs() < 1.0,
            "{variant:?} {last} {upstream}"
        );
    }
}

#[test]
fn the_same_seed_gives_the_same_play() {
    let world = World::new();
    let layout = world.layout(Variant::Shields, 6, 6_000.0);
    let [one, other] = [0; 2].map(|_| world.play(&layout, 6_000.0).upstream);
    assert_eq!(one, other);
}

/// One cache played request by request: upstream requests by class.
fn plain(world: &World, play: &Play<'_>, perfect: bool, from: f64) -> ByClass {
    let Level { idle, .. } = play.layout.levels[0];
    let (live, absent) = (world.settings.live_ttl, world.settings.absent_ttl);
    let noticed: Vec<_> = (0..world.timeline.blocks.len())
        .map(|block| match perfect {
            true => world.timeline.blocks[block].at,
            false => play.notices(0, 0, block),
        })
        .collect();
    let mut upstream = ByClass::default();
    for (number, key) in world.keys.iter().enumerate() {
        let mut rng = Rng::with_seed(1_000_000 + number as u64);
        let most = key.shares.iter().copied().fold(0.0, f64::max) * play.load;
        let (mut at, mut stored, mut used) = (0.0, None::<f64>, 0.0);
        loop {
            at += wait(&mut rng, most);
            if at >= world.timeline.end {
                break;
            }
            let rate = key.share(world.timeline.blocks_by(at)) * play.load;
            if rng.f64() * most >= rate {
                continue;
            }
            let is_fresh = |received: f64| {
                let ended = |matters: &dyn Fn(usize) -> bool| {
                    let mut since = noticed.iter().enumerate();
                    since.any(|(block, noticed)| {
                        matters(block) && *noticed > received && *noticed <= at
                    })
                };
                match key.kind {
                    Kind::Final => true,
                    Kind::Window { height } => {
                        !ended(&|block| world.timeline.replaces(block, height))
                    }
                    Kind::Absent if perfect => !ended(&|_| true),
                    Kind::Absent => at < received + absent,
                    Kind::Token if perfect => !ended(&|_| true),
                    Kind::Token => {
                        let before = world.timeline.blocks_by(received).checked_sub(1);
                        let is_settled =
                            before.is_none_or(|block| received >= noticed[block] + live);
                        let longest = if is_settled { live * 20.0 } else { live };
                        !ended(&|_| true) && at < received + longest
                    }
                }
            };
            let is_kept = perfect || at - used <= idle;
            let hit = stored.is_some_and(|received| is_kept && is_fresh(received));
            if !hit && at >= from {
                upstream[key.kind.class()] += key.weight;
            }
            if !hit {
                let delay = if perfect { 0.0 } else { play::UPSTREAM_TIME };
                stored = Some(at + delay);
            }
            used = at;
        }
    }
    upstream
}

fn near(one: f64, other: f64, within: f64) -> bool {
    (one - other).abs() <= within * one.max(other)
}

#[test]
fn one_replica_without_sharing_is_a_plain_cache() {
    let world = World::of_single_keys();
    let load = 1_000.0;
    let sizes = Sizes {
        replica: 1e7,
        ..SIZES
    };
    let layout = Layout::new(Variant::Separate, 1, load, &world.keys, sizes);
    let idle = layout.levels[0].idle;
    assert!(idle < WARM, "{idle}: nothing is evicted");
    let play = world.with(&layout, load, WARM, None);
    let counts = play.run(&world.keys).upstream;
    let plain = plain(&world, &play, false, WARM);
    for (class, name) in CLASSES.iter().enumerate() {
        let (one, other) = (counts[class], plain[class]);
        // Few recent answers are requested; of the others there are thousands.
        let within = if *name == "recent" { 0.25 } else { 0.04 };
        assert!(near(one, other, within), "{name}: {one} {other}");
    }
}

#[test]
fn the_perfect_cache_needs_what_it_is_expected_to() {
    let world = World::of_single_keys();
    let load = 1_000.0;
    let layout = world.layout(Variant::Separate, 1, load);
    let play = world.with(&layout, load, WARM, None);
    let played = plain(&world, &play, true, WARM);
    let needs = oracle::needs(&world.keys, &world.timeline, load, WARM);
    for (class, name) in CLASSES.iter().enumerate() {
        let (one, other) = (played[class], needs[class]);
        let within = if *name == "recent" { 0.25 } else { 0.04 };
        assert!(near(one, other, within), "{name}: {one} {other}");
    }
}

#[test]
fn no_variant_needs_less_than_the_perfect_cache() {
    let world = World::new();
    for replicas in [1, 8] {
        let load = 1_000.0 * replicas as f64;
        let needs = oracle::needs(&world.keys, &world.timeline, load, WARM);
        let separate = world.play(&world.layout(Variant::Separate, replicas, load), load);
        for variant in VARIANTS {
            let layout = world.layout(variant, replicas, load);
            let upstream = world.play(&layout, load).upstream;
            for (class, name) in CLASSES.iter().enumerate() {
                let (one, least) = (upstream[class], needs[class]);
                // It is an expectation; and what is fetched shortly before counting
                // begins is not counted.
                let slack = 0.03 * least + 2.0 * least.sqrt();
                assert!(
                    one >= least - slack,
                    "{replicas} {variant:?} {name}: {one} {least}"
                );
            }
            let (all, most) = (sum(&upstream), sum(&separate.upstream));
            assert!(all <= most * 1.03, "{replicas} {variant:?}: {all} {most}");
        }
    }
}

#[test]
fn sharing_leaves_one_fetch_where_separate_replicas_have_one_each() {
    let world = World::new();
    let (replicas, load) = (24, 24_000.0);
    let upstream = |variant| {
        world
            .play(&world.layout(variant, replicas, load), load)
            .upstream
    };
    let final_class = Kind::Final.class();
    let [separate, tier, shields] = [Variant::Separate, Variant::Tier, Variant::Shields]
        .map(|variant| upstream(variant)[final_class]);
    assert!(separate > 5.0 * tier, "{separate} {tier}");
    assert!(near(tier, shields, 0.03), "{tier} {shields}");
    // An absent answer is fetched once a second at most for each of 200 targets.
    let absent = upstream(Variant::Tier)[Kind::Absent.class()];
    assert!(absent <= 200.0 * WARM, "{absent}");
}

#[test]
fn all_that_wait_for_one_key_cost_one_fetch() {
    let world = World::new();
    let layout = world.layout(Variant::Tier, 1_000, 1e6);
    // One final key that everybody wants at once.
    let key = Key {
        kind: Kind::Final,
        weight: 1.0,
        bytes: 1_000.0,
        shares: vec![1.0],
    };
    let play = world.with(&layout, 1e7, 0.0, None);
    let counts = play.run(&[key]);
    let engine = counts.levels[1];
    assert_eq!(sum(&counts.upstream), 1.0);
    assert_eq!(engine.asked, 1_000.0, "each replica asks once");
    assert_eq!((engine.missed, engine.awaited), (1.0, 1.0));
    assert!(engine.followed > 900.0, "{engine:?}");
}

#[test]
fn a_region_that_returns_cold_costs_what_it_had_stored() {
    let world = World::new();
    let (replicas, load) = (6, 60_000.0);
    let layout = world.layout(Variant::Separate, replicas, load);
    let usual = world.with(
        &layout,
        load,
        0.0,
        Some(Loss {
            from: 1e9,
            until: 1e9,
            cold: true,
            with_engine: false,
        }),
    );
    let lost = world.with(
        &layout,
        load,
        0.0,
        Some(Loss {
            from: WARM,
            until: WARM + 600.0,
            cold: true,
            with_engine: false,
        }),
    );
    let [usual, lost] = [usual, lost].map(|play| play.run(&world.keys).bins);
    let (from, until) = (180, 240);
    let misses = |bins: &[play::Bin]| bins.iter().map(|bin| bin.misses).sum::<f64>();
    assert!(
        near(misses(&usual[..from]), misses(&lost[..from]), 0.02),
        "before"
    );
    assert_eq!(misses(&lost[from..until]), 0.0, "while it is away");
    let (before, after) = (
        misses(&usual[until..until + 6]),
        misses(&lost[until..until + 6]),
    );
    assert!(after > 1.15 * before, "{before} {after}");
}

#[test]
fn a_lost_engine_is_filled_again_by_the_upstream() {
    let world = World::new();
    let (replicas, load) = (6, 60_000.0);
    let layout = world.layout(Variant::LongTier, replicas, load);
    let upstream = |with_engine| {
        let loss = Loss {
            from: WARM,
            until: WARM + 600.0,
            cold: true,
            with_engine,
        };
        let bins = world
            .with(&layout, load, 0.0, Some(loss))
            .run(&world.keys)
            .bins;
        bins[180..].iter().map(|bin| bin.upstream).sum::<f64>()
    };
    let (left, gone) = (upstream(false), upstream(true));
    assert!(gone > 1.2 * left, "{left} {gone}");
}

#[test]
fn the_engine_s_load_grows_with_requests_and_members() {
    let world = World::new();
    let load_of = |variant, replicas: usize| {
        let load = 1_000.0 * replicas as f64;
        let layout = world.layout(variant, replicas, load);
        let counts = world.play(&layout, load);
        let upkeep = Upkeep::new(&layout, &world.settings, 1);
        EngineLoad::new(&layout, &counts, &upkeep, world.timeline.end - WARM)
    };
    let (few, many) = (load_of(Variant::Tier, 2), load_of(Variant::Tier, 16));
    assert!(many.fills > 5.0 * few.fills && many.fills < 12.0 * few.fills);
    assert!(
        many.members > 7.0 * few.members,
        "{} {}",
        many.members,
        few.members
    );
    let shields = load_of(Variant::Shields, 16);
    assert!(
        shields.fills < 0.01 * many.fills,
        "no replica asks the engine"
    );
    assert_eq!(load_of(Variant::Separate, 4).total(true), 0.0);
}

#[test]
fn evicted_is_what_does_not_fit() {
    let world = World::new();
    let idle = |replica: f64| {
        let sizes = Sizes { replica, ..SIZES };
        let layout = Layout::new(Variant::Separate, 1, 1_000.0, &world.keys, sizes);
        layout.levels[0].idle
    };
    assert!(idle(1e8) < idle(1e9) && idle(1e9) < idle(1e10));
    assert_eq!(idle(1e12), f64::INFINITY);
    let layout = world.layout(Variant::Shields, 96, 1e5);
    assert_eq!(layout.levels[0].next, Next::OfRegion);
    assert!(matches!(layout.levels[2].role, Role::Ordgate { .. }));
}

#[test]
fn a_purge_takes_the_time_of_the_slowest_replica() {
    let reach = |replicas, loss, pauses| purge::reach(replicas, loss, pauses, 1);
    let near_by = reach(1, 0.0, false);
    assert!(near_by.most < 0.001, "{near_by:?}");
    let all = reach(1_000, 0.0, false);
    // 70 ms to the farthest region, 25 ms for all readers in turn.
    assert!(all.median > 0.095 && all.most < 0.12, "{all:?}");
    let lossy = reach(1_000, 0.01, false);
    assert!(
        lossy.median > all.most && lossy.p99 > lossy.median,
        "{lossy:?}"
    );
    assert_eq!(all.named, 0.0);
    let paused = reach(1_000, 0.0, true);
    assert!(paused.named > 0.0 && paused.most <= 3.2, "{paused:?}");
}

#[test]
fn floors_and_grants_are_at_most_the_budget() {
    let settings = Settings::shipped().unwrap();
    assert_eq!((settings.per_minute, settings.per_second), (500, 20));
    for replicas in [1, 2, 4, 10, 64] {
        let floor = budget::floor(&settings, replicas);
        assert!(floor[0] * replicas as i64 <= 250 && floor[1] * replicas as i64 <= 10);
        for skewed in [false, true] {
            let used = budget::used(&settings, replicas, floor, skewed, 1);
            assert!(used.part <= 1.0, "{replicas} {used:?}");
        }
        let even = budget::used(&settings, replicas, floor, false, 1);
        match replicas {
            0..=10 => assert!(even.part > 0.95 && even.starved == 0, "{replicas} {even:?}"),
            64.. => assert!(even.starved > 0, "{replicas} {even:?}"),
            _ => {}
        }
    }
}
