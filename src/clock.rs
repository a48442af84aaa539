//! Where time comes from. Every rule takes `now` as an argument; the doors ask
//! a [`Clock`] once for an event and hand the [`Moment`] on.
//!
//! The wall's time, which HTTP dates are compared with, is made of the same
//! moments. The machine's wall clock may be set at any time; [`Clock::follow`]
//! takes that up gradually, so that [`Clock::wall`] never goes back and ages never
//! shrink. What a server says of its own clock (when a rate limit is reset) is
//! compared with the machine's wall clock as it is ([`Clock::wall_as_set`]): a
//! minute must not look like an hour while a correction is being taken up.
//!
//! Deliberately absent: the machine's wall clock in any other decision.

use std::ops::Add;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
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
    wall: Arc<Wall>,
}

/// The wall's time: what it was when the clock was made, the time since by the
/// monotonic clock, and what the wall clock has been set by since.
#[derive(Debug)]
struct Wall {
    began: SystemTime,
    slew: ArcSwap<Slew>,
}

/// How a correction of the wall's time is taken up, in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Slew {
    /// The correction until `since`,
    from: i128,
    /// when it begins to change,
    since: Moment,
    /// to this.
    to: i128,
}

/// How fast the wall's time catches up where it is behind: an hour in a minute.
/// While it is behind, a date soon to come seems far away and answers seem
/// younger than they are.
const CATCH_UP_RATE: i128 = 60;
/// How much slower it goes where it is ahead: by one part in so many. Ages go on
/// growing then; and while it is ahead, answers seem older than they are, which
/// costs requests and nothing else.
const SLOW_DOWN_DIVISOR: i128 = 10;

impl Slew {
    /// The correction at a moment.
    fn at(&self, moment: Moment) -> i128 {
        let passed = i128::from(moment.0.saturating_sub(self.since.0));
        match self.to >= self.from {
            true => self.to.min(self.from + passed * CATCH_UP_RATE),
            false => self.to.max(self.from - passed / SLOW_DOWN_DIVISOR),
        }
    }
}

impl Wall {
    fn new(began: SystemTime) -> Arc<Self> {
        Arc::new(Self {
            began,
            slew: ArcSwap::default(),
        })
    }

    fn at(&self, moment: Moment) -> SystemTime {
        self.corrected(moment, self.slew.load().at(moment))
    }

    fn corrected(&self, moment: Moment, by: i128) -> SystemTime {
        let time = i128::from(moment.0.saturating_sub(DAY)) + by;
        let distance = u64::try_from(time.unsigned_abs()).unwrap_or(u64::MAX);
        let distance = Duration::from_nanos(distance);
        let time = match time >= 0 {
            true => self.began.checked_add(distance),
            false => self.began.checked_sub(distance),
        };
        // Out of what the system can tell: as if nothing had been set.
        time.unwrap_or(self.began)
    }

    /// The wall clock says `real` at a moment.
    fn correct_to(&self, moment: Moment, real: SystemTime) {
        let of = |duration: Duration| i128::try_from(duration.as_nanos()).unwrap_or(i128::MAX / 2);
        let since_began = match real.duration_since(self.began) {
            Ok(after) => of(after),
            Err(before) => -of(before.duration()),
        };
        let to = since_began - i128::from(moment.0.saturating_sub(DAY));
        let from = self.slew.load().at(moment);
        self.slew.store(Arc::new(Slew {
            from,
            since: moment,
            to,
        }));
    }
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
            wall: Wall::new(SystemTime::now()),
        }
    }

    /// A clock that stands still until [`advance`](Self::advance) moves it.
    pub fn manual() -> Self {
        Self {
            source: Source::Manual(Arc::default()),
            ..Self::machine()
        }
    }

    /// The wall's time at a moment, for what HTTP dates say. Of two moments the
    /// later one never has the earlier time.
    pub fn wall(&self, moment: Moment) -> SystemTime {
        self.wall.at(moment)
    }

    /// The machine's wall clock as it is, which may go back; for a date of a
    /// server's that says how long something lasts from now on.
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place that reads the machine's clock"
    )]
    pub fn system_time(&self) -> SystemTime {
        match &self.source {
            Source::Machine(_) => SystemTime::now(),
            Source::Manual(_) => {
                let to = self.wall.slew.load().to;
                self.wall.corrected(self.now(), to)
            }
        }
    }

    /// Takes up what the machine's wall clock says, gradually. To be called now
    /// and then; a manual clock's wall is what [`set_wall`](Self::set_wall) says.
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place that reads the machine's clock"
    )]
    pub fn follow_system_clock(&self) {
        match &self.source {
            Source::Machine(_) => self.wall.correct_to(self.now(), SystemTime::now()),
            Source::Manual(_) => {}
        }
    }

    /// Takes up that the wall clock says this now, as [`follow`](Self::follow)
    /// does.
    pub fn set_wall(&self, real: SystemTime) {
        self.wall.correct_to(self.now(), real);
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

    /// Where the wall stands at each step after it was set by so many seconds,
    /// less the time since; and asserts that it never goes back.
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
    fn a_wall_that_is_set_is_followed_and_never_goes_back() {
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
    fn a_correction_of_a_moment_ago_changes_nothing_before_it() {
        let clock = Clock::manual();
        let before = clock.now();
        let wall = clock.wall(before);
        clock.advance(Duration::from_secs(10));
        clock.set_wall(wall + Duration::from_secs(3600));
        assert_eq!(clock.wall(before), wall);
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
