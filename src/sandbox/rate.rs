//! Sliding windows, and the provider's rate limit.
//!
//! `counts` uses the windows, `gate` the limiter. Time is an argument, in milliseconds from any fixed point. Invariants: no
//! span of the window's length holds more granted requests than the limit; memory is bounded by the window's length in
//! milliseconds. There are no limits by address, second or month.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU32;

/// The length of the rate limit's window in milliseconds.
const MINUTE: u64 = 60_000;

/// The number of keys with their own window; further keys share one.
const MAX_KEYS: usize = 64;

/// The number of events within the last `span` milliseconds, exact to the millisecond.
#[derive(Clone, Debug)]
pub(super) struct RateWindow {
    span: u64,
    /// Times and the number of events at each; the oldest first.
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

    /// The number of events less than `span` old.
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

    /// Adds an event and returns the new sum.
    pub(super) fn add(&mut self, now: u64) -> u32 {
        self.sum(now);
        match self.log.back_mut() {
            // Tasks may report times slightly out of order; the log stays sorted.
            Some((moment, count)) if *moment >= now => *count += 1,
            _ => self.log.push_back((now, 1)),
        }
        self.sum += 1;
        self.sum
    }

    /// Milliseconds until the oldest event leaves the window; zero if it is empty.
    fn frees_in(&self, now: u64) -> u64 {
        self.log.front().map_or(0, |(moment, _)| {
            moment.saturating_add(self.span).saturating_sub(now)
        })
    }
}

/// The limiter's decision on one request.
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
    /// By the hash of the key, so that keys are not kept.
    windows: HashMap<u64, RateWindow>,
    hasher: RandomState,
}

impl Limiter {
    pub(super) fn new(limit: NonZeroU32) -> Self {
        Self {
            limit,
            windows: HashMap::new(),
            hasher: RandomState::new(),
        }
    }

    /// Decides on a request with this key. Refused requests do not count against the limit.
    pub(super) fn take(&mut self, key: Option<&[u8]>, now: u64) -> RateDecision {
        let mut slot = key.map_or(0, |key| self.hasher.hash_one(key));
        if !self.windows.contains_key(&slot) && self.windows.len() >= MAX_KEYS {
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

    use super::{Limiter, MINUTE, RateDecision};

    #[test]
    fn the_limit_holds_over_every_minute() {
        let mut limiter = Limiter::new(NonZeroU32::new(2).expect("not zero"));
        let decision = |granted, remaining, reset| RateDecision {
            granted,
            limit: 2,
            remaining,
            reset,
        };
        for (now, expected) in [
            (0, decision(true, 1, 60)),
            (30_500, decision(true, 0, 30)),
            (59_999, decision(false, 0, 1)),
            (MINUTE, decision(true, 0, 31)),
            (MINUTE + 1, decision(false, 0, 31)),
        ] {
            assert_eq!(limiter.take(None, now), expected, "at {now}");
        }
    }
}
