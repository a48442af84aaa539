//! A stand-in for `upstream::admission::budget`: the same count of requests (in flight,
//! and for a whole window after their ends), without rates, pace and reported limits.

use std::collections::VecDeque;
use std::time::Duration;

use crate::clock::Moment;
use crate::shared::allowance::RequestCounts;

/// How long a request counts against the second after its end.
pub(super) const SECOND_WINDOW: Duration = Duration::from_millis(1005);
/// How long a request counts against the minute after its end.
pub(super) const MINUTE_WINDOW: Duration = Duration::from_millis(60_050);
/// A request that was given up reaches the upstream within this time, or not at all.
pub(super) const ARRIVAL_LIMIT: Duration = Duration::from_secs(1);
/// How long a request of an earlier process may count.
pub(super) const LONGEST_WAIT: Duration = Duration::from_millis(61_050);

#[derive(Clone, Debug)]
struct SlidingWindow {
    span: Duration,
    /// When the requests of the last `span` ended, oldest first.
    ended: VecDeque<Moment>,
}

impl SlidingWindow {
    fn new(span: Duration) -> Self {
        Self {
            span,
            ended: VecDeque::new(),
        }
    }

    fn counted(&mut self, now: Moment, in_flight: usize) -> usize {
        while let Some(end) = self.ended.front()
            && *end + self.span <= now
        {
            self.ended.pop_front();
        }
        in_flight + self.ended.len()
    }

    /// The time until a request can be taken; `None` where one can be taken now.
    fn wait(&mut self, now: Moment, in_flight: usize, limit: i64) -> Option<Duration> {
        let counted = self.counted(now, in_flight) as i64;
        let excess = counted - limit;
        if excess < 0 {
            return None;
        }
        Some(match self.ended.get(excess as usize) {
            Some(end) => (*end + self.span).since(now),
            None => self.span,
        })
    }
}

/// The requests of one process that count against one key.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    minute: SlidingWindow,
    second: SlidingWindow,
    in_flight: usize,
    /// When each request that was given up counts as ended, the earliest first.
    given_up: VecDeque<Moment>,
    /// No request can be taken before this moment.
    blocked_until: Moment,
}

/// A request was not taken.
pub(super) struct DeniedRequest {
    /// The time until one can be taken.
    pub(super) wait: Duration,
    /// Whether too little is left of the minute, and of the second.
    pub(super) short: [bool; 2],
}

impl Budget {
    /// An unused budget.
    pub(super) fn new() -> Self {
        Self {
            minute: SlidingWindow::new(MINUTE_WINDOW),
            second: SlidingWindow::new(SECOND_WINDOW),
            in_flight: 0,
            given_up: VecDeque::new(),
            blocked_until: Moment::default(),
        }
    }

    /// A budget that begins with what the last process has spent. A request that had
    /// not ended then counts from now.
    pub(super) fn after(earlier: &Self, now: Moment) -> Self {
        let mut new = earlier.clone();
        new.given_up = vec![now + ARRIVAL_LIMIT; earlier.in_flight].into();
        new
    }

    /// A budget whose earlier spending is not known: any number of requests may have
    /// been sent before this moment.
    pub(super) fn unknown_before(now: Moment) -> Self {
        Self {
            blocked_until: now + LONGEST_WAIT,
            ..Self::new()
        }
    }

    /// Takes a request. [`end`](Self::end) or [`give_up`](Self::give_up) must follow.
    ///
    /// # Errors
    /// Where too little is left.
    pub(super) fn take(&mut self, now: Moment, limits: RequestCounts) -> Result<(), DeniedRequest> {
        self.end_given_up(now);
        if self.blocked_until > now {
            return Err(DeniedRequest {
                wait: self.blocked_until.since(now),
                short: [false; 2],
            });
        }
        let minute = self.minute.wait(now, self.in_flight, limits.minute);
        let second = self.second.wait(now, self.in_flight, limits.second);
        match minute.max(second) {
            Some(wait) => Err(DeniedRequest {
                wait,
                short: [minute.is_some(), second.is_some()],
            }),
            None => {
                self.in_flight += 1;
                Ok(())
            }
        }
    }

    /// RequestCounts the end of a request that was answered, or never sent.
    pub(super) fn end(&mut self, now: Moment) {
        self.end_given_up(now);
        self.end_at(now);
    }

    /// RequestCounts a request that was sent and then given up unanswered.
    pub(super) fn give_up(&mut self, now: Moment) {
        self.end_given_up(now);
        self.given_up.push_back(now + ARRIVAL_LIMIT);
    }

    /// How many requests count against the minute and the second.
    pub(super) fn counted(&mut self, now: Moment) -> RequestCounts {
        self.end_given_up(now);
        RequestCounts {
            minute: self.minute.counted(now, self.in_flight) as i64,
            second: self.second.counted(now, self.in_flight) as i64,
        }
    }

    fn end_given_up(&mut self, now: Moment) {
        while let Some(end) = self.given_up.front().copied()
            && end <= now
        {
            self.given_up.pop_front();
            self.end_at(end);
        }
    }

    fn end_at(&mut self, end: Moment) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.minute.ended.push_back(end);
        self.second.ended.push_back(end);
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self::new()
    }
}
