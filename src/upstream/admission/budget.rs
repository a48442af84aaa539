//! The budget of one key: an exact limit on its requests in any minute and in any
//! second. Pure: `now` is an argument.
//!
//! A token bucket admits up to twice its rate in the first window, and a provider
//! that counts exactly would refuse the surplus. So the budget counts each request.
//! The upstream receives a request at some moment between its admission and its
//! answer, and ordgate cannot know when. A request therefore counts while it is in
//! flight, and for a whole window after its end. Whatever the delays on the way, no
//! window by the upstream's clock has more requests than the limit. A request that
//! was given up unanswered may still arrive; it counts as in flight until it no
//! longer can (`upstream::connection::given_up`). The limits that the upstream reports
//! (`ReportedLimits`) apply as well, and can only be stricter.
//!
//! The price of exactness: of a limit of n requests a second, n / (1 + t) can be
//! used where answers take t seconds. No rule that knows only when each request was
//! sent and answered does better: n requests counted just before their answers, and
//! one counted as soon as it is sent, less than a second later, would exceed the limit.
//!
//! The minute is paced so that a burst cannot use it up. Three fifths may be sent at
//! once. Beyond that, requests are spread evenly over what is left and what becomes
//! free as earlier requests leave the window, so that there is always a next slot
//! soon, whichever client is next. Tip probes are not paced. Clients that have used
//! little recently have a pace of their own, over a larger part of the minute.
//!
//! Deliberately absent: waiting, and the choice of a key (`upstream::keys`); and
//! sharing a budget among upstreams (`upstream::admission::shared_budget`).

mod reported_limits;
mod sliding_window;

use std::collections::VecDeque;
use std::time::Duration;

use reported_limits::{ReportContext, ReportedLimits};
use sliding_window::SlidingWindow;

use super::allowance::{Limits, ShortWindows, WindowCounts};
use super::limit_report::ReportedLimit;
use super::rates::Rates;
use super::reserve::Reserve;
use super::restrictions::LimitInForce;
use super::spending::{EarlierSpending, Spending};
use crate::clock::Moment;

/// How long a request counts against the second after its end: 5 ms longer than a
/// second. This process reads its clock after the answer has arrived and before the
/// next request is sent, in nanoseconds, so the reading adds no error. The
/// provider's clock may run slower by 1 in 1,000 (two clocks, each corrected at the
/// maximum rate of an operating system, 500 ppm), which is 1 ms; and it may tick
/// only every 4 ms, as the coarse clock of Linux does at 250 Hz.
pub(crate) const SECOND_WINDOW: Duration = Duration::from_millis(1005);

/// How long a request counts against the minute after its end. Clocks that differ
/// by 750 ppm, and a tick of 4 ms, take 49 ms of the 50.
const MINUTE_WINDOW: Duration = Duration::from_millis(60_050);

/// How long a request of an earlier process may count.
pub(crate) const LONGEST_WAIT: Duration =
    Duration::from_nanos((MINUTE_WINDOW.as_nanos() + ARRIVAL_LIMIT.as_nanos()) as u64);

/// A request that was given up reaches a running server within this time, or not
/// at all.
pub(crate) const ARRIVAL_LIMIT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Budget {
    minute: SlidingWindow,
    second: SlidingWindow,
    reported: ReportedLimits,
    /// Requests taken so far, and how many of them have ended.
    sent: u64,
    ended: u64,
    /// When each request that was given up counts as ended, the earliest first.
    given_up: VecDeque<Moment>,
    /// The earliest moment for the next request of each [pace](Reserve::pace).
    next_paced: [Moment; 2],
    /// What the next process must know, where there is a state directory.
    spending: Option<Spending>,
}

/// A request that was taken out of the budget.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BudgetEntry {
    /// Requests that had been taken then, this one included, and had ended.
    sent: u64,
    ended: u64,
    taken_at: Moment,
    /// The same as the time since the boot of the machine, if replicas share the budget.
    since_boot: Option<Duration>,
}

impl BudgetEntry {
    /// Its number among all requests taken out of this budget.
    pub(crate) const fn number(self) -> u64 {
        self.sent
    }

    /// When it was taken.
    pub(super) const fn taken_at(self) -> Moment {
        self.taken_at
    }

