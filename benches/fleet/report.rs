//! The tables that the bench prints.

use crate::budget;
use crate::layout::{Layout, Sizes, Variant};
use crate::load::{EngineLoad, Upkeep};
use crate::oracle;
use crate::play::{Counts, Loss, Play};
use crate::purge;
use crate::region::recovery;
use crate::settings::Settings;
use crate::timeline::Timeline;
use crate::workload::{CLASSES, Key, Kind, share_of};

/// Requests a second that come to each replica, where the load grows with them.
const EACH: f64 = 1_000.0;
/// Counting begins here.
const WARM: f64 = 3_600.0;
/// Fleets.
const REPLICAS: [usize; 6] = [1, 4, 16, 64, 256, 1_000];

/// What the tables are made from.
pub(crate) struct Report {
    pub(crate) keys: Vec<Key>,
    pub(crate) timeline: Timeline,
    pub(crate) settings: Settings,
    pub(crate) sizes: Sizes,
    /// The largest fleet.
    pub(crate) most: usize,
    pub(crate) seed: u64,
}

/// A variant, played.
struct Played {
    counts: Counts,
    upkeep: Upkeep,
    engine: EngineLoad,
    /// Seconds that were counted.
    time: f64,
}

impl Played {
    /// Upstream requests a second, with probes and checks.
    fn upstream(&self) -> f64 {
        self.counts.upstream.iter().sum::<f64>() / self.time + self.upkeep.total()
    }
}

impl Report {
    fn play(&self, variant: Variant, replicas: usize, load: f64) -> Played {
        let layout = Layout::new(variant, replicas, load, &self.keys, self.sizes);
        let play = Play {
            layout: &layout,
            timeline: &self.timeline,
            settings: &self.settings,
            load,
            warm: WARM,
            loss: None,
            bin: 0.0,
            seed: self.seed,
        };
        let counts = play.run(&self.keys);
        let time = self.timeline.end - WARM;
        let upkeep = Upkeep::new(&layout, &self.settings, self.seed);
        let engine = EngineLoad::new(&layout, &counts, &upkeep, time);
        Played {
            counts,
            upkeep,
            engine,
            time,
        }
    }

    /// Upstream requests a second of a perfect cache, by class.
    fn perfect(&self, load: f64) -> [f64; CLASSES.len()] {
        let time = self.timeline.end - WARM;
        oracle::needs(&self.keys, &self.timeline, load, WARM).map(|needs| needs / time)
    }

    fn fleets(&self) -> impl Iterator<Item = usize> {
        let most = self.most;
        REPLICAS.into_iter().filter(move |count| *count <= most)
    }

    /// Upstream requests where the load grows with the fleet.
    pub(crate) fn sharing(&self) -> Vec<String> {
        let title = "Upstream requests a second, and of those of a perfect cache; 1,000 requests a second for each replica";
        self.upstream_table(title, |replicas| EACH * replicas as f64)
    }

    /// The same where the load is the same.
    pub(crate) fn same_load(&self) -> Vec<String> {
        let title = "The same; 100,000 requests a second for all of them";
        self.upstream_table(title, |_| 100_000.0)
    }

    fn upstream_table(&self, title: &str, load: impl Fn(usize) -> f64) -> Vec<String> {
        let variants = [
            Variant::Separate,
            Variant::Disks,
            Variant::Tier,
            Variant::LongTier,
            Variant::Shields,
        ];
        let titles: Vec<_> = variants.iter().map(|variant| variant.title()).collect();
        let mut lines = vec![
            format!("{title}\n"),
            format!(
                "| replicas | hits in memory | perfect cache | {} |",
                titles.join(" | ")
            ),
            format!("|--:{}|", "|--:".repeat(titles.len() + 2)),
        ];
        for replicas in self.fleets() {
            let load = load(replicas);
            let perfect: f64 = self.perfect(load).iter().sum();
            let mut hits = 0.0;
            let cells = variants.map(|variant| {
                let played = self.play(variant, replicas, load);
                if variant == Variant::Separate {
                    let misses = played.counts.levels[0].asked / played.time;
                    hits = 1.0 - misses / load;
                }
                let upstream = played.upstream();
                format!("{} ({:.1})", count(upstream), upstream / perfect)
            });
            lines.push(format!(
                "| {replicas} | {:.1} % | {} | {} |",
                hits * 100.0,
                count(perfect),
                cells.join(" | ")
            ));
        }
        lines
    }

