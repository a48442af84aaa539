//! How many requests may be under way at the upstream at once: more while that
//! makes more of them end, fewer when it only makes all of them slower. Pure:
//! `now` is an argument.
//!
//! A database that has four cores does not answer sixty-four requests sooner
//! than four; it answers each of them sixteen times later. So the limit follows
//! how long answers take (a gradient, as in Netflix's concurrency-limits; the
//! rules here are our own):
//!
//! - Answers are gathered in windows, of which the median counts: a few large
//!   blocks among many small answers are no overload. What was sent before the
//!   limit's last change does not count; it tells of the time before.
//! - A median of more than twice the reference, which is how long answers take
//!   that do not wait for each other, lowers the limit in proportion, by half at
//!   the most.
//! - Then it is seen whether that has helped. Where fewer under way were
//!   answered no sooner, it is not their number that makes answers slow, but
//!   what is asked for: the limit comes back, and the reference rises, so that
//!   a change from small answers to large ones is accepted within seconds.
//!   Where they were, the reference falls a little; so it finds its way back
//!   from a beginning amid an overload, or from an error.
//! - A limit that was used rises while the median is in order. One that was not
//!   falls no further than to twice of what was under way, and the reference
//!   follows the medians within a minute.
//! - A time-out, a 503 or a 504 lowers it by three tenths.
//! - A server that takes so many connections and turns the others away, while it
//!   answers those, has a cap. The limit falls at once to as many as were under
//!   way beside the one that was turned away; of a burst that is too large each
//!   failure lowers it further, until those are left that the server has taken.
//!   There it stays for a while, twice as long each time that it meets the cap
//!   again. Then it rises by one, two, four and so on, an answer's time apart,
//!   until it meets the cap or is where it was. So a cap costs one request every
//!   16 s, and one that is lifted is forgotten within some seconds more. One
//!   failure among many answers is none of a cap, but of a connection.
//! - Where four are turned away one after another although the limit has fallen
//!   each time and not risen since, the number under way is not the cause: one of
//!   several servers behind the same address may be down. The limit goes back to
//!   where it was, and for a minute these are failures like others, unless a third
//!   of all requests fail.
//!
//! Who calls: whoever hands out places among the requests under way, with each
//! answer and each failure of this sort.
//!
//! Invariants: the limit is within its bounds, but for a cap below the least of
//! them, and never zero; it does not rise unused; where all answers take equally
//! long, it does not fall; memory does not grow.
//!
//! A server of four cores that is always asked for more so comes to a limit of
//! four to five on average, and is idle for a tenth of its time at the most, or
//! thereabouts. One whose answers take a second comes to it in a minute or two,
//! since what a change has done is seen only after an answer's time.
//!
//! Deliberately absent: places and who waits for them; how often a key may be
//! used (`upstream::budget`); whether others are answered while one is turned away
//! (`upstream::under_way`); and failures that tell nothing of load, which are the
//! breaker's.

mod cap;

use std::time::Duration;

use cap::{Cap, NoCap};

use crate::clock::Moment;
use crate::upstream::endpoint::sketch::Sketch;

/// So many answers has a window at the least.
const SAMPLES: u64 = 10;
/// Where the limit is low, so many times the limit will do, and half of that
/// number at the least: ten that come one by one would take too long.
const ROUNDS: u64 = 3;
/// A window lasts as long at the least, and twice the reference: in less, the
/// quick ones alone of what was sent have come back.
const WINDOW: Duration = Duration::from_millis(250);
/// But not longer for the reference's sake.
const MOST_WINDOW: Duration = Duration::from_secs(5);

