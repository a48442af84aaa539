//! The clock. The entry points of the process read it once per event and pass the
//! [`Moment`] on: every rule takes `now` as an argument.
//!
//! Time of day, which HTTP dates need, is derived from the same moments
//! ([`Clock::wall`]). It follows the system's clock ([`Clock::follow_system_clock`]):
//! forward at once, so that no response seems younger than it is; back by running slower,
//! so that it never goes back.
//! Only dates by a server's own clock, such as the reset of a rate limit, are
//! compared with the system's clock itself ([`Clock::system_time`]).

use std::ops::Add;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwap;
use governor::nanos::Nanos;
use rustix::time::{ClockId, clock_gettime};

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

/// The moment at which every clock begins: ten years, so that "a month ago" exists from
/// the start, when responses were received that an earlier run has stored.
const START: u64 = 3650 * 86_400_000_000_000;

/// A source of [`Moment`]s: the system's clock, or one that a test moves.
#[derive(Clone, Debug)]
pub struct Clock {
    source: Source,
    wall: Arc<ArcSwap<Correction>>,
}

#[derive(Clone, Debug)]
enum Source {
    /// The system's monotonic clock; its value at the start, in nanoseconds.
    Machine(u64),
    Manual(Arc<AtomicU64>),
}

/// How many nanoseconds the time of day is ahead of the moment: `from` at `since`, then
/// less by a tenth of what has passed, until it is `to`. While it is ahead of the system's
/// clock, responses seem older than they are, which only causes more requests.
#[derive(Debug)]
struct Correction {
    from: u64,
    since: Moment,
    to: u64,
}

impl Correction {
    fn at(&self, moment: Moment) -> u64 {
        let passed = moment.0.saturating_sub(self.since.0);
        self.to.max(self.from.saturating_sub(passed / 10))
    }

    /// The lead of a time of day over a moment.
    fn lead(time: SystemTime, moment: Moment) -> u64 {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        nanos(since).saturating_sub(moment.0)
    }
}

impl Clock {
    /// The system's monotonic clock.
    #[expect(
        clippy::disallowed_methods,
        reason = "only this module reads the system's clock"
    )]
    pub fn machine() -> Self {
        let (since, start) = (Moment(START), monotonic());
        let lead = Correction::lead(SystemTime::now(), since);
        let (from, to) = (lead, lead);
        let correction = Correction { from, since, to };
        Self {
            source: Source::Machine(start),
            wall: Arc::new(ArcSwap::from_pointee(correction)),
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
        UNIX_EPOCH + Duration::from_nanos(moment.0.saturating_add(self.wall.load().at(moment)))
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
            Source::Manual(_) => {
                let lead = self.wall.load().to;
                UNIX_EPOCH + Duration::from_nanos(self.now().0.saturating_add(lead))
            }
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

    /// Corrects [`wall`](Self::wall) by the system's clock. To be called periodically. A
    /// manual clock follows [`set_wall`](Self::set_wall) only.
    #[expect(
        clippy::disallowed_methods,
        reason = "only this module reads the system's clock"
    )]
    pub fn follow_system_clock(&self) {
        if let Source::Machine(_) = self.source {
            self.set_wall(SystemTime::now());
        }
    }

    /// Corrects [`wall`](Self::wall) by this time.
    pub fn set_wall(&self, time: SystemTime) {
        let since = self.now();
        let from = self.wall.load().at(since);
        let to = Correction::lead(time, since);
        self.wall.store(Arc::new(Correction { from, since, to }));
    }

    /// Moves a manual clock forward. Has no effect on the system's clock.
    pub fn advance(&self, by: Duration) {
        if let Source::Manual(elapsed) = &self.source {
            elapsed.fetch_add(nanos(by), Ordering::AcqRel);
        }
    }
}

impl governor::clock::Clock for Clock {
    type Instant = Nanos;

    fn now(&self) -> Nanos {
        Self::now(self).0.into()
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
        let mut last = began;
        let seconds = Duration::from_secs(set_by.unsigned_abs());
        let mut real = match set_by > 0 {
            true => last + seconds,
            false => last - seconds,
        };
        let mut found = Vec::new();
        for number in 1..=steps {
            clock.set_wall(real);
            assert_eq!(clock.system_time(), real);
            clock.advance(step);
            real += step;
            let wall = clock.wall(clock.now());
            let went = wall.duration_since(last).expect("the wall goes back");
            assert!(went >= step * 9 / 10, "{went:?} in {step:?}");
            last = wall;
            let uncorrected = began + step * number as u32;
            found.push(match wall.duration_since(uncorrected) {
                Ok(ahead) => ahead.as_secs().cast_signed(),
                Err(behind) => -behind.duration().as_secs().cast_signed(),
            });
        }
        found
    }

    #[test]
    fn the_time_of_day_is_corrected_and_never_goes_back() {
        let five = Duration::from_secs(5);
        assert_eq!(after_a_step(3600, 2, five), [3600, 3600], "ahead");
        assert_eq!(after_a_step(-1, 3, five), [0, -1, -1], "back");
        let minute = Duration::from_secs(60);
        assert_eq!(after_a_step(-60, 11, minute)[..3], [-6, -12, -18]);
        assert_eq!(after_a_step(-60, 11, minute)[9..], [-60, -60]);
        assert_eq!(after_a_step(0, 2, five), [0, 0]);
    }
}
