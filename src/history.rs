//! The last ten minutes of the process, for the dashboard: a row of figures every two
//! seconds. It is kept over reloads, and lost with the process.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime};

use serde_json::{Map, Value, json};

use crate::cache::outcome::OUTCOMES;
use crate::clock::Moment;
use crate::gateway::Gateway;
use crate::listener::Current;
use crate::meter::{KIND_NAMES, LatencyHistogram};
use crate::sync::lock;
use crate::telemetry::process::ProcessFigures;

/// The time from one sample to the next.
const INTERVAL: Duration = Duration::from_secs(2);
/// How many samples are kept: ten minutes of them.
const POINTS: usize = 300;
/// Requests are counted by outcome, as refused, and all others together.
const RESULTS: usize = OUTCOMES.len() + 2;

/// The series after requests per second by outcome. The first two are such as well: `other`
/// are documents of ordgate's own and preflights. Then come the share of hits and how long all
/// that was no refusal took; requests per second to all upstreams, and those that failed; the
/// share of a core; and [`GAUGES`].
const RATES: [&str; 8] = [
    "refused",
    "other",
    "hit_ratio",
    "p50_ms",
    "p99_ms",
    "upstream_sent",
    "upstream_failed",
    "cpu",
];
/// The series that are gauges. The budget is that of the upstream with the smallest share left;
/// the height that of the highest tip.
const GAUGES: [&str; 8] = [
    "budget_left",
    "budget",
    "queue",
    "in_flight",
    "connections",
    "cache_mib",
    "rss_mib",
    "tip_height",
];

/// Counters and gauges at a moment.
#[derive(Clone, Debug, Default)]
struct Reading {
    requests: [u64; RESULTS],
    /// How long those took that have an outcome.
    times: LatencyHistogram,
    sent: u64,
    failed: u64,
    /// Processor time; not a number where it is not known.
    cpu_seconds: f64,
    gauges: [f64; GAUGES.len()],
}

/// The figures of an interval; not a number where there is none.
type Row = Vec<f64>;

/// The last ten minutes of the process.
#[derive(Debug, Default)]
pub struct ProcessHistory(Mutex<Rows>);

#[derive(Debug, Default)]
struct Rows {
    rows: VecDeque<Row>,
    /// The reading that the next row is compared with, and when it was taken.
    last: Option<(Reading, Moment, SystemTime)>,
}

impl ProcessHistory {
    /// Takes samples of the current gateway until the process ends.
    pub async fn sample_periodically(&self, current: &Current) {
        let mut due = tokio::time::interval(INTERVAL);
        due.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            due.tick().await;
            let gateway = current.load_full();
            let now = gateway.clock.now();
            self.add(Reading::of(&gateway), now, gateway.clock.wall(now));
        }
    }

    /// Adds a reading. The first one only begins the intervals.
    fn add(&self, reading: Reading, now: Moment, wall: SystemTime) {
        let mut rows = lock(&self.0);
        if let Some((last, at, _)) = &rows.last {
            let elapsed = now.since(*at).as_secs_f64();
            let row = reading.row(last, elapsed.max(0.001));
            let missed = (elapsed / INTERVAL.as_secs_f64()).round() as usize;
            let missed = missed.saturating_sub(1).min(POINTS);
            let missing = std::iter::repeat_n(vec![f64::NAN; row.len()], missed);
            rows.rows.extend(missing.chain([row]));
            let surplus = rows.rows.len().saturating_sub(POINTS);
            rows.rows.drain(..surplus);
        }
        rows.last = Some((reading, now, wall));
    }

    /// The series: `interval_seconds`, `until` (when the last point was taken, in milliseconds
    /// of Unix time; `null` without points), and `series`, each with its points, the oldest
    /// first, `null` where there is no number. With `since`, a former `until`, only later
    /// points.
    pub fn json(&self, since: Option<u64>) -> Value {
        let rows = lock(&self.0);
        let interval = INTERVAL.as_millis() as u64;
        let last = rows.last.as_ref().filter(|_| !rows.rows.is_empty());
        let until = last.map(|(_, _, wall)| {
            let since = wall.duration_since(SystemTime::UNIX_EPOCH);
            since.map_or(0, |since| since.as_millis() as u64)
        });
        let later = since.zip(until).map_or(usize::MAX, |(since, until)| {
            ((until.saturating_sub(since) + interval / 2) / interval) as usize
        });
        let begin = rows.rows.len().saturating_sub(later);
        // A chart shows no more digits.
        let point = |value: f64| (value * 1000.0).round() / 1000.0;
        let names = OUTCOMES.into_iter().chain(RATES).chain(GAUGES);
        let series = names.enumerate().map(|(place, name)| {
            let points = rows.rows.range(begin..).map(|row| point(row[place]));
            (name.to_owned(), points.collect::<Value>())
        });
        json!({
            "interval_seconds": INTERVAL.as_secs(),
            "until": until,
            "series": series.collect::<Map<_, _>>(),
        })
    }
}

