//! An exact count of the requests in the last second or minute. Pure: `now` is an
//! argument.

use std::collections::VecDeque;
use std::time::Duration;

use crate::clock::Moment;

/// The pace is computed at this many points of the window. It is too slow by at
/// most one part in this many.
const STEPS: u32 = 240;

/// The requests that count against one limit.
#[derive(Debug)]
pub(crate) struct SlidingWindow {
    /// Requests allowed; `None` for any number.
    pub(crate) limit: Option<usize>,
    /// How long a request counts after its end.
    pub(crate) span: Duration,
    /// Requests taken that have not ended.
    pub(crate) in_flight: usize,
    /// When the requests of the last `span` ended, oldest first; none that ended while there
    /// was no limit.
    ended: VecDeque<Moment>,
    /// No request can be taken before this moment, where there is a limit.
    blocked_until: Moment,
}

impl SlidingWindow {
    pub(crate) fn new(limit: Option<usize>, span: Duration) -> Self {
        Self {
            limit,
            span,
            in_flight: 0,
            ended: VecDeque::new(),
            blocked_until: Moment::default(),
        }
    }

    /// How many requests are left; `None` for any number.
    pub(crate) fn remaining(&mut self, now: Moment) -> Option<usize> {
        let limit = self.limit?;
        if self.blocked_until > now {
            return Some(0);
        }
        Some(limit.saturating_sub(self.counted(now)))
    }

    /// How many requests count: those in flight, and those that have ended within the span.
    pub(crate) fn counted(&mut self, now: Moment) -> usize {
        let span = self.span;
        while self.ended.pop_front_if(|end| *end + span <= now).is_some() {}
        self.in_flight + self.ended.len()
    }

    /// The time until a request can be taken that leaves `reserved` requests;
    /// `None` where one can be taken now.
    pub(crate) fn wait(&mut self, now: Moment, reserved: usize) -> Option<Duration> {
        let (remaining, limit) = (self.remaining(now)?, self.limit?);
        if self.blocked_until > now {
            return Some(self.blocked_until.since(now));
        }
        // After the limit was lowered, more requests may count than it allows.
        let excess = (self.in_flight + self.ended.len()).saturating_sub(limit);
        // This many requests, and one more, must leave the window.
        let short = reserved.checked_sub(remaining)?.saturating_add(excess);
        Some(match self.ended.get(short) {
            Some(last) => (*last + self.span).since(now),
            // A request in flight must end first, and then counts for the span.
            None => self.span,
        })
    }

    /// Requests are paced while fewer than this many are left.
    pub(crate) fn pace_below(&self) -> Option<usize> {
        Some(self.limit? * 2 / 5)
    }

    /// The interval between requests at which the window never runs out. At each
    /// of [`STEPS`] points up to the end of the window, the requests sent at this
    /// interval are no more than those that are left beside the reserve and those
    /// that have left the window by the point before.
    pub(crate) fn pace_interval(&mut self, now: Moment, reserved: usize) -> Duration {
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
            let requests = spare.saturating_add(freed).saturating_add(1);
            let requests = u32::try_from(requests).unwrap_or(u32::MAX);
            longest = longest.max(step * nth / requests);
        }
        longest
    }

    /// Counts the ends of requests of an earlier process. Nothing can be taken before
    /// `unknown_until`, where there is a limit.
    pub(crate) fn count_earlier(&mut self, ended: &[Moment], unknown_until: Moment) {
        self.ended.extend(ended);
        self.ended.make_contiguous().sort_unstable();
        self.blocked_until = self.blocked_until.max(unknown_until);
    }

    /// A request has ended at a moment, or was never sent.
    pub(crate) fn end(&mut self, ended: Option<Moment>) {
        self.in_flight = self.in_flight.saturating_sub(1);
        match (ended, self.limit) {
            (Some(end), Some(_)) => self.ended.push_back(end),
            // A reload may introduce a limit, which then applies to this one.
            (Some(end), None) => self.blocked_until = self.blocked_until.max(end + self.span),
            (None, _) => {}
        }
    }

    /// Whether a request is in flight or counts still.
    pub(crate) fn is_in_use(&self, now: Moment) -> bool {
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
    fn a_limit_that_is_new_waits_until_what_was_sent_without_one_has_left() {
        let (start, span) = (Moment::from_nanos(1 << 50), Duration::from_secs(60));
        let mut window = SlidingWindow::new(None, span);
        window.in_flight += 1;
        window.end(Some(start));
        assert_eq!((window.wait(start, 0), window.ended.len()), (None, 0));
        window.limit = Some(9);
        assert_eq!(window.wait(start, 0), Some(span));
        assert_eq!(window.remaining(start + span), Some(9));
    }
}
