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
pub(crate) struct SlidingWindow {
    /// Requests allowed; `None` for any number.
    pub(crate) limit: Option<usize>,
    /// How long a request counts after its end.
    pub(crate) span: Duration,
    /// Requests taken that have not ended.
    pub(crate) in_flight: usize,
    /// When the requests of the last `span` ended, oldest first. An unlimited
    /// window keeps the last [`REMEMBERED`] of all.
    ended: VecDeque<Moment>,
    /// The ends that were dropped while there was no limit.
    dropped: DroppedEnds,
    /// No request can be taken before this moment, where there is a limit.
    blocked_until: Moment,
}

/// Ends of requests that are not kept one by one. All of them count until the last one
/// leaves the window.
#[derive(Debug, Default)]
struct DroppedEnds {
    requests: usize,
    last: Moment,
}

impl SlidingWindow {
    pub(crate) fn new(limit: Option<usize>, span: Duration) -> Self {
        Self {
            limit,
            span,
            in_flight: 0,
            ended: VecDeque::new(),
            dropped: DroppedEnds::default(),
            blocked_until: Moment::default(),
        }
    }

    /// No request can be taken before this moment, where there is a limit.
    pub(crate) fn block_until(&mut self, moment: Moment) {
        self.blocked_until = self.blocked_until.max(moment);
    }

    /// How long no request can be taken, since it is not known which requests have ended.
    pub(crate) fn blocked_for(&self, now: Moment) -> Duration {
        let blocked = self.blocked_until.since(now);
        self.limit.map_or(Duration::ZERO, |_| blocked)
    }

    pub(crate) fn set_limit(&mut self, limit: Option<usize>) {
        self.limit = limit;
        if limit.is_none() {
            self.drop_surplus();
            self.ended.shrink_to(REMEMBERED);
        }
    }

    /// Drops the ends that an unlimited window does not keep.
    fn drop_surplus(&mut self) {
        let surplus = self.ended.len().saturating_sub(REMEMBERED);
        for end in self.ended.drain(..surplus) {
            if self.dropped.last + self.span <= end {
                self.dropped.requests = 0;
            }
            self.dropped.requests = self.dropped.requests.saturating_add(1);
            self.dropped.last = self.dropped.last.max(end);
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

    /// How many requests count: those in flight, and those that have ended within the
    /// span. After a time without a limit, it may be more, and is never less.
    pub(crate) fn counted(&mut self, now: Moment) -> usize {
        let span = self.span;
        while self.ended.pop_front_if(|end| *end + span <= now).is_some() {}
        if self.dropped.last + span <= now {
            self.dropped.requests = 0;
        }
        self.known()
    }

    /// The requests that counted when the window was looked at last.
    fn known(&self) -> usize {
        let known = self.in_flight + self.ended.len();
        known.saturating_add(self.dropped.requests)
    }

    /// The time until a request can be taken that leaves `reserved` requests;
    /// `None` where one can be taken now.
    pub(crate) fn wait(&mut self, now: Moment, reserved: usize) -> Option<Duration> {
        let (remaining, limit) = (self.remaining(now)?, self.limit?);
        if self.blocked_until > now {
            return Some(self.blocked_until.since(now));
        }
        // After the limit was lowered, more requests may count than it allows.
        let excess = self.known().saturating_sub(limit);
        let short = reserved.checked_sub(remaining)?.saturating_add(excess);
        // This many requests, and one more, must leave the window.
        let last = match short.checked_sub(self.dropped.requests) {
            Some(after) => self.ended.get(after),
            None => Some(&self.dropped.last),
        };
        Some(match last {
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
            let mut freed = self.ended.partition_point(|end| *end + self.span <= until);
            if self.dropped.last + self.span <= until {
                freed = freed.saturating_add(self.dropped.requests);
            }
            let requests = spare.saturating_add(freed).saturating_add(1);
            let requests = u32::try_from(requests).unwrap_or(u32::MAX);
            longest = longest.max(step * nth / requests);
        }
        longest
    }

    /// Counts the ends of requests of an earlier process. None is dropped before the limit
    /// is known.
    pub(crate) fn count_earlier(&mut self, ended: impl IntoIterator<Item = Moment>) {
        self.ended.extend(ended);
        self.ended.make_contiguous().sort_unstable();
    }

    /// Takes back a request that was never sent.
    pub(crate) fn cancel(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    /// Counts the end of a request.
    pub(crate) fn end(&mut self, now: Moment) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.ended.push_back(now);
        if self.limit.is_none() {
            self.drop_surplus();
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
    fn an_unlimited_window_keeps_a_bounded_number_of_ends() {
        let mut window = SlidingWindow::new(None, Duration::from_secs(60));
        for _ in 0..2 * REMEMBERED {
            window.in_flight += 1;
            window.end(Moment::default());
        }
        assert_eq!(window.ended.len(), REMEMBERED);
    }

    /// A replica's limit is its floor at first, and is raised later: what it had sent
    /// without a limit counts all the same.
    #[test]
    fn what_was_sent_without_a_limit_counts_under_each_later_one() {
        let (start, span) = (Moment::from_nanos(1 << 50), Duration::from_secs(60));
        let at = |millis| start + Duration::from_millis(millis);
        let mut window = SlidingWindow::new(None, span);
        for nth in 0..5_000 {
            window.in_flight += 1;
            window.end(at(nth));
        }
        for (limit, remaining) in [(100, 0), (4_999, 0), (5_100, 100), (10, 0)] {
            window.set_limit(Some(limit));
            assert_eq!(window.remaining(at(5_000)), Some(remaining), "{limit}");
            assert_eq!(window.counted(at(5_000)), 5_000, "{limit}");
        }
        // The 3,976 that are not known one by one leave with the last of them.
        window.set_limit(Some(2_000));
        assert_eq!(
            window.wait(at(5_000), 0),
            Some(at(3_975 + 60_000).since(at(5_000)))
        );
        assert_eq!(window.remaining(at(63_974)), Some(0));
        assert_eq!(window.remaining(at(63_975)), Some(2_000 - 1_024));
        assert_eq!(window.remaining(at(70_000)), Some(2_000));
        // Nothing of that is left for the next time without a limit.
        window.set_limit(None);
        window.set_limit(Some(7));
        assert_eq!(window.remaining(at(70_000)), Some(7));
    }
}
