//! The minimum rate of a body, in either direction. Pure: times are arguments.
//!
//! Invariant: a sender is waited for no longer than the grace period at a time, and
//! in total no longer than the grace period plus the time that its bytes take at the
//! minimum rate.

use std::time::Duration;

/// How long the sender of a body may still be waited for. Waiting uses up the grace
/// period; received bytes restore it.
#[derive(Debug)]
pub struct MinRate {
    bytes_per_second: u64,
    grace: Duration,
    left: Duration,
}

impl MinRate {
    /// For a body of which nothing has been received. `bytes_per_second` is at least
    /// 1.
    pub fn new(bytes_per_second: u64, grace: Duration) -> Self {
        Self {
            bytes_per_second,
            grace,
            left: grace,
        }
    }

    /// How much longer the sender may be waited for.
    pub fn left(&self) -> Duration {
        self.left
    }

    /// Counts time in which the sender was waited for. Time in which the receiver was
    /// not ready for more does not count.
    pub fn waited(&mut self, time: Duration) {
        self.left = self.left.saturating_sub(time);
    }

    /// Counts received bytes.
    pub fn received(&mut self, bytes: usize) {
        let earned = Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64);
        self.left = self.left.saturating_add(earned).min(self.grace);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert, proptest};

    use super::*;

    const GRACE: Duration = Duration::from_secs(10);

    /// When a sender of this many bytes at this interval, in seconds, is given up.
    fn given_up(bytes: usize, every: u64) -> Option<Duration> {
        let (mut min_rate, every) = (MinRate::new(1024, GRACE), Duration::from_secs(every));
        (0..1000).find_map(|times| {
            let left = min_rate.left();
            min_rate.waited(every);
            min_rate.received(bytes);
            (every > left).then(|| every * times + left)
        })
    }

    #[test]
    fn slow_senders_are_given_up() {
        for (name, bytes, every, expected) in [
            ("silent", 0, 1000, Some(10_000)),
            ("at the rate", 1024, 1, None),
            ("at the rate, seldom", 9 * 1024, 9, None),
            ("much, too seldom", 1 << 20, 11, Some(10_000)),
            ("half the rate", 512, 1, Some(19_500)),
            ("a byte every five seconds", 1, 5, Some(10_001)),
        ] {
            let found = given_up(bytes, every).map(|time| time.as_millis());
            assert_eq!(found, expected, "{name}");
        }
    }

    proptest! {
        /// The time waited is at most the grace period plus what the bytes take at the
        /// rate; and a sender that keeps to the rate is not given up.
        #[test]
        fn the_time_waited_is_bounded(
            steps in proptest::collection::vec((0_u64..20_000, 0_usize..20_000), 1..50),
        ) {
            let mut min_rate = MinRate::new(1000, GRACE);
            let (mut all, mut bytes, mut keeps) = (Duration::ZERO, 0, true);
            for (millis, length) in steps {
                let time = Duration::from_millis(millis);
                keeps &= length as u64 >= millis && time <= GRACE;
                prop_assert!(min_rate.left() <= GRACE);
                prop_assert!(!keeps || time <= min_rate.left());
                all += time.min(min_rate.left());
                if time > min_rate.left() {
                    break;
                }
                min_rate.waited(time);
                min_rate.received(length);
                bytes += length;
                prop_assert!(all <= GRACE + Duration::from_millis(bytes as u64));
            }
        }
    }
}
