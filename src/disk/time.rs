//! The time on disk: milliseconds since 1970 that never go back, over restarts.
//!
//! It is the time of day, or more where the time of day was set back since the last
//! run: the time that was reached is kept in a file. So a response is never fresher
//! after a restart than it was before. While the time of day is behind, the time
//! between the runs is not known; what depends on the time alone (modes `override`
//! and `respect`) is absent then.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::clock::{Clock, Moment};

/// By how much the time of day may be behind without being set back: the file of the
/// time is written every few seconds, and clocks are adjusted.
const TOLERANCE: Duration = Duration::from_secs(60);

/// The clock of what is on disk.
#[derive(Clone, Debug)]
pub(super) struct DiskClock {
    clock: Clock,
    /// By how much it is ahead of the time of day.
    ahead: Duration,
    /// What was received up to then is of unknown age, where its freshness goes by
    /// time.
    unknown_until: u64,
}

/// A moment on the disk's clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct DiskTime {
    /// Now, on the disk's clock.
    pub(super) millis: u64,
    moment: Moment,
    wall: SystemTime,
    unknown_until: u64,
}

impl DiskClock {
    /// The clock after the last run had reached a time.
    pub(super) fn after(reached: u64, clock: Clock) -> Self {
        let now = millis(clock.wall(clock.now()));
        let behind = Duration::from_millis(reached.saturating_sub(now));
        // The last run may have received something after it had written its time.
        let tolerated = u64::try_from(TOLERANCE.as_millis()).unwrap_or(u64::MAX);
        let (ahead, unknown_until) = match behind > TOLERANCE {
            true => (behind + TOLERANCE, reached.saturating_add(tolerated)),
            false => (behind, 0),
        };
        Self {
            clock,
            ahead,
            unknown_until,
        }
    }

    /// Whether the time of day was set back since the last run.
    pub(super) const fn was_set_back(&self) -> bool {
        self.unknown_until > 0
    }

    pub(super) fn now(&self) -> DiskTime {
        let moment = self.clock.now();
        let wall = self.clock.wall(moment);
        DiskTime {
            millis: millis(wall + self.ahead),
            moment,
            wall,
            unknown_until: self.unknown_until,
        }
    }
}

impl DiskTime {
    /// The time of day.
    pub(super) const fn wall(self) -> SystemTime {
        self.wall
    }

    /// The time of a moment in the past.
    pub(super) fn of(self, moment: Moment) -> u64 {
        let ago = u64::try_from(self.moment.since(moment).as_millis()).unwrap_or(u64::MAX);
        self.millis.saturating_sub(ago)
    }

    /// The moment of a time; `None` where that is in the future.
    pub(super) fn moment_of(self, time: u64) -> Option<Moment> {
        let ago = self.millis.checked_sub(time)?;
        Some(self.moment.before(Duration::from_millis(ago)))
    }

    /// The time of a time of day in the past.
    pub(super) fn of_wall(self, wall: SystemTime) -> u64 {
        let ago = self.wall.duration_since(wall).unwrap_or_default();
        let ago = u64::try_from(ago.as_millis()).unwrap_or(u64::MAX);
        self.millis.saturating_sub(ago)
    }

    /// The time of day of a time; `None` where that is in the future.
    pub(super) fn wall_of(self, time: u64) -> Option<SystemTime> {
        let ago = Duration::from_millis(self.millis.checked_sub(time)?);
        self.wall.checked_sub(ago)
    }

    /// Whether the age of what was received at a time is known.
    pub(super) const fn knows_age_of(self, time: u64) -> bool {
        time > self.unknown_until
    }
}

fn millis(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn ages_survive_a_restart() {
        let clock = Clock::manual();
        let now = DiskClock::after(0, clock.clone()).now();
        let received = now.of(clock.now());
        clock.advance(HOUR);
        let later = DiskClock::after(now.millis, clock.clone());
        assert!(!later.was_set_back());
        let moment = later.now().moment_of(received).unwrap();
        assert_eq!(clock.now().since(moment).as_secs(), 3600);
        let wall = later.now().wall_of(received).unwrap();
        assert_eq!(later.now().of_wall(wall), received);
        assert!(later.now().knows_age_of(received));
    }

    #[test]
    fn an_age_of_weeks_is_a_moment() {
        let clock = Clock::manual();
        let now = DiskClock::after(0, clock.clone()).now();
        let weeks = HOUR * 24 * 40;
        let received = now.millis - u64::try_from(weeks.as_millis()).unwrap();
        let moment = now.moment_of(received).unwrap();
        assert_eq!(clock.now().since(moment), weeks);
    }

    #[test]
    fn nothing_gets_younger_where_the_time_of_day_is_set_back() {
        let clock = Clock::manual();
        let wall = clock.wall(clock.now());
        // The run before had been an hour ahead, and received something then.
        let reached = millis(wall + HOUR);
        let disk = DiskClock::after(reached, clock.clone());
        assert!(disk.was_set_back());
        let now = disk.now();
        assert!(now.millis >= reached);
        assert!(!now.knows_age_of(reached - 1));
        // Received after the time was last written.
        assert!(!now.knows_age_of(reached + 5000));
        assert!(now.millis >= reached + 5000);
        let age = |time| clock.now().since(disk.now().moment_of(time).unwrap());
        assert!(age(reached - 5000) >= Duration::from_secs(5));
        clock.advance(HOUR);
        assert!(age(reached - 5000) >= HOUR);
        assert!(disk.now().knows_age_of(disk.now().millis));
    }

    #[test]
    fn what_is_from_the_future_has_no_age() {
        let now = DiskClock::after(0, Clock::manual()).now();
        assert_eq!(now.moment_of(now.millis + 1), None);
        assert_eq!(now.wall_of(now.millis + 1), None);
    }
}
