//! How long answers take: a distribution, from which the seed and the request's number choose.
//!
//! Made by the command line and by tests; `server` waits. Invariant: the same seed gives the same times in the same
//! order. Times do not depend on the load; a limit on what is served at once is not implemented.

use std::time::Duration;

/// The distribution of the time before an answer. Zero by default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Latency {
    /// Times by the share of answers that take no longer, from 0 to 1, ascending in both.
    points: Vec<(f64, Duration)>,
}

impl From<Duration> for Latency {
    fn from(time: Duration) -> Self {
        Self::between(time, time)
    }
}

impl Latency {
    /// Every time from the first to the second is as likely.
    #[must_use]
    pub fn between(least: Duration, most: Duration) -> Self {
        Self {
            points: vec![(0.0, least), (1.0, most.max(least))],
        }
    }

    /// Of 100 answers, so many take no longer than a time; in between, times are interpolated. Without a percentile 0,
    /// it is half of the lowest time; without a percentile 100, it is the highest one. None if the percentiles are not
    /// from 0 to 100, if they or the times do not ascend, or if there are none.
    #[must_use]
    pub fn percentiles(percentiles: &[(f64, Duration)]) -> Option<Self> {
        let (first, last) = (percentiles.first()?, percentiles.last()?);
        let mut points: Vec<_> = percentiles
            .iter()
            .map(|(percent, time)| (percent / 100.0, *time))
            .collect();
        if first.0 > 0.0 {
            points.insert(0, (0.0, first.1 / 2));
        }
        if last.0 < 100.0 {
            points.push((1.0, last.1));
        }
        let is_share = |(share, _): &(f64, Duration)| (0.0..=1.0).contains(share);
        let mut pairs = points.windows(2);
        let ascends = pairs.all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1);
        (points.iter().all(is_share) && ascends).then_some(Self { points })
    }

    /// The time that this share of answers does not exceed.
    pub(super) fn at(&self, share: f64) -> Duration {
        let above = self.points.iter().position(|(point, _)| *point >= share);
        let above = above.unwrap_or(self.points.len().saturating_sub(1));
        let Some((high_share, high)) = self.points.get(above) else {
            return Duration::ZERO;
        };
        let Some((low_share, low)) = above.checked_sub(1).and_then(|at| self.points.get(at)) else {
            return *high;
        };
        let part = (share - low_share) / (high_share - low_share);
        *low + high.saturating_sub(*low).mul_f64(part.clamp(0.0, 1.0))
    }
}
