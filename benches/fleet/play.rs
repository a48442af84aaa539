//! The play of one key after another through all levels of a layout.
//!
//! Requests for a key are a Poisson process, so the time from the end of an entry's
//! freshness to the next request has an exponential distribution. Only those
//! requests are events: hits in memory change nothing and are counted by their
//! rate. A play therefore costs what its misses cost, whatever the load. Keys do not
//! affect each other, except through the memory (`layout`) and by checks that stand
//! for many keys (`load`), so that they are played one after another.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use fastrand::Rng;

use crate::layout::{Layout, Level, Next, REGIONS, Role};
use crate::load::COSTS;
use crate::settings::Settings;
use crate::timeline::{Timeline, wait};
use crate::workload::{ByClass, Key, Kind};

/// How long the upstream takes.
pub(crate) const UPSTREAM_TIME: f64 = 0.2;
/// Absent answers are played for so long, and stand for the whole time.
const ABSENT_PART: f64 = 60.0;

/// What happened at a level.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LevelCounts {
    /// Requests that came. Of the first level: those that found nothing fresh.
    pub(crate) asked: f64,
    pub(crate) hits: f64,
    /// Requests that waited for a fetch under way.
    pub(crate) followed: f64,
    pub(crate) missed: f64,
    /// Fetches that others waited for.
    pub(crate) awaited: f64,
}

/// What happened in a bin of time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bin {
    /// Requests of clients that found nothing fresh in a replica of the region that is
    /// lost.
    pub(crate) misses: f64,
    pub(crate) upstream: f64,
}

/// What a play came to.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) levels: Vec<LevelCounts>,
    pub(crate) upstream: ByClass,
    /// CPU seconds of the engine for gets and puts.
    pub(crate) engine_time: f64,
    /// Over the whole play.
    pub(crate) bins: Vec<Bin>,
}

/// The loss of a region, and its return.
#[derive(Clone, Copy)]
pub(crate) struct Loss {
    pub(crate) from: f64,
    pub(crate) until: f64,
    /// Whether what was stored in its caches is gone when it returns.
    pub(crate) cold: bool,
    /// Whether the engine is lost with it, so that the second tier is empty from then
    /// on.
    pub(crate) with_engine: bool,
}

/// The region that is lost.
const LOST: usize = REGIONS - 1;

/// The circumstances of a play.
pub(crate) struct Play<'p> {
    pub(crate) layout: &'p Layout,
    pub(crate) timeline: &'p Timeline,
    pub(crate) settings: &'p Settings,
    /// Requests a second.
    pub(crate) load: f64,
    /// Counting begins here.
    pub(crate) warm: f64,
    pub(crate) loss: Option<Loss>,
    /// Seconds of a bin; none if it is zero.
    pub(crate) bin: f64,
    pub(crate) seed: u64,
}

/// An entry of one cache, under a key.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// When the upstream's answer was received.
    received: f64,
    /// When it can be used first: until then its fetch is under way.
    ready: f64,
    /// When it can no longer be used.
    until: f64,
    awaited: bool,
}