impl Reading {
    /// Reads the counters of a gateway.
    fn of(gateway: &Gateway) -> Self {
        const MIB: f64 = 1024.0 * 1024.0;
        let process = ProcessFigures::read();
        let mut reading = Self {
            cpu_seconds: process.map_or(f64::NAN, |process| process.cpu_seconds),
            ..Self::default()
        };
        for row in gateway.meter().snapshot() {
            let place = place(row.outcome);
            reading.requests[place] += row.classes.iter().sum::<u64>();
            if place < OUTCOMES.len() {
                reading.times.add(&row.times);
            }
        }
        let (mut queue, mut in_flight, mut budgets) = (0, 0, Vec::new());
        for (_, upstream) in gateway.upstreams.iter() {
            reading.sent += upstream.counters.all_sent();
            reading.failed += upstream.counters.results("failed");
            queue += upstream.queue.len();
            in_flight += upstream.in_flight();
            let keys = upstream.key_snapshots().into_iter();
            let keys = keys.filter_map(|key| Some((key.remaining? as f64, key.per_minute?.into())));
            budgets.extend(keys.reduce(|(left, all), (of_left, of_all): (f64, f64)| {
                (left + of_left, all + of_all)
            }));
        }
        let (budget_left, budget) = scarcest(&budgets);
        let tips = gateway.tip_snapshots();
        let tip = tips.iter().filter_map(|tip| tip.height).max();
        reading.gauges = [
            budget_left,
            budget,
            queue as f64,
            f64::from(in_flight),
            gateway.meter().totals.connections.open.load(Relaxed) as f64,
            gateway.cache.store().size().bytes as f64 / MIB,
            process.map_or(f64::NAN, |process| {
                process.resident_memory_bytes as f64 / MIB
            }),
            tip.map_or(f64::NAN, f64::from),
        ];
        reading
    }

    /// The row of the interval from an earlier reading to this one.
    fn row(&self, earlier: &Self, seconds: f64) -> Row {
        let since = |now: u64, then: u64| now.saturating_sub(then) as f64;
        let requests: Vec<_> = self
            .requests
            .iter()
            .zip(earlier.requests)
            .map(|(now, then)| since(*now, then))
            .collect();
        let hits = ["hit", "stale", "disk", "shared"].map(|name| requests[place(name)]);
        let answered: f64 = requests.iter().take(OUTCOMES.len()).sum();
        let times = self.times.since(&earlier.times);
        let millis = |q| {
            let time = times.quantile(q);
            time.map_or(f64::NAN, |time| time.as_secs_f64() * 1000.0)
        };
        let rates = [
            // Not a number without requests.
            hits.iter().sum::<f64>() / answered,
            millis(0.5),
            millis(0.99),
            since(self.sent, earlier.sent) / seconds,
            since(self.failed, earlier.failed) / seconds,
            (self.cpu_seconds - earlier.cpu_seconds) / seconds,
        ];
        let requests = requests.iter().map(|count| count / seconds);
        requests.chain(rates).chain(self.gauges).collect()
    }
}

/// The budget of which the smallest share is left. Upstreams may share keys, so a sum over
/// all upstreams could count one twice. Budgets of nothing, as without a key in use, have
/// no share left and none used, so they are left out.
fn scarcest(budgets: &[(f64, f64)]) -> (f64, f64) {
    let limited = budgets.iter().copied().filter(|(_, all)| *all > 0.0);
    let least = limited.min_by(|(left, all), (other_left, other_all)| {
        (left / all).total_cmp(&(other_left / other_all))
    });
    least.unwrap_or((f64::NAN, f64::NAN))
}

