//! How long requests took, by route and by what they came to: a histogram of each.
//!
//! A time is from the last byte of the request to the head of its response. Each doubling
//! of the time has four buckets, from a microsecond to two minutes, so that a quantile is
//! at most an eighth off. A bucket in which one of [`BOUNDS`] lies is split there: the
//! buckets of `/metrics` are exact.
//!
//! A time costs two additions, and no lock. Memory is allocated for the first request of
//! a kind on a route: 1 KiB for each shard, of which hits and refusals have eight, all
//! others one. So a route takes at most 24 KiB, and one with hits and misses 9 KiB.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::{KIND_NAMES, Meter, SHARDS};

/// The number of buckets of each doubling, as a power of two.
const STEP_BITS: u32 = 2;
/// The beginning of the first doubling in nanoseconds, as a power of two: a microsecond.
/// Shorter times count as this one.
const FIRST: u32 = 10;
/// The end of the last one: 137 s. Longer times count as this one.
const END: u32 = 37;
/// Buckets before any is split.
const UNSPLIT: usize = ((END - FIRST) as usize) << STEP_BITS;
/// Buckets of a histogram.
const BUCKETS: usize = UNSPLIT + BOUNDS.len();

/// The bounds of the buckets in `/metrics`.
pub(crate) const BOUNDS: [Duration; 13] = [
    Duration::from_micros(100),
    Duration::from_micros(250),
    Duration::from_micros(500),
    Duration::from_millis(1),
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(5),
    Duration::from_secs(10),
    Duration::from_secs(30),
];

/// A bucket before it is split.
#[derive(Clone, Copy)]
struct Split {
    /// The number of its first part.
    number: u64,
    /// The longest time of the first part in nanoseconds; all times if it is not split.
    most: u64,
}

/// The buckets with their parts.
static SPLITS: [Split; UNSPLIT] = {
    let mut splits = [Split { number: 0, most: 0 }; UNSPLIT];
    let (mut at, mut bound) = (0, 0);
    while at < UNSPLIT {
        let number = (at + bound) as u64;
        let mut most = u64::MAX;
        if bound < BOUNDS.len() && (BOUNDS[bound].as_nanos() as u64) < edge(at + 1) {
            most = BOUNDS[bound].as_nanos() as u64;
            bound += 1;
        }
        splits[at] = Split { number, most };
        at += 1;
    }
    // Two bounds in one bucket would leave one of them out.
    assert!(bound == BOUNDS.len());
    splits
};

/// The shortest time of a bucket before it is split, in nanoseconds.
const fn edge(at: usize) -> u64 {
    let steps = 1 << STEP_BITS;
    let doubling = FIRST + (at / steps) as u32;
    ((steps + at % steps) as u64) << (doubling - STEP_BITS)
}

/// The bucket of a time.
#[inline]
fn bucket(nanos: u64) -> usize {
    let nanos = nanos.clamp(1 << FIRST, (1 << END) - 1);
    let doubling = nanos.ilog2();
    let step = (nanos >> (doubling - STEP_BITS)) as usize & ((1 << STEP_BITS) - 1);
    let unsplit = (((doubling - FIRST) as usize) << STEP_BITS) + step;
    let Split { number, most } = SPLITS[unsplit];
    number as usize + usize::from(nanos > most)
}

/// The shortest and the longest time of a bucket, in nanoseconds.
fn range(bucket: usize) -> (u64, u64) {
    let at = SPLITS.partition_point(|split| split.number as usize <= bucket) - 1;
    let Split { number, most } = SPLITS[at];
    let (from, end) = (edge(at), edge(at + 1) - 1);
    match (number as usize == bucket, most < end) {
        (true, true) => (from, most),
        (true, false) => (from, end),
        (false, _) => (most + 1, end),
    }
}

/// The times of one kind of request on one route, in a few shards.
#[derive(Debug)]
struct Times(Box<[Shard]>);

#[derive(Debug)]
#[repr(align(128))]
struct Shard {
    /// In nanoseconds.
    sum: AtomicU64,
    /// In nanoseconds.
    longest: AtomicU64,
    counts: [AtomicU64; BUCKETS],
}

impl Times {
    /// `shards` is a power of two.
    #[cold]
    fn new(shards: usize) -> Self {
        let shard = |_| Shard {
            sum: AtomicU64::new(0),
            longest: AtomicU64::new(0),
            counts: std::array::from_fn(|_| AtomicU64::new(0)),
        };
        Self((0..shards).map(shard).collect())
    }

    fn histogram(&self) -> LatencyHistogram {
        let mut histogram = LatencyHistogram::default();
        for shard in &self.0 {
            for (count, more) in histogram.counts.iter_mut().zip(&shard.counts) {
                *count += more.load(Relaxed);
            }
            histogram.sum_nanos += shard.sum.load(Relaxed);
            histogram.longest = histogram.longest.max(shard.longest.load(Relaxed));
        }
        histogram
    }
}

