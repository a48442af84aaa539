//! Replicas that share a budget, with more load than it allows on some of them. Requests
//! pass the real admission queues, keys and keepers; the network and the engine are
//! simulated. Most requests are refused at once, and do not wait: what a replica asks for
//! must not follow from those that wait alone.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::Keeper;
use crate::clock::{Clock, Moment};
use crate::identify::Client;
use crate::shared::allowance::ProcessId;
use crate::shared::engine::model::ModelEngine;
use crate::upstream::admission::budgets::{BudgetOwner, Budgets};
use crate::upstream::admission::queue::{AdmissionQueue, NotAdmitted};
use crate::upstream::keys::{ApiKey, Keys};
use crate::upstream::{Priority, Rates, Replicas, RequestPriority};

/// How long an answer takes, and how long a request waits, as in the shipped configuration.
const ANSWER_TIME: Duration = Duration::from_millis(150);
const MAX_WAIT: Duration = Duration::from_secs(2);
/// How long a request can be in flight.
const LONGEST: Duration = Duration::from_secs(2);
/// Nothing is granted in the first so many seconds (Q, with some air).
const SETTLED: u64 = 100;
/// Between two looks of a keeper, in milliseconds.
const STEP: u64 = 100;
/// The clients of each replica. None of them uses much, so that they may use what is kept
/// for light clients as well.
const CLIENTS: u32 = 1000;

/// One replica.
struct CrowdedReplica {
    queue: Arc<AdmissionQueue>,
    keys: Arc<Keys>,
    keeper: Keeper,
    /// Its tip probes a minute.
    probes: u64,
    /// The requests of its clients a minute, how many there were, and how many were served.
    demand: u64,
    requests: u64,
    served: Arc<AtomicU64>,
}

struct CrowdedReplicas {
    clock: Clock,
    begun: Moment,
    engine: Arc<ModelEngine>,
    replicas: Vec<CrowdedReplica>,
    /// When each replica has sent a request, in milliseconds since the start.
    sent: Arc<Mutex<Vec<(u64, usize)>>>,
    dice: fastrand::Rng,
}

impl CrowdedReplicas {
    /// Three replicas of a key with these rates; the first one probes so often a minute.
    fn new(per_minute: u32, per_second: u32, probes: u64) -> Self {
        let clock = Clock::manual();
        // Moments before the start can be named.
        clock.advance(Duration::from_secs(1000));
        let replica = |at: usize| {
            let shared = Replicas {
                count: NonZeroU32::new(3).unwrap(),
                floor_percent: 50,
            };
            let budgets = Budgets::new().shared(shared, clock.clone());
            let queue = AdmissionQueue::new(1024, clock.clone());
            queue.set_slots(32);
            let keys = Keys::new(
                "default",
                ApiKey::list("a-key").unwrap(),
                BudgetOwner::Server("server:80".into()),
                Rates::of(per_minute, per_second),
                budgets.clone(),
                queue.clone(),
                clock.clone(),
            );
            let probes = if at == 0 { probes } else { 0 };
            keys.set_probes(probes as u32);
            let process = ProcessId(at as u128 + 1);
            let keeper = Keeper::new("test", "replica", process, budgets, clock.clone());
            keeper.set_longest(LONGEST);
            CrowdedReplica {
                queue,
                keys,
                keeper,
                probes,
                demand: 0,
                requests: 0,
                served: Arc::default(),
            }
        };
        Self {
            begun: clock.now(),
            engine: ModelEngine::new(clock.clone()),
            replicas: (0..3).map(replica).collect(),
            clock,
            sent: Arc::default(),
            dice: fastrand::Rng::with_seed(1),
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.clock.now().since(self.begun).as_millis()).unwrap()
    }

    /// Sends a request to the upstream, if it is admitted.
    fn request(&self, at: usize, priority: RequestPriority) {
        let replica = &self.replicas[at];
        let (queue, keys) = (replica.queue.clone(), replica.keys.clone());
        let (served, sent) = (replica.served.clone(), self.sent.clone());
        let (clock, begun) = (self.clock.clone(), self.begun);
        tokio::spawn(async move {
            let admitted = queue.admit(priority, MAX_WAIT, |slot| {
                let permit = keys.take(priority).map_err(NotAdmitted::from)?;
                let slot = slot.map(|mut slot| {
                    slot.mark_used();
                    slot
                });
                Ok((slot, permit))
            });
            if let Ok((slot, mut permit)) = admitted.await {
                let now = clock.now().since(begun).as_millis() as u64;
                sent.lock().unwrap().push((now, at));
                permit.mark_sent_alone();
                tokio::time::sleep(ANSWER_TIME).await;
                permit.mark_resolved();
                drop((slot, permit));
                served.fetch_add(1, Relaxed);
            }
        });
    }

    async fn play(&mut self, seconds: u64) {
        for _ in 0..seconds * 1000 / STEP {
            let now = self.now();
            // How many of so many a minute are due in this step.
            let due = |minute: u64| (now + STEP) * minute / 60_000 - now * minute / 60_000;
            for at in 0..self.replicas.len() {
                for _ in 0..due(self.replicas[at].probes) {
                    self.request(at, RequestPriority::own(Priority::Probe));
                }
                for _ in 0..due(self.replicas[at].demand) {
                    self.replicas[at].requests += 1;
                    let client = Client::V4(self.dice.u32(..CLIENTS));
                    self.request(at, RequestPriority::of(client, Priority::Miss));
                }
            }
            let step = Duration::from_millis(STEP);
            self.clock.advance(step);
            tokio::time::advance(step).await;
            for _ in 0..12 {
                tokio::task::yield_now().await;
            }
            for replica in &self.replicas {
                replica.keeper.round(&*self.engine).await;
            }
        }
    }

