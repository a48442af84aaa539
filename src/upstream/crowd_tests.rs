//! Fairness between clients with the budget of the shipped configuration, in a
//! simulation of eleven minutes: greedy clients request far more than the budget, and a
//! modest one competes with them. Requests pass the real queue and keys; only the
//! network is left out.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::admit::hold;
use super::keys::{ApiKey, Keys};
use super::{Priority, Rates, RequestPriority};
use crate::clock::{Clock, Moment};
use crate::identify::Client;
use crate::upstream::admission::budgets::{BudgetOwner, Budgets};
use crate::upstream::admission::queue::AdmissionQueue;
use crate::upstream::client::connection::{Connection, SendPath};

/// The time of a response.
const TAKES: Duration = Duration::from_millis(150);
/// How long a request waits, as shipped.
const PATIENCE: Duration = Duration::from_secs(2);
/// Probes of both tips a minute, as shipped.
const PROBES: u32 = 24;
const STEP: Duration = Duration::from_millis(50);
const MINUTE: u64 = 60_000;
const MINUTES: u64 = 11;

/// A client: the requests that it has made, and those that were served.
#[derive(Default)]
struct QueuedClient {
    asked: AtomicU64,
    served: AtomicU64,
}

struct Simulation {
    clock: Clock,
    begun: Moment,
    line: Arc<AdmissionQueue>,
    keys: Arc<Keys>,
    /// When requests were sent, in milliseconds.
    sent: std::sync::Mutex<Vec<u64>>,
}

impl Simulation {
    fn new(per_minute: u32, per_second: u32) -> Arc<Self> {
        let clock = Clock::manual();
        let rate = |n| NonZeroU32::new(n).unwrap().into();
        let line = AdmissionQueue::new(1024, clock.clone());
        line.set_slots(32);
        let keys = Keys::new(
            "default",
            ApiKey::list("a-key").unwrap(),
            BudgetOwner::Server("server:80".into()),
            Rates {
                per_minute: rate(per_minute),
                per_second: rate(per_second),
            },
            Budgets::new(),
            line.clone(),
            clock.clone(),
        );
        keys.set_probes(PROBES);
        Arc::new(Self {
            begun: clock.now(),
            clock,
            line,
            keys,
            sent: std::sync::Mutex::default(),
        })
    }

    fn now(&self) -> u64 {
        u64::try_from(self.clock.now().since(self.begun).as_millis()).unwrap()
    }

    async fn ask(self: Arc<Self>, wish: RequestPriority, client: Arc<QueuedClient>) {
        client.asked.fetch_add(1, Relaxed);
        let passed = self.line.admit(wish, PATIENCE, |slot| {
            let grant = self.keys.take(wish).map_err(hold)?;
            let slot = slot.map(|mut slot| {
                slot.mark_used();
                slot
            });
            Ok((slot, grant))
        });
        if let Ok((slot, mut grant)) = passed.await {
            self.sent.lock().unwrap().push(self.now());
            grant.mark_sent(SendPath::known(Connection::default()), &Arc::default());
            tokio::time::sleep(TAKES).await;
            grant.mark_resolved();
            drop((slot, grant));
            client.served.fetch_add(1, Relaxed);
        }
    }

    /// Runs for this many milliseconds, in which each client sends requests at its
    /// interval: misses and revalidations in turn.
    async fn play(
        self: &Arc<Self>,
        time: u64,
        asking: &[(RequestPriority, u64, Arc<QueuedClient>)],
    ) {
        let step = u64::try_from(STEP.as_millis()).unwrap();
        for _ in 0..time / step {
            let now = self.now();
            for (at, (wish, interval, client)) in asking.iter().enumerate() {
                // They do not all send at the same moment.
                let now = now + at as u64 * 70;
                for nth in now / interval..(now + step) / interval {
                    let mut wish = *wish;
                    if wish.priority == Priority::Revalidation && nth % 2 == 0 {
                        wish.priority = Priority::Miss;
                    }
                    tokio::spawn(self.clone().ask(wish, client.clone()));
                }
            }
            self.clock.advance(STEP);
            tokio::time::advance(STEP).await;
            for _ in 0..12 {
                tokio::task::yield_now().await;
            }
        }
    }

    /// The most requests sent in any period of this length.
    fn most_in(&self, span: u64) -> usize {
        let sent = self.sent.lock().unwrap();
        let within = |(at, from): (usize, &u64)| {
            sent[at..]
                .iter()
                .take_while(|at| **at < from + span)
                .count()
        };
        sent.iter().enumerate().map(within).max().unwrap_or(0)
    }