    /// Upstream requests of the largest fleet by class.
    pub(crate) fn classes(&self) -> Vec<String> {
        let load = EACH * self.most as f64;
        let mut lines = vec![
            format!(
                "Upstream requests a second of {} replicas by what they are for\n",
                self.most
            ),
            format!(
                "| | {} | probes | anchor blocks | live checks |",
                CLASSES.join(" | ")
            ),
            "|---|--:|--:|--:|--:|--:|--:|--:|".to_owned(),
        ];
        let row = |of: [f64; CLASSES.len()]| of.map(count).join(" | ");
        lines.push(format!(
            "| perfect cache | {} | | | |",
            row(self.perfect(load))
        ));
        for variant in [
            Variant::Separate,
            Variant::Disks,
            Variant::Tier,
            Variant::LongTier,
            Variant::Shields,
        ] {
            let played = self.play(variant, self.most, load);
            let Upkeep {
                probes,
                anchors,
                checks,
                ..
            } = played.upkeep;
            lines.push(format!(
                "| {} | {} | {} | {} | {} |",
                variant.title(),
                row(played.counts.upstream.map(|all| all / played.time)),
                count(probes),
                count(anchors),
                count(checks)
            ));
        }
        lines
    }

    /// What one engine process has to do.
    pub(crate) fn engine(&self) -> Vec<String> {
        let mut lines = vec![
            "The engine; parts of one core; 1,000 requests a second for each replica\n".to_owned(),
            "| | replicas | operations for each request | fills | journal, reports | of which tables | wakes | all, woken | all, polling |".to_owned(),
            "|---|--:|--:|--:|--:|--:|--:|--:|--:|".to_owned(),
        ];
        for variant in [Variant::Tier, Variant::Shields] {
            for replicas in self.fleets() {
                let load = EACH * replicas as f64;
                let engine = self.play(variant, replicas, load).engine;
                lines.push(format!(
                    "| {} | {replicas} | {:.3} | {} | {} | {} | {} | {} | {} |",
                    variant.title(),
                    engine.operations / load,
                    part(engine.fills),
                    part(engine.members),
                    part(engine.tables),
                    part(engine.wakes),
                    part(engine.total(true)),
                    part(engine.total(false)),
                ));
            }
        }
        lines
    }

    /// A CDN before a few replicas.
    pub(crate) fn cdn(&self) -> Vec<String> {
        const BEHIND: usize = 16;
        let mut lines = vec![
            format!("A CDN of 100 locations before {BEHIND} replicas with a second tier\n"),
            "| requests a second | | answered by the CDN | requests a second to the replicas | upstream requests a second | of a perfect cache's | the engine, of one core |".to_owned(),
            "|--:|---|--:|--:|--:|--:|--:|".to_owned(),
        ];
        for load in [10_000.0, 100_000.0, 1_000_000.0] {
            let perfect: f64 = self.perfect(load).iter().sum();
            for variant in [Variant::LongTier, Variant::CdnToday, Variant::CdnTags] {
                let played = self.play(variant, BEHIND, load);
                let no_cdn = variant == Variant::LongTier;
                let by_age = match variant == Variant::CdnToday {
                    true => share_of(Kind::Token) * load,
                    false => 0.0,
                };
                let passed = match no_cdn {
                    true => load,
                    false => played.counts.levels[0].missed / played.time + by_age,
                };
                let upstream = played.upstream();
                lines.push(format!(
                    "| {} | {} | {:.2} % | {} | {} | {:.1} | {} |",
                    count(load),
                    if no_cdn { "no CDN" } else { variant.title() },
                    (1.0 - passed / load) * 100.0,
                    count(passed),
                    count(upstream),
                    upstream / perfect,
                    part(played.engine.total(false)),
                ));
            }
        }
        lines
    }

