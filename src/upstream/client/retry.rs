//! The next attempt of a request that has failed: admission at the same or
//! another endpoint, after a pause, if the retry budget and the deadline allow it.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::attempts::{Attempts, NextAttempt};
use crate::upstream::admit::Admission;
use crate::upstream::{Failure, RequestPriority, Upstream};

/// The longest pause before the first retry; it doubles with each further retry.
const PAUSE: Duration = Duration::from_millis(100);
/// No pause is longer.
const MOST_PAUSE: Duration = Duration::from_secs(1);

impl Upstream {
    /// The next attempt of a request that has failed at an endpoint, admitted; `None` if it
    /// has failed for good.
    pub(super) async fn retry(
        &self,
        attempts: &mut Attempts,
        failure: &Failure,
        at: usize,
        priority: RequestPriority,
        deadline: Instant,
    ) -> Option<Admission> {
        let other = |tried: &[usize]| {
            let mut tried = tried.to_vec();
            if failure.is_of_host() {
                // The host refuses the keys at all its base URLs.
                let host = self.endpoints[at].host();
                let all = 0..self.endpoints.len();
                tried.extend(all.filter(|other| self.endpoints[*other].host() == host));
            }
            self.other_endpoint(&tried)
        };
        let (keys, limit) = (self.keys.count(), self.settings.retry.limit);
        let next = attempts.fail(failure, at, other, keys, limit)?;
        if let NextAttempt::Repeat(before) = next {
            if !self.retries().withdraw(self.clock.now()) {
                self.counters.count_unretried();
                return None;
            }
            let pause = pause_before(before, fastrand::u64(..));
            if Instant::now() + pause >= deadline {
                return None;
            }
            tokio::time::sleep(pause).await;
        }
        // If it is not admitted, the failure of this attempt is reported.
        let admitted = async {
            // It has waited in the queue before, and takes nobody's position there.
            if let NextAttempt::OtherEndpoint(_) = next
                && let Ok((permit, charge)) = self.try_admit(priority, attempts)
                && let Ok(admitted) = self.make_ready(permit, charge).await
            {
                return Some(admitted);
            }
            let longest = Instant::now() + self.settings.admission.queue_timeout;
            let deadline = deadline.min(longest);
            self.admit(priority, attempts, deadline).await.ok()
        };
        timeout_at(deadline, admitted).await.ok()?
    }
}

/// The pause before retry number `retry`, counted from 0. `random` is uniformly
/// distributed.
///
/// It is uniformly distributed up to 100 ms, then 200 ms, and so on to one second,
/// so that requests that failed together do not return together ("full jitter",
/// Marc Brooker, "Exponential backoff and jitter", AWS Architecture Blog, 2015).
/// It is never zero, so that other tasks run.
fn pause_before(retry: u32, random: u64) -> Duration {
    let doubled = PAUSE.saturating_mul(2_u32.saturating_pow(retry));
    let most = doubled.min(MOST_PAUSE).as_nanos();
    let share = (most * u128::from(random)) >> u64::BITS;
    // Less than a second in nanoseconds, and one more.
    Duration::from_nanos(share as u64 + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert, proptest};

    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        for (retry, most) in [(0, 100), (1, 200), (2, 400), (3, 800), (4, 1000)] {
            assert_eq!(pause_before(retry, 0), Duration::from_nanos(1));
            assert_eq!(pause_before(retry, u64::MAX), Duration::from_millis(most));
            let half = pause_before(retry, 1 << 63).as_millis();
            assert_eq!(half, u128::from(most) / 2, "{retry}");
        }
        assert_eq!(pause_before(u32::MAX, u64::MAX), MOST_PAUSE);
    }

    #[test]
    fn pauses_are_spread_over_all_of_the_time() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut tenths = [0; 10];
        for _ in 0..10_000 {
            let pause = pause_before(0, random.u64(..));
            tenths[(pause.as_nanos() as usize - 1) / 10_000_000] += 1;
        }
        for (tenth, count) in tenths.into_iter().enumerate() {
            assert!((850..=1150).contains(&count), "{tenth}: {count}");
        }
    }

    proptest! {
        /// Pauses are within their bounds, and do not get shorter from retry to
        /// retry with the same random number.
        #[test]
        fn pauses_are_within_bounds(retry in any::<u32>(), random in any::<u64>()) {
            let pause = pause_before(retry, random);
            prop_assert!(!pause.is_zero() && pause <= MOST_PAUSE);
            prop_assert!(retry > 3 || pause <= PAUSE * (1 << retry));
            prop_assert!(pause_before(retry.saturating_add(1), random) >= pause);
        }
    }
}
