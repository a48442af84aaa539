//! How long the upstream's answers take: of late, for who has to decide how
//! long to wait and what to tell of it; and since the start, for who counts on.
//! Pure: `now` is an argument.
//!
//! What came of late is kept in two halves of a minute each, of which the older
//! is forgotten when a third would begin. So "of late" is the last 60 to 120
//! seconds.
//!
//! Invariants: memory does not grow, and stays below 4 KiB; nothing that is
//! older than two minutes has a say in a quantile; what is counted since the
//! start never falls.
//!
//! Deliberately absent: what came of the requests, which `upstream::Tally`
//! counts, and how many of them there should be at once
//! (`upstream::concurrency`).

use std::time::Duration;

use crate::clock::Moment;
use crate::upstream::endpoint::sketch::Sketch;

/// How long each of the two halves is filled.
const HALF: Duration = Duration::from_secs(60);

/// The bounds of what is counted since the start, in milliseconds: at three for
/// each factor of ten, as Prometheus' clients have them by default, up to the
/// longest time-out that is of any use.
const BOUNDS: [u64; 15] = [
    5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 20_000, 30_000, 60_000, 120_000,
];

/// How long answers have taken.
#[derive(Clone, Debug, Default)]
pub struct Latency {
    /// The half that began in an even minute, and the one of an odd.
    halves: [Half; 2],
    /// The latest minute that was seen: those who saw the clock at one moment
    /// may come here after those who saw it at the next.
    minute: u64,
    /// Since the start, by the least bound that is not exceeded.
    counts: [u64; BOUNDS.len()],
    count: u64,
    sum: Duration,
}

/// What came in one minute.
#[derive(Clone, Debug, Default)]
struct Half {
    minute: u64,
    sketch: Sketch,
}

