//! A histogram of durations in constant memory, for quantiles. Pure.
//!
//! Each doubling of the duration has eight buckets, as in Gil Tene's `HdrHistogram`, so
//! that the error of a quantile is at most a sixteenth, for milliseconds and minutes
//! alike. It is not the crate hdrhistogram: that allocates, and its constructor and
//! record can fail, which costs as much code as these buckets.

use std::time::Duration;

/// Shorter durations count as this one.
const LEAST: Duration = Duration::from_millis(1);
/// Longer durations count as this one.
const MOST: Duration = Duration::from_secs(600);

/// The number of buckets of each doubling, as a power of two.
const STEP_BITS: u32 = 3;
const STEPS: usize = 1 << STEP_BITS;
/// The beginning of the first doubling in microseconds, as a power of two: 512 µs.
const FIRST: u32 = 9;
/// The beginning of the last one: nine minutes.
const LAST: u32 = 29;
const BUCKETS: usize = (LAST - FIRST + 1) as usize * STEPS;

/// A histogram of durations.
#[derive(Clone, Debug)]
pub(crate) struct Sketch {
    counts: [u32; BUCKETS],
}

impl Default for Sketch {
    fn default() -> Self {
        Self {
            counts: [0; BUCKETS],
        }
    }
}

impl Sketch {
    pub(crate) fn record(&mut self, took: Duration) {
        let count = &mut self.counts[bucket(took)];
        *count = count.saturating_add(1);
    }

    /// Adds all durations of another.
    pub(crate) fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count = count.saturating_add(more);
        }
    }

    /// Removes all durations.
    pub(crate) fn clear(&mut self) {
        self.counts = [0; BUCKETS];
    }

    /// The number of durations.
    pub(crate) fn count(&self) -> u64 {
        self.counts.iter().copied().map(u64::from).sum()
    }

    /// The quantile `q`, 0 to 1, by the nearest rank: the least duration that at least
    /// `q` of all do not exceed. Its error is at most a sixteenth, and it is within
    /// [`LEAST`] and [`MOST`]. `None` if there are no durations.
    pub(crate) fn quantile(&self, q: f64) -> Option<Duration> {
        let count = self.count();
        let rank = (q.clamp(0.0, 1.0) * count as f64).ceil() as u64;
        let rank = rank.clamp(1, count.max(1));
        let mut sum = 0;
        let reaches = |count: &u32| {
            sum += u64::from(*count);
            sum >= rank
        };
        self.counts.iter().position(reaches).map(middle)
    }
}

fn bucket(took: Duration) -> usize {
    let micros = took.clamp(LEAST, MOST).as_micros();
    let doubling = micros.ilog2();
    let step = (micros >> (doubling - STEP_BITS)) as usize % STEPS;
    (doubling - FIRST) as usize * STEPS + step
}

/// The middle of a bucket, less than a sixteenth away from either end.
fn middle(bucket: usize) -> Duration {
    let begins = 1_u64 << (FIRST as usize + bucket / STEPS);
    let halves = 2 * (STEPS + bucket % STEPS) as u64 + 1;
    let middle = begins / (2 * STEPS as u64) * halves;
    Duration::from_micros(middle).clamp(LEAST, MOST)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert, proptest};

    use super::*;

    fn micros(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    #[test]
    fn where_buckets_begin_and_what_stands_for_them() {
        for (took, stands) in [
            (micros(0), micros(1_000)),
            (micros(1_000), micros(1_000)),
            (micros(1_023), micros(1_000)),
            (micros(1_024), micros(1_088)),
            (micros(1_151), micros(1_088)),
            (micros(1_152), micros(1_216)),
            (micros(1 << 20), micros((1 << 20) / 16 * 17)),
            (Duration::from_secs(600), Duration::from_micros(570_425_344)),
            (Duration::MAX, Duration::from_micros(570_425_344)),
        ] {
            let mut sketch = Sketch::default();
            sketch.record(took);
            assert_eq!(sketch.quantile(0.5), Some(stands), "{took:?}");
        }
    }

    #[test]
    fn quantiles_are_of_the_nearest_rank() {
        let mut sketch = Sketch::default();
        assert_eq!((sketch.count(), sketch.quantile(0.5)), (0, None));
        for millis in [10, 20, 40, 80] {
            sketch.record(Duration::from_millis(millis));
        }
        for (q, bucket_of) in [
            (0.0, 10),
            (0.25, 10),
            (0.26, 20),
            (0.5, 20),
            (0.75, 40),
            (0.76, 80),
            (1.0, 80),
            // Out of bounds, it is the nearest that is within.
            (-1.0, 10),
            (7.0, 80),
            (f64::NAN, 10),
        ] {
            let stands = middle(bucket(Duration::from_millis(bucket_of)));
            assert_eq!(sketch.quantile(q), Some(stands), "{q}");
        }
        let mut both = sketch.clone();
        both.add(&sketch);
        assert_eq!(both.count(), 8);
        both.clear();
        assert_eq!((both.count(), both.quantile(1.0)), (0, None));
    }

    proptest! {
        /// A quantile is wrong by a sixteenth of the true one at the most, and
        /// a greater share has no lesser quantile.
        #[test]
        fn quantiles_are_nearly_true(
            mut all in proptest::collection::vec(1_000_u64..600_000_000, 1..300),
            mut shares in proptest::collection::vec(0.0_f64..=1.0, 2..10),
        ) {
            let mut sketch = Sketch::default();
            for took in &all {
                sketch.record(micros(*took));
            }
            all.sort_unstable();
            shares.sort_by(f64::total_cmp);
            let mut before = Duration::ZERO;
            for q in shares {
                let rank = ((q * all.len() as f64).ceil() as usize).max(1);
                let truly = all[rank - 1] as f64;
                let found = sketch.quantile(q).unwrap();
                let wrong = (found.as_micros() as f64 - truly).abs() / truly;
                prop_assert!(wrong <= 1.0 / 16.0, "{q}: {found:?}, {truly} us");
                prop_assert!(found >= before, "{q}: {found:?} after {before:?}");
                before = found;
            }
        }
    }
}
