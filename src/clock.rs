//! The clock. The entry points of the process read it once per event and pass the
//! [`Moment`] on: every rule takes `now` as an argument.
//!
//! Time of day, which HTTP dates need, is derived from the same moments
//! ([`Clock::wall`]), so it never goes back and ages never shrink. It follows
//! corrections of the system's clock gradually ([`Clock::follow_system_clock`]).
//! Only dates by a server's own clock, such as the reset of a rate limit, are
//! compared with the system's clock itself ([`Clock::system_time`]).

mod wall;

use std::ops::Add;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use governor::nanos::Nanos;
use rustix::time::{ClockId, clock_gettime};
use wall::Wall;

/// A point on the process's monotonic clock, in nanoseconds. It never goes back,
/// and lasts 574 years.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(u64);

impl Moment {
    /// The moment with this many nanoseconds.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since ten years before the clock was made.
    pub const fn nanos(self) -> u64 {
        self.0
    }

    /// Whole milliseconds since ten years before the clock was made.
    pub const fn millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// The time since `earlier`; zero where that is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The moment this long before; at the earliest 0.
    #[must_use]
    pub fn before(self, ago: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(ago)))
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, more: Duration) -> Self {
        Self(self.0.saturating_add(nanos(more)))
    }
}

impl Add<Nanos> for Moment {
    type Output = Self;

    fn add(self, more: Nanos) -> Self {
        Self(self.0.saturating_add(more.as_u64()))
    }
}

impl governor::clock::Reference for Moment {
    fn duration_since(&self, earlier: Self) -> Nanos {
        self.0.saturating_sub(earlier.0).into()
    }

    fn saturating_sub(&self, duration: Nanos) -> Self {
        // The trait requires the moment itself where the result would underflow.
        Self(self.0.checked_sub(duration.as_u64()).unwrap_or(self.0))
    }
}

/// The moment at which every clock begins: ten years, so that "a month ago" exists from
/// the start, when responses were received that an earlier run has stored.
const START: u64 = 3650 * 86_400_000_000_000;

/// A source of [`Moment`]s: the system's clock, or one that a test moves.
#[derive(Clone, Debug)]
pub struct Clock {
    source: Source,
    wall: Arc<Wall>,
}

#[derive(Clone, Debug)]
enum Source {
    /// The system's monotonic clock; its value at the start, in nanoseconds.
    Machine(u64),
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// The system's monotonic clock.
    #[expect(
        clippy::disallowed_methods,
        reason = "only this module reads the system's clock"
    )]
    pub fn machine() -> Self {
        Self {
            source: Source::Machine(monotonic()),
            wall: Wall::new(SystemTime::now()),
        }
    }

    /// A clock that moves only by [`advance`](Self::advance).
    pub fn manual() -> Self {
        Self {
            source: Source::Manual(Arc::default()),
            ..Self::machine()
        }
    }

    /// The current moment.
    #[inline]
    pub fn now(&self) -> Moment {
        match &self.source {
            Source::Machine(start) => Moment(START + monotonic().saturating_sub(*start)),
            Source::Manual(elapsed) => Moment(START + elapsed.load(Ordering::Acquire)),
        }
    }

    /// The time of day at a moment, for HTTP dates. It never goes back.
    pub fn wall(&self, moment: Moment) -> SystemTime {
        self.wall.at(moment)
    }

    /// The time of day by the system's clock, which may go back. For a server's
    /// date that means a time from now on: during a gradual correction,
    /// [`wall`](Self::wall) would make a minute look like an hour.
    #[expect(
        clippy::disallowed_methods,
        reason = "only this module reads the system's clock"
    )]
    pub fn system_time(&self) -> SystemTime {
        match &self.source {
            Source::Machine(_) => SystemTime::now(),
            Source::Manual(_) => self.wall.corrected(self.now()),
        }
    }

    /// The time since the machine was started, suspended time included. It can be
    /// compared with that of another process; a [`Moment`] cannot.
    pub fn since_boot(&self) -> Duration {
        match &self.source {
            Source::Machine(_) => {
                let time = clock_gettime(ClockId::Boottime);
                let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
                Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default())
            }
            Source::Manual(elapsed) => Duration::from_nanos(elapsed.load(Ordering::Acquire)),
        }
    }

    /// Corrects [`wall`](Self::wall) gradually towards the system's clock. To be
    /// called periodically. A manual clock follows [`set_wall`](Self::set_wall)
    /// only.
    #[expect(
        clippy::disallowed_methods,
        reason = "only this module reads the system's clock"
    )]
    pub fn follow_system_clock(&self) {
        match &self.source {
            Source::Machine(_) => self.wall.correct_to(self.now(), SystemTime::now()),
            Source::Manual(_) => {}
        }
    }

    /// Corrects [`wall`](Self::wall) gradually towards this time.
    pub fn set_wall(&self, time: SystemTime) {
        self.wall.correct_to(self.now(), time);
    }

    /// Moves a manual clock forward. Has no effect on the system's clock.
    pub fn advance(&self, by: Duration) {
        if let Source::Manual(elapsed) = &self.source {
            elapsed.fetch_add(nanos(by), Ordering::AcqRel);
        }
    }
}

