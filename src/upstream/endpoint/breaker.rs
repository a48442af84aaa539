//! A circuit breaker: whether an endpoint that keeps failing gets requests. Pure:
//! `now` is an argument.
//!
//! While it is closed, all requests pass and their outcomes are counted. After too many
//! failures, in a row or as a share of a window, it opens: no request passes for a
//! pause. Then it is half-open: one trial request passes. If it fails, the breaker opens
//! for twice as long. If it succeeds, more and more pass at once, and the trials are
//! judged by the rule that opens a closed breaker: it must not be harder to close the
//! breaker than to keep it closed, or a server that answers most requests would get
//! almost none after a short outage. Trials that fail too often open it for as long as
//! before.
//!
//! Invariants: while it is open nothing passes; until a trial has succeeded, one passes
//! at a time; after twice [`Settings::failures`] trials, a half-open breaker closes, or
//! opens at the next one that fails; no pause is longer than [`Settings::max_pause`]; a
//! permit that ends without an outcome never blocks the next request.
//!
//! Deliberately absent: which failures are the endpoint's ([`Failure::outcome`]).
//!
//! [`Failure::outcome`]: crate::upstream::Failure::outcome

use std::num::NonZeroU32;
use std::time::Duration;

use serde::Serialize;

use crate::clock::Moment;
use crate::upstream::failure::RequestOutcome;

/// When a breaker opens, and for how long.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Settings {
    /// Whether it opens at all.
    pub enabled: bool,
    /// This many failures in a row open it.
    pub failures: NonZeroU32,
    /// This percentage of failures in a window opens it, if the window has at least
    /// twice `failures` requests.
    pub share: NonZeroU32,
    /// The length of the window.
    #[serde(serialize_with = "crate::units::serialize")]
    pub window: Duration,
    /// The first pause. It doubles each time that the first trial after it fails.
    #[serde(serialize_with = "crate::units::serialize")]
    pub pause: Duration,
    /// The longest pause.
    #[serde(serialize_with = "crate::units::serialize")]
    pub max_pause: Duration,
}

impl Settings {
    /// Whether the share of failures is too high.
    fn is_too_many(&self, failed: u64, all: u64) -> bool {
        failed * 100 >= all * u64::from(self.share.get())
    }

    /// Those of the shipped proxy.toml.
    #[cfg(test)]
    pub(crate) fn shipped() -> Self {
        let number = |n| NonZeroU32::new(n).unwrap();
        Self {
            enabled: true,
            failures: number(10),
            share: number(80),
            window: Duration::from_secs(30),
            pause: Duration::from_secs(1),
            max_pause: Duration::from_secs(60),
        }
    }
}

/// The permission to send a request. [`Breaker::end`] must follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BreakerPermit {
    /// The number of state changes before it; outcomes of earlier periods do not count.
    period: u64,
}

/// The state of a breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    /// All requests pass.
    Closed,
    /// No request passes for this time.
    Open(Duration),
    /// A few trial requests pass.
    HalfOpen,
}

impl BreakerState {
    /// The names of the states.
    pub const STATES: [&str; 3] = ["closed", "open", "half-open"];

    /// Its name in logs and metrics.
    pub fn name(self) -> &'static str {
        let [closed, open, half_open] = Self::STATES;
        match self {
            Self::Closed => closed,
            Self::Open(_) => open,
            Self::HalfOpen => half_open,
        }
    }
}

/// A change of state, for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// It has opened for this time.
    Opened(Duration),
    /// Trials have failed: it has opened for this time.
    Reopened(Duration),
    Closed,
}

#[derive(Debug)]
pub(crate) struct Breaker {
    settings: Settings,
    state: State,
    period: u64,
    /// How often its pause has begun or doubled since it was last closed.
    opened: u32,
    /// The source of jitter.
    random: fastrand::Rng,
}

#[derive(Debug)]
enum State {
    Closed {
        /// Failures since the last success.
        in_a_row: u32,
        window: OutcomeWindow,
    },
    Open {
        until: Moment,
    },
    HalfOpen {
        /// Trials in flight.
        in_flight: u32,
        trials: Trials,
    },
}

/// The outcomes of a half-open breaker's trials.
#[derive(Clone, Copy, Debug, Default)]
struct Trials {
    succeeded: u32,
    failed: u32,
    /// Failures since the last success.
    in_a_row: u32,
}

/// What a half-open breaker does after a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Close,
    /// Opens for as long as before.
    Reopen,
    /// Opens for twice as long.
    ReopenForLonger,
}

impl Trials {
    fn add(&mut self, failed: bool) {
        if failed {
            self.failed += 1;
            self.in_a_row += 1;
        } else {
            self.succeeded += 1;
            self.in_a_row = 0;
        }
    }

    /// Judges the trials; `None` if more are needed.
    fn verdict(self, settings: &Settings) -> Option<Verdict> {
        if self.succeeded == 0 {
            return (self.failed > 0).then_some(Verdict::ReopenForLonger);
        }
        let most = u64::from(settings.failures.get());
        let (succeeded, failed) = (u64::from(self.succeeded), u64::from(self.failed));
        let all = succeeded + failed;
        let (is_enough, fails) = (all >= most * 2, settings.is_too_many(failed, all));
        // A success does not open it.
        let has_failed = self.in_a_row > 0;
        if u64::from(self.in_a_row) >= most || (has_failed && is_enough && fails) {
            return Some(Verdict::Reopen);
        }
        (!fails && (is_enough || succeeded >= most)).then_some(Verdict::Close)
    }
}