    fn sent_between(&self, from: u64, to: u64) -> usize {
        let sent = self.sent.lock().unwrap();
        sent.iter().filter(|at| (from..to).contains(*at)).count()
    }
}

fn wish(number: u32, priority: Priority) -> RequestPriority {
    RequestPriority::of(Client::V4(number), priority)
}

/// The percentage of the modest client's requests that are served besides this many
/// greedy clients with this interval each; and the requests of all per minute.
async fn beside(greedy: u32, interval: u64, honest: u64, per_minute: u32) -> (f64, usize) {
    let simulation = Simulation::new(per_minute, 20);
    let [probes, crowd, modest] = std::array::from_fn(|_| Arc::<QueuedClient>::default());
    let mut asking = vec![
        (
            RequestPriority::own(Priority::Probe),
            MINUTE / u64::from(PROBES),
            probes.clone(),
        ),
        (wish(1, Priority::Revalidation), honest, modest.clone()),
    ];
    let each = (0..greedy).map(|n| (wish(1000 + n, Priority::Miss), interval, crowd.clone()));
    asking.extend(each);
    simulation.play(MINUTES * MINUTE, &asking).await;

    assert!(simulation.most_in(MINUTE) <= per_minute as usize);
    assert!(simulation.most_in(1_000) <= 20);
    let [probed, probes] = [&probes.served, &probes.asked].map(|n| n.load(Relaxed));
    assert!(probed + 1 >= probes, "{probed} of {probes} probes");
    let [served, asked] = [&modest.served, &modest.asked].map(|n| n.load(Relaxed));
    assert!(asked + 1 >= MINUTES * MINUTE / honest, "{asked}");
    let sent = simulation.sent_between(2 * MINUTE, MINUTES * MINUTE);
    // The last one may still be in flight.
    let share = 100.0 * (served + 1).min(asked) as f64 / asked as f64;
    (share, sent / (MINUTES as usize - 2))
}

/// The modest client is served, and little of the budget is unused.
async fn must_leave(greedy: u32, interval: u64, honest: u64, per_minute: u32, least: usize) {
    let (share, sent) = beside(greedy, interval, honest, per_minute).await;
    assert!(share >= 98.0, "{share:.1} % beside {greedy}");
    assert!(sent >= least, "{sent} a minute beside {greedy}");
}

#[tokio::test(start_paused = true)]
async fn one_greedy_client_leaves_another_its_misses() {
    must_leave(1, 25, 1_000, 500, 400).await;
}

#[tokio::test(start_paused = true)]
async fn three_greedy_clients_leave_another_its_misses() {
    must_leave(3, 75, 1_000, 500, 400).await;
}

/// The equal share is 13 or 14 requests a minute, and the modest client sends 12.
#[tokio::test(start_paused = true)]
async fn thirty_greedy_clients_leave_another_its_misses() {
    must_leave(30, 750, 5_000, 500, 400).await;
}

#[tokio::test(start_paused = true)]
async fn a_greedy_client_leaves_another_its_misses_of_a_small_budget() {
    must_leave(1, 100, 5_000, 150, 105).await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_wants_more_than_its_share_gets_its_share() {
    // Thirty others request more than the budget, and this one sixty a minute: it gets
    // an equal part of about four hundred, and at most half as much again.
    let (share, _) = beside(30, 750, 1_000, 500).await;
    let served = 60.0 * share / 100.0;
    assert!((11.0..24.0).contains(&served), "{served} a minute");
}

#[tokio::test(start_paused = true)]
async fn a_client_alone_has_most_of_a_minute_at_once_and_the_rest_evenly() {
    let simulation = Simulation::new(500, 20);
    let client = Arc::<QueuedClient>::default();
    let asking = [(wish(1, Priority::Miss), 25, client)];
    simulation.play(10 * MINUTE, &asking).await;
    assert!(simulation.sent_between(0, 25_000) >= 300, "the burst");
    assert!(
        simulation.sent_between(0, MINUTE) >= 400,
        "the first minute"
    );
    for minute in 1..10 {
        let sent = simulation.sent_between(minute * MINUTE, (minute + 1) * MINUTE);
        assert!(sent >= 390, "{sent} in minute {minute}");
    }
    // In any five seconds some are sent.
    for at in 0..10 * MINUTE / 5_000 - 1 {
        let sent = simulation.sent_between(at * 5_000, (at + 1) * 5_000);
        assert!(sent >= 8, "{sent} from {} s on", at * 5);
    }
    assert!(simulation.most_in(MINUTE) <= 500);
}