/// A median of so many times the reference is in order.
const TOLERANCE: f64 = 2.0;
/// The limit falls at once to no less than this share.
const MOST_CUT: f64 = 0.5;
/// And to no more than this, nor by less than one: a smaller fall would show
/// nothing.
const LEAST_CUT: f64 = 0.9;
/// A time-out, a 503 or a 504 leaves this share of the limit.
const OVERLOAD: f64 = 0.7;
/// A window in which this share of the limit was under way at some time has
/// used it.
const USED: f64 = 0.9;
/// Fewer are under way than before where no more than this share are.
const FEWER: f64 = 0.92;
/// By this power of that share the reference falls when they have been answered
/// sooner: the fewer they are, the more that proves.
const FALL: f64 = 0.25;
/// By this power of it the reference rises when they have not. It is the
/// greater, so that an error costs waiting rather than work; but not by so much
/// that the errors of noisy answers would drive the reference up (played with
/// times that vary by three, it stays).
const RISE: f64 = 0.75;
/// How long the reference takes to go most of the way (1 - 1/e) up to a higher
/// median, where the limit has no part in it.
const DRIFT: Duration = Duration::from_secs(20);

/// The limit of requests under way.
#[derive(Clone, Debug)]
pub struct Concurrency {
    least: u32,
    most: u32,
    /// Within those. Its fraction is not lost for the next rise.
    limit: f64,
    /// When the limit last changed: what was sent before does not count.
    changed: Option<Moment>,
    window: SampleWindow,
    /// How long a median answer takes that does not wait for others, in
    /// seconds; `None` before the first window has ended.
    reference: Option<f64>,
    /// When the last window ended.
    ended: Option<Moment>,
    /// The last change, where it was a fall for slowness whose effect has not
    /// been seen.
    cut: Option<Cut>,
    /// The last fall for an overload.
    overloaded: Option<Moment>,
    /// What the server takes, where it has turned requests away.
    cap: Option<Cap>,
    /// That lower limits have not helped.
    no_cap: Option<NoCap>,
    /// Answers since one was last turned away.
    answers: u64,
}

/// The answers that are being gathered.
#[derive(Clone, Debug, Default)]
struct SampleWindow {
    /// When the first of them came.
    begun: Option<Moment>,
    took: Sketch,
    /// The sum of how many were under way as each was sent, and the most.
    crowds: u64,
    peak: u32,
}

/// How things were before the limit fell.
#[derive(Clone, Copy, Debug)]
struct Cut {
    limit: f64,
    median: f64,
    crowd: f64,
}

