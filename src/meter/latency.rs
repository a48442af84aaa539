//! How long requests took: a histogram of fixed buckets, which are those of `/metrics`.
//! Counting a time takes two atomic additions and no lock.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use serde_json::{Value, json};

/// The upper bounds of the buckets in microseconds; one more bucket has all longer times.
pub(crate) const BOUNDS: [u64; 20] = [
    10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000,
    500_000, 1_000_000, 2_000_000, 5_000_000, 10_000_000, 30_000_000,
];
const BUCKETS: usize = BOUNDS.len() + 1;

/// The bucket of a time. Short times, which come most often, are found first.
#[inline]
fn bucket(nanos: u64) -> usize {
    let found = BOUNDS.iter().position(|bound| nanos <= bound * 1000);
    found.unwrap_or(BOUNDS.len())
}

/// The times of requests that are counted concurrently.
#[derive(Debug, Default)]
pub(super) struct Times {
    counts: [AtomicU64; BUCKETS],
    sum_nanos: AtomicU64,
}

impl Times {
    #[inline]
    pub(super) fn count(&self, time: Duration) {
        let nanos = time.as_secs() * 1_000_000_000 + u64::from(time.subsec_nanos());
        self.counts[bucket(nanos)].fetch_add(1, Relaxed);
        self.sum_nanos.fetch_add(nanos, Relaxed);
    }

    pub(super) fn snapshot(&self) -> LatencyHistogram {
        LatencyHistogram {
            counts: std::array::from_fn(|at| self.counts[at].load(Relaxed)),
            sum_nanos: self.sum_nanos.load(Relaxed),
        }
    }
}

/// How long requests took, as counted at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LatencyHistogram {
    counts: [u64; BUCKETS],
    sum_nanos: u64,
}

impl LatencyHistogram {
    /// Counts a time.
    pub(crate) fn record(&mut self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket(nanos)] += 1;
        self.sum_nanos = self.sum_nanos.saturating_add(nanos);
    }

    /// The number of requests.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The time that the share `q` of all requests, 0 to 1, did not exceed, interpolated
    /// within its bucket; at most 30 s. `None` if there are no requests.
    pub fn quantile(&self, q: f64) -> Option<Duration> {
        let rank = q * self.count() as f64;
        let (mut below, mut from) = (0, 0);
        for (count, to) in self.counts.iter().zip(BOUNDS) {
            if *count > 0 && (below + count) as f64 >= rank {
                let share = (rank - below as f64) / *count as f64;
                let micros = from as f64 + (to - from) as f64 * share;
                return Some(Duration::from_secs_f64(micros.max(0.0) / 1e6));
            }
            (below, from) = (below + count, to);
        }
        (self.count() > 0).then(|| Duration::from_micros(from))
    }

    /// The requests since an earlier snapshot of the same kind.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let later = |at: usize| self.counts[at].saturating_sub(earlier.counts[at]);
        Self {
            counts: std::array::from_fn(later),
            sum_nanos: self.sum_nanos.saturating_sub(earlier.sum_nanos),
        }
    }

    /// Adds the requests of another kind.
    pub fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count += more;
        }
        self.sum_nanos += other.sum_nanos;
    }

    /// How many there were, and quantiles in milliseconds, for `/status`.
    pub(crate) fn summary(&self) -> Value {
        // With three digits after the point: microseconds.
        let millis = |q| Some((self.quantile(q)?.as_secs_f64() * 1e6).round() / 1e3);
        json!({
            "count": self.count(),
            "p50_ms": millis(0.5),
            "p90_ms": millis(0.9),
            "p99_ms": millis(0.99),
        })
    }

    /// The counts of the buckets and the sum in seconds, for `/metrics`.
    pub(crate) fn buckets(&self) -> Value {
        json!({ "counts": self.counts, "sum": self.sum_nanos as f64 / 1e9 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_in_the_bucket_up_to_its_bound() {
        for (at, bound) in BOUNDS.into_iter().enumerate() {
            assert_eq!(bucket(bound * 1000), at);
            assert_eq!(bucket(bound * 1000 + 1), at + 1);
        }
        assert_eq!((bucket(0), bucket(u64::MAX)), (0, BOUNDS.len()));
    }

    #[test]
    fn a_quantile_is_interpolated_and_a_difference_has_the_times_of_its_interval() {
        let times = Times::default();
        assert_eq!(times.snapshot().quantile(0.5), None);
        for (micros, count) in [(15, 90), (700, 9), (40_000, 1)] {
            (0..count).for_each(|_| times.count(Duration::from_micros(micros)));
        }
        let before = times.snapshot();
        // q, and between which bounds, in microseconds
        for (q, from, to) in [
            (0.0, 10, 20),
            (0.5, 10, 20),
            (0.9, 10, 20),
            (0.95, 500, 1000),
            (1.0, 20_000, 50_000),
        ] {
            let found = before.quantile(q).unwrap();
            let range = Duration::from_micros(from)..=Duration::from_micros(to);
            assert!(range.contains(&found), "{q}: {found:?}");
        }
        times.count(Duration::from_secs(100));
        let mut during = times.snapshot().since(&before);
        assert_eq!((during.count(), during.sum_nanos), (1, 100_000_000_000));
        assert_eq!(during.quantile(0.5), Some(Duration::from_secs(30)));
        during.add(&before);
        assert_eq!(during, times.snapshot());
        // A route that has gone takes its counts with it.
        assert_eq!(before.since(&times.snapshot()).count(), 0);
    }
}
