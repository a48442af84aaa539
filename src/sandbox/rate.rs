//! Counting within a sliding window, and the provider's rate limit that is made of it.
//!
//! Windows are used by `counts` as well; the limiter by `gate`. Time is an argument, in milliseconds since any fixed
//! point. Invariants: no span of the window's length, wherever it begins, is ever granted more than the limit; memory is
//! bounded by the length of the window in milliseconds, not by the number of requests. Deliberately absent: a limit by
//! address (everything comes from one gateway) and by second or month.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU32;

/// The provider's window.
const MINUTE: u64 = 60_000;

/// So many keys have a window of their own; those beyond share one.
const MOST_KEYS: usize = 64;

/// How much happened within the last `span` milliseconds, exact to the millisecond.
#[derive(Clone, Debug)]
pub(super) struct RateWindow {
    span: u64,
    /// Moments and how much happened then; the oldest first.
    log: VecDeque<(u64, u32)>,
    sum: u32,
}

impl RateWindow {
    pub(super) const fn new(span: u64) -> Self {
        Self {
            span,
            log: VecDeque::new(),
            sum: 0,
        }
    }

    /// What happened in the `span` that ends now; a thing exactly `span` old has left.
    pub(super) fn sum(&mut self, now: u64) -> u32 {
        while let Some((moment, count)) = self.log.front().copied() {
            if moment.saturating_add(self.span) > now {
                break;
            }
            self.log.pop_front();
            self.sum -= count;
        }
        self.sum
    }

    /// Notes one more and gives the new sum.
    pub(super) fn add(&mut self, now: u64) -> u32 {
        self.sum(now);
        match self.log.back_mut() {
            // Clocks of several tasks may be read out of order by a hair; the log stays sorted.
            Some((moment, count)) if *moment >= now => *count += 1,
            _ => self.log.push_back((now, 1)),
        }
        self.sum += 1;
        self.sum
    }

    /// Milliseconds until the oldest leaves; zero where nothing is held.
    fn frees_in(&self, now: u64) -> u64 {
        self.log.front().map_or(0, |(moment, _)| {
            moment.saturating_add(self.span).saturating_sub(now)
        })
    }
}

/// What the limiter says of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RateDecision {
    pub(super) granted: bool,
    pub(super) limit: u32,
    pub(super) remaining: u32,
    /// Seconds, rounded up, until the oldest request leaves the window.
    pub(super) reset: u64,
}

/// A sliding window of a minute for each key, and one for all requests without a key.
#[derive(Debug)]
pub(super) struct Limiter {
    limit: NonZeroU32,
    /// By a digest of the key: keys themselves are not kept.
    windows: HashMap<u64, RateWindow>,
    digest: RandomState,
}

impl Limiter {
    pub(super) fn new(limit: NonZeroU32) -> Self {
        Self {
            limit,
            windows: HashMap::new(),
            digest: RandomState::new(),
        }
    }

    /// Takes one request of this key; what is refused does not count against the limit.
    pub(super) fn take(&mut self, key: Option<&[u8]>, now: u64) -> RateDecision {
        let mut slot = key.map_or(0, |key| self.digest.hash_one(key));
        if !self.windows.contains_key(&slot) && self.windows.len() >= MOST_KEYS {
            slot = 0;
        }
        let window = self
            .windows
            .entry(slot)
            .or_insert_with(|| RateWindow::new(MINUTE));
        let limit = self.limit.get();
        let granted = window.sum(now) < limit;
        let used = if granted { window.add(now) } else { limit };
        RateDecision {
            granted,
            limit,
            remaining: limit - used,
            reset: window.frees_in(now).div_ceil(1_000).max(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::{Limiter, MINUTE, RateDecision, RateWindow};

    #[test]
    fn a_window_slides() {
        let mut window = RateWindow::new(1_000);
        for (now, sum) in [
            (0, 1),
            (0, 2),
            (500, 3),
            (999, 4),
            (1_000, 3),
            (1_499, 4),
            (1_500, 4),
            (9_000, 1),
        ] {
            assert_eq!(window.add(now), sum, "at {now}");
        }
        assert_eq!(
            window.add(8_999),
            2,
            "a clock that is a hair behind counts as now"
        );
    }

    #[test]
    fn the_limit_holds_over_every_minute() {
        let mut limiter = Limiter::new(NonZeroU32::new(2).expect("not zero"));
        let verdict = |granted, remaining, reset| RateDecision {
            granted,
            limit: 2,
            remaining,
            reset,
        };
        for (now, expected) in [
            (0, verdict(true, 1, 60)),
            (30_500, verdict(true, 0, 30)),
            (59_999, verdict(false, 0, 1)),
            (MINUTE, verdict(true, 0, 31)),
            (MINUTE + 1, verdict(false, 0, 31)),
        ] {
            assert_eq!(limiter.take(None, now), expected, "at {now}");
        }
    }

    #[test]
    fn keys_have_budgets_of_their_own_and_are_bounded_in_number() {
        let mut limiter = Limiter::new(NonZeroU32::MIN);
        assert!(limiter.take(Some(b"a"), 0).granted);
        assert!(limiter.take(Some(b"b"), 0).granted);
        assert!(!limiter.take(Some(b"a"), 0).granted);
        let granted = (0..500u32)
            .filter(|n| limiter.take(Some(&n.to_be_bytes()), 0).granted)
            .count();
        assert!(granted <= super::MOST_KEYS);
    }
}
