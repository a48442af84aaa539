//! One replica's process: the machine, its windows, its clocks and its requests.

use std::collections::VecDeque;
use std::time::Duration;

use super::upstream::{SECOND, Time};
use super::window::Budget;
use super::world::Event;
use crate::clock::Moment;
use crate::shared::allowance::rules::{Rule, has};
use crate::shared::allowance::{Demand, Machine, RequestCounts, Settings};

/// Clients do not wait in a longer queue.
const MOST_WAITING: usize = 40;

/// A machine's clocks. They begin anywhere, and run a little fast or slow.
#[derive(Clone, Copy)]
pub(super) struct Clocks {
    pub(super) offset: u64,
    /// Parts per million too fast.
    pub(super) rate: i64,
    /// How long the machine has been suspended.
    pub(super) suspended: Time,
}

impl Clocks {
    /// A clock that runs while the machine is suspended.
    pub(super) fn since_boot(&self, now: Time) -> Duration {
        let own = now as i64 * 1000 + now as i64 * self.rate / 1000;
        Duration::from_nanos(self.offset + own as u64)
    }

    /// A clock that stands still meanwhile.
    pub(super) fn running(&self, now: Time) -> Moment {
        let boot = self.since_boot(now).as_nanos() as u64;
        Moment::from_nanos(boot - self.suspended * 1000)
    }
}

/// What is left of a process when it is killed.
pub(super) struct Remains {
    pub(super) clocks: Clocks,
    pub(super) budget: Budget,
}

pub(super) struct Process {
    /// The number of this start among all starts.
    pub(super) start: usize,
    pub(super) machine: Machine,
    pub(super) budget: Budget,
    pub(super) clocks: Clocks,
    /// The server that it reports to.
    pub(super) node: usize,
    /// It runs again at this time.
    pub(super) paused_until: Time,
    /// Its reports, or the replies to it, are lost before this time.
    pub(super) cut_from: Time,
    pub(super) cut_to: Time,
    /// What has happened while it was paused.
    pub(super) held: Vec<Event>,
    pub(super) waiting: usize,
    /// The mean time between two requests of clients.
    pub(super) every: Time,
    /// When it tries next to take a request.
    pub(super) next_try: Time,
    pub(super) next_round: Time,
    pub(super) last_round: Time,
    /// When requests were taken in the last ten seconds.
    taken: VecDeque<Time>,
    /// When its windows of the minute and of the second denied a request last.
    denied: [Option<Time>; 2],
}

impl Process {
    pub(super) fn new(start: usize, settings: Settings, clocks: Clocks, budget: Budget) -> Self {
        Self {
            start,
            machine: Machine::new(settings),
            budget,
            clocks,
            node: 0,
            paused_until: 0,
            cut_from: 0,
            cut_to: 0,
            held: Vec::new(),
            waiting: 0,
            every: SECOND,
            next_try: 0,
            next_round: 0,
            last_round: 0,
            taken: VecDeque::new(),
            denied: [None; 2],
        }
    }

    /// The clock of leases, of Q and of a permit's age.
    pub(super) fn now(&self, now: Time) -> Duration {
        match has(Rule::ClockRunsInSuspend) {
            true => self.clocks.since_boot(now),
            false => Duration::from_nanos(self.clocks.running(now).nanos()),
        }
    }

    /// The clock of the windows.
    pub(super) fn window_now(&self, now: Time) -> Moment {
        self.clocks.running(now)
    }

    pub(super) fn wait_in_queue(&mut self, requests: usize) {
        self.waiting = (self.waiting + requests).min(MOST_WAITING);
    }

    /// Takes a request for a client that waits.
    pub(super) fn take(&mut self, now: Time) -> Result<(), Duration> {
        let limits = self.machine.limits(self.now(now));
        if let Err(denied) = self.budget.take(self.window_now(now), limits) {
            for (at, is_short) in denied.short.into_iter().enumerate() {
                if is_short {
                    self.denied[at] = Some(now);
                }
            }
            return Err(denied.wait);
        }
        self.waiting -= 1;
        self.forget_taken(now);
        self.taken.push_back(now);
        Ok(())
    }

    fn forget_taken(&mut self, now: Time) {
        while self
            .taken
            .front()
            .is_some_and(|first| *first + 10 * SECOND <= now)
        {
            self.taken.pop_front();
        }
    }

    pub(super) fn demand(&mut self, now: Time) -> Demand {
        self.forget_taken(now);
        let mut busiest = 0;
        for (at, first) in self.taken.iter().enumerate() {
            let until = self.taken.partition_point(|taken| *taken < *first + SECOND);
            busiest = busiest.max(until - at);
        }
        let is_recent = |denied: Time| now < denied + 10 * SECOND;
        let [is_minute_short, is_second_short] = self.denied.map(|at| at.is_some_and(is_recent));
        Demand {
            counted: self.budget.counted(self.window_now(now)),
            waiting: self.waiting,
            busiest_second: busiest,
            is_minute_short,
            is_second_short,
        }
    }

    pub(super) fn limits(&self, now: Time) -> RequestCounts {
        self.machine.limits(self.now(now))
    }

    pub(super) fn remains(self) -> Remains {
        Remains {
            clocks: self.clocks,
            budget: self.budget,
        }
    }
}
