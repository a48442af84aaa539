//! The last ten minutes of the process, for the dashboard: a row of figures every two
//! seconds. It is kept over reloads, and lost with the process.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use serde_json::{Map, Value, json};

use crate::clock::Moment;
use crate::gateway::Gateway;
use crate::listener::Current;
use crate::meter::LatencyHistogram;
use crate::sync::lock;

/// The time from one sample to the next.
const INTERVAL: Duration = Duration::from_secs(2);
/// How many samples are kept: ten minutes of them.
const POINTS: usize = 300;

/// The series. First come requests per second by what came of them ([`result_of`]), then those
/// sent to all upstreams and those that no budget was left for; how long all that was not
/// refused took; and what is left of the budget of the upstream with the smallest share left,
/// and its limit.
const SERIES: [&str; 11] = [
    "hit",
    "stale",
    "miss",
    "refused",
    "failed",
    "sent",
    "over_budget",
    "p50_ms",
    "p99_ms",
    "budget_left",
    "budget",
];
/// How many of them are counted.
const COUNTED: usize = 7;
const REFUSED: usize = 3;
const FAILED: usize = 4;
const SENT: usize = 5;
const OVER_BUDGET: usize = 6;

/// The counts and the budget at a moment.
#[derive(Clone, Debug)]
struct Reading {
    counts: [u64; COUNTED],
    times: LatencyHistogram,
    budget: (f64, f64),
}

/// The figures of an interval, in the order of [`SERIES`]; not a number where there is none.
type Row = [f64; SERIES.len()];

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
            let missing = std::iter::repeat_n([f64::NAN; SERIES.len()], missed);
            rows.rows.extend(missing.chain([row]));
            let surplus = rows.rows.len().saturating_sub(POINTS);
            rows.rows.drain(..surplus);
        }
        rows.last = Some((reading, now, wall));
    }

    /// The series: `interval_seconds`, `until` (when the last point was taken, in milliseconds
    /// of Unix time; `null` without points), and `series`, each with its points, the oldest
    /// first, `null` where there is no number.
    pub fn json(&self) -> Value {
        let rows = lock(&self.0);
        let last = rows.last.as_ref().filter(|_| !rows.rows.is_empty());
        let until = last.map(|(_, _, wall)| {
            let since = wall.duration_since(SystemTime::UNIX_EPOCH);
            since.map_or(0, |since| since.as_millis() as u64)
        });
        // A chart shows no more digits.
        let point = |value: f64| (value * 1000.0).round() / 1000.0;
        let series = SERIES.iter().enumerate().map(|(place, name)| {
            let points = rows.rows.iter().map(|row| point(row[place]));
            ((*name).to_owned(), points.collect::<Value>())
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
        let mut counts = [0; COUNTED];
        let mut times = LatencyHistogram::default();
        for row in gateway.meter().snapshot() {
            let Some(result) = result_of(row.outcome) else {
                continue;
            };
            let [rest @ .., failed] = row.classes;
            counts[result] += rest.iter().sum::<u64>();
            counts[FAILED] += failed;
            if result != REFUSED {
                times.add(&row.times);
            }
        }
        let mut budgets = Vec::new();
        for (_, upstream) in gateway.upstreams.iter() {
            let counters = &upstream.counters;
            counts[SENT] += counters.all_sent();
            counts[OVER_BUDGET] += counters.results.get("over_budget");
            let keys = upstream.key_snapshots().into_iter();
            let keys = keys
                .filter_map(|key| Some((key["budget_left"].as_f64()?, key["budget"].as_f64()?)));
            budgets.extend(
                keys.reduce(|(left, all), (of_left, of_all)| (left + of_left, all + of_all)),
            );
        }
        Self {
            counts,
            times,
            budget: scarcest(&budgets),
        }
    }

    /// The row of the interval from an earlier reading to this one.
    fn row(&self, earlier: &Self, seconds: f64) -> Row {
        let times = self.times.since(&earlier.times);
        let millis = |q| {
            let time = times.quantile(q);
            time.map_or(f64::NAN, |time| time.as_secs_f64() * 1000.0)
        };
        let mut row = [f64::NAN; SERIES.len()];
        let counts = self.counts.iter().zip(earlier.counts);
        for (rate, (now, then)) in row.iter_mut().zip(counts) {
            *rate = now.saturating_sub(then) as f64 / seconds;
        }
        row[COUNTED..].copy_from_slice(&[millis(0.5), millis(0.99), self.budget.0, self.budget.1]);
        row
    }
}

/// What came of the requests of a kind, as a place in [`SERIES`], unless their status is 5xx:
/// then they have failed. `None` for documents of ordgate's own and preflights.
fn result_of(kind: &str) -> Option<usize> {
    match kind {
        "hit" | "disk" | "shared" => Some(0),
        "stale" => Some(1),
        "miss" | "collapsed" | "bypass" => Some(2),
        "refused" => Some(REFUSED),
        _ => None,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meter::KIND_NAMES;

    /// A reading with this many hits and misses.
    fn reading(hits: u64, misses: u64) -> Reading {
        Reading {
            counts: [hits, 0, misses, 0, 0, 0, 0],
            times: LatencyHistogram::default(),
            budget: (120.0, f64::NAN),
        }
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
    fn a_row_has_the_rates_of_its_interval_and_the_budget_at_its_end() {
        // the readings, and the last row of hits and misses
        for (first, second, [hits, misses]) in [
            ((0, reading(0, 0)), (2, reading(30, 10)), [15.0, 5.0]),
            // A longer interval.
            ((0, reading(0, 0)), (4, reading(30, 10)), [7.5, 2.5]),
            // Counters that begin anew.
            ((0, reading(100, 100)), (2, reading(10, 102)), [0.0, 1.0]),
        ] {
            let series = history([first, second]).json()["series"].clone();
            let last = |name: &str| series[name].as_array().unwrap().last().unwrap().as_f64();
            assert_eq!(["hit", "miss"].map(last), [hits, misses].map(Some));
            // There were no times, and there is no limit.
            assert_eq!(last("p99_ms"), None);
            assert_eq!(["budget_left", "budget"].map(last), [Some(120.0), None]);
        }
    }

    #[test]
    fn each_outcome_has_a_result() {
        let without = KIND_NAMES
            .iter()
            .filter(|kind| result_of(kind).is_none())
            .collect::<Vec<_>>();
        assert_eq!(without, [&"document", &"preflight"]);
    }

    #[test]
    fn the_smallest_share_of_a_budget_is_shown() {
        let budgets = [(0.0, 0.0), (100.0, 500.0), (90.0, 100.0)];
        assert_eq!(scarcest(&budgets), (100.0, 500.0));
        assert!(scarcest(&[(0.0, 0.0)]).0.is_nan());
    }

    #[test]
    fn ten_minutes_are_kept_and_gaps_have_no_numbers() {
        let whole = history((0..310).map(|at| (2 * at, reading(at, 0)))).json();
        assert_eq!(whole["until"], 618_000);
        assert_eq!(whole["series"]["hit"].as_array().unwrap().len(), POINTS);
        let missing = history([(0, reading(0, 0)), (6, reading(6, 0))]).json();
        assert_eq!(missing["series"]["hit"], json!([null, null, 1.0]));
        assert_eq!(history([(0, reading(0, 0))]).json()["until"], Value::Null);
    }
}
