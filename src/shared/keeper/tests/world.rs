//! Replicas that share a budget: the budgets and keepers of three processes, each with
//! a clock of its own that the test moves, a real engine, and an upstream that counts.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;

use super::super::Keeper;
use crate::clock::Clock;
use crate::shared::allowance::ProcessId;
use crate::shared::engine::server::{EngineUrl, RedisEngine};
use crate::shared::servers::Server;
use crate::upstream::admission::Reserve;
use crate::upstream::admission::budget::BudgetEntry;
use crate::upstream::admission::budgets::{BudgetOwner, Budgets};
use crate::upstream::admission::shared_budget::{BudgetDemand, BudgetHandle};
use crate::upstream::{AdmissionQueue, Rates, Replicas};

pub(super) const REPLICAS: usize = 3;
/// The budget of all replicas, a minute and a second.
pub(super) const BUDGET: [usize; 2] = [120, 12];
/// How long an answer takes, and how long a request can be in flight.
const LATENCY: u64 = 300;
const LONGEST: Duration = Duration::from_secs(2);
/// Q, with some air: a process must be silent or follow for so long.
pub(super) const Q: u64 = 90;
/// How long a new process sends nothing.
pub(super) const START: u64 = 62;
const STEP: u64 = 100;

/// One process.
pub(super) struct Process {
    clock: Clock,
    handle: Arc<BudgetHandle>,
    _queue: Arc<AdmissionQueue>,
    pub(super) keeper: Keeper,
    pub(super) engine: Arc<RedisEngine>,
    /// When each request ends, in milliseconds.
    in_flight: Vec<(u64, BudgetEntry)>,
    pub(super) is_cut_off: bool,
    pub(super) is_paused: bool,
    /// How many requests its clients send in a step.
    pub(super) demand: usize,
}

pub(super) struct World {
    /// In milliseconds.
    pub(super) now: u64,
    pub(super) processes: Vec<Process>,
    /// When the upstream received requests.
    received: Vec<u64>,
    started: u128,
    dice: fastrand::Rng,
}

impl World {
    /// Replicas whose engine is this server.
    pub(super) fn new(server: &Server, seed: u64) -> Self {
        let mut world = Self {
            now: 1_000_000,
            processes: Vec::new(),
            received: Vec::new(),
            started: 0,
            dice: fastrand::Rng::with_seed(seed),
        };
        for replica in 0..REPLICAS {
            let process = world.process(&format!("replica-{replica}"), server, None);
            world.processes.push(process);
        }
        world
    }

    /// A process that starts now, on the machine of an earlier one. It does not know what
    /// that one has spent.
    fn process(&mut self, name: &str, server: &Server, clock: Option<Clock>) -> Process {
        self.started += 1;
        let clock = clock.unwrap_or_else(|| {
            let clock = Clock::manual();
            clock.advance(Duration::from_secs(self.dice.u64(1000..1_000_000)));
            clock
        });
        let replicas = Replicas {
            count: NonZeroU32::new(REPLICAS as u32).unwrap(),
            floor_percent: 50,
        };
        let now = clock.now();
        let budgets = Budgets::unknown_before(now, "a test").shared(replicas, clock.clone());
        let queue = AdmissionQueue::new(10, clock.clone());
        let owner = BudgetOwner::Key(HeaderValue::from_static("a-key"));
        let handle = budgets.handle(&owner, &queue, now);
        handle.join(BudgetDemand {
            rates: Rates::of(BUDGET[0] as u32, BUDGET[1] as u32),
            probes: 0,
        });
        let keeper = Keeper::new(
            "test",
            name,
            ProcessId(self.started),
            budgets,
            clock.clone(),
        );
        keeper.set_longest(LONGEST);
        Process {
            engine: engine(server, &clock),
            clock,
            handle,
            _queue: queue,
            keeper,
            in_flight: Vec::new(),
            is_cut_off: false,
            is_paused: false,
            demand: 4,
        }
    }

    /// A process is killed, and another one starts in its place.
    pub(super) fn replace(&mut self, at: usize, name: &str, server: &Server) {
        let clock = self.processes[at].clock.clone();
        self.processes[at] = self.process(name, server, Some(clock));
    }

