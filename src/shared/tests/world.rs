//! Replicas with floors, pool and own windows, one upstream that counts what arrives, and
//! faults, in simulated time (ms).

mod check;
mod requests;

use std::collections::BTreeMap;
use std::ops::Range;

use fastrand::Rng;

use super::super::permits::{Limits, Split, split};
use super::server::Server;
use super::{Cut, GIVE_BACK, TAKE};

/// When the pool has opened, when the last fault ends, when all load comes, and when all ends.
const START: u64 = 122_000;
const CALM: u64 = START + 260_000;
const BUSY: u64 = CALM + 130_000;
const END: u64 = BUSY + 61_000;
/// How long a request may be under way: then its owner closes the connection.
const LONGEST: u64 = 60_000;
const TIMEOUT: u64 = 50;
const USABLE: u64 = 1000;
/// What is counted here for the windows of a replica, and by an upstream with a slow clock.
const WINDOWS: [u64; 2] = [60_050, 1005];
const UPSTREAM_WINDOWS: [u64; 2] = [60_046, 1001];
/// The kinds of faults of a run that is not covered.
const TWO_PRIMARIES: [u8; 1] = [10];
const KEYS: [&str; 2] = ["permits", "rest"];

/// A charge of a window: until when it counts, unless it is in flight still.
#[derive(Default)]
struct Window(Vec<(u64, Option<u64>)>);

impl Window {
    fn has_room(&self, now: u64, limit: [u32; 2]) -> bool {
        WINDOWS.iter().zip(limit).all(|(span, limit)| {
            let counts = |end: &Option<u64>| end.is_none_or(|end| end + span > now);
            self.0.iter().filter(|(_, end)| counts(end)).count() < limit as usize
        })
    }

    fn end(&mut self, request: u64, at: u64) {
        for entry in self.0.iter_mut().filter(|entry| entry.0 == request) {
            entry.1 = Some(at);
        }
        self.0
            .retain(|(_, end)| end.is_none_or(|end| end + 60_050 > at));
    }
}

#[derive(Default)]
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
    /// When it asks for a permit again.
    pool_spent_until: u64,
}

/// What the upstream may count: at any time from when it was sent to when its head came, or to
/// when it can be under way no more.
struct Sent {
    from: u64,
    to: u64,
    replica: usize,
    is_pool: bool,
    budget: [u32; 2],
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
    /// Those of `World::sent`.
    sent: Vec<usize>,
}

#[derive(Clone, Debug)]
enum Event {
    Want(usize),
    /// As soon as the pool may have a permit.
    WantAgain(usize),
    TakeArrives(u64, String, [u32; 2]),
    Reply(u64, Option<u64>),
    Timeout(u64),
    Send(u64),
    Head(u64),
    /// The connection breaks after the request was written.
    Broken(u64),
    GivenUp(u64),
    Return(String, &'static str),
    Reload(usize, [u32; 2]),
    FailBack,
    Copy,
    Fault,
    Kill(usize),
    /// A call, so that the engine begins its new life; then no more for a while.
    Calm,
}

pub(super) struct World {
    now: u64,
    rng: Rng,
    without: Option<Cut>,
    server: Server,
    events: BTreeMap<(u64, u64), Event>,
    next: u64,
    replicas: Vec<Replica>,
    requests: BTreeMap<u64, Request>,
    sent: Vec<Sent>,
    kinds: Vec<u8>,
    stalled_until: u64,
    slow_until: u64,
    flaky_until: u64,
    /// No faults, but all load at one replica (`true`) or at all.
    load: Option<bool>,
}

impl World {
    pub(super) fn new(seed: u64, without: Option<Cut>) -> Self {
        let mut rng = Rng::with_seed(seed);
        let mut scripts = [TAKE, GIVE_BACK].map(str::to_owned);
        if let Some(Cut::Script(nth, old, new)) = without {
            assert!(scripts[nth].contains(old), "not in the script: {old}");
            scripts[nth] = scripts[nth].replace(old, new);
        }
        let count = rng.usize(2..=4);
        let budget = random_budget(&mut rng, count);
        // Not all kinds of faults in one run: each new life closes the pool.
        let kinds = (0..rng.usize(1..=3)).map(|_| rng.u8(0..10)).collect();
        Self {
            now: 0,
            rng,
            without,
            server: Server::new(&scripts),
            events: BTreeMap::new(),
            next: 0,
            replicas: replicas(count, budget),
            requests: BTreeMap::new(),
            sent: Vec::new(),
            kinds,
            stalled_until: 0,
            slow_until: 0,
            flaky_until: 0,
            load: None,
        }
    }

