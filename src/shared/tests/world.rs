//! Replicas with floors, pool and own windows, one upstream that counts what arrives, and
//! faults, in simulated time (ms).

use std::collections::BTreeMap;

use fastrand::Rng;

use super::permits::{Limits, Split, split};
use super::server::Server;
use super::Rule;

/// The pool's first opening, and the end of faults and of the run.
const START: u64 = 121_001;
const CALM: u64 = START + 420_000;
const BUSY: u64 = CALM + 200_000;
const END: u64 = BUSY + 62_000;
/// How long a request may be under way, and when its owner gives it up.
const UNDER_WAY: u64 = 59_900;
const TIMEOUT: u64 = 50;
const USABLE: u64 = 1000;

/// A charge of a window: until when it counts, unless it is in flight still.
#[derive(Default)]
struct Window(Vec<(u64, Option<u64>)>);

impl Window {
    fn has_room(&self, now: u64, limit: [u32; 2]) -> bool {
        [60_050, 1005].iter().zip(limit).all(|(span, limit)| {
            let counts = |end: &Option<u64>| end.is_none_or(|end| end + span > now);
            self.0.iter().filter(|(_, end)| counts(end)).count() < limit as usize
        })
    }

    fn end(&mut self, request: u64, at: u64) {
        for entry in self.0.iter_mut().filter(|entry| entry.0 == request) {
            entry.1 = Some(at);
        }
        self.0.retain(|(_, end)| end.is_none_or(|end| end + 60_050 > at));
    }
}

struct Replica {
    process: u64,
    /// Permits that this process has asked for.
    asked: u64,
    budget: [u32; 2],
    floor: Window,
    whole: Window,
    paused_until: u64,
    /// What its monotonic clock has missed while it was suspended.
    suspended: u64,
    is_loaded: bool,
}

struct Request {
    replica: usize,
    process: u64,
    /// Empty for one of the floor.
    id: String,
    asked: u64,
    /// The monotonic clock then.
    asked_monotonic: u64,
    budget: [u32; 2],
    is_given_up: bool,
}

#[derive(Clone, Debug)]
enum Event {
    Want(usize),
    TakeArrives(u64),
    Reply(u64, bool),
    Timeout(u64),
    Send(u64),
    Head(u64),
    /// The connection broke after the request was written.
    Broken(u64),
    GivenUp(u64),
    Return(String, &'static str),
    Reload(usize, [u32; 2]),
    FailBack,
    Copy,
    Fault,
}

pub(super) struct World {
    now: u64,
    rng: Rng,
    without: Option<Rule>,
    server: Server,
    events: BTreeMap<(u64, u64), Event>,
    next: u64,
    replicas: Vec<Replica>,
    requests: BTreeMap<u64, Request>,
    /// When each request arrived, of which replica, and under which budget.
    arrived: Vec<(u64, usize, [u32; 2])>,
    kinds: Vec<u8>,
    stalled_until: u64,
    slow_until: u64,
    flaky_until: u64,
    other_primary: u64,
}

impl World {
    pub(super) fn new(seed: u64, server: Server, without: Option<Rule>) -> Self {
        let mut rng = Rng::with_seed(seed);
        let budget = [rng.u32(16..=40), rng.u32(6..=9)];
        let count = rng.usize(2..=4);
        let replicas = (0..count).map(|at| Replica {
            process: at as u64,
            asked: 0,
            budget,
            floor: Window::default(),
            whole: Window::default(),
            paused_until: 0,
            suspended: 0,
            is_loaded: true,
        });
        let replicas = replicas.collect();
        // Not all kinds of faults in one run: each new life closes the pool.
        let kinds = (0..rng.usize(1..=3)).map(|_| rng.u8(0..10)).collect();
        Self {
            now: 0,
            rng,
            without,
            server,
            events: BTreeMap::new(),
            next: 0,
            replicas,
            requests: BTreeMap::new(),
            arrived: Vec::new(),
            kinds,
            stalled_until: 0,
            slow_until: 0,
            flaky_until: 0,
            other_primary: 1 << 32,
        }
    }

    /// With two primaries, which is not covered, and no other fault.
    pub(super) fn with_two_primaries(mut self) -> Self {
        self.kinds = vec![10];
        self
    }

    fn lacks(&self, rule: Rule) -> bool {
        self.without == Some(rule)
    }

    fn at(&mut self, time: u64, event: Event) {
        self.next += 1;
        self.events.insert((time.max(self.now), self.next), event);
    }

