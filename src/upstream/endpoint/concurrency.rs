//! The adaptive limit of requests in flight at an endpoint: it rises while more requests
//! in flight mean more responses, and falls when they only make responses slower (a
//! gradient, as in Netflix's concurrency-limits, with other rules). Pure: `now` is an
//! argument.
//!
//! - Response times are collected in windows, of which the median counts: a few large
//!   blocks among many small answers are no overload. Requests sent before the last
//!   change of the limit do not count.
//! - The reference is the response time of requests that do not wait for each other. A
//!   median of more than twice the reference lowers the limit in proportion, by at most
//!   half.
//! - The next window shows whether that has helped. If responses were no faster with
//!   fewer requests in flight, they are slow because of what is requested: the limit is
//!   restored, and the reference rises. If they were faster, the reference falls a
//!   little, so that it recovers from a start amid an overload.
//! - A limit that is used rises while the median is below twice the reference. A limit
//!   that is not used falls no lower than twice the requests in flight, and the reference
//!   follows the medians within a minute.
//! - A timeout, a 503 or a 504 lowers the limit by three tenths.
//! - A server that rejects requests while it answers others has a cap ([`cap`]). The
//!   limit falls at once to the number of requests in flight besides the rejected one,
//!   and stays there for a while, which doubles each time that the cap is met again, up
//!   to 16 s. Then it rises by one, two, four and so on, a response time apart, until it
//!   meets the cap or is where it was. A single rejection among many responses is no cap
//!   but a failed connection.
//! - If four requests in a row are rejected although the limit has fallen each time, the
//!   number in flight is not the cause: one of several servers behind the same address
//!   may be down. The limit is restored, and for a minute rejections are failures like
//!   others, unless a third of all requests fail.
//!
//! A server with four cores that always gets more requests so has a limit of four to five
//! on average, and is idle for at most a tenth of its time.
//!
//! Invariants: the limit is within its bounds, except that a cap may be below the lower
//! one, and never zero; it does not rise unused; it does not fall if all response times
//! are equal; memory is constant.
//!
//! Deliberately absent: slots and the queue for them; whether a server answers others
//! while it rejects a request (`send_order`); failures that do not indicate load
//! (`breaker`).

mod cap;

use std::time::Duration;

use cap::{Cap, NoCap};

use crate::clock::Moment;
use crate::upstream::latency::sketch::Sketch;

/// The least number of responses in a window.
const SAMPLES: u64 = 10;
/// With a low limit this many times the limit is enough, and at least half of
/// `SAMPLES`: ten sequential responses would take too long.
const ROUNDS: u64 = 3;
/// A window lasts at least this long, and twice the reference: in less time only fast
/// responses would be counted.
const WINDOW: Duration = Duration::from_millis(250);
/// The longest duration that the reference requires of a window.
const MOST_WINDOW: Duration = Duration::from_secs(5);

/// A median up to this many times the reference is normal.
const TOLERANCE: f64 = 2.0;
/// The limit falls to at least this share at once,
const MOST_CUT: f64 = 0.5;
/// and to at most this share, and by at least one: the effect of less would not be
/// visible.
const LEAST_CUT: f64 = 0.9;
/// The share of the limit that remains after a timeout, a 503 or a 504.
const OVERLOAD: f64 = 0.7;
/// A window has used the limit if this share of it was in flight at some time.
const USED: f64 = 0.9;
/// Fewer requests are in flight than before if at most this share is.
const FEWER: f64 = 0.92;
/// The exponent of that share by which the reference falls after faster responses: the
/// fewer requests, the stronger the evidence.
const FALL: f64 = 0.25;
/// The exponent by which the reference rises otherwise. It is greater, so that an error
/// costs waiting rather than throughput; but not so great that noisy response times
/// would drive the reference up (in simulations with times that vary by a factor of
/// three it is stable).
const RISE: f64 = 0.75;
/// The time constant (1 - 1/e) with which the reference rises to a higher median that
/// the limit has not caused.
const DRIFT: Duration = Duration::from_secs(20);

