//! The last ten minutes in figures, so that the dashboard's charts are full when it
//! opens.
//!
//! Every [`INTERVAL`] the counters and gauges of the process become a row of numbers:
//! rates per second from counters, and gauges as they are. The last [`POINTS`] rows
//! are kept, [`SERIES`] as `f32`, in all less than 32 KiB. A counter that begins anew
//! (a route was removed by a reload) counts as unchanged, and an interval without a
//! sample (the process was stopped, or the machine slept) is a row without numbers.
//!
//! Invariant: taking a sample reads counters only. It waits for nothing and sends
//! nothing.

mod reading;

use std::collections::VecDeque;
use std::fmt::Write;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use reading::Reading;

use crate::cache::outcome::OUTCOMES;
use crate::clock::Moment;
use crate::listener::Current;
use crate::sync::lock;

/// The time from one sample to the next.
pub const INTERVAL: Duration = Duration::from_secs(2);
/// How many samples are kept: ten minutes of them.
pub const POINTS: usize = 300;

/// The names of the series, in the order of a row. The first are requests per second by
/// outcome, followed by [`FURTHER`].
pub fn names() -> impl Iterator<Item = &'static str> {
    OUTCOMES.into_iter().chain(FURTHER)
}

/// How many there are.
pub const SERIES: usize = OUTCOMES.len() + FURTHER.len();

/// The names of the series after those of outcomes. The first two are requests per second
/// as well; `other` are documents of ordgate's own and preflights.
const FURTHER: [&str; 16] = [
    "refused",
    "other",
    // Answers without the upstream, as a share of all that are not refusals.
    "hit_ratio",
    // How long the same requests took.
    "p50_ms",
    "p99_ms",
    // Requests per second to all upstreams, and those of them that failed.
    "upstream_sent",
    "upstream_failed",
    // Requests of this minute that the keys of an upstream have left together, and their
    // limit: of the upstream with the smallest share left.
    "budget_left",
    "budget",
    "queue",
    "in_flight",
    "connections",
    "cache_mib",
    // The processor time of the process, as a share of one core, and its memory.
    "cpu",
    "rss_mib",
    // The highest tip.
    "tip_height",
];

type Row = [f32; SERIES];

/// A row of an interval without a sample.
const MISSING: Row = [f32::NAN; SERIES];

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
            let reading = Reading::of(&gateway);
            self.add(reading, now, gateway.clock.wall(now));
        }
    }

    /// Adds a reading. The first one only begins the intervals.
    fn add(&self, reading: Reading, now: Moment, wall: SystemTime) {
        let mut rows = lock(&self.0);
        if let Some((last, at, _)) = &rows.last {
            let elapsed = now.since(*at);
            let row = reading.row(last, elapsed);
            let intervals = (elapsed.as_secs_f64() / INTERVAL.as_secs_f64()).round();
            let missed = (intervals as usize).saturating_sub(1).min(POINTS);
            let new = std::iter::repeat_n(MISSING, missed).chain([row]);
            rows.rows.extend(new);
            let surplus = rows.rows.len().saturating_sub(POINTS);
            rows.rows.drain(..surplus);
        }
        rows.last = Some((reading, now, wall));
    }

    /// The series as JSON: `interval_seconds`, `until` (when the last point was taken,
    /// in milliseconds of Unix time; `null` without points), and `series`, each with
    /// its points, the oldest first, `null` where there is no number. With `since`, a
    /// former `until`, only later points. Below 60 kB.
    pub fn json(&self, since: Option<u64>) -> String {
        let rows = lock(&self.0);
        let until = rows.last.as_ref().map(|(_, _, wall)| unix_millis(*wall));
        let until = until.filter(|_| !rows.rows.is_empty());
        let wanted = match (since, until) {
            (Some(since), Some(until)) => {
                let interval = INTERVAL.as_millis() as u64;
                let later = (until.saturating_sub(since) + interval / 2) / interval;
                rows.rows.len().min(later as usize)
            }
            (None, _) | (_, None) => rows.rows.len(),
        };
        let begin = rows.rows.len() - wanted;
        let mut text = String::with_capacity(64 + SERIES * (24 + wanted * 7));
        let interval = INTERVAL.as_secs();
        let until = until.map_or("null".to_owned(), |until| until.to_string());
        // Writing to a string does not fail.
        let _ = write!(
            text,
            "{{\"interval_seconds\":{interval},\"until\":{until},\"series\":{{"
        );
        for (place, name) in names().enumerate() {
            let comma = if place == 0 { "" } else { "," };
            let _ = write!(text, "{comma}\"{name}\":[");
            for (nth, row) in rows.rows.range(begin..).enumerate() {
                if nth > 0 {
                    text.push(',');
                }
                write_number(&mut text, row[place]);
            }
            text.push(']');
        }
        text.push_str("}}");
        text
    }
}

/// Writes a number with about four digits, which a chart cannot show more of.
fn write_number(text: &mut String, number: f32) {
    let digits = match number.abs() {
        size if !size.is_finite() => {
            text.push_str("null");
            return;
        }
        size if size >= 1000.0 || number.fract() == 0.0 => 0,
        size if size >= 10.0 => 1,
        _ => 3,
    };
    let _ = write!(text, "{number:.digits$}");
}

fn unix_millis(wall: SystemTime) -> u64 {
    let since = wall.duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests;