    /// The time since boot when it was taken, if replicas share the budget.
    pub(super) const fn since_boot(self) -> Option<Duration> {
        self.since_boot
    }

    pub(super) const fn taken_since_boot(self, since_boot: Option<Duration>) -> Self {
        Self { since_boot, ..self }
    }
}

impl Budget {
    /// An unused budget.
    pub(crate) fn new(rates: Rates) -> Self {
        let limits = Limits::from(rates);
        Self {
            minute: SlidingWindow::new(limits.per_minute, MINUTE_WINDOW),
            second: SlidingWindow::new(limits.per_second, SECOND_WINDOW),
            reported: ReportedLimits::default(),
            sent: 0,
            ended: 0,
            given_up: VecDeque::new(),
            next_paced: Default::default(),
            spending: None,
        }
    }

    /// A budget that begins with what earlier processes have spent, and keeps account
    /// for the next one. A request that had not ended then counts from now.
    pub(crate) fn after(rates: Rates, earlier: &EarlierSpending, now: Moment) -> Self {
        let mut new = Self::new(rates);
        new.add_earlier(earlier, now);
        new
    }

    /// Counts what a process has spent that has just ended, beside what this one has. What
    /// was unknown until now is what `earlier` does not know.
    pub(crate) fn add_earlier(&mut self, earlier: &EarlierSpending, now: Moment) {
        self.end_given_up(now);
        let unknown_before = earlier.unknown_before.map(|before| before + ARRIVAL_LIMIT);
        for window in [&mut self.minute, &mut self.second] {
            window.count_earlier(&earlier.ended);
            window.block_after(unknown_before);
        }
        for _ in 0..earlier.interrupted {
            self.minute.in_flight += 1;
            self.second.in_flight += 1;
            self.sent += 1;
            self.given_up.push_back(now + ARRIVAL_LIMIT);
        }
        let restrictions = &earlier.restrictions;
        self.reported.add_earlier(&restrictions.limits, now);
        self.spending.get_or_insert_default().add_earlier(earlier);
    }

    /// Requests taken so far.
    pub(crate) const fn sent(&self) -> u64 {
        self.sent
    }

    /// What the next process must know, where there is a state directory.
    pub(crate) fn spending(&self) -> Option<&Spending> {
        self.spending.as_ref()
    }

    /// The reported limits in force.
    pub(crate) fn limits_in_force(&self) -> &[LimitInForce] {
        self.reported.in_force()
    }

    /// Changes the limits, which may be zero. Requests that were taken still count.
    pub(crate) fn set_limits(&mut self, limits: Limits) {
        self.minute.set_limit(limits.per_minute);
        self.second.set_limit(limits.per_second);
    }

    /// How many requests count against the minute and the second, those in flight
    /// included. Where there is no limit, not all of them are known.
    pub(crate) fn counted(&mut self, now: Moment) -> WindowCounts {
        self.end_given_up(now);
        WindowCounts {
            minute: self.minute.counted(now),
            second: self.second.counted(now),
        }
    }

    /// Takes a request, as long as `reserve` is left. [`end`](Self::end) or
    /// [`give_up`](Self::give_up) must follow.
    ///
    /// # Errors
    /// Where too little is left: the minimum time until a request can be taken;
    /// exact where nothing is in flight.
    pub(crate) fn take(&mut self, now: Moment, reserve: Reserve) -> Result<BudgetEntry, Duration> {
        if let Some(wait) = self.wait(now, reserve) {
            return Err(wait);
        }
        self.minute.in_flight += 1;
        self.second.in_flight += 1;
        self.reported.take();
        self.sent += 1;
        if let Some(spending) = &mut self.spending {
            spending.take();
        }
        if let Some(pace) = reserve.pace() {
            let reserved = self.minute.reserved(|limit| reserve.of_minute(limit));
            let interval = self.minute.pace_interval(now, reserved);
            // A request that is a little late does not delay those after it.
            self.next_paced[pace] = self.next_paced[pace].max(now.before(interval)) + interval;
        }
        Ok(BudgetEntry {
            sent: self.sent,
            ended: self.ended,
            taken_at: now,
            since_boot: None,
        })
    }