/// The adaptive limit of requests in flight.
#[derive(Clone, Debug)]
pub(super) struct Concurrency {
    least: u32,
    most: u32,
    /// Within these bounds. The fraction is kept for the next rise.
    limit: f64,
    /// When the limit last changed; requests sent before do not count.
    changed: Option<Moment>,
    window: SampleWindow,
    /// The median response time of requests that do not wait for others, in seconds;
    /// `None` before the end of the first window.
    reference: Option<f64>,
    /// When the last window ended.
    ended: Option<Moment>,
    /// The last change, if it was a cut for slow responses whose effect is not known yet.
    cut: Option<Cut>,
    /// When the limit last fell for an overload.
    overloaded: Option<Moment>,
    /// The server's cap, if it has rejected requests.
    cap: Option<Cap>,
    /// Set while rejections are not taken for a cap.
    no_cap: Option<NoCap>,
    /// Responses since the last rejection.
    answers: u64,
}

/// The response times of the present window.
#[derive(Clone, Debug, Default)]
struct SampleWindow {
    /// When the first of them was recorded.
    begun: Option<Moment>,
    took: Sketch,
    /// The sum of the requests in flight when each was sent,
    in_flight_sum: u64,
    /// and their maximum.
    in_flight_peak: u32,
}

/// The state before a cut of the limit.
#[derive(Clone, Copy, Debug)]
struct Cut {
    limit: f64,
    median: f64,
    /// Requests in flight, on average.
    in_flight: f64,
}

impl Concurrency {
    /// A limit between these bounds, which starts at `most`. If they are equal, it is
    /// fixed. Both are at least one, and `most` takes precedence.
    pub(super) fn new(least: u32, most: u32) -> Self {
        let most = most.max(1);
        Self {
            least: least.clamp(1, most),
            most,
            limit: f64::from(most),
            changed: None,
            window: SampleWindow::default(),
            reference: None,
            ended: None,
            cut: None,
            overloaded: None,
            cap: None,
            no_cap: None,
            answers: 0,
        }
    }

    pub(super) fn limit(&self) -> u32 {
        (self.limit as u32).clamp(1, self.most)
    }

    /// Whether the server has a cap.
    pub(super) fn is_capped(&self) -> bool {
        self.cap.is_some()
    }

    /// The reference; `None` before the end of the first window.
    pub(super) fn reference(&self) -> Option<Duration> {
        self.reference.map(Duration::from_secs_f64)
    }

    /// Changes the bounds. The reference is kept; a limit at its upper bound moves with
    /// it.
    pub(super) fn bound(&mut self, least: u32, most: u32) {
        let whole = self.limit() == self.most;
        self.most = most.max(1);
        self.least = least.clamp(1, self.most);
        let limit = if whole {
            f64::from(self.most)
        } else {
            self.limit
        };
        self.limit = limit.clamp(f64::from(self.least), f64::from(self.most));
        // The limit before a cut was within the old bounds: it cannot be restored.
        self.cut = None;
        self.cap = None;
        self.no_cap = None;
    }

    /// Records a response time. `in_flight` is the number of requests in flight when the
    /// request was sent, including itself.
    pub(super) fn record(&mut self, took: Duration, in_flight: u32, now: Moment) {
        self.answers += 1;
        let before = |changed| now.before(took) < changed;
        if self.is_fixed() || self.changed.is_some_and(before) {
            return;
        }
        let enough = (u64::from(self.limit()) * ROUNDS).clamp(SAMPLES / 2, SAMPLES);
        let window = &mut self.window;
        let begun = *window.begun.get_or_insert(now);
        window.took.record(took);
        window.in_flight_sum += u64::from(in_flight.max(1));
        window.in_flight_peak = window.in_flight_peak.max(in_flight);
        if self.is_used() && self.rise_towards_cap(now) {
            return;
        }
        let window = &mut self.window;
        if window.took.count() >= enough && now.since(begun) >= self.window_time() {
            let window = std::mem::take(&mut self.window);
            self.judge(&window, now);
            self.ended = Some(now);
        }
    }

    /// Counts the limit as used: requests wait only because of their clients' shares of
    /// it.
    pub(super) fn held_back(&mut self) {
        if !self.is_fixed() {
            self.window.in_flight_peak = self.window.in_flight_peak.max(self.limit());
        }
    }

