//! The limits that the upstream has reported, and how many requests they still
//! allow. Pure: `now` is an argument.
//!
//! An answer reports what was left when its request was counted. Requests sent
//! since, and those in flight then, may or may not be in that number; they are
//! treated as not counted.
//!
//! Invariant: while a reported limit is in force, no more requests are sent than it
//! has left. A later report replaces it only where it is at least as strict for at
//! least as long. Where the upstream did not say when the window ends, a higher
//! number proves that it has ended.
//!
//! Deliberately absent: ordgate's own count, which applies as well
//! (`upstream::budget`).

use std::time::Duration;

use super::limit_report::{LimitWindow, ReportedLimit};
use crate::clock::Moment;

/// At most this many limits are in force. Beyond that, the one with the most
/// requests left is dropped.
const MAX_LIMITS: usize = 8;

/// The reported limits in force. None of them outlasts a stricter one.
#[derive(Debug, Default)]
pub(crate) struct ReportedLimits {
    limits: Vec<LimitInForce>,
}

/// A reported limit in force.
#[derive(Clone, Copy, Debug)]
struct LimitInForce {
    window: LimitWindow,
    remaining: u64,
    until: Moment,
    end_is_known: bool,
    /// How many requests had been sent when it was reported.
    sent_when_reported: u64,
}

impl LimitInForce {
    /// Whether it makes another superfluous: it is as strict, for as long. One whose
    /// end is not known may end early, so it covers only another of the same window
    /// and without a known end, which ends then too.
    fn covers(&self, other: &Self) -> bool {
        let alike = self.window == other.window && !other.end_is_known;
        self.remaining <= other.remaining
            && self.until >= other.until
            && (self.end_is_known || alike)
    }
}

/// What was sent when a report arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReportContext {
    /// The number of the request whose answer has the report.
    pub(crate) request: u64,
    /// Requests sent so far.
    pub(crate) sent: u64,
    /// Requests that the report may not have counted.
    pub(crate) uncounted: u64,
}

impl ReportedLimits {
    pub(crate) fn apply(&mut self, limit: &ReportedLimit, context: ReportContext, now: Moment) {
        self.remove_ended(now);
        // A window of a second ends before requests in flight could be counted
        // twice. Subtracting them there would stop ordgate for good.
        let uncounted = match limit.valid_for > Duration::from_secs(1) {
            true => context.uncounted,
            false => 0,
        };
        let remaining = limit.remaining.saturating_sub(uncounted);
        // A higher number without a known end: the window before has ended.
        self.limits.retain(|known| {
            let is_same_window =
                known.window == limit.window && !known.end_is_known && !limit.end_is_known;
            let is_later = context.request > known.sent_when_reported;
            !(is_same_window && remaining > known.remaining && is_later)
        });
        let new = LimitInForce {
            window: limit.window,
            remaining,
            until: now + limit.valid_for,
            end_is_known: limit.end_is_known,
            sent_when_reported: context.sent,
        };
        self.add(new);
    }

    fn add(&mut self, new: LimitInForce) {
        if self.limits.iter().any(|known| known.covers(&new)) {
            return;
        }
        self.limits.retain(|known| !new.covers(known));
        self.limits.push(new);
        if self.limits.len() > MAX_LIMITS {
            let loosest = (0..self.limits.len()).max_by_key(|at| self.limits[*at].remaining);
            self.limits.swap_remove(loosest.unwrap_or(0));
        }
    }

    /// The time until a request can be taken that leaves `kept` requests; `None` where
    /// one can be taken now.
    pub(crate) fn wait(&mut self, now: Moment, kept: u64) -> Option<Duration> {
        self.remove_ended(now);
        let limits = self.limits.iter();
        let exhausted = limits.filter(|limit| limit.remaining <= kept);
        exhausted.map(|limit| limit.until.since(now)).max()
    }

    /// Counts a request.
    pub(crate) fn take(&mut self) {
        for limit in &mut self.limits {
            limit.remaining = limit.remaining.saturating_sub(1);
        }
    }

    /// How many requests are left; `None` where no limit is in force.
    pub(crate) fn remaining(&mut self, now: Moment) -> Option<u64> {
        self.remove_ended(now);
        self.limits.iter().map(|limit| limit.remaining).min()
    }

    fn remove_ended(&mut self, now: Moment) {
        self.limits.retain(|limit| limit.until > now);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert, proptest};

    use super::*;

    fn at(millis: u64) -> Moment {
        Moment::from_nanos(1 << 50) + Duration::from_millis(millis)
    }

    fn limit(remaining: u64, seconds: u64, end_is_known: bool) -> ReportedLimit {
        ReportedLimit {
            window: LimitWindow::Minute,
            remaining,
            valid_for: Duration::from_secs(seconds),
            end_is_known,
        }
    }

    fn context(request: u64, sent: u64, uncounted: u64) -> ReportContext {
        ReportContext {
            request,
            sent,
            uncounted,
        }
    }