    /// The time until a request that leaves `reserve` can be taken; `None` where
    /// one can be taken now.
    pub(crate) fn wait(&mut self, now: Moment, reserve: Reserve) -> Option<Duration> {
        self.end_given_up(now);
        let minute = self.minute.reserved(|limit| reserve.of_minute(limit));
        let second = self.second.reserved(|limit| reserve.of_second(limit));
        let waits = [
            self.minute.wait(now, minute),
            self.second.wait(now, second),
            self.reported.wait(now, reserve),
            self.pace_wait(now, reserve),
        ];
        waits.into_iter().flatten().max()
    }

    /// The windows in which too little is left now for a request that leaves `reserve`.
    /// The pace is one of the minute.
    pub(crate) fn short(&mut self, now: Moment, reserve: Reserve) -> ShortWindows {
        self.end_given_up(now);
        let minute = self.minute.reserved(|limit| reserve.of_minute(limit));
        let second = self.second.reserved(|limit| reserve.of_second(limit));
        ShortWindows {
            minute: self.minute.wait(now, minute).is_some()
                || self.pace_wait(now, reserve).is_some(),
            second: self.second.wait(now, second).is_some(),
        }
    }

    /// How long the pace delays a request; `None` while two fifths of the minute
    /// are left.
    fn pace_wait(&mut self, now: Moment, reserve: Reserve) -> Option<Duration> {
        let pause = self.next_paced[reserve.pace()?].since(now);
        if pause.is_zero() {
            return None;
        }
        let pace_below = self.minute.pace_below()?.saturating_sub(1);
        Some(pause.min(self.minute.wait(now, pace_below)?))
    }

    /// Applies the limits reported in the answer to a request that has not ended
    /// yet.
    pub(crate) fn apply_report(
        &mut self,
        limits: &[ReportedLimit],
        entry: BudgetEntry,
        now: Moment,
    ) {
        self.end_given_up(now);
        let others = self.minute.in_flight.saturating_sub(1) as u64;
        let context = ReportContext {
            request: entry.sent,
            sent: self.sent,
            uncounted: self.ended - entry.ended + others,
        };
        for limit in limits {
            self.reported.apply(limit, context, now);
        }
    }

    /// Counts the end of a request that was answered, or never sent.
    pub(crate) fn end(&mut self, now: Moment) {
        self.end_given_up(now);
        self.end_at(now);
    }

    /// Counts a request that was sent and then given up unanswered: it ends after
    /// [`ARRIVAL_LIMIT`].
    pub(crate) fn give_up(&mut self, now: Moment) {
        self.end_given_up(now);
        self.given_up.push_back(now + ARRIVAL_LIMIT);
    }

    /// Ends the requests that were given up and can no longer arrive.
    fn end_given_up(&mut self, now: Moment) {
        while let Some(end) = self.given_up.pop_front_if(|end| *end <= now) {
            self.end_at(end);
        }
    }

    fn end_at(&mut self, end: Moment) {
        self.minute.end(end);
        self.second.end(end);
        self.ended += 1;
        if let Some(spending) = &mut self.spending {
            spending.end(end);
        }
    }

    /// Whether no request can be taken since it is not known what was spent before the
    /// start.
    pub(crate) fn is_blocked(&self, now: Moment) -> bool {
        self.minute.is_blocked(now) || self.second.is_blocked(now)
    }

    /// The limit per minute; `None` for any number.
    pub(crate) fn per_minute(&self) -> Option<usize> {
        self.minute.limit
    }

    /// The limit per second; `None` for any number.
    pub(crate) fn per_second(&self) -> Option<usize> {
        self.second.limit
    }

    /// Whether a request is in flight, or counts against the minute still.
    pub(crate) fn is_in_use(&mut self, now: Moment) -> bool {
        self.end_given_up(now);
        self.minute.is_in_use(now)
    }

    /// How many requests are left of this minute and of the reported limits; `None`
    /// where nothing limits them.
    pub(crate) fn remaining(&mut self, now: Moment) -> Option<usize> {
        self.end_given_up(now);
        let reported = self.reported.remaining(now);
        let reported = reported.map(|remaining| usize::try_from(remaining).unwrap_or(usize::MAX));
        let own = self.minute.remaining(now);
        own.into_iter().chain(reported).min()
    }
}

#[cfg(test)]
mod tests;
