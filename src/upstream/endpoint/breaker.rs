//! Whether an upstream that goes on failing is asked at all. Pure: `now` is an
//! argument.
//!
//! Closed, everything passes, and what comes of it is counted. After too many
//! failures, one after another or as a share of a window, it opens: nothing
//! passes for a while. Then one request sees how things are. Where it comes
//! back well, more and more pass at once, until it is closed; where it does
//! not, the next pause is twice as long.
//!
//! Invariants: while open nothing passes; no pause is longer than the longest;
//! a pass that is given up never keeps the next from passing.
//!
//! Deliberately absent: what counts as a failure of the upstream's
//! (`upstream::Failure` knows), and what clients are told.

use std::num::NonZeroU32;
use std::time::Duration;

use serde::Serialize;

use crate::clock::Moment;
use crate::upstream::client::chance::Chance;

/// When the breaker opens, and for how long.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Settings {
    /// Whether it ever opens.
    pub enabled: bool,
    /// So many failures one after another open it.
    pub failures: NonZeroU32,
    /// So does this percentage of a window's requests, of which there must be
    /// twice as many as `failures`.
    pub share: NonZeroU32,
    /// How long that window is.
    #[serde(serialize_with = "crate::units::serialize")]
    pub window: Duration,
    /// How long it stays open at first; each time more doubles it.
    #[serde(serialize_with = "crate::units::serialize")]
    pub pause: Duration,
    /// How long it stays open at the most.
    #[serde(serialize_with = "crate::units::serialize")]
    pub max_pause: Duration,
}

/// What came of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestOutcome {
    /// The upstream has answered, whatever it said.
    Well,
    /// The upstream has failed.
    Failed,
    /// It was not asked, or nobody waited to see.
    Unknown,
}

/// That a request may be sent. [`Breaker::end`] must follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerPermit {
    /// Since which change of state; what came before it no longer counts.
    era: u64,
}

/// How it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerState {
    /// Everything passes.
    Closed,
    /// Nothing passes for so long.
    Open(Duration),
    /// One request, or a few, see how things are.
    HalfOpen,
}

impl BreakerState {
    /// The words for it.
    pub const STATES: [&str; 3] = ["closed", "open", "half-open"];

    /// One of them.
    pub fn state(self) -> &'static str {
        let [closed, open, half_open] = Self::STATES;
        match self {
            Self::Closed => closed,
            Self::Open(_) => open,
            Self::HalfOpen => half_open,
        }
    }
}

/// What has changed, for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It has opened for so long, from being closed.
    Opened(Duration),
    /// It has opened again for so long: the upstream is not well yet.
    Reopened(Duration),
    /// It is closed again.
    Closed,
}

/// The breaker of one upstream.
#[derive(Debug)]
pub struct Breaker {
    settings: Settings,
    state: State,
    era: u64,
    /// How often it has opened since it was last closed.
    opened: u32,
    /// What jitter is made of.
    chance: Chance,
}

#[derive(Debug)]
enum State {
    Closed {
        /// Failures since the last success.
        row: u32,
        window: OutcomeWindow,
    },
    Open {
        until: Moment,
    },
    HalfOpen {
        under_way: u32,
        /// How many have come back well.
        well: u32,
    },
}

/// So many parts has the window in which shares are counted.
const PARTS: usize = 10;

/// What came of the requests of late: for each part of the window, which it is,
/// and how many were well and failed.
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

    /// All that came, and how many of it failed.
    fn sums(&self, part: u64) -> (u64, u64) {
        let recent = |cell: &&(u64, u32, u32)| cell.0 + PARTS as u64 > part;
        let cells = self.0.iter().filter(recent);
        cells.fold((0, 0), |(all, failures), (_, well, failed)| {
            let (well, failed) = (u64::from(*well), u64::from(*failed));
            (all + well + failed, failures + failed)
        })
    }
}

impl Breaker {
    /// A closed one. `chance` is any number, that differs between processes.
    pub fn new(settings: Settings, chance: u64) -> Self {
        Self {
            settings,
            state: State::Closed {
                row: 0,
                window: OutcomeWindow::default(),
            },
            era: 0,
            opened: 0,
            chance: Chance::new(chance),
        }
    }

