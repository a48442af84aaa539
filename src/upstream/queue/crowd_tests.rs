//! Many clients share one budget, as in the shipped configuration, for eleven minutes
//! of simulated time: greedy ones that request far more than the budget, and a modest
//! one. Requests pass the real admission queue and keys; only the network is simulated.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::time::Instant;

use super::tests::upstreams;
use crate::clock::{Clock, Moment};
use crate::identify::Client;
use crate::upstream::{Priority, RequestPriority, Upstream};

/// How long an answer takes.
const ANSWER_TIME: Duration = Duration::from_millis(150);
/// How long a request waits, as in the shipped configuration.
const MAX_WAIT: Duration = Duration::from_secs(2);
/// Probes of both tips a minute, as in the shipped configuration.
const PROBES: u32 = 24;
const STEP: Duration = Duration::from_millis(50);
const MINUTE: u64 = 60_000;
const MINUTES: u64 = 11;

/// A client's requests, and how many of them were served.
#[derive(Default)]
struct QueuedClient {
    requests: AtomicU64,
    served: AtomicU64,
}

struct CrowdSimulation {
    clock: Clock,
    begun: Moment,
    upstream: Arc<Upstream>,
    /// When requests were sent, in milliseconds since the start.
    sent: std::sync::Mutex<Vec<u64>>,
}

impl CrowdSimulation {
    fn new(per_minute: u32, per_second: u32) -> Arc<Self> {
        let clock = Clock::manual();
        let config = format!(
            "upstream.url = \"http://127.0.0.1:1\"\nupstream.requests_per_minute = {per_minute}\n\
             upstream.requests_per_second = {per_second}"
        );
        let all = upstreams(&config, "a-key", &clock);
        let upstream = all.first().clone();
        upstream.set_tips(Vec::new(), PROBES, Some(Duration::from_secs(10)));
        all.take_over();
        Arc::new(Self {
            begun: clock.now(),
            clock,
            upstream,
            sent: std::sync::Mutex::default(),
        })
    }

    fn now(&self) -> u64 {
        u64::try_from(self.clock.now().since(self.begun).as_millis()).unwrap()
    }

    async fn request(self: Arc<Self>, priority: RequestPriority, client: Arc<QueuedClient>) {
        client.requests.fetch_add(1, Relaxed);
        let deadline = Instant::now() + MAX_WAIT;
        let permit = self.upstream.acquire(priority, None, deadline);
        if let Ok(mut permit) = permit.await {
            self.sent.lock().unwrap().push(self.now());
            permit.mark_sent(true);
            tokio::time::sleep(ANSWER_TIME).await;
            drop(permit);
            client.served.fetch_add(1, Relaxed);
        }
    }

    /// Simulates `time` milliseconds, in which each client sends a request at its
    /// interval: misses, or revalidations and misses in turn.
    async fn play(
        self: &Arc<Self>,
        time: u64,
        clients: &[(RequestPriority, u64, Arc<QueuedClient>)],
    ) {
        let step = u64::try_from(STEP.as_millis()).unwrap();
        for _ in 0..time / step {
            let now = self.now();
            for (at, (priority, interval, client)) in clients.iter().enumerate() {
                // Clients do not send at the same moment.
                let now = now + at as u64 * 70;
                for nth in now / interval..(now + step) / interval {
                    let mut priority = *priority;
                    if priority.priority == Priority::Revalidation && nth % 2 == 0 {
                        priority.priority = Priority::Miss;
                    }
                    tokio::spawn(self.clone().request(priority, client.clone()));
                }
            }
            self.clock.advance(STEP);
            tokio::time::advance(STEP).await;
            for _ in 0..12 {
                tokio::task::yield_now().await;
            }
        }
    }

    /// The most requests that were sent in any `span` milliseconds.
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

fn client_priority(number: u32, priority: Priority) -> RequestPriority {
    RequestPriority {
        client: Some(Client::V4(number)),
        ..RequestPriority::own(priority)
    }
}

/// Simulates one modest client beside `greedy` ones, which send at `interval`
/// milliseconds each. Returns the percentage of the modest client's requests that are
/// served, and the requests sent a minute for all clients.
async fn simulate(
    greedy: u32,
    interval: u64,
    modest_interval: u64,
    per_minute: u32,
) -> (f64, usize) {
    let simulation = CrowdSimulation::new(per_minute, 20);
    let [probes, crowd, modest] = std::array::from_fn(|_| Arc::<QueuedClient>::default());
    let mut clients = vec![
        (
            RequestPriority::own(Priority::Probe),
            MINUTE / u64::from(PROBES),
            probes.clone(),
        ),
        (
            client_priority(1, Priority::Revalidation),
            modest_interval,
            modest.clone(),
        ),
    ];
    let each = (0..greedy).map(|n| {
        (
            client_priority(1000 + n, Priority::Miss),
            interval,
            crowd.clone(),
        )
    });
    clients.extend(each);
    simulation.play(MINUTES * MINUTE, &clients).await;

    assert!(simulation.most_in(MINUTE) <= per_minute as usize);
    assert!(simulation.most_in(1_000) <= 20);
    let [probed, probes] = [&probes.served, &probes.requests].map(|n| n.load(Relaxed));
    assert!(probed + 1 >= probes, "{probed} of {probes} probes");
    let [served, requests] = [&modest.served, &modest.requests].map(|n| n.load(Relaxed));
    assert!(
        requests + 1 >= MINUTES * MINUTE / modest_interval,
        "{requests}"
    );
    let sent = simulation.sent_between(2 * MINUTE, MINUTES * MINUTE);
    // The last request may still be under way.
    let share = 100.0 * (served + 1).min(requests) as f64 / requests as f64;
    (share, sent / (MINUTES as usize - 2))
}

#[tokio::test(start_paused = true)]
async fn greedy_clients_leave_a_modest_client_its_misses() {
    // A fair share beside thirty is 13 or 14 requests a minute; the modest client sends 12.
    for (greedy, interval, modest_interval) in [(1, 25, 1_000), (30, 750, 5_000)] {
        let (share, sent) = simulate(greedy, interval, modest_interval, 500).await;
        assert!(share >= 98.0, "{share:.1} % beside {greedy}");
        assert!(sent >= 400, "{sent} a minute beside {greedy}");
    }
}