    /// What a replica may use now of a minute.
    fn limit(&self, at: usize) -> usize {
        let allowance = self.replicas[at].keys.snapshots()[0].allowance.unwrap();
        allowance.floor.per_minute.unwrap() + allowance.granted.per_minute
    }

    /// The requests a minute that a replica, or all of them, sent in the last seconds.
    fn sent(&self, replica: Option<usize>, seconds: u64) -> usize {
        let since = self.now() - seconds * 1000;
        let sent = self.sent.lock().unwrap();
        let counted = sent
            .iter()
            .filter(|(time, at)| *time >= since && replica.is_none_or(|replica| replica == *at));
        counted.count() * 60 / seconds as usize
    }

    /// Asserts that no minute and no second had more requests than the budget.
    fn check(&self, per_minute: u32, per_second: u32) {
        let mut sent = self.sent.lock().unwrap().clone();
        sent.sort_unstable();
        for (budget, span) in [(per_minute as usize, 60_000), (per_second as usize, 1000)] {
            let mut windows = sent.windows(budget + 1);
            let excess = windows.find(|window| window[budget].0 - window[0].0 < span);
            assert!(excess.is_none(), "more than {budget} within {span} ms");
        }
    }
}

/// The budgets of a minute and a second, and the probes a minute of the replica with load.
const BUDGETS: [(u32, u32, u64); 4] = [(500, 20, 0), (500, 20, 24), (120, 12, 0), (120, 12, 24)];

#[tokio::test(start_paused = true)]
async fn one_replica_with_load_is_granted_what_the_others_leave() {
    for (per_minute, per_second, probes) in BUDGETS {
        let mut world = CrowdedReplicas::new(per_minute, per_second, probes);
        world.play(SETTLED).await;
        world.replicas[0].demand = 1200;
        // The floor is used within a few seconds. Two reports later the grant is there: one
        // says what is wanted, and after the reply the next one asks for it.
        world.play(30).await;
        let left = per_minute as usize - world.limit(1) - world.limit(2);
        let limit = world.limit(0);
        world.play(60).await;
        world.play(120).await;
        let sent = world.sent(Some(0), 120);
        let what = format!("{per_minute} a minute, {probes} probes: limit {limit}, {sent} sent");
        let what = format!("{what} of {left}");
        eprintln!("{what}");
        assert!(left * 2 > per_minute as usize, "{what}");
        assert!(limit * 100 >= left * 95, "{what}");
        // A replica keeps this much for probes, beside those that were sent.
        let usable = left - (probes as usize).min(limit / 4);
        assert!(sent * 100 >= usable * 95, "{what}");
        world.check(per_minute, per_second);
    }
}

#[tokio::test(start_paused = true)]
async fn even_load_on_all_replicas_uses_the_budget() {
    for (per_minute, per_second, probes) in [(500, 20, 0), (600, 30, 24), (120, 12, 0)] {
        let mut world = CrowdedReplicas::new(per_minute, per_second, probes);
        for replica in &mut world.replicas {
            replica.demand = 1200;
        }
        world.play(SETTLED).await;
        world.play(60).await;
        world.play(120).await;
        let sent = world.sent(None, 120);
        let each = [0, 1, 2].map(|at| world.sent(Some(at), 120));
        eprintln!("{per_minute} a minute: {sent} sent, {each:?}");
        assert!(
            sent * 100 >= per_minute as usize * 95,
            "{sent} of {per_minute}"
        );
        let (least, most) = (each.iter().min().unwrap(), each.iter().max().unwrap());
        // The first one keeps some for probes.
        assert!((least + probes as usize) * 100 >= most * 95, "{each:?}");
        world.check(per_minute, per_second);
    }
}

/// A flood at one replica takes nothing that another needs within its even part.
#[tokio::test(start_paused = true)]
async fn a_flood_at_one_replica_leaves_the_others_their_even_part() {
    let mut world = CrowdedReplicas::new(500, 20, 0);
    world.replicas[0].demand = 6000;
    world.play(SETTLED + 60).await;
    assert!(world.limit(0) > 250, "{}", world.limit(0));
    world.replicas[1].demand = 140;
    world.play(120).await;
    let before = (
        world.replicas[1].requests,
        world.replicas[1].served.load(Relaxed),
    );
    world.play(300).await;
    let replica = &world.replicas[1];
    let requests = replica.requests - before.0;
    let served = replica.served.load(Relaxed) - before.1;
    eprintln!("{served} of {requests} beside the flood");
    assert!(served * 100 >= requests * 98, "{served} of {requests}");
    let all = world.sent(None, 120);
    let rest = world.limit(0);
    assert!(
        all * 100 >= (rest + 140) * 95,
        "{all}, and the flood may have {rest}"
    );
    assert!(rest >= 200, "the flood has what is left: {rest}");
    world.check(500, 20);
}