impl Play<'_> {
    /// Plays all keys.
    pub(crate) fn run(&self, keys: &[Key]) -> Counts {
        let mut counts = Counts {
            levels: vec![LevelCounts::default(); self.layout.levels.len()],
            ..Counts::default()
        };
        if self.bin > 0.0 {
            let bins = (self.timeline.end / self.bin).ceil() as usize;
            counts.bins = vec![Bin::default(); bins];
        }
        for (number, key) in keys.iter().enumerate() {
            let of_level = |level: &Level| vec![Entry::default(); level.count];
            let mut course = Course {
                play: self,
                key,
                weight: key.weight,
                entries: self.layout.levels.iter().map(of_level).collect(),
                counts: &mut counts,
                rng: Rng::with_seed(mix(&[self.seed, number as u64])),
            };
            course.run();
        }
        counts
    }

    /// When a cache learns of a block.
    pub(crate) fn notices(&self, level: usize, cache: usize, block: usize) -> f64 {
        let own = match self.layout.levels[level].role {
            Role::Ordgate { own_probes: true } => [level as u64 + 1, cache as u64 + 1],
            Role::Ordgate { own_probes: false } | Role::Engine { .. } | Role::Cdn { .. } => [0, 0],
        };
        let words = [self.seed, own[0], own[1], block as u64];
        let part = mix(&words) as f64 / u64::MAX as f64;
        self.timeline.blocks[block].at + 0.1 + part * self.settings.probe_every
    }

    /// When a purge by tag has reached a location of the CDN: within a second, seldom
    /// within five.
    fn purge_delay(&self, cache: usize, block: usize) -> f64 {
        let words = [self.seed, 7, cache as u64, block as u64];
        let part = mix(&words) as f64 / u64::MAX as f64;
        0.05 + 5.0 * part.powi(10)
    }

    /// When the next block that matters to a key is noticed after an answer was
    /// received.
    fn ends(
        &self,
        level: usize,
        cache: usize,
        received: f64,
        matters: &dyn Fn(usize) -> bool,
    ) -> f64 {
        let delay = |block| match self.layout.levels[level].role {
            Role::Cdn { .. } => self.purge_delay(cache, block),
            Role::Ordgate { .. } | Role::Engine { .. } => 0.0,
        };
        // A block that came a little earlier may be noticed later.
        let first = self
            .timeline
            .blocks_by(received - self.settings.probe_every - 6.0);
        (first..self.timeline.blocks.len())
            .filter(|block| matters(*block))
            .map(|block| self.notices(level, cache, block) + delay(block))
            .find(|noticed| *noticed > received)
            .unwrap_or(f64::INFINITY)
    }

    /// Until when a cache serves what the upstream answered at a moment, and what has
    /// been there since `ready`.
    fn fresh_until(
        &self,
        level: usize,
        cache: usize,
        kind: Kind,
        received: f64,
        ready: f64,
    ) -> f64 {
        let role = self.layout.levels[level].role;
        let today = role == (Role::Cdn { tags: false });
        match kind {
            Kind::Final => f64::INFINITY,
            Kind::Absent => match role {
                // `age` is in whole seconds.
                Role::Cdn { .. } => ready + self.settings.absent_ttl,
                Role::Ordgate { .. } | Role::Engine { .. } => received + self.settings.absent_ttl,
            },
            Kind::Window { .. } if today => ready + self.settings.probe_every,
            Kind::Window { height } => {
                let replaces = |block| self.timeline.replaces(block, height);
                self.ends(level, cache, received, &replaces)
            }
            Kind::Token => {
                let settings = self.settings;
                let end = self.ends(level, cache, received, &|_| true);
                let is_settled = self.settled(level, cache, received);
                // Checks extend what was received after the indexer had settled.
                let is_short = role == (Role::Engine { whole_epoch: false });
                let longest = match is_settled && !is_short {
                    true => settings.live_ttl * MOST_LIVE_TTLS,
                    false => settings.live_ttl,
                };
                end.min(received + longest)
            }
        }
    }

    /// Whether an answer was received so long after a block that the indexer has
    /// certainly written all of it.
    fn settled(&self, level: usize, cache: usize, received: f64) -> bool {
        let blocks = self.timeline.blocks_by(received);
        let last = blocks.checked_sub(1);
        last.is_none_or(|block| {
            received >= self.notices(level, cache, block) + self.settings.live_ttl
        })
    }
}

/// Live answers are fetched again after so many `live_ttl` (`chain::live_checks`).
const MOST_LIVE_TTLS: f64 = 20.0;

/// One key's course through a play.
struct Course<'c, 'p> {
    play: &'c Play<'p>,
    key: &'c Key,
    weight: f64,
    entries: Vec<Vec<Entry>>,
    counts: &'c mut Counts,
    rng: Rng,
}

/// What a level answers.
struct Got {
    received: f64,
    ready: f64,
}

