//! How often a key may be used: never more than so many requests in any
//! minute, nor in any second. Pure: `now` is an argument.
//!
//! A limiter with a burst admits up to twice its rate in the first window; a
//! provider that counts would refuse us. So this one keeps the moment of each
//! request for as long as it counts. A request reaches the upstream at some
//! moment between its being granted and its being answered, and we cannot know
//! which: until it has ended it counts, and from then on for a whole window. So
//! whatever the delays on the way, no window of the upstream's own clock holds
//! too many. One that is given up unanswered may reach it yet, and counts as
//! under way until it is known that it does not (`upstream::late`). What the upstream
//! itself says is left (`upstream::told`) holds beside that, and can only be
//! stricter.
//!
//! That is what it costs: of n requests a second, n / (1 + t) can be used where
//! answers take t seconds, since n may be under way or have been answered within
//! the last second. No rule does better that knows no more than when each request
//! was sent and answered: n requests that are counted just before their answers,
//! and one that is counted as soon as it is sent, less than a second later, would
//! be too many. An answer's `date` does not tell more. It says when the answer was
//! made, in whole seconds of another clock, and the request may have been counted
//! as late as that.
//!
//! A minute is paced, so that a burst cannot empty it. Three fifths of it may go
//! at once. From then on requests are spread evenly over what is left and what
//! comes back as earlier requests leave the window; so there is always a next one
//! soon, for whoever's turn it is. Probes of the tip are not
//! paced. What is paced apart, and from more of the minute, is what clients ask
//! that have had little of late.
//!
//! A window that is not limited keeps nothing but the last `REMEMBERED` ends,
//! whatever passes through it: a limit may come by a reload, and holds for what
//! was sent before it as well.
//!
//! Deliberately absent: waiting, and which key; those are `upstream::keys`'. Which
//! upstreams spend the budget: that is `upstream::budgets`'.

use std::collections::VecDeque;
use std::time::Duration;

use super::limit_report::ReportedLimit;
use super::rates::{Rate, Rates};
use super::reported_limits::{ReportContext, ReportedLimits};
use crate::clock::Moment;

/// How long a request that has ended counts in the second: 5 ms longer than a
/// second. This process reads its clock after an answer has come and before a
/// request is sent, in nanoseconds, so its reading costs nothing. The provider's
/// clock may run slower by 1 in 1,000 (two clocks that are each corrected as fast
/// as an operating system does it, 500 ppm), which is 1 ms; and it may tick only
/// every 4 ms, as the coarse clock of Linux does at 250 Hz.
pub const SECOND_WINDOW: Duration = Duration::from_millis(1005);

/// How long a request that has ended counts in the minute. Clocks that differ by
/// 750 ppm, and a tick of 4 ms, take 49 ms of the 50.
const MINUTE_WINDOW: Duration = Duration::from_millis(60_050);

/// For so long a request that was given up may still be on its way to a server
/// that runs.
pub const ARRIVAL_LIMIT: Duration = Duration::from_secs(1);

/// So many ends are kept of a window that is not limited.
const REMEMBERED: usize = 1024;

/// So many moments of a window are looked at for its pace: it is slower than it
/// could be by one part in so many.
const STEPS: u32 = 240;

/// The budget of one key.
#[derive(Debug)]
pub struct Budget {
    minute: SlidingWindow,
    second: SlidingWindow,
    reported: ReportedLimits,
    /// Requests taken so far, and how many of them have ended.
    sent: u64,
    ended: u64,
    /// When those have ended for certain that were given up, the first first.
    given_up: VecDeque<Moment>,
    /// When the next request goes that keeps a share for probes, and that keeps
    /// one for others beside.
    next_paced: [Moment; 2],
}

/// Where in the order of things a request was sent.
#[derive(Clone, Copy, Debug)]
pub struct BudgetEntry {
    sent: u64,
    ended: u64,
}

impl BudgetEntry {
    /// Its number among all that were sent.
    pub const fn number(self) -> u64 {
        self.sent
    }
}

/// The share of a window that a request has to leave for those that are more
/// urgent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserve {
    /// None.
    Nothing,
    /// For so many probes of the tip a minute.
    Probes(u32),
    /// For them, and a tenth for others that come first: clients that have had
    /// little of the budget of late, or misses.
    ProbesAndLightClients(u32),
    /// Half.
    Half,
}

impl Reserve {
    /// The same, where the tips are probed so many times a minute.
    #[must_use]
    pub const fn with_probes(self, probes: u32) -> Self {
        match self {
            Self::Nothing => Self::Nothing,
            Self::Probes(_) => Self::Probes(probes),
            Self::ProbesAndLightClients(_) => Self::ProbesAndLightClients(probes),
            Self::Half => Self::Half,
        }
    }

