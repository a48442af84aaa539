//! The budget of one key: an exact limit on its requests in any minute and in any
//! second. Pure: `now` is an argument.
//!
//! A token bucket admits up to twice its rate in the first window, and a provider
//! that counts exactly would refuse the surplus. So the budget counts each request.
//! The upstream receives a request at some moment between when it is sent and its
//! answer, and ordgate cannot know when. A request therefore counts while it is in
//! flight, and for a whole window after its end. Whatever the delays on the way, no
//! window by the upstream's clock has more requests than the limit. The limits that the
//! upstream reports ([`ReportedLimits`]) apply as well, and can only be stricter.
//!
//! The price of exactness: of a limit of n requests a second, n / (1 + t) can be
//! used where answers take t seconds. No rule that knows only when each request was
//! sent and answered does better: n requests counted just before their answers, and
//! one counted as soon as it is sent, less than a second later, would exceed the limit.
//!
//! The minute is paced so that a burst cannot use it up. Three fifths may be sent at
//! once. Beyond that, requests are spread evenly over what is left and what becomes
//! free as earlier requests leave the window, so that there is always a next slot
//! soon, whichever client is next. Probes of the tip are not paced, and a part of the
//! budget is kept for them.

use std::collections::VecDeque;
use std::time::Duration;

use super::reported::{ReportedLimit, ReportedLimits};
use crate::clock::Moment;
use crate::shared::permits::Limits;

/// How long a request counts against the second after its end: 5 ms longer than a
/// second. This process reads its clock after the answer has arrived and before the
/// next request is sent, in nanoseconds, so the reading adds no error. The
/// provider's clock may run slower by 1 in 1,000 (two clocks, each corrected at the
/// maximum rate of an operating system, 500 ppm), which is 1 ms; and it may tick
/// only every 4 ms, as the coarse clock of Linux does at 250 Hz.
pub(crate) const SECOND_WINDOW: Duration = Duration::from_millis(1005);

/// How long a request counts against the minute after its end. Clocks that differ
/// by 750 ppm, and a tick of 4 ms, take 49 ms of the 50.
pub(crate) const MINUTE_WINDOW: Duration = Duration::from_millis(60_050);

/// The pace is computed at this many points of the minute. It is too slow by at most one part in
/// this many.
const STEPS: u32 = 240;

/// The requests of one key that count.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    /// They may change: requests that were taken still count.
    pub(super) limits: Limits,
    /// Requests taken that have not ended.
    in_flight: usize,
    /// When those of the last minute ended, the oldest first; none that ended while there was no
    /// limit.
    ended: VecDeque<Moment>,
    /// No request can be taken before this moment, where there is a limit.
    blocked_until: Moment,
    reported: ReportedLimits,
    /// Probes of the tip a minute, for which a part is kept.
    pub(super) probes: u32,
    /// The earliest moment for the next request that is paced.
    next_paced: Moment,
}

impl Budget {
    /// Counts what an earlier process has spent. Where there is a limit, nothing can be taken
    /// before what it may have spent beside that has left the windows.
    pub(crate) fn count_earlier(&mut self, ended: &[Moment], unknown_until: Moment) {
        self.ended.extend(ended);
        self.ended.make_contiguous().sort_unstable();
        self.blocked_until = self.blocked_until.max(unknown_until);
    }

    /// Takes a request. [`end`](Self::end) must follow.
    ///
    /// # Errors
    /// Where too little is left: the minimum time until a request can be taken;
    /// exact where nothing is in flight.
    pub(crate) fn take(&mut self, now: Moment, is_probe: bool) -> Result<(), Duration> {
        if let Some(wait) = self.wait(now, is_probe) {
            return Err(wait);
        }
        self.in_flight += 1;
        self.reported.take();
        if !is_probe {
            let interval = self.pace_interval(now);
            // A request that is a little late does not delay those after it.
            self.next_paced = self.next_paced.max(now.before(interval)) + interval;
        }
        Ok(())
    }

    /// The time until a request can be taken; `None` where one can be taken now.
    pub(crate) fn wait(&mut self, now: Moment, is_probe: bool) -> Option<Duration> {
        let (minute, second, reported, pace) = match is_probe {
            true => (0, 0, 0, None),
            false => (
                self.kept_of_minute(),
                self.kept_of_second(),
                u64::from(self.probes > 0),
                self.pace_wait(now),
            ),
        };
        self.wait_of_minute(now, minute)
            .max(self.wait_of(self.limits.per_second, SECOND_WINDOW, now, second))
            .max(self.reported.wait(now, reported))
            .max(pace)
    }

    fn wait_of_minute(&self, now: Moment, reserved: usize) -> Option<Duration> {
        self.wait_of(self.limits.per_minute, MINUTE_WINDOW, now, reserved)
    }