impl Concurrency {
    /// A limit between these, that begins at most: what is not known to be slow
    /// is not held back. Where they are equal, it stays there. Both are one at
    /// the least, and where `least` is the greater, `most` holds.
    pub fn new(least: u32, most: u32) -> Self {
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

    /// How many requests may be under way at once.
    pub fn limit(&self) -> u32 {
        (self.limit as u32).clamp(1, self.most)
    }

    /// Whether the server is known to take so many requests at once and no more.
    pub fn is_capped(&self) -> bool {
        self.cap.is_some()
    }

    /// How long a median answer is believed to take that does not wait for
    /// others; `None` while too few have come.
    pub fn reference(&self) -> Option<Duration> {
        self.reference.map(Duration::from_secs_f64)
    }

    /// Holds to these from now on. What is learned stays; a limit that nothing
    /// has lowered goes along with `most`.
    pub fn bound(&mut self, least: u32, most: u32) {
        let whole = self.limit() == self.most;
        self.most = most.max(1);
        self.least = least.clamp(1, self.most);
        let limit = if whole {
            f64::from(self.most)
        } else {
            self.limit
        };
        self.limit = limit.clamp(f64::from(self.least), f64::from(self.most));
        // A fall of a limit that was another's cannot be taken back.
        self.cut = None;
        self.cap = None;
        self.no_cap = None;
    }

    /// An answer came that took so long, from the request's first byte to its
    /// last. `in_flight` is how many requests were under way when it was sent,
    /// itself among them.
    pub fn record(&mut self, took: Duration, in_flight: u32, now: Moment) {
        self.answers += 1;
        let before = |changed| now.before(took) < changed;
        if self.is_fixed() || self.changed.is_some_and(before) {
            return;
        }
        let enough = (u64::from(self.limit()) * ROUNDS).clamp(SAMPLES / 2, SAMPLES);
        let window = &mut self.window;
        let begun = *window.begun.get_or_insert(now);
        window.took.record(took);
        window.crowds += u64::from(in_flight.max(1));
        window.peak = window.peak.max(in_flight);
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

    /// Requests wait that could go at once but for their clients' shares of the
    /// limit: it counts as used.
    pub fn held_back(&mut self) {
        if !self.is_fixed() {
            self.window.peak = self.window.peak.max(self.limit());
        }
    }

    /// A request has timed out, or was answered with 503 or 504. In the time of
    /// a window that counts once: what fails together has one cause.
    pub fn overloaded(&mut self, now: Moment) {
        let time = self.window_time();
        let just_now = |before| now.since(before) < time;
        if self.is_fixed() || self.overloaded.is_some_and(just_now) {
            return;
        }
        self.overloaded = Some(now);
        self.cut = None;
        self.change(self.limit * OVERLOAD, now);
    }

    fn is_used(&self) -> bool {
        f64::from(self.window.peak) >= f64::from(self.limit()) * USED
    }

    fn is_fixed(&self) -> bool {
        self.least == self.most
    }

    fn window_time(&self) -> Duration {
        let reference = self.reference().unwrap_or_default();
        (reference * 2).clamp(WINDOW, MOST_WINDOW)
    }

    /// Does what the answers of a window say.
    fn judge(&mut self, window: &SampleWindow, now: Moment) {
        let Some((median, first)) = window.median_and_first() else {
            return;
        };
        let reference = *self.reference.get_or_insert(first);
        let crowd = window.crowds as f64 / window.took.count() as f64;
        let used = f64::from(window.peak) >= f64::from(self.limit()) * USED;
        if let Some(cut) = self.cut.take()
            && used
            && crowd <= cut.crowd * FEWER
        {
            let fewer = crowd / cut.crowd;
            // Half way between no sooner and sooner in proportion.
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
            // What nobody uses is not what makes it slow; twice as much as is
            // used is left for those who come.
            let spare = match used {
                true => 0.0,
                false => self.limit.min(f64::from(window.peak) * 2.0),
            };
            let whole = f64::from(self.limit());
            let fewer = (whole * share.min(LEAST_CUT)).min(whole - 1.0);
            let limit = self.bounded(fewer.max(spare));
            if limit < self.limit {
                self.cut = Some(Cut {
                    limit: self.limit,
                    median,
                    crowd,
                });
                self.change(limit, now);
            }
        } else if used && self.cap.is_none() {
            let more = (self.limit.sqrt() / 2.0).max(1.0);
            self.change(self.limit + more, now);
        }
    }

    /// Lets the reference follow a median: half of the way down at once, and up
    /// slowly, where the limit cannot be what makes it slow.
    fn follow(&mut self, median: f64, used: bool, now: Moment) {
        let Some(reference) = self.reference else {
            return;
        };
        let idle = !used || self.limit() <= self.least;
        let way = match median < reference {
            true => 0.5,
            false if idle => {
                let since = self.ended.map_or(Duration::ZERO, |ended| now.since(ended));
                1.0 - (-since.as_secs_f64() / DRIFT.as_secs_f64()).exp()
            }
            false => 0.0,
        };
        self.reference = Some(reference + (median - reference) * way);
    }

    /// Within the bounds; a cap alone takes it below the least.
    fn bounded(&self, limit: f64) -> f64 {
        let least = f64::from(self.least).min(self.limit);
        limit.clamp(least, f64::from(self.most))
    }

    fn change(&mut self, limit: f64, now: Moment) {
        self.set(self.bounded(limit), now);
    }

    /// Takes another limit, where it is another; what was sent before then no
    /// longer counts.
    fn set(&mut self, limit: f64, now: Moment) {
        if limit.total_cmp(&self.limit).is_ne() {
            self.limit = limit;
            self.changed = Some(now);
            self.window = SampleWindow::default();
        }
    }
}

impl SampleWindow {
    /// The median in seconds, and what the quickest took at the most.
    fn median_and_first(&self) -> Option<(f64, f64)> {
        let seconds = |q| Some(self.took.quantile(q)?.as_secs_f64());
        Some((seconds(0.5)?, seconds(0.0)?))
    }
}

#[cfg(test)]
mod cap_tests;
#[cfg(test)]
mod tests;