    /// What is to be left of a minute, or of longer, that takes so many. Probes
    /// get what they need, a twentieth at the least and a quarter at the most;
    /// misses a tenth beside.
    pub fn of_minute(self, most: u64) -> u64 {
        match self {
            Self::Nothing | Self::Probes(0) => 0,
            Self::Probes(probes) => u64::from(probes).min(most / 4).max(most / 20),
            Self::ProbesAndLightClients(probes) => Self::Probes(probes).of_minute(most) + most / 10,
            Self::Half => most / 2,
        }
    }

    /// Which of the two paces holds for it, if one does.
    const fn pace(self) -> Option<usize> {
        match self {
            Self::Probes(_) => Some(0),
            Self::ProbesAndLightClients(_) => Some(1),
            Self::Nothing | Self::Half => None,
        }
    }

    /// What is to be left of a second: probes come one at a time.
    pub fn of_second(self, most: u64) -> u64 {
        match self {
            Self::Nothing | Self::Probes(0) => 0,
            Self::Probes(_) => most / 20,
            Self::ProbesAndLightClients(probes) => Self::Probes(probes).of_second(most) + most / 10,
            Self::Half => most / 2,
        }
    }
}

impl Budget {
    /// A budget of which nothing is spent.
    pub fn new(rates: Rates) -> Self {
        Self {
            minute: SlidingWindow::new(rates.per_minute, MINUTE_WINDOW),
            second: SlidingWindow::new(rates.per_second, SECOND_WINDOW),
            reported: ReportedLimits::default(),
            sent: 0,
            ended: 0,
            given_up: VecDeque::new(),
            next_paced: Default::default(),
        }
    }

    /// Holds to these from now on; what is spent stays spent.
    pub fn set_rates(&mut self, rates: Rates) {
        self.minute.set_rate(rates.per_minute);
        self.second.set_rate(rates.per_second);
    }

    /// Takes a request out of the budget, as long as the share that is kept for
    /// others is left; [`end`](Self::end) must follow.
    ///
    /// # Errors
    /// Where none is left: how long that lasts at the least, and no longer
    /// where nothing is under way.
    pub fn take(&mut self, now: Moment, keep: Reserve) -> Result<(), Duration> {
        if let Some(wait) = self.wait(now, keep) {
            return Err(wait);
        }
        self.minute.in_flight += 1;
        self.second.in_flight += 1;
        self.reported.take();
        self.sent += 1;
        if let Some(class) = keep.pace() {
            let kept = self.minute.reserved(|most| keep.of_minute(most));
            let interval = self.minute.pace_interval(now, kept);
            // A request that goes a little late delays none of those after it.
            self.next_paced[class] = self.next_paced[class].max(now.before(interval)) + interval;
        }
        Ok(())
    }

    /// How long there will be nothing for a request that leaves this share;
    /// `None` where there is.
    pub fn wait(&mut self, now: Moment, keep: Reserve) -> Option<Duration> {
        self.end_given_up(now);
        let minute = self.minute.reserved(|most| keep.of_minute(most));
        let second = self.second.reserved(|most| keep.of_second(most));
        let waits = [
            self.minute.wait(now, minute),
            self.second.wait(now, second),
            self.reported.wait(now, keep),
            self.pace_wait(now, keep),
        ];
        waits.into_iter().flatten().max()
    }

    /// How long the pace holds a request back; not while two fifths of the minute
    /// are left.
    fn pace_wait(&mut self, now: Moment, keep: Reserve) -> Option<Duration> {
        let pause = self.next_paced[keep.pace()?].since(now);
        if pause.is_zero() {
            return None;
        }
        let paced = self.minute.pace_below()?.saturating_sub(1);
        Some(pause.min(self.minute.wait(now, paced)?))
    }

    /// The place of the request that was taken last.
    pub fn last_entry(&self) -> BudgetEntry {
        BudgetEntry {
            sent: self.sent,
            ended: self.ended,
        }
    }

    /// Takes in what the upstream has said in its answer to a request, which
    /// has not ended yet.
    pub fn apply_report(&mut self, words: &[ReportedLimit], place: BudgetEntry, now: Moment) {
        self.end_given_up(now);
        let others = self.minute.in_flight.saturating_sub(1) as u64;
        let hearing = ReportContext {
            request: place.sent,
            sent: self.sent,
            uncounted: self.ended - place.ended + others,
        };
        for word in words {
            self.reported.take_report(word, hearing, now);
        }
    }

    /// Says that a request which was taken has been answered, or never sent.
    pub fn end(&mut self, now: Moment) {
        self.end_given_up(now);
        self.end_at(now);
    }

    /// Says that a request which was sent has been given up unanswered.
    pub fn give_up(&mut self, now: Moment) {
        self.end_given_up(now);
        self.given_up.push_back(now + ARRIVAL_LIMIT);
    }

    /// Those that were given up long enough ago have ended.
    fn end_given_up(&mut self, now: Moment) {
        while let Some(end) = self.given_up.pop_front_if(|end| *end <= now) {
            self.end_at(end);
        }
    }

    fn end_at(&mut self, end: Moment) {
        self.minute.end(end);
        self.second.end(end);
        self.ended += 1;
    }