    fn split(&self, budget: [u32; 2]) -> Split {
        let limits = Limits { per_minute: Some(budget[0]), per_second: Some(budget[1]) };
        let replicas = u32::try_from(self.replicas.len()).unwrap();
        let mut parts = split(limits, replicas.try_into().unwrap(), true);
        if self.lacks(Rule::PoolWithoutFloors) {
            parts.pool = limits;
        }
        parts
    }

    pub(super) fn run(mut self) -> Result<(), String> {
        // The engine is there before: the pool has opened.
        self.server.take(0, "first", [1, 1]);
        self.server.copy();
        self.server.save();
        for at in 0..self.replicas.len() {
            self.at(START, Event::Want(at));
        }
        self.at(START, Event::Fault);
        self.at(START, Event::Copy);
        while let Some(((time, _), event)) = self.events.pop_first()
            && time < END
        {
            self.now = time;
            self.handle(event);
        }
        self.check()
    }

    fn handle(&mut self, event: Event) {
        if let Some(at) = self.replica_of(&event) {
            let until = self.replicas[at].paused_until;
            if until > self.now {
                return self.at(until, event);
            }
        }
        match event {
            Event::Want(at) => self.want(at),
            Event::TakeArrives(request) => self.take_arrives(request),
            Event::Reply(request, is_granted) => self.reply(request, is_granted),
            Event::Timeout(request) => self.timeout(request),
            Event::Send(request) => self.send(request),
            Event::Head(request) => self.head(request),
            Event::Broken(request) => self.broken(request),
            Event::GivenUp(request) => self.end(request),
            Event::Return(id, how) => {
                if self.stalled_until > self.now {
                    return self.at(self.stalled_until, Event::Return(id, how));
                }
                self.server.give_back(self.now, &id, how);
            }
            Event::Reload(at, budget) => self.replicas[at].budget = budget,
            Event::FailBack => self.server.fail_over(),
            Event::Copy => {
                self.server.copy();
                if self.rng.u8(0..4) == 0 {
                    self.server.save();
                }
                let next = self.now + self.rng.u64(1..8000);
                self.at(next, Event::Copy);
            }
            Event::Fault if self.now < CALM => {
                let kind = self.kinds[self.rng.usize(0..self.kinds.len())];
                self.fault(kind);
                let next = self.now + self.rng.u64(5000..120_000);
                self.at(next, Event::Fault);
            }
            Event::Fault => {}
        }
    }

    /// The replica whose process handles an event.
    fn replica_of(&self, event: &Event) -> Option<usize> {
        match event {
            Event::Want(at) => Some(*at),
            Event::Reply(request, _)
            | Event::Timeout(request)
            | Event::Send(request)
            | Event::Head(request)
            | Event::Broken(request)
            | Event::GivenUp(request) => Some(self.requests.get(request)?.replica),
            Event::TakeArrives(_)
            | Event::Return(..)
            | Event::Reload(..)
            | Event::FailBack
            | Event::Copy
            | Event::Fault => None,
        }
    }

    /// The process that has sent it, if it has not been killed.
    fn owner(&mut self, request: u64) -> Option<&mut Replica> {
        let known = self.requests.get(&request)?;
        let replica = &mut self.replicas[known.replica];
        (replica.process == known.process).then_some(replica)
    }

    fn want(&mut self, at: usize) {
        let pause = match self.now {
            CALM..BUSY => BUSY - self.now,
            BUSY.. => self.rng.u64(20..200),
            _ => self.rng.u64(50..1500),
        };
        self.at(self.now + pause, Event::Want(at));
        if self.now >= BUSY {
            // One replica under all load, or all.
            self.replicas[at].is_loaded = at == 0 || self.kinds[0] % 2 == 0;
        } else if self.rng.u8(0..30) == 0 {
            self.replicas[at].is_loaded ^= true;
        }
        let (now, budget) = (self.now, self.replicas[at].budget);
        let is_idle = (CALM..BUSY).contains(&now) || !self.replicas[at].is_loaded;
        let has_room = self.replicas[at].whole.has_room(now, budget);
        if is_idle || (!has_room && !self.lacks(Rule::OwnWindows)) {
            return;
        }
        self.next += 1;
        let request = self.next;
        let floor = limits(self.split(budget).floor);
        let takes_floor = self.rng.bool() || now >= BUSY;
        let is_floor = takes_floor && self.replicas[at].floor.has_room(now, floor);
        let is_process_in_id = !self.lacks(Rule::UniqueIds);
        let replica = &mut self.replicas[at];
        replica.whole.0.push((request, None));
        if is_floor {
            replica.floor.0.push((request, None));
        }
        replica.asked += 1;
        let process = if is_process_in_id { replica.process } else { at as u64 };
        let id = if is_floor { String::new() } else { format!("{process}-{}", replica.asked) };
        let known = Request {
            replica: at,
            process: replica.process,
            id,
            asked: now,
            asked_monotonic: now - replica.suspended,
            budget,
            is_given_up: false,
        };
        self.requests.insert(request, known);
        if is_floor {
            return self.send(request);
        }
        self.at(now + TIMEOUT, Event::Timeout(request));
        let way = self.way();
        if !(self.is_flaky() && self.rng.u8(0..8) == 0) {
            self.at(now + way, Event::TakeArrives(request));
        }
    }

