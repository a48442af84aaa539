//! How often the upstream is asked again: retries are a share of the requests.
//! Pure: `now` is an argument.
//!
//! Where each request may be tried three times, an upstream that fails under its
//! load gets three times the load, and goes on failing. Where retries are a
//! tenth of the requests, it gets a tenth more, however badly it fails; while a
//! failure that is an exception is nearly always retried (Google's "Site
//! Reliability Engineering", chapter 21; Finagle's and Linkerd's retry budgets).
//! A reserve lets a quiet gateway retry, where a share of next to nothing would
//! be nothing.
//!
//! Who calls: the walk of one fetch, which deposits before its first attempt
//! and withdraws before each further one, be it to another server.
//!
//! Invariant: in any ten seconds there are no more retries than the share of the
//! first attempts of the last ten or eleven seconds, and the reserve.
//!
//! Deliberately absent: what may be retried at all (`upstream::Failure` knows),
//! how often one request is, and waiting; [`pause`] only says how long.

use std::time::Duration;

use crate::clock::Moment;

/// How long an attempt counts at the least, in parts of a second each; the part
/// that is under way comes on top.
const PARTS: usize = 10;
/// How long a part is.
const PART: Duration = Duration::from_secs(1);
/// So many retries are allowed for nothing, in any ten seconds.
const RESERVE: u64 = 3;

/// The longest pause before the first retry; each retry more doubles it.
const PAUSE: Duration = Duration::from_millis(100);
/// No pause is longer.
const MOST_PAUSE: Duration = Duration::from_secs(1);

/// What may be spent on retries.
#[derive(Clone, Debug)]
pub struct RetryBudget {
    share_percent: u32,
    /// The parts of the window, each at its number's place, and the one that is
    /// under way.
    parts: [Part; PARTS + 1],
    /// The latest part that was seen: those who saw the clock at one moment may
    /// come here after those who saw it at the next.
    latest: u64,
}

/// What was attempted in a second.
#[derive(Clone, Copy, Debug, Default)]
struct Part {
    /// Which one it is.
    number: u64,
    firsts: u32,
    retries: u32,
}

impl RetryBudget {
    /// A budget of so many retries for a hundred first attempts. At zero the
    /// reserve is left; who wants no retries at all does not ask.
    pub fn new(share_percent: u32) -> Self {
        Self {
            share_percent,
            parts: [Part::default(); PARTS + 1],
            latest: 0,
        }
    }

    /// Holds to this share from now on; what is spent stays spent.
    pub fn bound(&mut self, share_percent: u32) {
        self.share_percent = share_percent;
    }

    /// Counts the first attempt of a request.
    pub fn deposit(&mut self, now: Moment) {
        let part = self.part(now);
        part.firsts = part.firsts.saturating_add(1);
    }

    /// Takes a retry out of the budget; `false` where none is left.
    pub fn withdraw(&mut self, now: Moment) -> bool {
        let left = self.left(now) > 0;
        if left {
            let part = self.part(now);
            part.retries = part.retries.saturating_add(1);
        }
        left
    }

    /// How many retries are left at the moment.
    pub fn left(&self, now: Moment) -> u64 {
        let present = number(now).max(self.latest);
        let counts = |part: &&Part| part.number + PARTS as u64 >= present;
        let recent = self.parts.iter().filter(counts);
        let (firsts, retries) = recent.fold((0, 0), |(firsts, retries), part| {
            let (first, retry) = (u64::from(part.firsts), u64::from(part.retries));
            (firsts + first, retries + retry)
        });
        let share = firsts * u64::from(self.share_percent) / 100;
        (share + RESERVE).saturating_sub(retries)
    }

    fn part(&mut self, now: Moment) -> &mut Part {
        self.latest = number(now).max(self.latest);
        let part = &mut self.parts[(self.latest % (PARTS as u64 + 1)) as usize];
        if part.number != self.latest {
            *part = Part {
                number: self.latest,
                ..Part::default()
            };
        }
        part
    }
}

fn number(now: Moment) -> u64 {
    now.millis() / PART.as_millis() as u64
}

