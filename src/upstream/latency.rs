//! Response times of an endpoint: quantiles of the recent ones, and a histogram since
//! the start. Pure: `now` is an argument.
//!
//! Recent times are kept in two parts of a minute each; the older one is dropped when a
//! third begins. So "recent" means the last 60 to 120 seconds.
//!
//! Invariants: memory is constant, below 4 KiB; times older than two minutes do not
//! affect a quantile; the counts since the start never decrease.

pub(crate) mod sketch;

use std::time::Duration;

use sketch::Sketch;

use crate::clock::Moment;

/// The length of a part.
const HALF: Duration = Duration::from_secs(60);

/// The buckets of the histogram, in milliseconds: the default buckets of Prometheus'
/// client libraries, up to the longest useful timeout.
const BOUNDS: [u64; 15] = [
    5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 20_000, 30_000, 60_000, 120_000,
];

/// The sum in seconds, the count, and for each bucket, in ascending order of its bound
/// in seconds, how many times do not exceed it. The bucket of infinity is left out.
pub type Histogram = (f64, u64, Vec<(f64, u64)>);

/// Response times.
#[derive(Clone, Debug, Default)]
pub(crate) struct Latency {
    /// The part of an even minute, and that of an odd one.
    halves: [Half; 2],
    /// The latest minute so far: tasks may call with times that are out of order.
    minute: u64,
    /// Since the start, by the first bound that is not exceeded.
    counts: [u64; BOUNDS.len()],
    count: u64,
    sum: Duration,
}

/// The times of one minute.
#[derive(Clone, Debug, Default)]
struct Half {
    minute: u64,
    sketch: Sketch,
}

impl Latency {
    /// Adds a time.
    pub(crate) fn record(&mut self, took: Duration, now: Moment) {
        self.minute = minute(now).max(self.minute);
        let half = &mut self.halves[(self.minute % 2) as usize];
        if half.minute != self.minute {
            half.minute = self.minute;
            half.sketch.clear();
        }
        half.sketch.record(took);
        let bounds = |bound: &u64| took <= Duration::from_millis(*bound);
        if let Some(bound) = BOUNDS.iter().position(bounds) {
            self.counts[bound] += 1;
        }
        self.count += 1;
        self.sum = self.sum.saturating_add(took);
    }

    /// The quantile `q`, 0 to 1, of the recent times, from 1 ms to 10 min, with an error
    /// of up to a sixteenth. `None` if there are none.
    pub(crate) fn quantile(&self, q: f64, now: Moment) -> Option<Duration> {
        self.recent(now).quantile(q)
    }

    /// All times since the start.
    pub(crate) fn histogram(&self) -> Histogram {
        let mut cumulative = 0;
        let bucket = |(bound, count): (&u64, &u64)| {
            cumulative += count;
            (Duration::from_millis(*bound).as_secs_f64(), cumulative)
        };
        let buckets = BOUNDS.iter().zip(&self.counts).map(bucket).collect();
        (self.sum.as_secs_f64(), self.count, buckets)
    }

    fn recent(&self, now: Moment) -> Sketch {
        let present = minute(now).max(self.minute);
        let mut recent = Sketch::default();
        for half in &self.halves {
            if half.minute + 1 >= present {
                recent.add(&half.sketch);
            }
        }
        recent
    }
}