/// The number of parts of the window.
const PARTS: usize = 10;

/// Recent outcomes: for each part of the window its number, successes and failures.
#[derive(Clone, Copy, Debug, Default)]
struct OutcomeWindow([(u64, u32, u32); PARTS]);

impl OutcomeWindow {
    fn add(&mut self, part: u64, failed: bool) {
        let cell = &mut self.0[(part % PARTS as u64) as usize];
        if cell.0 != part {
            *cell = (part, 0, 0);
        }
        let count = if failed { &mut cell.2 } else { &mut cell.1 };
        *count = count.saturating_add(1);
    }

    /// All outcomes, and the failures among them.
    fn sums(&self, part: u64) -> (u64, u64) {
        let recent = |cell: &&(u64, u32, u32)| cell.0 + PARTS as u64 > part;
        let cells = self.0.iter().filter(recent);
        cells.fold((0, 0), |(all, failures), (_, succeeded, failed)| {
            let (succeeded, failed) = (u64::from(*succeeded), u64::from(*failed));
            (all + succeeded + failed, failures + failed)
        })
    }
}

impl Breaker {
    /// A closed breaker. `seed` is that of its jitter, which must differ between
    /// processes.
    pub(crate) fn new(settings: Settings, seed: u64) -> Self {
        Self {
            settings,
            state: State::Closed {
                in_a_row: 0,
                window: OutcomeWindow::default(),
            },
            period: 0,
            opened: 0,
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// Admits a request.
    ///
    /// # Errors
    /// If the request does not pass: the least time until one may.
    pub(crate) fn admit(&mut self, now: Moment) -> Result<BreakerPermit, Duration> {
        if let State::Open { until } = self.state {
            if until > now {
                return Err(until.since(now).max(MOMENTARY));
            }
            self.enter(State::HalfOpen {
                in_flight: 0,
                trials: Trials::default(),
            });
        }
        if let State::HalfOpen { in_flight, trials } = &mut self.state {
            // One at first, and two more for each success.
            if *in_flight > trials.succeeded.saturating_mul(2) {
                return Err(MOMENTARY);
            }
            *in_flight += 1;
        }
        Ok(BreakerPermit {
            period: self.period,
        })
    }

    /// Takes in the outcome of a request.
    pub(crate) fn end(
        &mut self,
        permit: BreakerPermit,
        outcome: RequestOutcome,
        now: Moment,
    ) -> Option<Change> {
        if permit.period != self.period || !self.settings.enabled {
            return None;
        }
        let part = self.part(now);
        match (&mut self.state, outcome) {
            (State::Closed { .. }, RequestOutcome::Unknown) | (State::Open { .. }, _) => None,
            (State::Closed { in_a_row, window }, RequestOutcome::Success) => {
                *in_a_row = 0;
                window.add(part, false);
                None
            }
            (State::Closed { in_a_row, window }, RequestOutcome::Failure) => {
                *in_a_row += 1;
                window.add(part, true);
                let (all, failed) = window.sums(part);
                let most = self.settings.failures.get();
                let enough = all >= u64::from(most) * 2 && self.settings.is_too_many(failed, all);
                (*in_a_row >= most || enough).then(|| {
                    self.opened = 1;
                    Change::Opened(self.open(now))
                })
            }
            (State::HalfOpen { in_flight, .. }, RequestOutcome::Unknown) => {
                *in_flight = in_flight.saturating_sub(1);
                None
            }
            (State::HalfOpen { in_flight, trials }, outcome) => {
                *in_flight = in_flight.saturating_sub(1);
                trials.add(outcome == RequestOutcome::Failure);
                let verdict = trials.verdict(&self.settings)?;
                Some(self.judged(verdict, now))
            }
        }
    }

    /// Ends the half-open period.
    fn judged(&mut self, verdict: Verdict, now: Moment) -> Change {
        match verdict {
            Verdict::Close => {
                self.opened = 0;
                self.enter(State::Closed {
                    in_a_row: 0,
                    window: OutcomeWindow::default(),
                });
                return Change::Closed;
            }
            Verdict::Reopen => {}
            Verdict::ReopenForLonger => self.opened = self.opened.saturating_add(1),
        }
        Change::Reopened(self.open(now))
    }

    pub(crate) fn state(&self, now: Moment) -> BreakerState {
        match self.state {
            State::Closed { .. } => BreakerState::Closed,
            State::Open { until } if until > now => BreakerState::Open(until.since(now)),
            // The next request is a trial.
            State::Open { .. } | State::HalfOpen { .. } => BreakerState::HalfOpen,
        }
    }

    fn open(&mut self, now: Moment) -> Duration {
        let doubled = 2_u32.saturating_pow(self.opened.saturating_sub(1));
        let pause = self.settings.pause.saturating_mul(doubled);
        // Up to a quarter more, so that gateways whose breakers opened together do not
        // send trials together.
        let jitter = pause / 400 * self.random.u32(..100);
        let pause = (pause + jitter).min(self.settings.max_pause);
        self.enter(State::Open { until: now + pause });
        pause
    }

    fn enter(&mut self, state: State) {
        self.state = state;
        self.period += 1;
    }

    fn part(&self, now: Moment) -> u64 {
        let part = self.settings.window.as_nanos() / PARTS as u128;
        now.nanos() / u64::try_from(part).unwrap_or(u64::MAX).max(1)
    }
}

/// The reported wait if its end depends on the outcome of a trial.
const MOMENTARY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
