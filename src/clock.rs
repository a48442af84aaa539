//! The clock. The entry points of the process read it once per event and pass the
//! [`Moment`] on: every rule takes `now` as an argument.
//!
//! Time of day, which HTTP dates need, is derived from the same moments
//! ([`Clock::wall`]). It follows the system's clock ([`Clock::follow_system_clock`]); how old
//! an answer in memory is does not depend on that.

use std::ops::Add;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

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
    /// How many nanoseconds since 1970 the time of day is ahead of the moment.
    lead: Arc<AtomicU64>,
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
        let clock = Self {
            source: Source::Machine(monotonic()),
            lead: Arc::default(),
        };
        clock.set_wall(SystemTime::now());
        clock
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

    /// The time of day at a moment.
    pub fn wall(&self, moment: Moment) -> SystemTime {
        let lead = self.lead.load(Ordering::Relaxed);
        UNIX_EPOCH + Duration::from_nanos(moment.0.saturating_add(lead))
    }

    /// The time of day.
    pub fn wall_now(&self) -> SystemTime {
        self.wall(self.now())
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
        let since = nanos(time.duration_since(UNIX_EPOCH).unwrap_or_default());
        let lead = since.saturating_sub(self.now().0);
        self.lead.store(lead, Ordering::Relaxed);
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

    #[test]
    fn the_time_of_day_follows_the_systems_clock_both_ways() {
        let (clock, hour) = (Clock::manual(), Duration::from_secs(3600));
        let (now, began) = (clock.now(), clock.wall_now());
        for time in [began + hour, began - hour] {
            clock.set_wall(time);
            assert_eq!(clock.wall_now(), time);
            assert_eq!(clock.wall(now + hour), time + hour);
        }
    }
}