impl Course<'_, '_> {
    fn run(&mut self) {
        let play = self.play;
        let end = play.timeline.end;
        let today = Role::Cdn { tags: false };
        if self.key.kind == Kind::Token && play.layout.levels[0].role == today {
            // The age of a live answer is nearly always beyond its max-age: the CDN
            // cannot reuse it, and all requests pass.
            self.play_from(1);
            return;
        }
        if self.key.kind == Kind::Absent {
            if play.loss.is_none() {
                self.weight *= (end - play.warm) / ABSENT_PART;
                self.part(0, play.warm, play.warm + ABSENT_PART, self.key.share(0));
            }
            return;
        }
        self.play_from(0);
    }

    /// Plays from a level on: between two bounds, the rate is the same.
    fn play_from(&mut self, level: usize) {
        let mut bounds = match self.key.shares.len() {
            1 => vec![0.0, self.play.timeline.end],
            _ => self.play.timeline.bounds(),
        };
        if let Some(loss) = self.play.loss {
            let within = |at: &f64| *at < self.play.timeline.end;
            bounds.extend([loss.from, loss.until].into_iter().filter(within));
            bounds.sort_by(f64::total_cmp);
        }
        for pair in bounds.windows(2) {
            self.lose(pair[0]);
            let blocks = self.play.timeline.blocks_by(pair[0]);
            self.part(level, pair[0], pair[1], self.key.share(blocks));
        }
    }

    /// Empties what is lost at a moment.
    fn lose(&mut self, at: f64) {
        let Some(loss) = self.play.loss else {
            return;
        };
        let layout = self.play.layout;
        for (level, entries) in layout.levels.iter().zip(&mut self.entries) {
            let is_engine = matches!(level.role, Role::Engine { .. });
            for (cache, entry) in entries.iter_mut().enumerate() {
                let is_lost = match is_engine {
                    true => at == loss.from && loss.with_engine,
                    false => {
                        let of_region = level.count > 1 && cache % REGIONS == LOST;
                        at == loss.until && loss.cold && of_region
                    }
                };
                if is_lost {
                    *entry = Entry::default();
                }
            }
        }
    }

    /// The part of a cache in the load at a moment, times the number of caches.
    fn part_of(&self, cache: usize, at: f64) -> f64 {
        match self.play.loss {
            Some(loss) if loss.from <= at && at < loss.until => match cache % REGIONS {
                LOST => 0.0,
                _ => REGIONS as f64 / (REGIONS - 1) as f64,
            },
            Some(_) | None => 1.0,
        }
    }

    /// Plays a time in which the rate is the same.
    fn part(&mut self, level: usize, from: f64, to: f64, share: f64) {
        let count = self.play.layout.levels[level].count;
        let rate = share * self.play.load / count as f64;
        if rate <= 0.0 {
            return;
        }
        let mut due = BinaryHeap::new();
        for cache in 0..count {
            let rate = rate * self.part_of(cache, from);
            let start = self.entries[level][cache].until.max(from);
            self.schedule(&mut due, cache, start, to, rate);
        }
        while let Some(Reverse((at, cache))) = due.pop() {
            let at = f64::from_bits(at);
            self.request(level, cache, at, rate * count as f64);
            let entry = self.entries[level][cache];
            let start = entry.until.max(entry.ready);
            let rate = rate * self.part_of(cache, from);
            self.schedule(&mut due, cache, start, to, rate);
        }
    }

    fn schedule(&mut self, due: &mut Due, cache: usize, start: f64, to: f64, rate: f64) {
        if start >= to {
            return;
        }
        let at = start + wait(&mut self.rng, rate);
        if at < to {
            // Positive numbers are in the order of their bits.
            due.push(Reverse((at.to_bits(), cache)));
        }
    }

    fn count(&mut self, level: usize, at: f64, add: impl Fn(&mut LevelCounts, f64)) {
        if at >= self.play.warm {
            add(&mut self.counts.levels[level], self.weight);
        }
    }

    fn bin(&mut self, at: f64) -> Option<&mut Bin> {
        let bin = at / self.play.bin;
        self.counts.bins.get_mut(bin as usize)
    }