fn minute(now: Moment) -> u64 {
    now.millis() / HALF.as_millis() as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert, prop_assert_eq, proptest};

    use super::*;

    /// This many seconds after a whole minute.
    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(60_000_000_000 << 10) + Duration::from_secs(seconds)
    }

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn count(latency: &Latency, now: Moment) -> u64 {
        latency.recent(now).count()
    }

    fn nearly(found: Option<Duration>, truly: u64) -> bool {
        let found = found.map_or(0.0, |found| found.as_secs_f64() * 1000.0);
        (found - truly as f64).abs() <= truly as f64 / 16.0
    }

    #[test]
    fn the_last_one_to_two_minutes_count() {
        let mut latency = Latency::default();
        assert_eq!(latency.quantile(0.5, at(0)), None);
        latency.record(millis(100), at(0));
        latency.record(millis(100), at(59));
        latency.record(millis(800), at(61));
        for (seconds, expected, worst) in [
            (61, 3, 800),
            (119, 3, 800),
            // The first minute is forgotten, and then the second.
            (120, 1, 800),
            (179, 1, 800),
        ] {
            assert_eq!(count(&latency, at(seconds)), expected, "{seconds}");
            assert!(nearly(latency.quantile(1.0, at(seconds)), worst));
        }
        assert_eq!(latency.quantile(1.0, at(180)), None);
        // A third minute takes the place of the first.
        latency.record(millis(50), at(121));
        assert_eq!(count(&latency, at(121)), 2);
        assert!(nearly(latency.quantile(0.5, at(121)), 50));
        // A task that has read the clock earlier calls later.
        latency.record(millis(50), at(119));
        assert_eq!(count(&latency, at(119)), 3);
    }

    #[test]
    fn the_histogram_counts_all_times_since_the_start() {
        let mut latency = Latency::default();
        for (took, second) in [(5, 0), (6, 500), (250, 1000), (120_000, 9000)] {
            latency.record(millis(took), at(second));
        }
        latency.record(millis(120_001), at(0));
        let (sum, count, buckets) = latency.histogram();
        assert!((sum - 240.262).abs() < 1e-6, "{sum}");
        assert_eq!(count, 5);
        // A time equal to a bound does not exceed it.
        assert_eq!(buckets[..3], [(0.005, 1), (0.01, 2), (0.025, 2)]);
        assert_eq!(buckets[5], (0.25, 3));
        assert_eq!(buckets.last(), Some(&(120.0, 4)));
    }

    #[test]
    fn memory_is_constant_and_small() {
        assert!(size_of::<Latency>() < 4096, "{}", size_of::<Latency>());
        let bounds = BOUNDS.windows(2).all(|pair| pair[0] < pair[1]);
        assert!(bounds, "they ascend");
    }

    proptest! {
        /// A quantile is nearly that of the times of this minute and the last, and does not
        /// decrease with `q`; times are dropped after one to two minutes.
        #[test]
        fn quantiles_are_those_of_the_last_minutes(
            steps in proptest::collection::vec((0_u64..40, 1_u64..600_000), 1..200),
            shares in (0.0_f64..=1.0, 0.0_f64..=1.0),
        ) {
            let mut latency = Latency::default();
            let mut all = Vec::new();
            let mut now = 0;
            for (pause, took) in steps {
                now += pause;
                latency.record(millis(took), at(now));
                all.push((now, took));
                let since = |ago: u64| all.iter().filter(|(at, _)| at + ago > now).count() as u64;
                let kept = count(&latency, at(now));
                prop_assert!((since(60)..=since(120)).contains(&kept), "{kept}");
                let skipped = all.len() - usize::try_from(kept).unwrap();
                let mut recent: Vec<_> = all[skipped..].iter().map(|(_, took)| *took).collect();
                recent.sort_unstable();
                let (low, high) = (shares.0.min(shares.1), shares.0.max(shares.1));
                for q in [low, high] {
                    let rank = ((q * recent.len() as f64).ceil() as usize).max(1);
                    let found = latency.quantile(q, at(now));
                    prop_assert!(nearly(found, recent[rank - 1]), "{q}: {found:?} of {recent:?}");
                }
                prop_assert!(latency.quantile(low, at(now)) <= latency.quantile(high, at(now)));
            }
            prop_assert_eq!(count(&latency, at(now + 120)), 0);
            let (_, count, buckets) = latency.histogram();
            prop_assert_eq!(count, all.len() as u64);
            for (bound, below) in buckets {
                let truly = all.iter().filter(|(_, took)| *took as f64 / 1000.0 <= bound);
                prop_assert_eq!(below, truly.count() as u64);
            }
        }
    }
}
