//! The time of day: what it was when the clock was made, plus the monotonic time
//! since, plus the corrections of the system's clock since.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwap;

use super::{Moment, START};

#[derive(Debug)]
pub(super) struct Wall {
    began: SystemTime,
    slew: ArcSwap<Slew>,
}

/// A gradual change of the correction, in nanoseconds: from `from` at `since`, to
/// `to`.
#[derive(Clone, Copy, Debug, Default)]
struct Slew {
    from: i128,
    since: Moment,
    to: i128,
}

/// How fast a time of day that is behind catches up: an hour per minute. While it
/// is behind, responses seem younger than they are.
const CATCH_UP_RATE: i128 = 60;
/// A time of day that is ahead runs slower by one part in so many. While it is
/// ahead, responses seem older than they are, which only causes more requests.
const SLOW_DOWN_DIVISOR: i128 = 10;

impl Slew {
    fn at(&self, moment: Moment) -> i128 {
        let passed = i128::from(moment.0.saturating_sub(self.since.0));
        match self.to >= self.from {
            true => self.to.min(self.from + passed * CATCH_UP_RATE),
            false => self.to.max(self.from - passed / SLOW_DOWN_DIVISOR),
        }
    }
}

impl Wall {
    pub(super) fn new(began: SystemTime) -> Arc<Self> {
        Arc::new(Self {
            began,
            slew: ArcSwap::default(),
        })
    }

    /// The time of day at a moment.
    pub(super) fn at(&self, moment: Moment) -> SystemTime {
        self.time(moment, self.slew.load().at(moment))
    }

    /// The time of day at a moment, with the whole correction.
    pub(super) fn corrected(&self, moment: Moment) -> SystemTime {
        self.time(moment, self.slew.load().to)
    }

    /// The time at a moment with this correction; `began` where the system cannot
    /// represent it.
    fn time(&self, moment: Moment, correction: i128) -> SystemTime {
        let time = i128::from(moment.0.saturating_sub(START)) + correction;
        let distance = u64::try_from(time.unsigned_abs()).unwrap_or(u64::MAX);
        let distance = Duration::from_nanos(distance);
        let time = match time >= 0 {
            true => self.began.checked_add(distance),
            false => self.began.checked_sub(distance),
        };
        time.unwrap_or(self.began)
    }

    /// Begins a correction, since the time of day is `real` at a moment.
    pub(super) fn correct_to(&self, moment: Moment, real: SystemTime) {
        let of = |duration: Duration| i128::try_from(duration.as_nanos()).unwrap_or(i128::MAX / 2);
        let since_began = match real.duration_since(self.began) {
            Ok(after) => of(after),
            Err(before) => -of(before.duration()),
        };
        let to = since_began - i128::from(moment.0.saturating_sub(START));
        let from = self.slew.load().at(moment);
        self.slew.store(Arc::new(Slew {
            from,
            since: moment,
            to,
        }));
    }
}