    /// Lets a request pass. `spare` is one that nobody waits for: it waits
    /// until all is well.
    ///
    /// # Errors
    /// Where none may: how long that lasts at the least.
    pub fn admit(&mut self, now: Moment, spare: bool) -> Result<BreakerPermit, Duration> {
        if let State::Open { until } = self.state {
            if until > now || spare {
                return Err(until.since(now).max(MOMENTARY));
            }
            self.enter(State::HalfOpen {
                under_way: 0,
                well: 0,
            });
        }
        if let State::HalfOpen { under_way, well } = &mut self.state {
            // One at first, and two for each that has come back well.
            if *under_way > well.saturating_mul(2) || spare {
                return Err(MOMENTARY);
            }
            *under_way += 1;
        }
        Ok(BreakerPermit { era: self.era })
    }

    /// Says what came of a request.
    pub fn end(
        &mut self,
        pass: BreakerPermit,
        health: RequestOutcome,
        now: Moment,
    ) -> Option<Change> {
        if pass.era != self.era || !self.settings.enabled {
            return None;
        }
        let part = self.part(now);
        match (&mut self.state, health) {
            (State::Closed { .. }, RequestOutcome::Unknown) | (State::Open { .. }, _) => None,
            (State::Closed { row, window }, RequestOutcome::Well) => {
                *row = 0;
                window.add(part, false);
                None
            }
            (State::Closed { row, window }, RequestOutcome::Failed) => {
                *row += 1;
                window.add(part, true);
                let (all, failed) = window.sums(part);
                let most = self.settings.failures.get();
                let enough = all >= u64::from(most) * 2
                    && failed * 100 >= all * u64::from(self.settings.share.get());
                (*row >= most || enough).then(|| Change::Opened(self.open(now)))
            }
            (State::HalfOpen { under_way, .. }, RequestOutcome::Unknown) => {
                *under_way = under_way.saturating_sub(1);
                None
            }
            (State::HalfOpen { under_way, well }, RequestOutcome::Well) => {
                *under_way = under_way.saturating_sub(1);
                *well += 1;
                (*well >= self.settings.failures.get()).then(|| {
                    self.opened = 0;
                    self.enter(State::Closed {
                        row: 0,
                        window: OutcomeWindow::default(),
                    });
                    Change::Closed
                })
            }
            (State::HalfOpen { .. }, RequestOutcome::Failed) => {
                Some(Change::Reopened(self.open(now)))
            }
        }
    }

    /// How it stands.
    pub fn stance(&self, now: Moment) -> BreakerState {
        match self.state {
            State::Closed { .. } => BreakerState::Closed,
            State::Open { until } if until > now => BreakerState::Open(until.since(now)),
            // The next request may see how things are.
            State::Open { .. } | State::HalfOpen { .. } => BreakerState::HalfOpen,
        }
    }

    fn open(&mut self, now: Moment) -> Duration {
        let doubled = 2_u32.saturating_pow(self.opened);
        let pause = self.settings.pause.saturating_mul(doubled);
        // Up to a quarter more, so that gateways that have opened together do
        // not come back together.
        let pause =
            (pause + pause / 400 * (self.chance.draw() % 100) as u32).min(self.settings.max_pause);
        self.opened = self.opened.saturating_add(1);
        self.enter(State::Open { until: now + pause });
        pause
    }

    fn enter(&mut self, state: State) {
        self.state = state;
        self.era += 1;
    }

    fn part(&self, now: Moment) -> u64 {
        let part = self.settings.window.as_nanos() / PARTS as u128;
        now.nanos() / u64::try_from(part).unwrap_or(u64::MAX).max(1)
    }
}