/// The times of one route, by kind of request.
#[derive(Debug, Default)]
pub(super) struct RouteLatency([OnceLock<Times>; KIND_NAMES.len()]);

impl RouteLatency {
    /// Counts a request of a connection that took so many nanoseconds.
    #[inline]
    pub(super) fn record(&self, connection: u64, kind: usize, nanos: u64) {
        let times = self.0[kind].get_or_init(|| Times::new(shards_of(kind)));
        let shards = times.0.len();
        let shard = &times.0[connection as usize & (shards - 1)];
        shard.counts[bucket(nanos)].fetch_add(1, Relaxed);
        shard.sum.fetch_add(nanos, Relaxed);
        // It seldom grows.
        if nanos > shard.longest.load(Relaxed) {
            shard.longest.fetch_max(nanos, Relaxed);
        }
    }
}

/// Only what memory answers comes so often that cores would contend for a counter.
fn shards_of(kind: usize) -> usize {
    let is_from_memory = kind == 0 || kind == KIND_NAMES.len() - 1;
    if is_from_memory { SHARDS } else { 1 }
}

/// How long the requests of one kind took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LatencyHistogram {
    counts: [u64; BUCKETS],
    sum_nanos: u64,
    /// In nanoseconds; 0 if it is not known.
    longest: u64,
}

impl Default for LatencyHistogram {
    fn default() -> Self {
        Self {
            counts: [0; BUCKETS],
            sum_nanos: 0,
            longest: 0,
        }
    }
}

impl LatencyHistogram {
    /// Counts a time.
    pub(crate) fn record(&mut self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket(nanos)] += 1;
        self.sum_nanos = self.sum_nanos.saturating_add(nanos);
        self.longest = self.longest.max(nanos);
    }

    /// The number of requests.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The time of all of them together.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_nanos)
    }

    /// The quantile `q`, 0 to 1, by the nearest rank: the least time that at least `q` of
    /// all requests do not exceed. Its error is at most an eighth. `None` if there are no
    /// requests.
    pub fn quantile(&self, q: f64) -> Option<Duration> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let rank = (q.clamp(0.0, 1.0) * count as f64).ceil() as u64;
        let rank = rank.clamp(1, count);
        let mut sum = 0;
        let reaches = |count: &u64| {
            sum += count;
            sum >= rank
        };
        let (from, to) = range(self.counts.iter().position(reaches)?);
        let middle = from.midpoint(to);
        // None is longer than the longest.
        let most = if self.longest > 0 {
            self.longest.max(from)
        } else {
            to
        };
        Some(Duration::from_nanos(middle.min(most)))
    }

    /// The longest time. Of a [difference](Self::since), the upper end of its bucket.
    /// `None` if there are no requests.
    pub fn longest(&self) -> Option<Duration> {
        let bucket = self.counts.iter().rposition(|count| *count > 0)?;
        let nanos = if self.longest > 0 {
            self.longest
        } else {
            range(bucket).1
        };
        Some(Duration::from_nanos(nanos))
    }

    /// The requests since an earlier snapshot of the same kind.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut later = Self {
            sum_nanos: self.sum_nanos.saturating_sub(earlier.sum_nanos),
            ..Self::default()
        };
        let counts = self.counts.iter().zip(&earlier.counts);
        for (count, (now, before)) in later.counts.iter_mut().zip(counts) {
            *count = now.saturating_sub(*before);
        }
        later
    }

    /// Adds the requests of another kind.
    pub fn add(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.sum_nanos += other.sum_nanos;
        self.longest = self.longest.max(other.longest);
    }

    /// For each of the bounds of `/metrics`, in ascending order, how many requests took no
    /// longer.
    pub fn cumulative(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        let mut counts = self.counts.iter().enumerate().peekable();
        let mut sum = 0;
        BOUNDS.iter().map(move |bound| {
            let is_within = |bucket: usize| u128::from(range(bucket).1) <= bound.as_nanos();
            while let Some((_, count)) = counts.next_if(|(bucket, _)| is_within(*bucket)) {
                sum += count;
            }
            (*bound, sum)
        })
    }
}

/// How long the requests of one kind took on one route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestLatency {
    /// The route's position in its table; `None` where no route was found.
    pub route: Option<usize>,
    /// One of [`KIND_NAMES`].
    pub outcome: &'static str,
    /// The times.
    pub times: LatencyHistogram,
}

