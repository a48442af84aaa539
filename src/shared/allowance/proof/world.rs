//! The simulated world: processes, messages, servers of the engine, and the upstream.
//! Everything happens in the order of true time, and follows from the seed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;
use std::time::Duration;

use super::dice::Dice;
use super::engines::Engines;
use super::faults::Action;
use super::process::{Clocks, Process, Remains};
use super::upstream::{SECOND, Time, Upstream};
use super::weather::Weather;
use super::window::{Budget, LONGEST_WAIT};
use crate::shared::allowance::rules::{Rule, has};
use crate::shared::allowance::{ProcessId, Reply, Report, RequestCounts, Settings, silence};

/// The time between two reports of a process, and the shortest.
pub(super) const ROUND: Time = SECOND;
pub(super) const SHORTEST_ROUND: Time = SECOND / 10;

/// What happens. The first field is the number of a process's start: what is meant for
/// a process that was killed meanwhile is dropped.
#[derive(Clone)]
pub(super) enum Event {
    /// A client requests something.
    Want(usize),
    /// The process looks whether a request can be taken.
    Try(usize),
    /// A request is sent whose permit was given then.
    Send(usize, Duration),
    /// The upstream receives a request.
    Receive(usize),
    /// The upstream has answered.
    Answer(usize),
    /// No answer came in time.
    GiveUp(usize),
    Round(usize),
    /// A report reaches a server.
    Report(usize, usize, Rc<Report>),
    Reply(usize, u64, Reply),
    /// The reply did not come in time.
    Timeout(usize, u64),
    Resume(usize),
    Start(usize, bool),
    Tick,
    Fault,
    Do(Action),
}

impl Event {
    /// The process that notices this, which it cannot while it is paused.
    fn noticed_by(&self) -> Option<usize> {
        match self {
            Self::Want(start)
            | Self::Try(start)
            | Self::Send(start, _)
            | Self::Answer(start)
            | Self::GiveUp(start)
            | Self::Round(start)
            | Self::Reply(start, ..)
            | Self::Timeout(start, _) => Some(*start),
            Self::Receive(_)
            | Self::Report(..)
            | Self::Resume(_)
            | Self::Start(..)
            | Self::Tick
            | Self::Fault
            | Self::Do(_) => None,
        }
    }
}

struct Scheduled(Time, u64, Event);

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        (self.0, self.1) == (other.0, other.1)
    }
}
impl Eq for Scheduled {}
impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.0, self.1).cmp(&(other.0, other.1))
    }
}

pub(super) struct World {
    pub(super) now: Time,
    pub(super) dice: Dice,
    pub(super) weather: Weather,
    pub(super) engines: Engines,
    /// The server that most processes take for the primary.
    pub(super) primary: usize,
    /// A split lasts until then.
    pub(super) split_until: Time,
    /// The other primary while a split lasts.
    pub(super) other_side: Option<usize>,
    /// Messages take long before this time.
    pub(super) slow_until: Time,
    pub(super) upstream: Upstream,
    /// How many replicas are configured.
    pub(super) replicas: i64,
    /// The replicas; one that is down has no process.
    pub(super) slots: Vec<Option<Process>>,
    /// What killed processes have left.
    pub(super) remains: Vec<Option<Remains>>,
    /// For each start: the replica, and when it was killed.
    pub(super) starts: Vec<(usize, Option<Time>)>,
    pub(super) longest: Time,
    pub(super) timeout: Time,
    pub(super) total: RequestCounts,
    queue: BinaryHeap<Reverse<Scheduled>>,
    scheduled: u64,
    pub(super) events: u64,
}

impl World {
    pub(super) fn new(weather: Weather, seed: u64) -> Self {
        let mut dice = Dice::new(seed);
        let replicas = dice.between(weather.replicas.0, weather.replicas.1) as usize;
        let unit = 2 * replicas as u64;
        // Whole floors. The smallest budgets show an excess of one soonest.
        let minute = unit
            * dice
                .between(weather.minute.0 / unit, weather.minute.1 / unit)
                .max(1);
        let second = unit * (minute / weather.ratio / unit).max(1);
        let copies = weather.copies[dice.below(weather.copies.len())];
        let longest = dice.seconds(weather.longest.0, weather.longest.1);
        let timeout = dice.ms(weather.timeout.0, weather.timeout.1);
        let mut world = Self {
            now: 0,
            dice,
            engines: Engines::new(copies),
            primary: 0,
            split_until: 0,
            other_side: None,
            slow_until: 0,
            upstream: Upstream::new(minute as usize, second as usize),
            replicas: replicas as i64,
            slots: Vec::new(),
            remains: Vec::new(),
            starts: Vec::new(),
            longest,
            timeout,
            total: RequestCounts::new(minute as i64, second as i64),
            queue: BinaryHeap::new(),
            scheduled: 0,
            events: 0,
            weather,
        };
        for slot in 0..replicas + world.weather.surplus {
            world.slots.push(None);
            world.remains.push(None);
            world.start(slot, false);
        }
        world.at(SECOND, Event::Tick);
        if !world.weather.faults.is_empty() {
            let (low, high) = world.weather.fault_every;
            let first = world.weather.calm * SECOND + world.dice.seconds(0, high.max(low));
            world.at(first, Event::Fault);
        }
        for (low, high, action) in world.weather.script.clone() {
            let when = world.dice.seconds(low, high);
            world.at(when, Event::Do(action));
        }
        world
    }

