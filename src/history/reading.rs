//! One reading of the process's counters and gauges, and what happened between two.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::Row;
use crate::cache::outcome::OUTCOMES;
use crate::gateway::Gateway;
use crate::meter::{KIND_NAMES, LatencyHistogram};
use crate::telemetry::process::ProcessFigures;

/// Outcomes, refusals and, last, all else.
const RESULTS: usize = OUTCOMES.len() + 2;

/// The kind of refusals, the last one.
const REFUSED: &str = KIND_NAMES[KIND_NAMES.len() - 1];

/// Counters and gauges at a moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Reading {
    /// Requests by outcome since the start.
    pub(super) requests: [u64; RESULTS],
    /// How long those took that have an outcome.
    pub(super) times: LatencyHistogram,
    pub(super) sent: u64,
    pub(super) failed: u64,
    /// What the keys have left, and their limit, of the upstream with the smallest share
    /// left; `None` without a limit.
    pub(super) budget: Option<(usize, usize)>,
    pub(super) queue: usize,
    pub(super) in_flight: u32,
    pub(super) connections: u64,
    pub(super) cache_bytes: u64,
    pub(super) process: Option<ProcessFigures>,
    pub(super) tip: Option<u32>,
}

impl Reading {
    /// Reads the counters of a gateway.
    pub(super) fn of(gateway: &Gateway) -> Self {
        let mut requests = [0; RESULTS];
        let mut times = LatencyHistogram::default();
        for row in gateway.meter().snapshot() {
            requests[place(row.outcome)] += row.classes.iter().sum::<u64>();
            if place(row.outcome) < OUTCOMES.len() {
                times.add(&row.times);
            }
        }
        let mut reading = Self {
            requests,
            times,
            connections: gateway.meter().totals.connections.load(Relaxed),
            cache_bytes: gateway.cache.store().size().bytes,
            process: ProcessFigures::read(),
            ..Self::default()
        };
        for (_, upstream) in gateway.upstreams.iter() {
            reading.sent += upstream.counters.all_sent();
            reading.failed += upstream.counters.results("failed");
            reading.queue += upstream.queue.len();
            reading.in_flight += upstream.in_flight();
        }
        let budgets = gateway.upstreams.iter().filter_map(|(_, upstream)| {
            let keys = upstream.key_snapshots().into_iter();
            let keys =
                keys.filter_map(|key| key.remaining.zip(key.per_minute.map(|most| most as usize)));
            keys.reduce(|(left, all), (of_left, of_all)| (left + of_left, all + of_all))
        });
        reading.budget = scarcest(budgets);
        let tips = gateway.tip_snapshots();
        reading.tip = tips.iter().filter_map(|tip| tip.height).max();
        reading
    }

    /// The row of the interval from an earlier reading to this one.
    pub(super) fn row(&self, earlier: &Self, elapsed: Duration) -> Row {
        const MIB: f64 = 1024.0 * 1024.0;
        let seconds = elapsed.as_secs_f64().max(0.001);
        let since: Vec<_> = self
            .requests
            .iter()
            .zip(earlier.requests)
            .map(|(now, then)| now.saturating_sub(then))
            .collect();
        let rate = |count: u64| count as f64 / seconds;
        let without_upstream = ["hit", "stale", "disk", "shared"];
        let without_upstream = without_upstream.map(|name| since.get(place(name)).unwrap_or(&0));
        let answered: u64 = since.iter().take(OUTCOMES.len()).sum();
        let hit_ratio = match answered {
            0 => f64::NAN,
            all => without_upstream.into_iter().sum::<u64>() as f64 / all as f64,
        };
        let (left, budget) = self.budget.unzip();
        let number = |value: Option<usize>| value.map_or(f64::NAN, |value| value as f64);
        let cpu = self.process.zip(earlier.process);
        let cpu = cpu.map(|(now, then)| (now.cpu_seconds - then.cpu_seconds).max(0.0) / seconds);
        let times = self.times.since(&earlier.times);
        let millis = |q| {
            let time = times.quantile(q);
            time.map_or(f64::NAN, |time| time.as_secs_f64() * 1000.0)
        };
        let gauges = [
            hit_ratio,
            millis(0.5),
            millis(0.99),
            rate(self.sent.saturating_sub(earlier.sent)),
            rate(self.failed.saturating_sub(earlier.failed)),
            number(left),
            number(budget),
            self.queue as f64,
            f64::from(self.in_flight),
            self.connections as f64,
            self.cache_bytes as f64 / MIB,
            cpu.unwrap_or(f64::NAN),
            self.process.map_or(f64::NAN, |process| {
                process.resident_memory_bytes as f64 / MIB
            }),
            self.tip.map_or(f64::NAN, f64::from),
        ];
        let values = since.iter().map(|count| rate(*count)).chain(gauges);
        let mut row = super::MISSING;
        for (place, value) in row.iter_mut().zip(values) {
            *place = value as f32;
        }
        row
    }
}

/// The budget of which the smallest share is left. Upstreams may share keys, so a sum over
/// all upstreams could count one twice. Budgets of nothing, as without a key in use, have
/// no share left and none used, so they are left out.
fn scarcest(budgets: impl Iterator<Item = (usize, usize)>) -> Option<(usize, usize)> {
    // Compared as fractions; of equals, the first.
    budgets
        .filter(|(_, all)| *all > 0)
        .min_by(|(left, all), (other_left, other_all)| (left * other_all).cmp(&(other_left * all)))
}

/// The place of a kind of requests in [`Reading::requests`].
fn place(kind: &str) -> usize {
    let outcome = OUTCOMES.iter().position(|name| *name == kind);
    let is_refusal = kind == REFUSED;
    outcome.unwrap_or(OUTCOMES.len() + usize::from(!is_refusal))
}
