//! How many requests are retried: a share of all requests. Pure: `now` is an
//! argument.
//!
//! A server that fails under its load gets only a little more of it, and a rare failure
//! is nearly always retried (Google's "Site Reliability Engineering", chapter 21). A
//! reserve allows retries when there are few requests, of which a share would be nothing.
//!
//! [`deposit`](RetryBudget::deposit) is called before the first attempt of a
//! request, [`withdraw`](RetryBudget::withdraw) before each repeat.
//!
//! Invariant: in any ten seconds there are no more retries than the share of the
//! first attempts of the last ten to eleven seconds, and the reserve.
//!
//! Deliberately absent: what may be retried (`attempts`), how often one request
//! is, and pauses (`retry`).

use std::time::Duration;

use crate::clock::Moment;

/// An attempt counts for at least this many parts, besides the current one.
const PARTS: usize = 10;
/// The length of a part.
const PART: Duration = Duration::from_secs(1);
/// Retries that are allowed in any ten seconds, however few requests there are.
const RESERVE: u64 = 3;

/// The budget of retries.
#[derive(Clone, Debug)]
pub(crate) struct RetryBudget {
    share_percent: u32,
    /// The parts of the window and the current one, each at its number modulo the
    /// array's length.
    parts: [Part; PARTS + 1],
    /// The latest part so far: tasks may call with times that are out of order.
    latest: u64,
}

/// The attempts of one second.
#[derive(Clone, Copy, Debug, Default)]
struct Part {
    number: u64,
    firsts: u32,
    retries: u32,
}

impl RetryBudget {
    /// A budget of this many retries per hundred first attempts. At zero the
    /// reserve remains.
    pub(crate) fn new(share_percent: u32) -> Self {
        Self {
            share_percent,
            parts: [Part::default(); PARTS + 1],
            latest: 0,
        }
    }

    /// Changes the share; earlier retries still count.
    pub(crate) fn bound(&mut self, share_percent: u32) {
        self.share_percent = share_percent;
    }

    /// Counts the first attempt of a request.
    pub(crate) fn deposit(&mut self, now: Moment) {
        let part = self.part(now);
        part.firsts = part.firsts.saturating_add(1);
    }

    /// Takes a retry out of the budget; `false` if none is left.
    pub(crate) fn withdraw(&mut self, now: Moment) -> bool {
        let left = self.left(now) > 0;
        if left {
            let part = self.part(now);
            part.retries = part.retries.saturating_add(1);
        }
        left
    }

    fn left(&self, now: Moment) -> u64 {
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

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert, proptest};

    use super::*;

    /// This many milliseconds after a whole second.
    fn at(millis: u64) -> Moment {
        Moment::from_nanos(1_000_000_000 << 20) + Duration::from_millis(millis)
    }

    /// Takes all retries that are left, and counts them.
    fn exhaust(budget: &mut RetryBudget, millis: u64) -> u64 {
        let mut taken = 0;
        while budget.withdraw(at(millis)) {
            taken += 1;
        }
        taken
    }

    #[test]
    fn retries_are_a_share_and_a_reserve() {
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
    fn retries_are_available_again_after_ten_seconds() {
        let mut budget = RetryBudget::new(50);
        for _ in 0..10 {
            budget.deposit(at(0));
        }
        assert_eq!(exhaust(&mut budget, 5000), 8);
        // First attempts expire before the retries that they allowed.
        for (millis, left) in [
            (10_999, 0),
            (11_000, 0),
            (15_999, 0),
            (16_000, 3),
            (60_000, 3),
        ] {
            assert_eq!(budget.left(at(millis)), left, "{millis}");
        }
        // A task that has read the clock earlier calls later.
        budget.deposit(at(60_000));
        budget.deposit(at(48_900));
        assert_eq!(exhaust(&mut budget, 48_900), 4);
        assert!(!budget.withdraw(at(60_000)));
    }

    #[test]
    fn another_share_applies_at_once() {
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

    proptest! {
        /// In any ten seconds there are no more retries than the share of the first
        /// attempts of eleven, and the reserve; and after eleven seconds without a
        /// retry one is allowed.
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
    }
}