    fn is_flaky(&self) -> bool {
        self.flaky_until > self.now
    }

    /// How long a message is under way.
    fn way(&mut self) -> u64 {
        match self.is_flaky() && self.rng.u8(0..4) == 0 {
            true => self.rng.u64(0..5000),
            false => self.rng.u64(0..4),
        }
    }

    fn take_arrives(&mut self, request: u64) {
        if self.stalled_until > self.now {
            return self.at(self.stalled_until, Event::TakeArrives(request));
        }
        let known = &self.requests[&request];
        let (id, pool) = (known.id.clone(), limits(self.split(known.budget).pool));
        if pool.contains(&0) {
            return;
        }
        let (outcome, _) = self.server.take(self.now, &id, pool);
        if self.is_flaky() && self.rng.u8(0..4) == 0 {
            return;
        }
        let way = self.way();
        self.at(self.now + way, Event::Reply(request, outcome == "granted"));
    }

    fn reply(&mut self, request: u64, is_granted: bool) {
        if self.requests[&request].is_given_up || self.owner(request).is_none() {
            return;
        }
        if let Some(known) = self.requests.get_mut(&request) {
            known.is_given_up = true;
        }
        if is_granted {
            let pause = [0, 0, 0, 1][self.rng.usize(0..4)];
            return self.at(self.now + pause, Event::Send(request));
        }
        self.never_written(request, false);
    }

    fn timeout(&mut self, request: u64) {
        if self.requests[&request].is_given_up || self.owner(request).is_none() {
            return;
        }
        if let Some(known) = self.requests.get_mut(&request) {
            known.is_given_up = true;
        }
        if self.lacks(Rule::UnknownIsSpent) {
            return self.send(request);
        }
        self.never_written(request, true);
    }

    /// The request is not sent.
    fn never_written(&mut self, request: u64, is_permit: bool) {
        let known = self.requests.remove(&request).unwrap();
        let replica = &mut self.replicas[known.replica];
        replica.whole.0.retain(|(of, _)| *of != request);
        if is_permit {
            self.give_back(known.id, "unused");
        }
    }

    fn give_back(&mut self, id: String, how: &'static str) {
        let way = self.way();
        if !(self.is_flaky() && self.rng.u8(0..4) == 0) {
            self.at(self.now + way, Event::Return(id, how));
        }
    }

    fn send(&mut self, request: u64) {
        if self.owner(request).is_none() {
            return;
        }
        let known = &self.requests[&request];
        let age = match self.lacks(Rule::BootClock) {
            false => self.now - known.asked,
            true => self.now - self.replicas[known.replica].suspended - known.asked_monotonic,
        };
        let is_floor = known.id.is_empty();
        if !is_floor && age >= USABLE && !self.lacks(Rule::UsedWithinASecond) {
            return self.never_written(request, true);
        }
        let is_slow = self.slow_until > self.now;
        let under_way = match is_slow && self.rng.u8(0..3) > 0 {
            true => self.rng.u64(1000..UNDER_WAY),
            false => self.rng.u64(0..40),
        };
        let (at, budget) = (known.replica, known.budget);
        let arrives = self.now + under_way;
        self.arrived.push((arrives, at, budget));
        let answers = self.rng.u64(0..60);
        let is_broken = self.now < CALM && self.rng.u8(0..16) == 0;
        if is_broken {
            self.at(self.now + 5, Event::Broken(request));
        } else if under_way + answers < UNDER_WAY {
            self.at(arrives + answers, Event::Head(request));
        } else {
            self.at(self.now + 60_000, Event::GivenUp(request));
        }
    }

    fn head(&mut self, request: u64) {
        if self.owner(request).is_none() {
            return;
        }
        let known = &self.requests[&request];
        let (at, id) = (known.replica, known.id.clone());
        if !id.is_empty() {
            if self.lacks(Rule::ChargeStays) {
                // From the pool to the floor.
                self.replicas[at].floor.0.push((request, None));
                self.give_back(id, "unused");
            } else {
                self.give_back(id, "answered");
            }
        }
        self.end(request);
    }