    /// How many requests a minute takes; `None` where it is not limited.
    pub fn per_minute(&self) -> Option<usize> {
        self.minute.most
    }

    /// How many requests a second takes; `None` where it is not limited.
    pub fn per_second(&self) -> Option<usize> {
        self.second.most
    }

    /// Whether a request that was taken has not ended yet.
    pub fn has_in_flight(&self) -> bool {
        self.minute.in_flight > 0
    }

    /// Whether a request is under way, or counts in the minute still.
    pub fn is_in_use(&mut self, now: Moment) -> bool {
        self.end_given_up(now);
        let last = self.minute.ended.back();
        self.has_in_flight() || last.is_some_and(|end| *end + self.minute.span > now)
    }

    /// How many requests this minute's window still holds, and the upstream
    /// still takes; `None` where nothing limits them.
    pub fn remaining(&mut self, now: Moment) -> Option<usize> {
        self.end_given_up(now);
        let told = self.reported.remaining(now);
        let told = told.map(|left| usize::try_from(left).unwrap_or(usize::MAX));
        let own = self.minute.remaining(now);
        own.into_iter().chain(told).min()
    }
}

#[derive(Debug)]
struct SlidingWindow {
    /// `None` for any number.
    most: Option<usize>,
    span: Duration,
    in_flight: usize,
    /// When the requests of the last span ended, oldest first; the last
    /// [`REMEMBERED`] of all where the window is not limited.
    ended: VecDeque<Moment>,
}

impl SlidingWindow {
    fn new(rate: Rate, span: Duration) -> Self {
        Self {
            most: most(rate),
            span,
            in_flight: 0,
            ended: VecDeque::new(),
        }
    }

    /// Holds to this from now on.
    fn set_rate(&mut self, rate: Rate) {
        let before = std::mem::replace(&mut self.most, most(rate));
        match (before, self.most) {
            // What was forgotten ended no later than what was not.
            (None, Some(most)) if self.ended.len() >= REMEMBERED => {
                let first = self.ended.front().copied().unwrap_or_default();
                while self.ended.len() < most {
                    self.ended.push_front(first);
                }
            }
            (_, None) => {
                self.forget();
                self.ended.shrink_to(REMEMBERED);
            }
            (_, Some(_)) => {}
        }
    }

    /// Forgets what a window that is not limited need not keep.
    fn forget(&mut self) {
        let further = self.ended.len().saturating_sub(REMEMBERED);
        self.ended.drain(..further);
    }

    /// What is kept of so many requests as it takes; nothing is of any number.
    fn reserved(&self, of: impl Fn(u64) -> u64) -> usize {
        let kept = self.most.map_or(0, |most| of(most as u64));
        usize::try_from(kept).unwrap_or(usize::MAX)
    }

    fn remaining(&mut self, now: Moment) -> Option<usize> {
        let most = self.most?;
        while self
            .ended
            .front()
            .is_some_and(|end| *end + self.span <= now)
        {
            self.ended.pop_front();
        }
        Some(most.saturating_sub(self.in_flight + self.ended.len()))
    }

    /// How long there will be nothing for a request that leaves so many.
    fn wait(&mut self, now: Moment, keep: usize) -> Option<Duration> {
        let (left, most) = (self.remaining(now)?, self.most?);
        // After a change for the less, more may be spent than there is.
        let over = (self.in_flight + self.ended.len()).saturating_sub(most);
        let short = keep.checked_sub(left)? + over;
        // So many more than one have to leave the window.
        Some(match self.ended.get(short) {
            Some(last) => (*last + self.span).since(now),
            // One that is under way has to end first, and counts for a whole
            // window then.
            None => self.span,
        })
    }

    /// With fewer left than this, requests are paced.
    fn pace_below(&self) -> Option<usize> {
        Some(self.most? * 2 / 5)
    }

    /// The interval at which requests can go from now on, such that the window
    /// is never short of one: at each of so many moments up to the end of the
    /// window, no more will have gone than were left beside the share that is
    /// kept, and had come back until just before.
    fn pace_interval(&mut self, now: Moment, kept: usize) -> Duration {
        let (Some(left), Some(paced)) = (self.remaining(now), self.pace_below()) else {
            return Duration::ZERO;
        };
        if left >= paced {
            return Duration::ZERO;
        }
        let spare = left.saturating_sub(kept);
        let step = self.span / STEPS;
        let mut longest = Duration::ZERO;
        for nth in 1..=STEPS {
            let until = now + step * (nth - 1);
            let back = self.ended.partition_point(|end| *end + self.span <= until);
            let requests = u32::try_from(spare + back + 1).unwrap_or(u32::MAX);
            longest = longest.max(step * nth / requests);
        }
        longest
    }

    fn end(&mut self, now: Moment) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.ended.push_back(now);
        if self.most.is_none() {
            self.forget();
        }
    }
}

fn most(rate: Rate) -> Option<usize> {
    rate.limit().map(|most| most as usize)
}

#[cfg(test)]
mod tests;