    /// A request that comes to a cache.
    fn request(&mut self, level: usize, cache: usize, at: f64, rate: f64) -> Got {
        self.count(level, at, |counts, weight| counts.asked += weight);
        self.work_of_engine(level, cache, at);
        let entry = self.entries[level][cache];
        if at < entry.ready {
            self.count(level, at, |counts, weight| counts.followed += weight);
            if !entry.awaited {
                self.entries[level][cache].awaited = true;
                self.count(level, at, |counts, weight| counts.awaited += weight);
            }
            let Entry {
                received, ready, ..
            } = entry;
            return Got { received, ready };
        }
        if at < entry.until {
            self.count(level, at, |counts, weight| counts.hits += weight);
            let Entry { received, .. } = entry;
            return Got {
                received,
                ready: at,
            };
        }
        self.count(level, at, |counts, weight| counts.missed += weight);
        let weight = self.weight;
        if level == self.play.layout.replica_level()
            && cache % REGIONS == LOST
            && let Some(bin) = self.bin(at)
        {
            bin.misses += weight;
        }
        let got = self.fetch(level, cache, at, rate);
        let until = self
            .play
            .fresh_until(level, cache, self.key.kind, got.received, got.ready);
        let until = until.min(at + self.residence(level, rate)).max(got.ready);
        self.entries[level][cache] = Entry {
            received: got.received,
            ready: got.ready,
            until,
            awaited: false,
        };
        got
    }

    /// Counts the engine's work for a request: a get of the value, or of nothing and
    /// then a put, or of nothing and then a get of what another has put.
    fn work_of_engine(&mut self, level: usize, cache: usize, at: f64) {
        let is_engine = matches!(self.play.layout.levels[level].role, Role::Engine { .. });
        if !is_engine || at < self.play.warm {
            return;
        }
        let (entry, bytes) = (self.entries[level][cache], self.key.bytes);
        let time = match (at < entry.ready, at < entry.until) {
            (true, _) => COSTS.get_of_nothing + COSTS.get(bytes),
            (false, true) => COSTS.get(bytes),
            (false, false) => COSTS.get_of_nothing + COSTS.put(bytes),
        };
        self.counts.engine_time += time * self.weight;
    }

    /// Gets it from the next level.
    fn fetch(&mut self, level: usize, cache: usize, at: f64, rate: f64) -> Got {
        let layout = self.play.layout;
        let Some(next) = layout.levels.get(level + 1) else {
            if at >= self.play.warm {
                self.counts.upstream[self.key.kind.class()] += self.weight;
            }
            let weight = self.weight;
            if let Some(bin) = self.bin(at) {
                bin.upstream += weight;
            }
            let ready = at + UPSTREAM_TIME;
            return Got {
                received: ready,
                ready,
            };
        };
        let cache = match layout.levels[level].next {
            Next::Only => 0,
            Next::OfRegion => cache % REGIONS,
            Next::Any => self.rng.usize(..next.count),
        };
        let got = self.request(level + 1, cache, at, rate);
        match next.role {
            // Its value comes with its age.
            Role::Engine { .. } => got,
            Role::Ordgate { .. } | Role::Cdn { .. } => Got {
                received: got.ready,
                ..got
            },
        }
    }

    /// How long an entry stays in memory, fresh or not: until it has not been
    /// requested for the level's idle time.
    fn residence(&mut self, level: usize, rate: f64) -> f64 {
        let level = self.play.layout.levels[level];
        let rate = rate / level.count as f64;
        let requests = rate * level.idle;
        if requests > 30.0 {
            return f64::INFINITY;
        }
        let mut time = 0.0;
        for _ in 0..32 {
            let pause = wait(&mut self.rng, rate);
            if pause > level.idle {
                return time + level.idle;
            }
            time += pause;
        }
        // It is requested often: the rest by its mean, of which at least the pause that
        // evicts it is certain.
        let mean = level.idle * (requests.exp_m1() - requests) / requests;
        time + level.idle + wait(&mut self.rng, 1.0 / mean)
    }
}

type Due = BinaryHeap<Reverse<(u64, usize)>>;

/// Mixes words into one (splitmix64).
fn mix(words: &[u64]) -> u64 {
    let mut state = 0_u64;
    for word in words {
        state = state
            .wrapping_add(*word)
            .wrapping_add(0x9e37_79b9_7f4a_7c15);
        state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        state ^= state >> 31;
    }
    state
}