    /// Four replicas with all load that they can take, at one of them or at all.
    pub(super) fn with_load(mut self, is_one: bool) -> Self {
        self.load = Some(is_one);
        self.replicas = replicas(4, [500, 20]);
        self
    }

    /// With two primaries, which is not covered, and no other fault.
    pub(super) fn with_two_primaries(mut self) -> Self {
        self.kinds = TWO_PRIMARIES.to_vec();
        self
    }

    fn lacks(&self, rule: Cut) -> bool {
        self.without == Some(rule)
    }

    /// The outcome, and its time in ms.
    fn take(&self, id: &str, pool: [u32; 2]) -> (String, u64) {
        let [minute, second] = pool.map(|limit| limit.to_string());
        let arguments = [id, &minute, &second, "0"];
        let reply = self.server.call(self.now, 0, &KEYS, &arguments);
        let reply = reply.as_table().unwrap();
        (reply.get(1).unwrap(), reply.get(2).unwrap())
    }

    fn at(&mut self, time: u64, event: Event) {
        self.next += 1;
        self.events.insert((time.max(self.now), self.next), event);
    }

    fn split(&self, budget: [u32; 2]) -> Split {
        let limits = Limits {
            per_minute: Some(budget[0]),
            per_second: Some(budget[1]),
        };
        let replicas = u32::try_from(self.replicas.len()).unwrap();
        let mut parts = split(limits, replicas.try_into().unwrap(), true);
        if self.lacks(Cut::PoolWithoutFloors) {
            parts.pool = limits;
        }
        parts
    }

    pub(super) fn run(mut self) -> Result<(), String> {
        self.run_until(END);
        self.check()
    }

    /// How much of the budget was used in each of three minutes, in percent. In the second one a
    /// process is started anew.
    pub(super) fn used(mut self) -> [usize; 3] {
        self.at(START + 90_000, Event::Kill(0));
        self.run_until(START + 180_000);
        [0, 1, 2].map(|minute| {
            let from = START + minute * 60_000;
            self.sent_in_minute(from) * 100 / self.replicas[0].budget[0] as usize
        })
    }

    fn run_until(&mut self, end: u64) {
        // The engine is there before: the pool has opened.
        self.take("first", [1, 1]);
        if self.kinds == TWO_PRIMARIES {
            self.server.call_other_primary();
            self.take("other", [1, 1]);
        } else {
            self.server.copy();
            self.server.save();
        }
        for at in 0..self.replicas.len() {
            self.at(START, Event::Want(at));
        }
        if self.load.is_none() {
            self.at(START + 20_000, Event::Fault);
        }
        self.at(START, Event::Copy);
        self.at(CALM + 1, Event::Calm);
        while let Some(((time, _), event)) = self.events.pop_first()
            && time < end
        {
            self.now = time;
            self.handle(event);
        }
    }

    fn handle(&mut self, event: Event) {
        // What becomes of an event of a process that is paused, or was killed.
        let at = match &event {
            Event::Want(at) | Event::WantAgain(at) => Some(*at),
            Event::Reply(request, _)
            | Event::Timeout(request)
            | Event::Send(request)
            | Event::Head(request)
            | Event::Broken(request)
            | Event::GivenUp(request) => {
                let lives = |of: &&Request| self.replicas[of.replica].process == of.process;
                let Some(known) = self.requests.get(request).filter(lives) else {
                    return;
                };
                Some(known.replica)
            }
            _ => None,
        };
        let paused_until = at.map_or(0, |at| self.replicas[at].paused_until);
        if paused_until > self.now {
            return self.at(paused_until, event);
        }
        match event {
            Event::Want(at) => {
                let pause = match self.now {
                    _ if self.load.is_some() => self.rng.u64(10..60),
                    CALM.. if self.now < BUSY => BUSY - self.now,
                    BUSY.. => self.rng.u64(20..200),
                    _ => self.rng.u64(50..1000),
                };
                self.at(self.now + pause, Event::Want(at));
                self.want(at);
            }
            Event::WantAgain(at) => self.want(at),
            Event::TakeArrives(request, id, pool) => self.take_arrives(request, id, pool),
            Event::Reply(request, wait) => self.reply(request, wait),
            Event::Timeout(request) => self.timeout(request),
            Event::Send(request) => self.send(request),
            Event::Head(request) => self.head(request),
            Event::Broken(request) => self.broken(request),
            Event::GivenUp(request) => self.end(request),
            Event::Return(id, how) => {
                if self.stalled_until > self.now {
                    return self.at(self.stalled_until, Event::Return(id, how));
                }
                self.server.call(self.now, 1, &KEYS, &[&id, how, "0"]);
            }
            Event::Reload(at, budget) => self.replicas[at].budget = budget,
            Event::FailBack => self.server.fail_over(),
            Event::Copy if self.kinds == TWO_PRIMARIES => {}
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
                let next = self.now + self.rng.u64(2000..80_000);
                self.at(next, Event::Fault);
            }
            Event::Fault => {}
            Event::Kill(at) => self.kill(at),
            Event::Calm => {
                self.take("calm", [1, 1]);
            }
        }
    }