    /// The time until a request can be taken that leaves `reserved` requests of a window;
    /// `None` where one can be taken now.
    fn wait_of(
        &self,
        limit: Option<u32>,
        span: Duration,
        now: Moment,
        reserved: usize,
    ) -> Option<Duration> {
        let limit = limit? as usize;
        if self.blocked_until > now {
            return Some(self.blocked_until.since(now));
        }
        let left = self.have_left(span, now);
        let counted = self.in_flight + self.ended.len() - left;
        // This many requests, and one more, must leave the window.
        let short = (counted + reserved).checked_sub(limit)?;
        Some(match self.ended.get(left + short) {
            Some(last) => (*last + span).since(now),
            // A request in flight must end first, and then counts for the span.
            None => span,
        })
    }

    /// How many of the requests that ended have left a window.
    fn have_left(&self, span: Duration, now: Moment) -> usize {
        self.ended.partition_point(|end| *end + span <= now)
    }

    /// How many requests of the minute are left; `None` for any number.
    fn left_of_minute(&self, now: Moment) -> Option<usize> {
        let limit = self.limits.per_minute? as usize;
        let counted = self.in_flight + self.ended.len() - self.have_left(MINUTE_WINDOW, now);
        let is_blocked = self.blocked_until > now;
        Some(if is_blocked {
            0
        } else {
            limit.saturating_sub(counted)
        })
    }

    /// Requests are paced while fewer than this many of the minute are left.
    fn pace_below(&self) -> Option<usize> {
        Some(self.limits.per_minute? as usize * 2 / 5)
    }

    /// How long the pace delays a request; `None` while two fifths of the minute
    /// are left.
    fn pace_wait(&self, now: Moment) -> Option<Duration> {
        let pause = self.next_paced.since(now);
        if pause.is_zero() {
            return None;
        }
        let pace_below = self.pace_below()?.saturating_sub(1);
        Some(pause.min(self.wait_of_minute(now, pace_below)?))
    }

    /// The interval between requests at which the minute never runs out. At each of [`STEPS`]
    /// points up to its end, the requests sent at this interval are no more than those that are
    /// left beside the part for probes and those that have left the window by the point before.
    fn pace_interval(&self, now: Moment) -> Duration {
        let (Some(remaining), Some(pace_below)) = (self.left_of_minute(now), self.pace_below())
        else {
            return Duration::ZERO;
        };
        if remaining >= pace_below {
            return Duration::ZERO;
        }
        let spare = remaining.saturating_sub(self.kept_of_minute());
        let (step, left) = (MINUTE_WINDOW / STEPS, self.have_left(MINUTE_WINDOW, now));
        let mut longest = Duration::ZERO;
        for nth in 1..=STEPS {
            let freed = self.have_left(MINUTE_WINDOW, now + step * (nth - 1)) - left;
            let requests = u32::try_from(spare + freed + 1).unwrap_or(u32::MAX);
            longest = longest.max(step * nth / requests);
        }
        longest
    }

    /// How many requests of a minute are kept for probes: as many as there are, a
    /// twentieth at least and a quarter at most.
    pub(crate) fn kept_of_minute(&self) -> usize {
        let limit = self.limits.per_minute.filter(|_| self.probes > 0);
        let limit = limit.unwrap_or(0);
        self.probes.min(limit / 4).max(limit / 20) as usize
    }

    /// How many requests of a second are kept for probes.
    fn kept_of_second(&self) -> usize {
        let limit = self.limits.per_second.filter(|_| self.probes > 0);
        usize::from(limit > Some(1))
    }

    /// Applies the limits reported in the answer to a request that has not ended yet. They may
    /// have been reported before the others in flight were counted.
    pub(super) fn apply_report(&mut self, limits: &[ReportedLimit], now: Moment) {
        let others = self.in_flight.saturating_sub(1) as u64;
        for limit in limits {
            self.reported.apply(*limit, others, now);
        }
    }

    /// A request has ended at a moment, or was never sent.
    pub(crate) fn end(&mut self, ended: Option<Moment>) {
        self.in_flight = self.in_flight.saturating_sub(1);
        match (ended, self.limits.least()) {
            (Some(end), Some(_)) => {
                // Another thread may have read the clock later and come first.
                let end = self.ended.back().map_or(end, |last| end.max(*last));
                let has_left = |before: &mut Moment| *before + MINUTE_WINDOW <= end;
                while self.ended.pop_front_if(has_left).is_some() {}
                self.ended.push_back(end);
            }
            // A reload may introduce a limit, which then applies to this one.
            (Some(end), None) => self.blocked_until = self.blocked_until.max(end + MINUTE_WINDOW),
            (None, _) => {}
        }
    }

    /// How many requests are left of this minute and of the reported limits; `None`
    /// where nothing limits them.
    pub(crate) fn remaining(&mut self, now: Moment) -> Option<usize> {
        let reported = self.reported.remaining(now);
        let reported = reported.map(|remaining| usize::try_from(remaining).unwrap_or(usize::MAX));
        self.left_of_minute(now).into_iter().chain(reported).min()
    }

    /// Whether a request is in flight or counts still.
    pub(crate) fn is_in_use(&self, now: Moment) -> bool {
        let last = self.ended.back();
        self.in_flight > 0
            || self.blocked_until > now
            || last.is_some_and(|end| *end + MINUTE_WINDOW > now)
    }
}

#[cfg(test)]
mod tests;
