//! What the simulated worlds are like: sizes, networks and faults.

use super::dice::Dice;
use super::faults::Action;
use super::upstream::{SECOND, Time};

/// The kind of world that seeds are played in. Chances are in a hundred.
#[derive(Clone)]
pub(super) struct Weather {
    /// What is special about it.
    pub(super) name: &'static str,
    pub(super) replicas: (u64, u64),
    /// Processes beyond the configured number, from the start.
    pub(super) surplus: usize,
    /// Requests a minute, lowest and highest.
    pub(super) minute: (u64, u64),
    /// Processes that start with a lower budget, as in the midst of a change.
    pub(super) lowered: u64,
    /// The budget of a minute is so many times that of a second.
    pub(super) ratio: u64,
    /// How many copies the engine may have.
    pub(super) copies: &'static [usize],
    /// How long a request may take, in seconds.
    pub(super) longest: (u64, u64),
    /// How long it mostly takes, in milliseconds, and how many take longer.
    pub(super) latency: (u64, u64),
    pub(super) slow_answers: u64,
    /// Requests that the upstream receives soon, others just before their answers: those
    /// of the first replica, and of all others.
    pub(super) prompt: [u64; 2],
    /// How long a message takes, in microseconds.
    pub(super) delay: (u64, u64),
    /// How long a process waits for a reply, in milliseconds.
    pub(super) timeout: (u64, u64),
    /// Permits that are not used at once, but within 1.5 s.
    pub(super) slow_writes: u64,
    /// Messages that are lost, repeated, or late by up to 200 s, and reports that are
    /// sent again when a cut ends.
    pub(super) lost: u64,
    pub(super) repeated: u64,
    pub(super) late: u64,
    pub(super) resent: u64,
    /// Whether all replicas have the same steady demand.
    pub(super) is_even: bool,
    /// Demand of all replicas together, in percent of the budget.
    pub(super) demand: u64,
    /// Seconds before the first fault.
    pub(super) calm: u64,
    /// Seconds between two faults.
    pub(super) fault_every: (u64, u64),
    /// The faults and how often each is chosen.
    pub(super) faults: &'static [(Action, u64)],
    /// How many seconds a split lasts.
    pub(super) split_lasts: (u64, u64),
    /// Faults at a time between two seconds.
    pub(super) script: Vec<(u64, u64, Action)>,
    /// How many seconds are played.
    pub(super) length: u64,
}

impl Weather {
    /// Nothing goes wrong.
    pub(super) fn fair() -> Self {
        Self {
            name: "fair",
            replicas: (2, 4),
            surplus: 0,
            minute: (24, 64),
            lowered: 0,
            ratio: 8,
            copies: &[0, 1, 2],
            longest: (1, 40),
            latency: (20, 400),
            slow_answers: 2,
            prompt: [50, 50],
            delay: (100, 4000),
            timeout: (20, 300),
            slow_writes: 5,
            lost: 0,
            repeated: 0,
            late: 0,
            resent: 0,
            is_even: false,
            demand: 200,
            calm: 100,
            fault_every: (3, 60),
            faults: &[],
            split_lasts: (20, 420),
            script: Vec::new(),
            length: 700,
        }
    }

    /// Everything may go wrong.
    pub(super) fn storm() -> Self {
        Self {
            name: "storm",
            lost: 2,
            repeated: 2,
            late: 1,
            resent: 50,
            faults: EVERYTHING,
            ..Self::fair()
        }
    }

    /// Everything may go wrong, but there is time to recover.
    pub(super) fn gusts() -> Self {
        Self {
            name: "gusts",
            fault_every: (10, 150),
            lowered: 15,
            length: 1000,
            ..Self::storm()
        }
    }

    /// All replicas have the same steady demand, which is more than the budget.
    pub(super) fn even() -> Self {
        Self {
            name: "even load",
            replicas: (2, 6),
            minute: (60, 240),
            is_even: true,
            demand: 130,
            slow_answers: 0,
            ..Self::fair()
        }
    }

    /// The mean time between two requests of a replica's clients.
    pub(super) fn demand_every(&self, dice: &mut Dice, minute: i64, replicas: i64) -> Time {
        let even = 60 * SECOND * 100 * replicas as u64 / (minute as u64 * self.demand);
        if self.is_even {
            return even;
        }
        match dice.below(4) {
            0 => even * 8,
            1 => even / replicas as u64,
            _ => even,
        }
    }
}

pub(super) const CUT: Action = Action::Cut {
    at_least: 0,
    at_most: 30,
};
pub(super) const LONG_CUT: Action = Action::Cut {
    at_least: 30,
    at_most: 300,
};

const EVERYTHING: &[(Action, u64)] = &[
    (Action::Flush, 3),
    (Action::Restart, 4),
    (Action::Failover, 4),
    (Action::SwapBack, 2),
    (Action::Split { back: false }, 4),
    (Action::Split { back: true }, 4),
    (Action::Down, 3),
    (Action::Stop, 2),
    (Action::Slow, 3),
    (Action::LoseCopy, 1),
    (Action::SetClock, 1),
    (CUT, 8),
    (LONG_CUT, 5),
    (Action::Pause, 8),
    (Action::Suspend, 4),
    (Action::Kill { knows: 50 }, 8),
    (Action::MoveDemand, 10),
    (Action::Burst, 6),
];