/// The place of a kind of requests in [`Reading::requests`].
fn place(kind: &str) -> usize {
    let outcome = OUTCOMES.iter().position(|name| *name == kind);
    let is_refusal = KIND_NAMES.last() == Some(&kind);
    outcome.unwrap_or(OUTCOMES.len() + usize::from(!is_refusal))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reading with this many hits and misses.
    fn reading(hits: u64, misses: u64) -> Reading {
        let mut reading = Reading::default();
        reading.requests[place("hit")] = hits;
        reading.requests[place("miss")] = misses;
        reading
    }

    /// The history of readings at these seconds.
    fn history(readings: impl IntoIterator<Item = (u64, Reading)>) -> ProcessHistory {
        let history = ProcessHistory::default();
        for (seconds, reading) in readings {
            let seconds = Duration::from_secs(seconds);
            let now = Moment::from_nanos(1 << 60) + seconds;
            history.add(reading, now, SystemTime::UNIX_EPOCH + seconds);
        }
        history
    }

    #[test]
    fn a_row_has_the_rates_of_its_interval() {
        // the readings, and the last row of hits, misses and hit ratio
        for (first, second, [hits, misses, ratio]) in [
            ((0, reading(0, 0)), (2, reading(30, 10)), [15.0, 5.0, 0.75]),
            // A longer interval.
            ((0, reading(0, 0)), (4, reading(30, 10)), [7.5, 2.5, 0.75]),
            // Counters that begin anew.
            (
                (0, reading(100, 100)),
                (2, reading(10, 102)),
                [0.0, 1.0, 0.0],
            ),
        ] {
            let series = history([first, second]).json(None)["series"].clone();
            let last = |name: &str| series[name].as_array().unwrap().last().unwrap().as_f64();
            assert_eq!(last("hit"), Some(hits));
            assert_eq!(last("miss"), Some(misses));
            assert_eq!(last("hit_ratio"), Some(ratio));
        }
    }

    #[test]
    fn gauges_are_what_they_were_and_have_their_names() {
        let first = Reading {
            cpu_seconds: 10.0,
            ..Reading::default()
        };
        let second = Reading {
            cpu_seconds: 11.0,
            gauges: [120.0, 500.0, 3.0, 4.0, 5.0, 1.5, 20.0, f64::NAN],
            ..Reading::default()
        };
        let series = history([(0, first), (2, second)]).json(None)["series"].clone();
        for (name, expected) in [
            ("budget_left", Some(120.0)),
            ("budget", Some(500.0)),
            ("connections", Some(5.0)),
            ("cache_mib", Some(1.5)),
            ("cpu", Some(0.5)),
            ("rss_mib", Some(20.0)),
            ("tip_height", None),
            // There were no requests.
            ("hit_ratio", None),
        ] {
            assert_eq!(series[name][0].as_f64(), expected, "{name}");
        }
        let places = OUTCOMES.len() + RATES.len() + GAUGES.len();
        assert_eq!(series.as_object().unwrap().len(), places);
    }

    #[test]
    fn the_smallest_share_of_a_budget_is_shown() {
        let budgets = [(0.0, 0.0), (100.0, 500.0), (90.0, 100.0)];
        assert_eq!(scarcest(&budgets), (100.0, 500.0));
        assert!(scarcest(&[(0.0, 0.0)]).0.is_nan());
    }

    #[test]
    fn later_points_follow_a_former_answer_and_ten_minutes_are_kept() {
        let whole = history((0..310).map(|at| (2 * at, reading(at, 0))));
        let points = |since| whole.json(since)["series"]["hit"].as_array().unwrap().len();
        let until = whole.json(None)["until"].as_u64().unwrap();
        assert_eq!(until, 618_000);
        // since, how many points
        for (since, expected) in [
            (None, POINTS),
            (Some(until), 0),
            (Some(until - 2000), 1),
            (Some(until - 9100), 5),
            (Some(0), POINTS),
        ] {
            assert_eq!(points(since), expected, "{since:?}");
        }
        // An interval without samples has points without numbers.
        let missing = history([(0, reading(0, 0)), (6, reading(6, 0))]);
        assert_eq!(
            missing.json(None)["series"]["hit"],
            json!([null, null, 1.0])
        );
        assert_eq!(ProcessHistory::default().json(None)["until"], Value::Null);
    }
}