impl governor::clock::Clock for Clock {
    type Instant = Moment;

    fn now(&self) -> Moment {
        Self::now(self)
    }
}

/// The system's monotonic clock in nanoseconds. `Instant` reads the same clock, but takes
/// three times the instructions, and each request reads it twice.
#[inline]
fn monotonic() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let seconds = time.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000);
    seconds.wrapping_add(time.tv_nsec.cast_unsigned())
}

fn nanos(duration: Duration) -> u64 {
    let seconds = duration.as_secs().saturating_mul(1_000_000_000);
    seconds.saturating_add(u64::from(duration.subsec_nanos()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_moves_only_by_advance() {
        let clock = Clock::manual();
        let before = clock.now();
        assert_eq!(clock.now(), before);
        clock.advance(Duration::from_millis(1500));
        assert_eq!(clock.now().since(before), Duration::from_millis(1500));
        assert_eq!(before.since(clock.now()), Duration::ZERO);
    }

    /// Sets the time of day by so many seconds, then returns the correction in
    /// seconds after each step. Asserts that the time never goes back.
    fn after_a_step(set_by: i64, steps: usize, step: Duration) -> Vec<i64> {
        let clock = Clock::manual();
        let began = clock.wall(clock.now());
        clock.advance(Duration::from_secs(1000));
        let mut last = clock.wall(clock.now());
        let seconds = Duration::from_secs(set_by.unsigned_abs());
        let mut real = match set_by > 0 {
            true => last + seconds,
            false => last - seconds,
        };
        let mut found = Vec::new();
        let start = clock.now();
        for _ in 0..steps {
            clock.set_wall(real);
            clock.advance(step);
            real += step;
            let wall = clock.wall(clock.now());
            let went = wall.duration_since(last).expect("the wall goes back");
            assert!(went >= step * 9 / 10, "{went:?} in {step:?}");
            last = wall;
            let since = clock.now().since(start) + Duration::from_secs(1000);
            let uncorrected = began + since;
            found.push(match wall.duration_since(uncorrected) {
                Ok(ahead) => ahead.as_secs().cast_signed(),
                Err(behind) => -behind.duration().as_secs().cast_signed(),
            });
        }
        found
    }

    #[test]
    fn a_correction_is_gradual_and_the_time_never_goes_back() {
        let five = Duration::from_secs(5);
        assert_eq!(after_a_step(600, 3, five), [300, 600, 600], "ahead");
        assert_eq!(after_a_step(3600, 13, five)[11..], [3600, 3600], "an hour");
        assert_eq!(after_a_step(-1, 3, five), [0, -1, -1], "back");
        let minute = Duration::from_secs(60);
        assert_eq!(after_a_step(-60, 11, minute)[..3], [-6, -12, -18]);
        assert_eq!(after_a_step(-60, 11, minute)[9..], [-60, -60]);
        assert_eq!(after_a_step(0, 2, five), [0, 0]);
    }

    #[test]
    fn a_correction_does_not_change_earlier_moments() {
        let clock = Clock::manual();
        let before = clock.now();
        let wall = clock.wall(before);
        clock.advance(Duration::from_secs(10));
        clock.set_wall(wall + Duration::from_secs(3600));
        assert_eq!(clock.wall(before), wall);
    }
}
