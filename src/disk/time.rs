//! The time on disk: milliseconds since 1970 that never go back, over restarts.
//!
//! It is the time of day, or more where the time of day was set back since the last
//! run: the time that was reached is kept in a file. So a response is never fresher
//! after a restart than it was before. Where the time of day was set back, or the file
//! cannot be read, the time between the runs is not known; what was stored before and
//! depends on the time alone (modes `override` and `respect`) is absent from then on.

use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::files::replace;
use crate::clock::{Clock, Moment};
use crate::portable::bytes::{Reader, put_record, take_record};

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

/// What the clock of a run had reached, in milliseconds, as its file has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reached {
    /// The time of day.
    wall: u64,
    /// By how much the disk's clock was ahead of it.
    ahead: u64,
    /// See [`DiskClock`].
    unknown_until: u64,
}

impl Reached {
    /// Reads the file; `None` where it is missing, torn or damaged.
    pub(super) fn read(path: &Path) -> Option<Self> {
        let bytes = std::fs::read(path).ok()?;
        let mut content = Reader(take_record(&mut Reader(&bytes))?);
        let (wall, ahead, unknown_until) = (content.u64()?, content.u64()?, content.u64()?);
        content.is_at_end().then_some(Self {
            wall,
            ahead,
            unknown_until,
        })
    }

    /// Writes the file.
    pub(super) fn write(self, path: &Path, durable: bool) -> io::Result<()> {
        let numbers = [self.wall, self.ahead, self.unknown_until];
        let mut bytes = Vec::new();
        put_record(&mut bytes, &numbers.map(u64::to_le_bytes).concat());
        replace(path, &bytes, durable).map(drop)
    }
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
    /// The clock after the last run, which had reached a time, if that is known, and has
    /// left entries or none. Also returns why their age is unknown, if it is since now.
    pub(super) fn after(
        reached: Option<Reached>,
        has_entries: bool,
        clock: Clock,
    ) -> (Self, Option<&'static str>) {
        let now = millis(clock.wall(clock.now()));
        let tolerated = u64::try_from(TOLERANCE.as_millis()).unwrap_or(u64::MAX);
        let (ahead, unknown_until, why) = match reached {
            None if has_entries => (0, now, Some("the time of the last run cannot be read")),
            None => (0, 0, None),
            Some(last) => {
                let behind = last.wall.saturating_sub(now);
                let ahead = last.ahead.saturating_add(behind);
                match behind > tolerated {
                    // The last run may have received something after it had written its
                    // time.
                    true => {
                        let ahead = ahead.saturating_add(tolerated);
                        let why = "the time of day is before that of the last run";
                        (ahead, now.saturating_add(ahead), Some(why))
                    }
                    false => (ahead, last.unknown_until, None),
                }
            }
        };
        let ahead = Duration::from_millis(ahead);
        let own = Self {
            clock,
            ahead,
            unknown_until,
        };
        (own, why)
    }

    /// What it has reached, for the next run.
    pub(super) fn reached(&self) -> Reached {
        let now = self.now();
        Reached {
            wall: millis(now.wall),
            ahead: u64::try_from(self.ahead.as_millis()).unwrap_or(u64::MAX),
            unknown_until: self.unknown_until,
        }
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
        let first = first_run(&clock);
        let received = first.now().of(clock.now());
        let reached = first.reached();
        clock.advance(HOUR);
        let (later, why) = DiskClock::after(Some(reached), true, clock.clone());
        assert_eq!(why, None);
        let moment = later.now().moment_of(received).unwrap();
        assert_eq!(clock.now().since(moment).as_secs(), 3600);
        let wall = later.now().wall_of(received).unwrap();
        assert_eq!(later.now().of_wall(wall), received);
        assert!(later.now().knows_age_of(received));
    }

    #[test]
    fn an_age_of_weeks_is_a_moment() {
        let clock = Clock::manual();
        let now = first_run(&clock).now();
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
        let last = Reached {
            wall: reached,
            ahead: 0,
            unknown_until: 0,
        };
        let (disk, why) = DiskClock::after(Some(last), true, clock.clone());
        assert_eq!(why, Some("the time of day is before that of the last run"));
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
        let stored = disk.now().millis;
        assert!(disk.now().knows_age_of(stored));
        // The next runs know the age of what this one has stored, and of nothing older.
        let mut disk = disk;
        for run in 1..=3 {
            let before = disk.now().millis;
            clock.advance(HOUR);
            let (next, why) = DiskClock::after(Some(disk.reached()), true, clock.clone());
            assert_eq!(why, None, "run {run}");
            let now = next.now();
            assert_eq!(now.millis - before, 3_600_000);
            assert!(now.knows_age_of(stored), "run {run}");
            assert!(!now.knows_age_of(reached + 5000), "run {run}");
            disk = next;
        }
    }

    #[test]
    fn without_the_time_of_the_last_run_no_age_is_known() {
        let clock = Clock::manual();
        let stored = first_run(&clock).now().millis;
        let (_, why) = DiskClock::after(None, false, clock.clone());
        assert_eq!(why, None, "nothing was stored");
        let (disk, why) = DiskClock::after(None, true, clock.clone());
        assert_eq!(why, Some("the time of the last run cannot be read"));
        assert!(!disk.now().knows_age_of(stored));
        clock.advance(Duration::from_secs(1));
        assert!(disk.now().knows_age_of(disk.now().millis));
        let (next, why) = DiskClock::after(Some(disk.reached()), true, clock);
        assert!(why.is_none() && !next.now().knows_age_of(stored));
    }

    #[test]
    fn the_file_is_read_whole_or_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("time");
        assert_eq!(Reached::read(&path), None);
        let reached = first_run(&Clock::manual()).reached();
        for durable in [false, true] {
            reached.write(&path, durable).unwrap();
            assert_eq!(Reached::read(&path), Some(reached));
        }
        let whole = std::fs::read(&path).unwrap();
        for len in 0..whole.len() {
            std::fs::write(&path, &whole[..len]).unwrap();
            assert_eq!(Reached::read(&path), None);
        }
    }

    fn first_run(clock: &Clock) -> DiskClock {
        DiskClock::after(None, false, clock.clone()).0
    }

    #[test]
    fn what_is_from_the_future_has_no_age() {
        let now = first_run(&Clock::manual()).now();
        assert_eq!(now.moment_of(now.millis + 1), None);
        assert_eq!(now.wall_of(now.millis + 1), None);
    }
}