    /// Records a timeout, 503 or 504. Within the duration of a window they count once:
    /// requests that fail together have one cause.
    pub(super) fn overloaded(&mut self, now: Moment) {
        let time = self.window_time();
        let is_recent = |before| now.since(before) < time;
        if self.is_fixed() || self.overloaded.is_some_and(is_recent) {
            return;
        }
        self.overloaded = Some(now);
        self.cut = None;
        self.change(self.limit * OVERLOAD, now);
    }

    fn is_used(&self) -> bool {
        f64::from(self.window.in_flight_peak) >= f64::from(self.limit()) * USED
    }

    fn is_fixed(&self) -> bool {
        self.least == self.most
    }

    fn window_time(&self) -> Duration {
        let reference = self.reference().unwrap_or_default();
        (reference * 2).clamp(WINDOW, MOST_WINDOW)
    }

    /// Adjusts the limit and the reference by a window.
    fn judge(&mut self, window: &SampleWindow, now: Moment) {
        let Some((median, shortest)) = window.median_and_shortest() else {
            return;
        };
        let reference = *self.reference.get_or_insert(shortest);
        let in_flight = window.in_flight_sum as f64 / window.took.count() as f64;
        let used = f64::from(window.in_flight_peak) >= f64::from(self.limit()) * USED;
        if let Some(cut) = self.cut.take()
            && used
            && in_flight <= cut.in_flight * FEWER
        {
            let fewer = in_flight / cut.in_flight;
            // The middle between no faster and faster in proportion.
            if median < cut.median * fewer.sqrt() {
                self.reference = Some(reference * fewer.powf(FALL));
            } else if median > reference * TOLERANCE {
                self.reference = Some((reference / fewer.powf(RISE)).min(median));
                self.change(cut.limit, now);
                return;
            }
        }
        self.follow(median, used, now);
        let tolerated = self.reference.unwrap_or(median) * TOLERANCE;
        if median > tolerated {
            let share = (tolerated / median).max(MOST_CUT);
            // An unused limit does not make responses slow: twice what is used remains.
            let spare = match used {
                true => 0.0,
                false => self.limit.min(f64::from(window.in_flight_peak) * 2.0),
            };
            let whole = f64::from(self.limit());
            let fewer = (whole * share.min(LEAST_CUT)).min(whole - 1.0);
            let limit = self.bounded(fewer.max(spare));
            if limit < self.limit {
                self.cut = Some(Cut {
                    limit: self.limit,
                    median,
                    in_flight,
                });
                self.change(limit, now);
            }
        } else if used && self.cap.is_none() {
            let more = (self.limit.sqrt() / 2.0).max(1.0);
            self.change(self.limit + more, now);
        }
    }

    /// Moves the reference towards a median: half of the distance down at once, and up
    /// slowly if the limit cannot be the cause of slow responses.
    fn follow(&mut self, median: f64, used: bool, now: Moment) {
        let Some(reference) = self.reference else {
            return;
        };
        let idle = !used || self.limit() <= self.least;
        let share = match median < reference {
            true => 0.5,
            false if idle => {
                let since = self.ended.map_or(Duration::ZERO, |ended| now.since(ended));
                1.0 - (-since.as_secs_f64() / DRIFT.as_secs_f64()).exp()
            }
            false => 0.0,
        };
        self.reference = Some(reference + (median - reference) * share);
    }

    /// Within the bounds; only a cap may lower it below the lower one.
    fn bounded(&self, limit: f64) -> f64 {
        let least = f64::from(self.least).min(self.limit);
        limit.clamp(least, f64::from(self.most))
    }

    fn change(&mut self, limit: f64, now: Moment) {
        self.set(self.bounded(limit), now);
    }

    /// Changes the limit. If it differs, requests sent before no longer count.
    fn set(&mut self, limit: f64, now: Moment) {
        if limit.total_cmp(&self.limit).is_ne() {
            self.limit = limit;
            self.changed = Some(now);
            self.window = SampleWindow::default();
        }
    }
}

impl SampleWindow {
    /// The median and the shortest response time, in seconds.
    fn median_and_shortest(&self) -> Option<(f64, f64)> {
        let seconds = |q| Some(self.took.quantile(q)?.as_secs_f64());
        Some((seconds(0.5)?, seconds(0.0)?))
    }
}

#[cfg(test)]
mod cap_tests;
#[cfg(test)]
mod tests;