    pub(super) fn silence(&self) -> Duration {
        silence(LONGEST_WAIT, Duration::from_micros(self.longest))
    }

    pub(super) fn at(&mut self, when: Time, event: Event) {
        self.scheduled += 1;
        self.queue.push(Reverse(Scheduled(
            when.max(self.now),
            self.scheduled,
            event,
        )));
    }

    pub(super) fn after(&mut self, wait: Time, event: Event) {
        self.at(self.now + wait, event);
    }

    /// Runs until this time, or until the budget is exceeded.
    pub(super) fn run(&mut self, until: Time) {
        while let Some(Reverse(Scheduled(when, ..))) = self.queue.peek()
            && *when < until
            && self.upstream.overspent.is_none()
        {
            let Some(Reverse(Scheduled(when, _, event))) = self.queue.pop() else {
                return;
            };
            self.now = when;
            self.events += 1;
            self.happen(event);
        }
    }

    fn happen(&mut self, event: Event) {
        if let Some(start) = event.noticed_by() {
            let now = self.now;
            let Some(process) = self.process(start) else {
                return;
            };
            if process.paused_until > now {
                process.held.push(event);
                return;
            }
        }
        match event {
            Event::Want(start) => self.want(start),
            Event::Try(start) => self.take_all(start),
            Event::Send(start, permitted) => self.send(start, permitted),
            Event::Receive(start) => self.receive(start),
            Event::Answer(start) => {
                self.with(start, |process, now| {
                    process.budget.end(process.window_now(now))
                });
                self.take_all(start);
            }
            Event::GiveUp(start) => {
                self.with(start, |process, now| {
                    process.budget.give_up(process.window_now(now))
                });
            }
            Event::Round(start) => self.round(start),
            Event::Report(start, node, report) => self.report_arrives(start, node, report),
            Event::Reply(start, sequence, reply) => self.reply_arrives(start, sequence, reply),
            Event::Timeout(start, sequence) => {
                self.with(start, |process, _| process.machine.lost(sequence));
            }
            Event::Resume(start) => self.resume(start),
            Event::Start(slot, knows) => self.start(slot, knows),
            Event::Tick => {
                self.engines.tick();
                self.after(SECOND, Event::Tick);
            }
            Event::Fault => self.random_fault(),
            Event::Do(action) => self.act(action),
        }
    }

    /// The process of this start, if it has not been killed.
    pub(super) fn process(&mut self, start: usize) -> Option<&mut Process> {
        let process = self.slots[self.starts[start].0].as_mut();
        process.filter(|process| process.start == start)
    }

    pub(super) fn with<T>(
        &mut self,
        start: usize,
        act: impl FnOnce(&mut Process, Time) -> T,
    ) -> Option<T> {
        let now = self.now;
        self.process(start).map(|process| act(process, now))
    }

    /// Starts the process of a replica. It may know what its predecessor has spent.
    pub(super) fn start(&mut self, slot: usize, knows: bool) {
        if self.slots[slot].is_some() {
            return;
        }
        let start = self.starts.len();
        self.starts.push((slot, None));
        let fresh = Clocks {
            offset: self.dice.between(1 << 45, 1 << 50),
            rate: self.dice.between(0, 1000) as i64 - 500,
            suspended: 0,
        };
        let remains = self.remains[slot].take().filter(|_| knows);
        let clocks = remains.as_ref().map_or(fresh, |remains| remains.clocks);
        let now = clocks.running(self.now);
        let budget = match &remains {
            Some(remains) => Budget::after(&remains.budget, now),
            None if has(Rule::PredecessorCounts) => Budget::unknown_before(now),
            None => Budget::new(),
        };
        let replicas = self.replicas;
        let floor = |all: i64| all / 2 / replicas;
        let mut total = self.total;
        if self.dice.percent(self.weather.lowered) {
            let less = 2 * replicas;
            total = total.zip(total, |total, _| (total - less).max(less));
        }
        let floor = RequestCounts::new(floor(total.minute), floor(total.second));
        let settings = Settings {
            process: ProcessId(u128::from(self.dice.next()) << 64 | u128::from(self.dice.next())),
            name: format!("replica-{slot}").into(),
            floor,
            total,
            reserve: floor.zip(floor, |floor, _| floor * replicas),
            silence: self.silence(),
        };
        let mut process = Process::new(start, settings, clocks, budget);
        process.node = self.primary;
        if let Some(other) = self.other_side
            && self.dice.percent(50)
        {
            process.node = other;
        }
        process.every = self
            .weather
            .demand_every(&mut self.dice, self.total.minute, replicas);
        let first = self.dice.between(0, ROUND);
        process.next_round = self.now + first;
        let first_want = self.dice.between(0, SECOND);
        self.slots[slot] = Some(process);
        self.after(first, Event::Round(start));
        self.after(first_want, Event::Want(start));
    }

    /// Ends the process of a replica at once.
    pub(super) fn kill(&mut self, slot: usize) {
        if let Some(process) = self.slots[slot].take() {
            self.starts[process.start].1 = Some(self.now);
            self.remains[slot] = Some(process.remains());
        }
    }

    /// What a process notices after a pause, it notices in any order.
    fn resume(&mut self, start: usize) {
        let now = self.now;
        let held = self.with(start, |process, _| match process.paused_until > now {
            true => Vec::new(),
            false => std::mem::take(&mut process.held),
        });
        for event in held.unwrap_or_default() {
            let soon = self.dice.between(0, 3000);
            self.after(soon, event);
        }
    }
}
