//! The part of a budget that this process may use, if replicas share it. Pure: the time
//! since the boot of the machine is an argument.
//!
//! The allowance is the floor, which each replica has without asking anybody, and what
//! was granted beside it until a given moment. Floors add up to at most the budget, and
//! what is granted comes from what the floors leave (`shared`). Without a grant, each
//! replica has a static share of the budget.
//!
//! A grant ends by the clock that runs while the machine is suspended: otherwise it
//! would survive the suspension, while others are granted the same requests.

use std::num::NonZeroU32;
use std::time::Duration;

use super::rates::{Rate, Rates};

/// How old the permit of a request may be when it is sent. A process may be stopped
/// between the two for any time; what it held then may have been granted to others.
pub(crate) const PERMIT_AGE: Duration = Duration::from_secs(2);

/// How many seconds the busiest second is looked for in.
const SECONDS: usize = 10;

/// The replicas that share each budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replicas {
    /// The most that run at once.
    pub count: NonZeroU32,
    /// The part of the budget in percent that is divided among them and needs no grant.
    pub floor_percent: u8,
}

/// Numbers of requests a minute and a second; `None` for any number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) per_minute: Option<usize>,
    pub(crate) per_second: Option<usize>,
}

/// What a process was granted beside its floor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) per_minute: usize,
    pub(crate) per_second: usize,
    /// Until when, as the time since the boot of the machine.
    pub(crate) until: Duration,
}

/// What the windows of a budget count at one moment, and what else decides how much a
/// process asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BudgetUse {
    /// The rates of the key.
    pub(crate) total: Limits,
    /// The part that needs no grant.
    pub(crate) floor: Limits,
    /// The floors of all replicas.
    pub(crate) reserve: Limits,
    /// The requests of the last minute and second, those in flight included.
    pub(crate) counted: WindowCounts,
    /// The requests that wait for admission.
    pub(crate) waiting: usize,
    /// The requests taken in the busiest of the last ten seconds.
    pub(crate) busiest_second: usize,
    /// Which windows have denied a request within the last ten seconds.
    pub(crate) short: ShortWindows,
}

/// The windows in which too little is left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ShortWindows {
    pub(crate) minute: bool,
    pub(crate) second: bool,
}

/// How many requests count against a minute and against a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WindowCounts {
    pub(crate) minute: usize,
    pub(crate) second: usize,
}

/// The state of an allowance, for `/status` and `/metrics`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AllowanceSnapshot {
    pub(crate) total: Limits,
    pub(crate) floor: Limits,
    /// What is granted now; its `until` is how much longer it lasts.
    pub(crate) granted: Grant,
}

/// The allowance of this process for one budget.
#[derive(Debug)]
pub(super) struct Allowance {
    replicas: Replicas,
    grant: Grant,
    /// The seconds since boot in which requests were taken last, and how many.
    taken: [(u64, usize); SECONDS],
    /// When the windows of the minute and of the second denied a request last, as the
    /// time since the boot of the machine.
    denied: [Option<Duration>; 2],
}

impl Replicas {
    /// The part of a budget that each replica may use without a grant.
    pub(crate) fn floor(&self, total: Limits) -> Limits {
        let percent = usize::from(self.floor_percent);
        let count = self.count.get() as usize;
        total.map(|requests| requests * percent / 100 / count)
    }

    /// The floors of all replicas.
    fn reserve(&self, total: Limits) -> Limits {
        let count = self.count.get() as usize;
        self.floor(total).map(|requests| requests * count)
    }
}

impl Limits {
    #[cfg(test)]
    pub(crate) const fn of(per_minute: usize, per_second: usize) -> Self {
        Self {
            per_minute: Some(per_minute),
            per_second: Some(per_second),
        }
    }

    fn map(self, of: impl Fn(usize) -> usize) -> Self {
        Self {
            per_minute: self.per_minute.map(&of),
            per_second: self.per_second.map(&of),
        }
    }
}

impl From<Rates> for Limits {
    fn from(rates: Rates) -> Self {
        let limit = |rate: Rate| rate.limit().map(|limit| limit as usize);
        Self {
            per_minute: limit(rates.per_minute),
            per_second: limit(rates.per_second),
        }
    }
}

impl Grant {
    /// What is left of it.
    fn at(self, since_boot: Duration) -> Self {
        match since_boot < self.until {
            true => self,
            false => Self::default(),
        }
    }

