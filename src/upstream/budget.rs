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

use std::time::Duration;

use super::reported::{ReportedLimit, ReportedLimits};
use super::window::SlidingWindow;
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

/// The requests of one key that count.
#[derive(Debug)]
pub(crate) struct Budget {
    pub(super) limits: Limits,
    pub(super) minute: SlidingWindow,
    second: SlidingWindow,
    reported: ReportedLimits,
    /// Probes of the tip a minute, for which a part is kept.
    probes: u32,
    /// The earliest moment for the next request that is paced.
    next_paced: Moment,
}

impl Budget {
    /// An unused budget without limits.
    pub(crate) fn new() -> Self {
        Self {
            limits: Limits::default(),
            minute: SlidingWindow::new(None, MINUTE_WINDOW),
            second: SlidingWindow::new(None, SECOND_WINDOW),
            reported: ReportedLimits::default(),
            probes: 0,
            next_paced: Moment::default(),
        }
    }

    /// Changes the limits and the probes a minute. Requests that were taken still count.
    pub(crate) fn set_limits(&mut self, limits: Limits, probes: u32) {
        self.minute.limit = limits.per_minute.map(|most| most as usize);
        self.second.limit = limits.per_second.map(|most| most as usize);
        self.limits = limits;
        self.probes = probes;
    }

    /// Counts what an earlier process has spent. Where there is a limit, nothing can be taken
    /// before what it may have spent beside that has left the windows.
    pub(crate) fn count_earlier(&mut self, ended: &[Moment], unknown_until: Moment) {
        for window in [&mut self.minute, &mut self.second] {
            window.count_earlier(ended, unknown_until);
        }
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
        self.minute.in_flight += 1;
        self.second.in_flight += 1;
        self.reported.take();
        if !is_probe {
            let interval = self.minute.pace_interval(now, self.kept_of_minute());
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
        self.minute
            .wait(now, minute)
            .max(self.second.wait(now, second))
            .max(self.reported.wait(now, reported))
            .max(pace)
    }

    /// How long the pace delays a request; `None` while two fifths of the minute
    /// are left.
    fn pace_wait(&mut self, now: Moment) -> Option<Duration> {
        let pause = self.next_paced.since(now);
        if pause.is_zero() {
            return None;
        }
        let pace_below = self.minute.pace_below()?.saturating_sub(1);
        Some(pause.min(self.minute.wait(now, pace_below)?))
    }

    /// How many requests of a minute are kept for probes: as many as there are, a
    /// twentieth at least and a quarter at most.
    pub(crate) fn kept_of_minute(&self) -> usize {
        let limit = self.minute.limit.filter(|_| self.probes > 0).unwrap_or(0);
        (self.probes as usize).min(limit / 4).max(limit / 20)
    }

    /// How many requests of a second are kept for probes.
    pub(crate) fn kept_of_second(&self) -> usize {
        let limit = self.second.limit.filter(|_| self.probes > 0).unwrap_or(0);
        limit.saturating_sub(1).min(1)
    }

    /// Applies the limits reported in the answer to a request that has not ended yet. They may
    /// have been reported before the others in flight were counted.
    pub(super) fn apply_report(&mut self, limits: &[ReportedLimit], now: Moment) {
        let others = self.minute.in_flight.saturating_sub(1) as u64;
        for limit in limits {
            self.reported.apply(*limit, others, now);
        }
    }

    /// A request has ended at a moment, or was never sent.
    pub(crate) fn end(&mut self, ended: Option<Moment>) {
        self.minute.end(ended);
        self.second.end(ended);
    }

    /// How many requests are left of this minute and of the reported limits; `None`
    /// where nothing limits them.
    pub(crate) fn remaining(&mut self, now: Moment) -> Option<usize> {
        let reported = self.reported.remaining(now);
        let reported = reported.map(|remaining| usize::try_from(remaining).unwrap_or(usize::MAX));
        let own = self.minute.remaining(now);
        own.into_iter().chain(reported).min()
    }
}

#[cfg(test)]
mod tests;