/// What is told of a wait whose end depends on how a request goes.
const MOMENTARY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use proptest::prelude::{Just, any, prop_assert, prop_oneof, proptest};

    use super::*;

    fn settings() -> Settings {
        let number = |n| NonZeroU32::new(n).unwrap();
        Settings {
            enabled: true,
            failures: number(3),
            share: number(50),
            window: Duration::from_secs(10),
            pause: Duration::from_secs(1),
            max_pause: Duration::from_secs(60),
        }
    }

    fn at(millis: u64) -> Moment {
        Moment::from_nanos(1 << 50) + Duration::from_millis(millis)
    }

    /// Lets one pass and says what came of it.
    fn one(breaker: &mut Breaker, millis: u64, health: RequestOutcome) -> Option<Change> {
        let pass = breaker.admit(at(millis), false).unwrap();
        breaker.end(pass, health, at(millis))
    }

    fn opened(change: Option<Change>) -> Duration {
        match change {
            Some(Change::Opened(pause) | Change::Reopened(pause)) => pause,
            Some(Change::Closed) | None => panic!("{change:?}"),
        }
    }

    #[test]
    fn failures_in_a_row_open_it() {
        let mut breaker = Breaker::new(settings(), 1);
        for _ in 0..5 {
            assert_eq!(one(&mut breaker, 0, RequestOutcome::Failed), None);
            assert_eq!(one(&mut breaker, 20_000, RequestOutcome::Failed), None);
            assert_eq!(one(&mut breaker, 40_000, RequestOutcome::Well), None);
        }
        one(&mut breaker, 60_000, RequestOutcome::Failed);
        one(&mut breaker, 80_000, RequestOutcome::Failed);
        // What nobody knows neither counts nor begins anew.
        one(&mut breaker, 80_000, RequestOutcome::Unknown);
        let pause = opened(one(&mut breaker, 100_000, RequestOutcome::Failed));
        assert!((1000..=1250).contains(&pause.as_millis()), "{pause:?}");
        assert_eq!(breaker.stance(at(100_000)), BreakerState::Open(pause));
        assert_eq!(breaker.admit(at(100_000), false), Err(pause));
    }

    #[test]
    fn a_share_of_a_window_opens_it() {
        let mut breaker = Breaker::new(settings(), 1);
        // Five of which two fail are too few; so is a share that is too small.
        for (millis, health) in [
            (0, RequestOutcome::Well),
            (100, RequestOutcome::Failed),
            (200, RequestOutcome::Well),
            (300, RequestOutcome::Failed),
            (400, RequestOutcome::Well),
            (500, RequestOutcome::Failed),
        ] {
            let change = one(&mut breaker, millis, health);
            assert_eq!(change.is_some(), millis == 500, "{millis}");
        }
        let mut breaker = Breaker::new(settings(), 1);
        // Ten seconds later those are forgotten.
        for millis in [0, 12_000, 24_000, 36_000, 48_000] {
            for health in [
                RequestOutcome::Failed,
                RequestOutcome::Well,
                RequestOutcome::Failed,
                RequestOutcome::Well,
            ] {
                assert_eq!(one(&mut breaker, millis, health), None);
            }
        }
    }

    #[test]
    fn it_closes_step_by_step() {
        let mut breaker = Breaker::new(settings(), 1);
        for _ in 0..3 {
            one(&mut breaker, 0, RequestOutcome::Failed);
        }
        assert_eq!(breaker.stance(at(2000)), BreakerState::HalfOpen);
        assert!(breaker.admit(at(2000), true).is_err(), "that can wait");
        let first = breaker.admit(at(2000), false).unwrap();
        assert_eq!(breaker.admit(at(2000), false), Err(MOMENTARY));
        assert_eq!(breaker.end(first, RequestOutcome::Well, at(2000)), None);
        // After one, three at once; after two, five.
        let passes = [(); 3].map(|()| breaker.admit(at(2000), false).unwrap());
        assert!(breaker.admit(at(2000), false).is_err());
        assert_eq!(breaker.end(passes[0], RequestOutcome::Well, at(2000)), None);
        let more = [(); 3].map(|()| breaker.admit(at(2000), false).unwrap());
        assert!(breaker.admit(at(2000), false).is_err());
        let closed = breaker.end(passes[1], RequestOutcome::Well, at(2000));
        assert_eq!(closed, Some(Change::Closed));
        assert_eq!(breaker.stance(at(2000)), BreakerState::Closed);
        // What was sent before tells nothing of the time since.
        for pass in more {
            assert_eq!(breaker.end(pass, RequestOutcome::Failed, at(2000)), None);
        }
        // The next pause is as short as the first.
        one(&mut breaker, 2000, RequestOutcome::Failed);
        one(&mut breaker, 2000, RequestOutcome::Failed);
        let pause = opened(one(&mut breaker, 2000, RequestOutcome::Failed));
        assert!(pause < Duration::from_millis(1300));
    }

    #[test]
    fn a_trial_that_fails_lengthens_the_pause() {
        let mut breaker = Breaker::new(settings(), 1);
        for _ in 0..2 {
            one(&mut breaker, 0, RequestOutcome::Failed);
        }
        let mut pause = opened(one(&mut breaker, 0, RequestOutcome::Failed));
        let mut now = 0;
        for at_least in [2, 4, 8, 16, 32, 60, 60, 60] {
            now += u64::try_from(pause.as_millis()).unwrap() + 1;
            // One that is given up unsent leaves the place to the next.
            assert_eq!(one(&mut breaker, now, RequestOutcome::Unknown), None);
            pause = opened(one(&mut breaker, now, RequestOutcome::Failed));
            assert!(pause >= Duration::from_secs(at_least), "{pause:?}");
            assert!(pause <= Duration::from_secs(60));
        }
    }

    #[test]
    fn one_that_is_off_never_opens() {
        let off = Settings {
            enabled: false,
            ..settings()
        };
        let mut breaker = Breaker::new(off, 1);
        for _ in 0..100 {
            assert_eq!(one(&mut breaker, 0, RequestOutcome::Failed), None);
        }
    }

    #[test]
    fn pauses_differ() {
        let pause = |chance| {
            let mut breaker = Breaker::new(settings(), chance);
            breaker.open(at(0))
        };
        let pauses: std::collections::BTreeSet<_> = (0..50).map(pause).collect();
        assert!(pauses.len() > 20, "{pauses:?}");
    }

    proptest! {
        /// Whatever happens: an open one lets nothing pass, half open it lets
        /// one pass at a time until one is well, and it never locks up.
        #[test]
        fn it_lets_pass_what_it_should(
            chance in any::<u64>(),
            steps in proptest::collection::vec(
                (
                    0_u64..3000,
                    prop_oneof![
                        Just(RequestOutcome::Well), Just(RequestOutcome::Failed), Just(RequestOutcome::Failed),
                        Just(RequestOutcome::Unknown),
                    ],
                    0_usize..6,
                    any::<bool>(),
                ),
                1..200,
            ),
        ) {
            let mut breaker = Breaker::new(settings(), chance);
            let mut under_way = Vec::new();
            let (mut now, mut open_until) = (0, 0);
            for (pause, health, which, begins) in steps {
                now += pause;
                if begins || under_way.is_empty() {
                    match breaker.admit(at(now), false) {
                        Ok(pass) => {
                            prop_assert!(now >= open_until, "{breaker:?}");
                            under_way.push(pass);
                        }
                        Err(wait) => prop_assert!(
                            !wait.is_zero() && wait <= Duration::from_secs(60)
                                && breaker.stance(at(now)) != BreakerState::Closed
                        ),
                    }
                } else {
                    let pass = under_way.swap_remove(which % under_way.len());
                    if let Some(Change::Opened(pause) | Change::Reopened(pause)) =
                        breaker.end(pass, health, at(now))
                    {
                        prop_assert!(pause >= Duration::from_secs(1));
                        prop_assert!(pause <= Duration::from_secs(60));
                        open_until = now + u64::try_from(pause.as_millis()).unwrap();
                    }
                }
            }
            // In the end all are given up, and the upstream is well.
            for pass in under_way {
                breaker.end(pass, RequestOutcome::Unknown, at(now));
            }
            for step in 0..10 {
                let later = at(now + 61_000 + step);
                let pass = breaker.admit(later, false);
                prop_assert!(pass.is_ok(), "{breaker:?}");
                breaker.end(pass.unwrap(), RequestOutcome::Well, later);
            }
            prop_assert!(breaker.stance(at(now + 62_000)) == BreakerState::Closed, "{breaker:?}");
        }
    }
}