impl Meter {
    /// How long requests took since the start, by route and outcome; those of which there
    /// were none are left out. It reads about 1 KiB for each shard, so it takes some ten
    /// microseconds. The difference between two of them has the times of an interval.
    pub fn latency_snapshot(&self) -> Vec<RequestLatency> {
        let routes = self.routes.iter().enumerate();
        let rows = routes.flat_map(|(route, counts)| {
            let kinds = counts.latency.0.iter().zip(KIND_NAMES);
            kinds.filter_map(move |(times, outcome)| {
                Some(RequestLatency {
                    route: route.checked_sub(1),
                    outcome,
                    times: times.get()?.histogram(),
                })
            })
        });
        rows.filter(|row| row.times.count() > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use proptest::prelude::{prop_assert, prop_assert_eq, proptest};

    use super::*;
    use crate::cache::outcome::Outcome;
    use crate::meter::RequestKind;
    use crate::reason::Reason;

    fn histogram(micros: &[u64]) -> LatencyHistogram {
        let times = Times::new(4);
        for (connection, micros) in micros.iter().enumerate() {
            let route = RouteLatency::default();
            route.record(connection as u64, 0, micros * 1000);
            let shard = &times.0[connection % 4];
            let of_route = route.0[0].get().unwrap().histogram();
            for (count, more) in shard.counts.iter().zip(of_route.counts) {
                count.fetch_add(more, Relaxed);
            }
            shard.sum.fetch_add(of_route.sum_nanos, Relaxed);
            shard.longest.fetch_max(of_route.longest, Relaxed);
        }
        times.histogram()
    }

    proptest! {
        #[test]
        fn a_bucket_has_its_times(nanos in 1_u64 << FIRST..1 << END) {
            let (from, to) = range(bucket(nanos));
            prop_assert!(from <= nanos && nanos <= to, "{from} {nanos} {to}");
            prop_assert!((to - from) as f64 <= from as f64 / 4.0);
            for bound in BOUNDS.map(|bound| bound.as_nanos() as u64) {
                prop_assert_eq!(to <= bound, nanos <= bound, "exact at each bound");
            }
        }
    }

    #[test]
    fn buckets_are_in_order_and_have_no_gaps() {
        let mut next = 1 << FIRST;
        for number in 0..BUCKETS {
            let (from, to) = range(number);
            assert_eq!((from, bucket(from), bucket(to)), (next, number, number));
            next = to + 1;
        }
        assert_eq!(next, 1 << END);
        assert_eq!(bucket(0), 0, "too short");
        assert_eq!(bucket(u64::MAX), BUCKETS - 1, "too long");
    }

    #[test]
    fn quantiles_of_a_histogram() {
        let empty = histogram(&[]);
        assert_eq!((empty.quantile(0.5), empty.longest()), (None, None));
        let mut many = vec![20; 90];
        many.extend([1000; 9]);
        many.push(40_000);
        let many = histogram(&many);
        assert_eq!(many.count(), 100);
        assert_eq!(
            many.sum(),
            Duration::from_micros(90 * 20 + 9 * 1000 + 40_000)
        );
        assert_eq!(many.longest(), Some(Duration::from_millis(40)));
        // q, about so many microseconds
        for (q, expected) in [
            (0.0, 20.0),
            (0.5, 20.0),
            (0.9, 20.0),
            (0.91, 1000.0),
            (0.99, 1000.0),
            (1.0, 40_000.0),
        ] {
            let found = many.quantile(q).unwrap().as_secs_f64() * 1e6;
            let error = (found - expected).abs() / expected;
            assert!(error <= 0.125, "{q}: {found} is not nearly {expected}");
        }
    }

    #[test]
    fn a_difference_has_the_times_of_the_interval() {
        let (before, mut after) = (histogram(&[20; 10]), histogram(&[20; 10]));
        after.add(&histogram(&[3000; 5]));
        let during = after.since(&before);
        assert_eq!(during.count(), 5);
        assert_eq!(during.sum(), Duration::from_millis(15));
        for time in [during.quantile(0.5), during.longest()] {
            let error = time.unwrap().as_secs_f64() / 0.003 - 1.0;
            assert!(error.abs() < 0.25, "{time:?}");
        }
        // A route that has gone takes its counts with it.
        assert_eq!(before.since(&after).count(), 0);
    }

    #[test]
    fn a_snapshot_has_each_kind_and_stays_over_a_reload() {
        let meter = Meter::new(2);
        assert_eq!(meter.latency_snapshot(), []);
        let hit = RequestKind::Answer(Outcome::Hit { ttl: 1 });
        let took = Duration::from_micros(30);
        for connection in 0..20 {
            meter.count(connection, Some(1), hit, StatusCode::OK, took);
        }
        let refusal = RequestKind::Refusal(Reason::NoRoute);
        meter.count(3, None, refusal, StatusCode::NOT_FOUND, took);
        meter.count(3, Some(9), hit, StatusCode::OK, took);
        let rows = |meter: &Meter| {
            let rows = meter.latency_snapshot().into_iter();
            rows.map(|row| (row.route, row.outcome, row.times.count()))
                .collect::<Vec<_>>()
        };
        assert_eq!(rows(&meter), [(None, "refused", 1), (Some(1), "hit", 20)]);
        let next = meter.next([Some(1), None].into_iter());
        meter.count(5, Some(1), hit, StatusCode::OK, took);
        assert_eq!(rows(&next), [(None, "refused", 1), (Some(0), "hit", 21)]);
    }
}