    /// From now on a process reports to another server.
    pub(super) fn report_to(&mut self, at: usize, server: &Server) {
        let process = &mut self.processes[at];
        process.engine = engine(server, &process.clock);
    }

    pub(super) async fn run(&mut self, seconds: u64) {
        for _ in 0..seconds * 1000 / STEP {
            self.now += STEP;
            for process in &mut self.processes {
                // A machine's clock runs while a process is stopped.
                process.clock.advance(Duration::from_millis(STEP));
                if process.is_paused {
                    continue;
                }
                process.end_requests(self.now);
                if !process.is_cut_off {
                    process.keeper.round(&*process.engine).await;
                } else {
                    process.keeper.round(&CutOff).await;
                }
                process.take_requests(self.now, &mut self.dice, &mut self.received);
            }
        }
    }

    /// Asserts that no minute and no second had more requests than the budget.
    pub(super) fn check(&mut self) {
        self.received.sort_unstable();
        for (budget, span) in [(BUDGET[0], 60_000), (BUDGET[1], 1000)] {
            let windows = self.received.windows(budget + 1);
            let mut excess = windows.filter(|window| window[budget] - window[0] < span);
            let first = excess.next().map(|window| window[0] as i64 - 1_000_000);
            assert_eq!(
                first, None,
                "more than {budget} within {span} ms from then on"
            );
        }
        assert!(!self.received.is_empty());
    }

    /// The part of the budget that was used in the last so many seconds, in percent.
    pub(super) fn used(&self, seconds: u64) -> usize {
        let since = self.now - seconds * 1000;
        let received = self.received.iter().filter(|time| **time >= since);
        received.count() * 100 * 60 / (BUDGET[0] * seconds as usize)
    }

    /// The part of the budget that all processes together may use now, in percent.
    pub(super) fn limits(&self) -> [usize; 2] {
        let limits = self.processes.iter().map(|process| {
            let allowance = process.handle.allowance().unwrap();
            let (floor, granted) = (allowance.floor, allowance.granted);
            [
                floor.per_minute.unwrap() + granted.per_minute,
                floor.per_second.unwrap() + granted.per_second,
            ]
        });
        let sum = limits.fold([0, 0], |sum, one| [sum[0] + one[0], sum[1] + one[1]]);
        [sum[0] * 100 / BUDGET[0], sum[1] * 100 / BUDGET[1]]
    }

    /// All replicas have waited for their start, and may be granted what they need.
    pub(super) async fn settle(&mut self) {
        self.run(START + Q).await;
        self.run(60).await;
    }

    pub(super) fn set_timeout(&self, timeout: Duration) {
        for process in &self.processes {
            process.engine.set_timeout(timeout);
        }
    }
}

impl Process {
    fn end_requests(&mut self, now: u64) {
        let (clock, handle) = (&self.clock, &self.handle);
        self.in_flight.retain(|(end, entry)| {
            let ends = *end <= now;
            if ends {
                handle.end(*entry, clock.now());
            }
            !ends
        });
    }

    fn take_requests(&mut self, now: u64, dice: &mut fastrand::Rng, received: &mut Vec<u64>) {
        for _ in 0..self.demand {
            let Ok(entry) = self.handle.take(self.clock.now(), Reserve::Nothing) else {
                return;
            };
            let takes = dice.u64(1..=LATENCY);
            received.push(now + dice.u64(0..=takes));
            self.in_flight.push((now + takes, entry));
        }
    }
}

fn engine(server: &Server, clock: &Clock) -> Arc<RedisEngine> {
    let url = EngineUrl::parse(&server.url()).unwrap();
    // An answer that comes late costs some use of the budget, and a busy machine is slow.
    RedisEngine::new(url, Duration::from_secs(5), clock.clone())
}

/// An engine that cannot be reached.
struct CutOff;

impl crate::shared::engine::Allowances for CutOff {
    fn report<'t>(
        &'t self,
        _: &'t str,
        _: &'t crate::shared::allowance::Report,
    ) -> crate::shared::engine::EngineFuture<'t, crate::shared::allowance::Reply> {
        Box::pin(async { Err(crate::shared::engine::SharedError::Late) })
    }
}