    /// Purges.
    pub(crate) fn purges(&self) -> Vec<String> {
        let mut lines = vec![
            format!(
                "Time until the last replica has applied a purge, in ms; 2,000 purges each; named: not reached within {} s\n",
                purge::PATIENCE
            ),
            "| replicas | segments lost | p50, p99, most | with pauses: p50, p99, most | named |"
                .to_owned(),
            "|--:|--:|--:|--:|--:|".to_owned(),
        ];
        let ms = |time: f64| format!("{:.0}", time * 1e3);
        for replicas in self.fleets() {
            for loss in [0.0, 0.001, 0.01] {
                let [steady, paused] =
                    [false, true].map(|pauses| purge::reach(replicas, loss, pauses, self.seed));
                let cells = [steady, paused]
                    .map(|reach| [reach.median, reach.p99, reach.most].map(ms).join(", "));
                lines.push(format!(
                    "| {replicas} | {:.1} % | {} | {:.2} % |",
                    loss * 100.0,
                    cells.join(" | "),
                    paused.named * 100.0
                ));
            }
        }
        lines
    }

    /// The use of the budget.
    pub(crate) fn budgets(&self) -> Vec<String> {
        let settings = &self.settings;
        let mut lines = vec![
            format!(
                "A budget of {} requests a minute and {} a second; clients want twice as much\n",
                settings.per_minute, settings.per_second
            ),
            "| budget holders | floor of each, a minute and a second | usable without the engine | used, even load | replicas without any | used, one in ten busy |".to_owned(),
            "|--:|--:|--:|--:|--:|--:|".to_owned(),
        ];
        for replicas in [1, 2, 3, 4, 8, 10, 16, 64, 256, 1_000] {
            let floor = budget::floor(settings, replicas);
            let [even, skewed] = [false, true]
                .map(|skewed| budget::used(settings, replicas, floor, skewed, self.seed));
            lines.push(format!(
                "| {replicas} | {}, {} | {:.0} % | {:.0} % | {} | {:.0} % |",
                floor[0],
                floor[1],
                budget::usable_alone(settings, replicas) * 100.0,
                even.part * 100.0,
                even.starved,
                skewed.part * 100.0
            ));
        }
        lines
    }

    /// The loss of a region.
    pub(crate) fn region(&self) -> Vec<String> {
        let replicas = 256.min(self.most);
        let load = EACH * replicas as f64;
        let half = WARM + 900.0;
        let usual = Loss {
            from: half,
            until: half + 1_200.0,
            cold: true,
            with_engine: false,
        };
        let engine = Loss {
            with_engine: true,
            ..usual
        };
        let mut lines = vec![
            format!("One region of three lost for 20 minutes, {replicas} replicas; without absent answers\n"),
            "| | what comes back | upstream a second before | worst minute after the loss (without it) | after the return | hits in the region before | worst 10 s after the return | as before: upstream | hits | extra upstream requests |".to_owned(),
            "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|".to_owned(),
        ];
        for (variant, title, loss) in [
            (Variant::Separate, "cold", usual),
            (Variant::LongTier, "cold; the engine was elsewhere", usual),
            (
                Variant::LongTier,
                "cold; the engine was lost with it",
                engine,
            ),
            (Variant::Shields, "cold, its shields too", usual),
        ] {
            let found = recovery(
                variant,
                replicas,
                load,
                (&self.keys, self.sizes),
                &self.timeline,
                &self.settings,
                loss,
            );
            let after = |time: f64| match time.is_finite() {
                true => format!("{time:.0} s"),
                false => "not within the play".to_owned(),
            };
            let percent = |part: f64| format!("{:.1} %", part * 100.0);
            lines.push(format!(
                "| {} | {title} | {} | {} ({}) | {} ({}) | {} | {} | {} | {} | {} |",
                variant.title(),
                count(found.before),
                count(found.after_loss),
                count(found.usual_after_loss),
                count(found.after_return),
                count(found.usual_after_return),
                percent(found.hits_before),
                percent(found.hits_worst),
                after(found.upstream_after),
                after(found.hits_after),
                count(found.extra.max(0.0)),
            ));
        }
        lines
    }
}

/// A number with three digits that count, and commas.
fn count(number: f64) -> String {
    if number < 9.95 {
        return format!("{number:.2}");
    }
    let size = 10_f64.powi((number.log10().floor() as i32 - 2).max(0));
    let whole = ((number / size).round() * size) as u64;
    let digits = whole.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn part(of_core: f64) -> String {
    format!("{:.1} %", of_core * 100.0)
}