    /// What was written may still arrive: the owner does not know when.
    fn broken(&mut self, request: u64) {
        if self.owner(request).is_none() {
            return;
        }
        let id = self.requests[&request].id.clone();
        if self.lacks(Rule::RetryIsNew) && !id.is_empty() {
            let age = self.now - self.requests[&request].asked;
            if age < USABLE {
                return self.send(request);
            }
        }
        if self.lacks(Rule::WrittenStays) && !id.is_empty() {
            self.give_back(id, "unused");
        }
        self.at(self.now + 60_000, Event::GivenUp(request));
    }

    fn end(&mut self, request: u64) {
        let now = self.now;
        if let Some(replica) = self.owner(request) {
            replica.floor.end(request, now);
            replica.whole.end(request, now);
        }
        self.requests.remove(&request);
    }

    fn fault(&mut self, kind: u8) {
        let at = self.rng.usize(0..self.replicas.len());
        match kind {
            0 => self.kill(at),
            1 => {
                let lasts = [self.rng.u64(1..3000), self.rng.u64(1000..150_000)];
                let lasts = lasts[self.rng.usize(0..2)];
                self.replicas[at].paused_until = self.now + lasts;
                if self.rng.bool() {
                    self.replicas[at].suspended += lasts;
                }
            }
            2 => self.server.flush(),
            3 => self.server.restart(self.rng.bool(), self.rng.bool()),
            4 => {
                self.server.fail_over();
                if self.rng.u8(0..4) > 0 {
                    let back = self.now + self.rng.u64(1..2000);
                    self.at(back, Event::FailBack);
                }
            }
            5 => self.stalled_until = self.now + self.rng.u64(100..20_000),
            6 => {
                // As much as it has run, so that no clock is below zero.
                let by = [self.rng.u64(1..120_000), 3_600_000][self.rng.usize(0..2)];
                self.server.set_clock_back(by);
            }
            7 => {
                let budget = [self.rng.u32(16..=40), self.rng.u32(6..=9)];
                for at in 0..self.replicas.len() {
                    let when = self.now + self.rng.u64(0..40_000);
                    self.at(when, Event::Reload(at, budget));
                }
            }
            8 => self.slow_until = self.now + self.rng.u64(10_000..80_000),
            9 => self.flaky_until = self.now + self.rng.u64(1000..60_000),
            _ => {
                let mut other = self.other_primary;
                self.server.split(&mut other);
                self.other_primary = other;
            }
        }
    }

    /// It starts again with what it knows of its own spending.
    fn kill(&mut self, at: usize) {
        self.next += 1;
        let (now, process) = (self.now, self.next);
        let down = self.rng.u64(0..10_000);
        let replica = &mut self.replicas[at];
        (replica.process, replica.asked) = (process, 0);
        for window in [&mut replica.floor, &mut replica.whole] {
            for (_, end) in &mut window.0 {
                end.get_or_insert(now + 60_000);
            }
        }
        replica.paused_until = now + down;
    }

    /// No window over the budget, and the pool is used after the faults.
    fn check(mut self) -> Result<(), String> {
        self.arrived.sort_unstable();
        let is_covered = self.kinds != [10];
        for (first, (since, replica, _)) in self.arrived.iter().enumerate() {
            for (nth, span) in [60_000, 1000].into_iter().enumerate() {
                let within = self.arrived[first..].iter().take_while(|(at, ..)| *at < since + span);
                // What is not covered is bounded for each replica.
                let counted = within.filter(|(_, of, _)| is_covered || of == replica);
                let budgets: Vec<_> = counted.map(|(.., budget)| budget[nth]).collect();
                let limit = budgets.iter().max().copied().unwrap_or(0);
                if budgets.len() > limit as usize {
                    let count = budgets.len();
                    return Err(format!("{count} of {limit} in {span} ms from {since}: {:?}", self.kinds));
                }
            }
        }
        let used = self.arrived.iter().filter(|(at, ..)| (BUSY..BUSY + 60_000).contains(at)).count();
        let budget = self.replicas[0].budget[0];
        if used * 4 < budget as usize * 3 {
            return Err(format!("only {used} of {budget} used: {:?}", self.kinds));
        }
        Ok(())
    }
}

fn limits(limits: Limits) -> [u32; 2] {
    [limits.per_minute, limits.per_second].map(|limit| limit.unwrap_or(u32::MAX))
}