    #[test]
    fn a_reported_limit_is_in_force_until_its_end() {
        let mut limits = ReportedLimits::default();
        assert_eq!(limits.wait(at(0), 1), None);
        limits.apply(&limit(2, 30, true), context(1, 1, 0), at(0));
        assert_eq!(limits.remaining(at(0)), Some(2));
        limits.take();
        limits.take();
        assert_eq!(limits.wait(at(10_000), 0), Some(Duration::from_secs(20)));
        // Neither a higher number of the same window nor another window loosens it.
        limits.apply(&limit(400, 19, true), context(3, 3, 0), at(11_000));
        limits.apply(&limit(400, 60, true), context(3, 3, 0), at(11_000));
        assert_eq!(limits.remaining(at(11_000)), Some(0));
        assert_eq!(limits.remaining(at(30_000)), Some(400));
        assert_eq!(limits.remaining(at(71_000)), None);
    }

    #[test]
    fn requests_that_the_report_may_not_have_counted_are_subtracted() {
        let mut limits = ReportedLimits::default();
        limits.apply(&limit(10, 30, true), context(1, 5, 4), at(0));
        assert_eq!(limits.remaining(at(0)), Some(6));
        limits.apply(&limit(3, 60, true), context(1, 5, 4), at(0));
        assert_eq!(limits.remaining(at(0)), Some(0));
        let mut limits = ReportedLimits::default();
        limits.apply(&limit(3, 1, true), context(1, 5, 4), at(0));
        assert_eq!(limits.remaining(at(0)), Some(3), "a second is short");
    }

    #[test]
    fn a_window_without_a_known_end_ends_when_the_number_rises() {
        let mut limits = ReportedLimits::default();
        limits.apply(&limit(3, 60, false), context(1, 1, 0), at(0));
        // A request sent before the first report proves nothing.
        limits.apply(&limit(9, 60, false), context(1, 2, 0), at(100));
        assert_eq!(limits.remaining(at(100)), Some(3));
        limits.apply(&limit(499, 60, false), context(3, 3, 0), at(200));
        assert_eq!(limits.remaining(at(200)), Some(499));
        assert_eq!(limits.remaining(at(60_200)), None);
    }

    #[test]
    fn a_limit_without_a_known_end_does_not_replace_one_with() {
        let hour = ReportedLimit {
            window: LimitWindow::Hour,
            ..limit(5, 3000, true)
        };
        let minute = |left| limit(left, 3600, false);
        // In either order, and then the number rises.
        for order in [[minute(3), hour], [hour, minute(3)]] {
            let mut limits = ReportedLimits::default();
            for limit in order {
                limits.apply(&limit, context(1, 1, 0), at(0));
            }
            assert_eq!(limits.remaining(at(0)), Some(3));
            limits.apply(&minute(499), context(2, 2, 0), at(100));
            assert_eq!(limits.remaining(at(100)), Some(5), "{limits:?}");
        }
    }

    #[test]
    fn what_is_kept_stays_unused() {
        let mut limits = ReportedLimits::default();
        limits.apply(&limit(3, 30, true), context(1, 1, 0), at(0));
        for _ in 0..2 {
            assert_eq!(limits.wait(at(0), 1), None);
            limits.take();
        }
        assert_eq!(limits.wait(at(0), 1), Some(Duration::from_secs(30)));
        assert_eq!(limits.wait(at(0), 0), None);
    }

    proptest! {
        /// Whatever is reported in whatever order, no limit with a known end is
        /// exceeded while it is in force, and the number of limits is bounded.
        #[test]
        fn no_reported_limit_is_exceeded(
            steps in proptest::collection::vec(
                (0_u64..3000, proptest::option::of((0_u64..20, 1_u64..40)), any::<bool>()),
                1..200,
            ),
        ) {
            let mut limits = ReportedLimits::default();
            let (mut now, mut sent) = (0, 0);
            // What is left of each limit, and until when.
            let mut expected: Vec<(u64, u64)> = Vec::new();
            for (pause, report, sends) in steps {
                now += pause;
                expected.retain(|(_, until)| *until > now);
                if let Some((left, seconds)) = report {
                    limits.apply(&limit(left, seconds, true), context(sent, sent, 0), at(now));
                    expected.push((left, now + seconds * 1000));
                }
                let least = expected.iter().map(|(left, _)| *left).min();
                if expected.len() <= MAX_LIMITS {
                    prop_assert!(limits.remaining(at(now)) == least, "{limits:?} {expected:?}");
                }
                if sends && limits.wait(at(now), 0).is_none() {
                    limits.take();
                    sent += 1;
                    for (left, _) in &mut expected {
                        prop_assert!(*left > 0);
                        *left -= 1;
                    }
                }
                prop_assert!(limits.limits.len() <= MAX_LIMITS);
            }
        }
    }
}
