//! An exact count of the requests in the last second or minute. Pure: `now` is an
//! argument.

use std::collections::VecDeque;
use std::time::Duration;

use crate::clock::Moment;

/// An unlimited window keeps this many ends of requests, since a reload may
/// introduce a limit, which applies to earlier requests too.
const REMEMBERED: usize = 1024;

/// The pace is computed at this many points of the window. It is too slow by at
/// most one part in this many.
const STEPS: u32 = 240;

/// The requests that count against one limit.
#[derive(Debug)]
pub(super) struct SlidingWindow {
    /// Requests allowed; `None` for any number.
    pub(super) limit: Option<usize>,
    /// How long a request counts after its end.
    pub(super) span: Duration,
    /// Requests taken that have not ended.
    pub(super) in_flight: usize,
    /// When the requests of the last `span` ended, oldest first. An unlimited
    /// window keeps the last [`REMEMBERED`] of all.
    ended: VecDeque<Moment>,
    /// Whether ends were dropped that may count, while there was no limit.
    has_dropped: bool,
    /// No request can be taken before this moment, where there is a limit.
    blocked_until: Moment,
}

impl SlidingWindow {
    pub(super) fn new(limit: Option<usize>, span: Duration) -> Self {
        Self {
            limit,
            span,
            in_flight: 0,
            ended: VecDeque::new(),
            has_dropped: false,
            blocked_until: Moment::default(),
        }
    }

    /// Any number of requests may have ended before this moment, if there is one.
    pub(super) fn block_after(&mut self, moment: Option<Moment>) {
        self.blocked_until = moment.map_or_else(Moment::default, |moment| moment + self.span);
    }

    pub(super) fn set_limit(&mut self, limit: Option<usize>) {
        let before = std::mem::replace(&mut self.limit, limit);
        match (before, self.limit) {
            // The ends that were dropped are no later than the oldest one kept.
            (None, Some(limit)) if std::mem::take(&mut self.has_dropped) => {
                let first = self.ended.front().copied().unwrap_or_default();
                while self.ended.len() < limit {
                    self.ended.push_front(first);
                }
            }
            (_, None) => {
                self.drop_surplus();
                self.ended.shrink_to(REMEMBERED);
            }
            (_, Some(_)) => {}
        }
    }

    /// Drops the ends that an unlimited window does not keep.
    fn drop_surplus(&mut self) {
        let surplus = self.ended.len().saturating_sub(REMEMBERED);
        self.has_dropped |= surplus > 0;
        self.ended.drain(..surplus);
    }

    /// The size of a reserve, which `of` computes from the limit; 0 where there is
    /// no limit.
    pub(super) fn reserved(&self, of: impl Fn(u64) -> u64) -> usize {
        let reserved = self.limit.map_or(0, |limit| of(limit as u64));
        usize::try_from(reserved).unwrap_or(usize::MAX)
    }

    /// How many requests are left; `None` for any number.
    pub(super) fn remaining(&mut self, now: Moment) -> Option<usize> {
        let limit = self.limit?;
        if self.blocked_until > now {
            return Some(0);
        }
        Some(limit.saturating_sub(self.counted(now)))
    }

    /// How many requests count: those in flight, and those that have ended within the
    /// span. Where there is no limit, not all of them are known.
    pub(super) fn counted(&mut self, now: Moment) -> usize {
        let span = self.span;
        while self.ended.pop_front_if(|end| *end + span <= now).is_some() {}
        self.in_flight + self.ended.len()
    }

    /// The time until a request can be taken that leaves `reserved` requests;
    /// `None` where one can be taken now.
    pub(super) fn wait(&mut self, now: Moment, reserved: usize) -> Option<Duration> {
        let (remaining, limit) = (self.remaining(now)?, self.limit?);
        if self.blocked_until > now {
            return Some(self.blocked_until.since(now));
        }
        // After the limit was lowered, more requests may count than it allows.
        let excess = (self.in_flight + self.ended.len()).saturating_sub(limit);
        let short = reserved.checked_sub(remaining)? + excess;
        // This many requests, and one more, must leave the window.
        Some(match self.ended.get(short) {
            Some(last) => (*last + self.span).since(now),
            // A request in flight must end first, and then counts for the span.
            None => self.span,
        })
    }

    /// Requests are paced while fewer than this many are left.
    pub(super) fn pace_below(&self) -> Option<usize> {
        Some(self.limit? * 2 / 5)
    }

    /// The interval between requests at which the window never runs out. At each
    /// of [`STEPS`] points up to the end of the window, the requests sent at this
    /// interval are no more than those that are left beside the reserve and those
    /// that have left the window by the point before.
    pub(super) fn pace_interval(&mut self, now: Moment, reserved: usize) -> Duration {
        let (Some(remaining), Some(pace_below)) = (self.remaining(now), self.pace_below()) else {
            return Duration::ZERO;
        };
        if remaining >= pace_below {
            return Duration::ZERO;
        }
        let spare = remaining.saturating_sub(reserved);
        let step = self.span / STEPS;
        let mut longest = Duration::ZERO;
        for nth in 1..=STEPS {
            let until = now + step * (nth - 1);
            let freed = self.ended.partition_point(|end| *end + self.span <= until);
            let requests = u32::try_from(spare + freed + 1).unwrap_or(u32::MAX);
            longest = longest.max(step * nth / requests);
        }
        longest
    }

    /// Counts the ends of requests of an earlier process. None is dropped before the limit
    /// is known.
    pub(super) fn count_earlier(&mut self, ended: &[(Moment, u64)]) {
        for (end, requests) in ended {
            self.ended.extend((0..*requests).map(|_| *end));
        }
        self.ended.make_contiguous().sort_unstable();
    }

    /// Counts the end of a request.
    pub(super) fn end(&mut self, now: Moment) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.ended.push_back(now);
        if self.limit.is_none() {
            self.drop_surplus();
        }
    }

    /// Whether a request is in flight or counts still.
    pub(super) fn is_in_use(&self, now: Moment) -> bool {
        let last = self.ended.back();
        self.in_flight > 0
            || self.blocked_until > now
            || last.is_some_and(|end| *end + self.span > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unlimited_window_keeps_a_bounded_number_of_ends() {
        let mut window = SlidingWindow::new(None, Duration::from_secs(60));
        for _ in 0..2 * REMEMBERED {
            window.in_flight += 1;
            window.end(Moment::default());
        }
        assert_eq!(window.ended.len(), REMEMBERED);
    }
}