/// How long to wait before a retry: the first is `attempt` 0. `chance` is a
/// number without a pattern, of `upstream::chance`.
///
/// It is anywhere from nothing to 100 ms, for the next to 200 ms, and so on up
/// to a second: what has failed together is so spread over all of the time that
/// there is ("full jitter", Marc Brooker, "Exponential backoff and jitter", AWS
/// Architecture Blog, 2015). It is never zero, so that others have their turn.
pub fn pause(attempt: u32, chance: u64) -> Duration {
    let doubled = PAUSE.saturating_mul(2_u32.saturating_pow(attempt));
    let most = doubled.min(MOST_PAUSE).as_nanos();
    let share = (most * u128::from(chance)) >> u64::BITS;
    // Less than a second in nanoseconds, and one more.
    Duration::from_nanos(share as u64 + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert, proptest};

    use super::*;
    use crate::upstream::client::chance::Chance;

    /// A whole number of seconds, and so many milliseconds.
    fn at(millis: u64) -> Moment {
        Moment::from_nanos(1_000_000_000 << 20) + Duration::from_millis(millis)
    }

    /// Takes all that is left, and says how many those were.
    fn exhaust(budget: &mut RetryBudget, millis: u64) -> u64 {
        let mut taken = 0;
        while budget.withdraw(at(millis)) {
            taken += 1;
        }
        taken
    }

    #[test]
    fn a_share_and_a_reserve() {
        for (share, firsts, retries) in [
            (0, 0, 3),
            (0, 1000, 3),
            (10, 0, 3),
            // A tenth of nine is none.
            (10, 9, 3),
            (10, 10, 4),
            (10, 1000, 103),
            (100, 7, 10),
            (250, 2, 8),
            (u32::MAX, 0, 3),
        ] {
            let mut budget = RetryBudget::new(share);
            for _ in 0..firsts {
                budget.deposit(at(0));
            }
            assert_eq!(budget.left(at(0)), retries, "{share} % of {firsts}");
            assert_eq!(exhaust(&mut budget, 0), retries, "{share} % of {firsts}");
        }
    }

    #[test]
    fn what_is_spent_comes_back_after_ten_seconds() {
        let mut budget = RetryBudget::new(50);
        for _ in 0..10 {
            budget.deposit(at(0));
        }
        assert_eq!(exhaust(&mut budget, 5000), 8);
        // The first attempts are forgotten before what was spent on them is.
        for (millis, left) in [
            (10_999, 0),
            (11_000, 0),
            (15_999, 0),
            (16_000, 3),
            (60_000, 3),
        ] {
            assert_eq!(budget.left(at(millis)), left, "{millis}");
        }
        // One who looked at the clock earlier comes late.
        budget.deposit(at(60_000));
        budget.deposit(at(48_900));
        assert_eq!(exhaust(&mut budget, 48_900), 4);
        assert!(!budget.withdraw(at(60_000)));
    }

    #[test]
    fn another_share_holds_at_once() {
        let mut budget = RetryBudget::new(10);
        for _ in 0..100 {
            budget.deposit(at(0));
        }
        assert_eq!(exhaust(&mut budget, 0), 13);
        budget.bound(5);
        assert!(!budget.withdraw(at(0)));
        budget.bound(20);
        assert_eq!(exhaust(&mut budget, 0), 10);
    }

    #[test]
    fn pauses_double_up_to_the_longest() {
        for (attempt, most) in [(0, 100), (1, 200), (2, 400), (3, 800), (4, 1000)] {
            assert_eq!(pause(attempt, 0), Duration::from_nanos(1));
            assert_eq!(pause(attempt, u64::MAX), Duration::from_millis(most));
            let half = pause(attempt, 1 << 63).as_millis();
            assert_eq!(half, u128::from(most) / 2, "{attempt}");
        }
        assert_eq!(pause(u32::MAX, u64::MAX), MOST_PAUSE);
    }

    #[test]
    fn pauses_are_spread_over_all_of_the_time() {
        let mut chance = Chance::new(7);
        let mut tenths = [0; 10];
        for _ in 0..10_000 {
            let pause = pause(0, chance.draw());
            tenths[(pause.as_nanos() as usize - 1) / 10_000_000] += 1;
        }
        for (tenth, count) in tenths.into_iter().enumerate() {
            assert!((850..=1150).contains(&count), "{tenth}: {count}");
        }
    }

    proptest! {
        /// However requests and failures fall: in any ten seconds there are no
        /// more retries than the share of the first attempts of eleven, and the
        /// reserve; and whoever has not retried for eleven seconds may.
        #[test]
        fn retries_are_a_share_of_requests(
            share in 0_u32..150,
            steps in proptest::collection::vec((0_u64..1500, any::<bool>(), 1_u32..20), 1..200),
        ) {
            let mut budget = RetryBudget::new(share);
            let mut now = 0;
            let (mut firsts, mut retries) = (Vec::new(), Vec::new());
            for (pause, retry, times) in steps {
                now += pause;
                for _ in 0..times {
                    if !retry {
                        budget.deposit(at(now));
                        firsts.push(now);
                        continue;
                    }
                    let quiet = retries.last().is_none_or(|last| last + 11_000 <= now);
                    let granted = budget.withdraw(at(now));
                    prop_assert!(granted || !quiet, "{budget:?} at {now}");
                    if granted {
                        retries.push(now);
                    }
                    let since = |all: &[u64], span: u64| {
                        all.iter().filter(|at| **at + span > now).count() as u64
                    };
                    let most = since(&firsts, 11_000) * u64::from(share) / 100 + RESERVE;
                    prop_assert!(!granted || since(&retries, 10_000) <= most, "{budget:?} at {now}");
                }
            }
        }

        /// No pause is nothing, none is longer than it should be, and later
        /// ones are no shorter for the same chance.
        #[test]
        fn pauses_are_within_bounds(attempt in any::<u32>(), chance in any::<u64>()) {
            let one = pause(attempt, chance);
            prop_assert!(!one.is_zero() && one <= MOST_PAUSE);
            prop_assert!(attempt > 3 || one <= PAUSE * (1 << attempt));
            prop_assert!(pause(attempt.saturating_add(1), chance) >= one);
        }
    }
}