    fn fault(&mut self, kind: u8) {
        let at = self.rng.usize(0..self.replicas.len());
        match kind {
            0 => self.kill(at),
            1 => self.pause(at),
            2 => self.server.flush(),
            3 => self.server.restart(self.rng.bool(), self.rng.bool()),
            4 => {
                self.server.fail_over();
                if self.rng.u8(0..4) > 0 {
                    let back = self.until(1..2000);
                    self.at(back, Event::FailBack);
                }
            }
            5 => self.stalled_until = self.until(100..20_000),
            6 => {
                let by = [self.rng.u64(1..120_000), 3_600_000][self.rng.usize(0..2)];
                self.server.set_clock_back(by);
            }
            7 => {
                let budget = random_budget(&mut self.rng, self.replicas.len());
                for at in 0..self.replicas.len() {
                    let when = self.until(0..40_000);
                    self.at(when, Event::Reload(at, budget));
                }
            }
            8 => self.slow_until = self.until(10_000..80_000),
            9 => self.flaky_until = self.until(1000..60_000),
            _ => self.server.call_other_primary(),
        }
    }

    /// The end of a fault that begins now: no fault lasts longer than the faults.
    fn until(&mut self, lasts: Range<u64>) -> u64 {
        (self.now + self.rng.u64(lasts)).min(CALM)
    }

    /// The process is stopped, or its machine is suspended.
    fn pause(&mut self, at: usize) {
        let kind = self.rng.usize(0..5).saturating_sub(2);
        let until = self.until([980..1000, 1..3000, 1000..150_000][kind].clone());
        let is_suspended = self.rng.bool();
        let replica = &mut self.replicas[at];
        if is_suspended {
            replica.suspended += until.saturating_sub(self.now.max(replica.paused_until));
        }
        replica.paused_until = until.max(replica.paused_until);
    }

    /// It starts again with what it knows of its own spending.
    fn kill(&mut self, at: usize) {
        self.next += 1;
        let (now, until) = (self.now, self.until(0..10_000));
        let replica = &mut self.replicas[at];
        let own = |known: &&Request| known.process == replica.process;
        for known in self.requests.values().filter(own) {
            for sent in &known.sent {
                let sent = &mut self.sent[*sent];
                sent.to = match known.id.is_empty() {
                    // Its connection is closed.
                    true => sent.to.min(now),
                    // Nobody counts on that.
                    false => sent.from + LONGEST,
                };
            }
        }
        (replica.process, replica.asked) = (self.next, 0);
        (replica.paused_until, replica.pool_spent_until) = (until, 0);
        for window in [&mut replica.floor, &mut replica.whole] {
            for (_, end) in &mut window.0 {
                end.get_or_insert(until);
            }
        }
    }
}

fn replicas(count: usize, budget: [u32; 2]) -> Vec<Replica> {
    let replica = |process| Replica {
        process,
        budget,
        ..Replica::default()
    };
    (0..count as u64).map(replica).collect()
}

fn limits(limits: Limits) -> [u32; 2] {
    [limits.per_minute, limits.per_second].map(|limit| limit.unwrap_or(u32::MAX))
}

/// One that floors and pool use up without a remainder.
fn random_budget(rng: &mut Rng, replicas: usize) -> [u32; 2] {
    [4 * replicas as u32 * rng.u32(1..=2), rng.u32(6..=8)]
}