    /// Whether it is more than another, of the minute or the second.
    pub(super) fn exceeds(self, other: Self) -> bool {
        self.per_minute > other.per_minute || self.per_second > other.per_second
    }
}

impl Allowance {
    /// The floor alone.
    pub(super) fn new(replicas: Replicas) -> Self {
        Self {
            replicas,
            grant: Grant::default(),
            taken: [(0, 0); SECONDS],
            denied: [None; 2],
        }
    }

    /// How many requests the windows may count: never more than all replicas together,
    /// also where the limits were lowered after the grant.
    pub(super) fn limits(&self, total: Limits, since_boot: Duration) -> Limits {
        let (floor, grant) = (self.replicas.floor(total), self.granted(since_boot));
        let plus = |floor: Option<usize>, more: usize, total: Option<usize>| {
            Some(floor?.saturating_add(more).min(total?))
        };
        Limits {
            per_minute: plus(floor.per_minute, grant.per_minute, total.per_minute),
            per_second: plus(floor.per_second, grant.per_second, total.per_second),
        }
    }

    /// The part of a number of requests that a replica has where all have the same.
    pub(super) fn even_part(&self, total: Option<usize>) -> Option<usize> {
        total.map(|total| total / self.replicas.count.get() as usize)
    }

    pub(super) fn granted(&self, since_boot: Duration) -> Grant {
        self.grant.at(since_boot)
    }

    pub(super) fn set_grant(&mut self, grant: Grant) {
        self.grant = grant;
    }

    /// Forgets a grant that is over. Returns whether there was one.
    pub(super) fn end_grant(&mut self, since_boot: impl FnOnce() -> Duration) -> bool {
        let is_over = self.grant != Grant::default() && since_boot() >= self.grant.until;
        if is_over {
            self.grant = Grant::default();
        }
        is_over
    }

    pub(super) fn take(&mut self, since_boot: Duration) {
        let second = since_boot.as_secs();
        let slot = &mut self.taken[usize::try_from(second).unwrap_or(0) % SECONDS];
        *slot = match slot.0 == second {
            true => (second, slot.1 + 1),
            false => (second, 1),
        };
    }

    /// The requests taken in the busiest of the last ten seconds.
    fn busiest_second(&self, since_boot: Duration) -> usize {
        let second = since_boot.as_secs();
        let recent = self.taken.iter();
        let recent = recent.filter(|(at, _)| second.saturating_sub(*at) < SECONDS as u64);
        recent.map(|(_, taken)| *taken).max().unwrap_or(0)
    }

    /// Notes that these windows have denied a request. Most of those that are denied do
    /// not wait, so this is how a process knows that it could use more.
    pub(super) fn deny(&mut self, short: ShortWindows, since_boot: Duration) {
        for (at, is_short) in [short.minute, short.second].into_iter().enumerate() {
            if is_short {
                self.denied[at] = Some(since_boot);
            }
        }
    }

    /// Which windows have denied a request within the last ten seconds.
    pub(super) fn short(&self, since_boot: Duration) -> ShortWindows {
        let recent = Duration::from_secs(SECONDS as u64);
        let [minute, second] = self
            .denied
            .map(|at| at.is_some_and(|at| since_boot.saturating_sub(at) < recent));
        ShortWindows { minute, second }
    }

    pub(super) fn in_use(
        &self,
        total: Limits,
        counted: WindowCounts,
        waiting: usize,
        since_boot: Duration,
    ) -> BudgetUse {
        BudgetUse {
            total,
            floor: self.replicas.floor(total),
            reserve: self.replicas.reserve(total),
            counted,
            waiting,
            busiest_second: self.busiest_second(since_boot),
            short: self.short(since_boot),
        }
    }

    pub(super) fn snapshot(&self, total: Limits, since_boot: Duration) -> AllowanceSnapshot {
        let granted = self.granted(since_boot);
        AllowanceSnapshot {
            total,
            floor: self.replicas.floor(total),
            granted: Grant {
                until: granted.until.saturating_sub(since_boot),
                ..granted
            },
        }
    }
}

/// The part of a number that belongs to `part` of `total`, rounded down; all of it if
/// the total is not limited.
pub(super) fn part(number: u64, part: Option<usize>, total: Option<usize>) -> u64 {
    match (part, total) {
        (Some(part), Some(total)) if part < total => {
            let scaled = u128::from(number) * part as u128 / total as u128;
            u64::try_from(scaled).unwrap_or(number)
        }
        _ => number,
    }
}

#[cfg(test)]
mod tests;
