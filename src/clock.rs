//! Where time comes from. Every rule takes `now` as an argument; the doors ask
//! a [`Clock`] once for an event and hand the [`Moment`] on.
//!
//! Deliberately absent: wall-clock time in decisions. Only logs and HTTP dates
//! use it, and those come from their libraries.

use std::ops::Add;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use governor::nanos::Nanos;

/// A point on the process's monotonic clock, in nanoseconds since the clock
/// was made. It never goes back, and holds 584 years.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(u64);

impl Moment {
    /// The moment `nanos` nanoseconds after the clock was made.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the clock was made.
    pub const fn nanos(self) -> u64 {
        self.0
    }

    /// Whole milliseconds since the clock was made.
    pub const fn millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// How long ago `earlier` was; zero where it lies ahead.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// This moment `ago` earlier, at the least the clock's beginning.
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
        // The trait wants the moment itself where the result would underflow.
        Self(self.0.checked_sub(duration.as_u64()).unwrap_or(self.0))
    }
}

/// Where every clock begins: a day in, so that "an hour ago" can be said from
/// the start.
const DAY: u64 = 86_400_000_000_000;

/// A source of [`Moment`]s: the machine's, or one that a test moves by hand.
#[derive(Clone, Debug)]
pub struct Clock {
    source: Source,
    /// What the wall said when this clock was made. From then on the monotonic
    /// clock counts, so that ages never jump.
    wall: SystemTime,
}

#[derive(Clone, Debug)]
enum Source {
    Machine(Instant),
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// The machine's monotonic clock.
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place that reads the machine's clock"
    )]
    pub fn machine() -> Self {
        Self {
            source: Source::Machine(Instant::now()),
            wall: SystemTime::now(),
        }
    }

    /// A clock that stands still until [`advance`](Self::advance) moves it.
    pub fn manual() -> Self {
        Self {
            source: Source::Manual(Arc::default()),
            ..Self::machine()
        }
    }

    /// The wall's time at a moment, for what HTTP dates say.
    pub fn wall(&self, moment: Moment) -> SystemTime {
        self.wall + Duration::from_nanos(moment.0.saturating_sub(DAY))
    }

    /// The present moment.
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place that reads the machine's clock"
    )]
    pub fn now(&self) -> Moment {
        match &self.source {
            Source::Machine(start) => {
                Moment(DAY + nanos(Instant::now().saturating_duration_since(*start)))
            }
            Source::Manual(elapsed) => Moment(DAY + elapsed.load(Ordering::Acquire)),
        }
    }

    /// Moves a manual clock forward; the machine's takes no orders.
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

fn nanos(duration: Duration) -> u64 {
    let seconds = duration.as_secs().saturating_mul(1_000_000_000);
    seconds.saturating_add(u64::from(duration.subsec_nanos()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_moves_only_when_told() {
        let clock = Clock::manual();
        let before = clock.now();
        assert_eq!(clock.now(), before);
        clock.advance(Duration::from_millis(1500));
        assert_eq!(clock.now().since(before), Duration::from_millis(1500));
        assert_eq!(before.since(clock.now()), Duration::ZERO);
    }

    #[test]
    fn the_machines_clock_does_not_go_back() {
        let clock = Clock::machine();
        let first = clock.now();
        clock.advance(Duration::from_secs(100));
        let second = clock.now();
        assert!(second >= first);
        assert!(second.since(first) < Duration::from_secs(100));
    }
}