impl Latency {
    /// Of nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// An answer took so long, from the request's first byte to its last.
    pub fn record(&mut self, took: Duration, now: Moment) {
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

    /// What a share `q` of the answers of late, 0 to 1, took at the most; wrong
    /// by a sixteenth of itself, and never out of 1 ms to 10 min. `None` where
    /// there were none.
    pub fn quantile(&self, q: f64, now: Moment) -> Option<Duration> {
        self.quantile_of_at_least(q, 1, now)
    }

    /// The same, where so many answers say so; `None` where there were fewer,
    /// too few to build upon.
    pub fn quantile_of_at_least(&self, q: f64, samples: u64, now: Moment) -> Option<Duration> {
        let recent = self.recent(now);
        (recent.count() >= samples)
            .then(|| recent.quantile(q))
            .flatten()
    }

    /// How many answers came of late.
    pub fn count(&self, now: Moment) -> u64 {
        self.recent(now).count()
    }

    /// What came since the start, as a histogram of Prometheus' has it: the sum
    /// in seconds; how many there were; and for each bound, in seconds and
    /// ascending, how many did not exceed it. The bound of infinity is left
    /// out; there it is all of them.
    pub fn buckets(&self) -> (f64, u64, Vec<(f64, u64)>) {
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

    /// A whole number of minutes, and so many seconds.
    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(60_000_000_000 << 10) + Duration::from_secs(seconds)
    }

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn nearly(said: Option<Duration>, truly: u64) -> bool {
        let said = said.map_or(0.0, |said| said.as_secs_f64() * 1000.0);
        (said - truly as f64).abs() <= truly as f64 / 16.0
    }

    #[test]
    fn the_last_one_or_two_minutes_count() {
        let mut latency = Latency::new();
        assert_eq!(latency.quantile(0.5, at(0)), None);
        latency.record(millis(100), at(0));
        latency.record(millis(100), at(59));
        latency.record(millis(800), at(61));
        for (seconds, count, worst) in [
            (61, 3, 800),
            (119, 3, 800),
            // The first minute is forgotten, and then the second.
            (120, 1, 800),
            (179, 1, 800),
        ] {
            assert_eq!(latency.count(at(seconds)), count, "{seconds}");
            assert!(nearly(latency.quantile(1.0, at(seconds)), worst));
        }
        assert_eq!(latency.quantile(1.0, at(180)), None);
        // A third minute takes the place of the first.
        latency.record(millis(50), at(121));
        assert_eq!(latency.count(at(121)), 2);
        assert!(nearly(latency.quantile(0.5, at(121)), 50));
        // One who looked at the clock before that comes late.
        latency.record(millis(50), at(119));
        assert_eq!(latency.count(at(119)), 3);
    }

    #[test]
    fn a_few_answers_may_be_too_few() {
        let mut latency = Latency::new();
        for _ in 0..9 {
            latency.record(millis(100), at(0));
        }
        assert!(nearly(latency.quantile(0.99, at(0)), 100));
        assert_eq!(latency.quantile_of_at_least(0.99, 10, at(0)), None);
        latency.record(millis(100), at(0));
        assert!(nearly(latency.quantile_of_at_least(0.99, 10, at(0)), 100));
        // None are enough for no quantile.
        let none = Latency::new().quantile_of_at_least(0.5, 0, at(0));
        assert_eq!(none, None);
    }

    #[test]
    fn since_the_start_everything_counts() {
        let mut latency = Latency::new();
        for (took, second) in [(5, 0), (6, 500), (250, 1000), (120_000, 9000)] {
            latency.record(millis(took), at(second));
        }
        latency.record(millis(120_001), at(0));
        let (sum, count, buckets) = latency.buckets();
        assert!((sum - 240.262).abs() < 1e-6, "{sum}");
        assert_eq!(count, 5);
        // What is just as long as a bound does not exceed it.
        assert_eq!(buckets[..3], [(0.005, 1), (0.01, 2), (0.025, 2)]);
        assert_eq!(buckets[5], (0.25, 3));
        assert_eq!(buckets.last(), Some(&(120.0, 4)));
    }

    #[test]
    fn it_is_small() {
        assert!(size_of::<Latency>() < 4096, "{}", size_of::<Latency>());
        // And all of it is in there: nothing is on the heap.
        let bounds = BOUNDS.windows(2).all(|pair| pair[0] < pair[1]);
        assert!(bounds, "they ascend");
    }

    proptest! {
        /// Whatever comes when: a quantile is nearly that of what came in this
        /// minute and the last, grows with its share, and no sooner are answers
        /// forgotten than after one minute, nor later than after two.
        #[test]
        fn it_tells_of_the_last_minutes(
            steps in proptest::collection::vec((0_u64..40, 1_u64..600_000), 1..200),
            shares in (0.0_f64..=1.0, 0.0_f64..=1.0),
        ) {
            let mut latency = Latency::new();
            let mut all = Vec::new();
            let mut now = 0;
            for (pause, took) in steps {
                now += pause;
                latency.record(millis(took), at(now));
                all.push((now, took));
                let since = |ago: u64| all.iter().filter(|(at, _)| at + ago > now).count() as u64;
                let count = latency.count(at(now));
                prop_assert!((since(60)..=since(120)).contains(&count), "{count}");
                let skipped = all.len() - usize::try_from(count).unwrap();
                let mut recent: Vec<_> = all[skipped..].iter().map(|(_, took)| *took).collect();
                recent.sort_unstable();
                let (low, high) = (shares.0.min(shares.1), shares.0.max(shares.1));
                for q in [low, high] {
                    let rank = ((q * recent.len() as f64).ceil() as usize).max(1);
                    let said = latency.quantile(q, at(now));
                    prop_assert!(nearly(said, recent[rank - 1]), "{q}: {said:?} of {recent:?}");
                }
                prop_assert!(latency.quantile(low, at(now)) <= latency.quantile(high, at(now)));
            }
            prop_assert_eq!(latency.count(at(now + 120)), 0);
            let (_, count, buckets) = latency.buckets();
            prop_assert_eq!(count, all.len() as u64);
            for (bound, below) in buckets {
                let truly = all.iter().filter(|(_, took)| *took as f64 / 1000.0 <= bound);
                prop_assert_eq!(below, truly.count() as u64);
            }
        }
    }
}
