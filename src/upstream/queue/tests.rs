//! Order, shares, deadlines and bounds of the queue, with a paused clock and real permits.

use super::*;
use crate::clock::Clock;
use crate::config::Config;
use crate::upstream::keys::{ApiKey, Budgets};
use crate::upstream::{ProviderKeys, Upstreams};

/// Upstreams of the shipped configuration with these changes, and these keys.
pub(crate) fn upstreams(config: &str, keys: &str, clock: &Clock) -> Arc<Upstreams> {
    let settings = Config::parse("p", config).unwrap().upstreams;
    let keys = ProviderKeys {
        shared: ApiKey::list(keys).unwrap_or_default(),
        ..ProviderKeys::default()
    };
    let budgets = Arc::default();
    let all = Upstreams::new(&settings, &keys, None, &budgets, clock, None).unwrap();
    all.take_over();
    all
}

/// The upstream at this URL, with these changes and keys.
pub(crate) fn upstream_at(url: &str, config: &str, keys: &str, clock: &Clock) -> Arc<Upstream> {
    let config = format!("upstream.url = \"{url}\"\n{config}");
    upstreams(&config, keys, clock).first().clone()
}

/// The same, at any URL.
pub(crate) fn upstream(config: &str, keys: &str, clock: &Clock) -> Arc<Upstream> {
    upstream_at("http://127.0.0.1:1", config, keys, clock)
}

fn of(client: u32, priority: Priority) -> RequestPriority {
    RequestPriority {
        client: Some(Client::V4(client)),
        ..RequestPriority::own(priority)
    }
}

fn miss(client: u32) -> RequestPriority {
    of(client, Priority::Miss)
}

/// Acquires without waiting.
async fn at_once(upstream: &Upstream, request: RequestPriority) -> Result<Permit, Failure> {
    upstream.acquire(request, None, Instant::now()).await
}

const LONG: Duration = Duration::from_secs(5);

/// A miss of this client does not enter the queue, though it could wait.
async fn assert_refused_at_once(upstream: &Upstream, client: u32) {
    let began = Instant::now();
    let refused = upstream.acquire(miss(client), None, began + LONG).await;
    let reason = refused.err().map(|failure| failure.reason);
    assert_eq!(
        (reason, began.elapsed()),
        (Some(Reason::NoSlot), Duration::ZERO)
    );
}

type Order = Arc<Mutex<Vec<(u32, Permit)>>>;

/// Lets requests wait, each of which records its number when it is admitted.
async fn wait_all(upstream: &Arc<Upstream>, requests: &[RequestPriority]) -> Order {
    let order = Order::default();
    for (number, request) in (0..).zip(requests.iter().copied()) {
        let (upstream, own) = (upstream.clone(), order.clone());
        let before = upstream.queue.len();
        tokio::spawn({
            let upstream = upstream.clone();
            async move {
                let deadline = Instant::now() + LONG;
                let permit = upstream.acquire(request, None, deadline).await;
                lock(&own).extend(permit.ok().map(|mut permit| {
                    permit.mark_sent(true);
                    (number, permit)
                }));
            }
        });
        while upstream.queue.len() == before {
            tokio::task::yield_now().await;
        }
    }
    order
}

/// Ends one request after the other; returns the order of those that waited.
async fn end_all(mut held: Vec<Permit>, order: &Order, count: usize) -> Vec<u32> {
    let mut found = Vec::new();
    while found.len() < count {
        held.pop();
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        let admitted: Vec<_> = lock(order).drain(..).collect();
        for (number, permit) in admitted {
            found.push(number);
            held.push(permit);
        }
    }
    found
}

#[tokio::test(start_paused = true)]
async fn clients_alternate_and_priority_counts_within_a_client() {
    let clock = Clock::manual();
    let upstream = upstream("upstream.max_in_flight = 1", "", &clock);
    let held = vec![at_once(&upstream, miss(9)).await.unwrap()];
    let again = Priority::Revalidation;
    let requests = [
        of(1, again),
        miss(1),
        miss(1),
        miss(2),
        of(3, again),
        miss(2),
        miss(5),
    ];
    let order = wait_all(&upstream, &requests).await;
    let order = end_all(held, &order, requests.len()).await;
    assert_eq!(order, [1, 3, 6, 4, 2, 5, 0]);
    assert_eq!(upstream.queue.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_client_with_the_least_use_goes_first_and_use_decays() {
    let clock = Clock::manual();
    let upstream = upstream("upstream.max_in_flight = 1", "", &clock);
    let queue = &upstream.queue;
    let client = |number| Some(Client::V4(number));
    let charge = |number, requests| {
        let mut state = queue.state();
        let own = state.clients.entry(client(number)).or_default();
        own.used = (own.used(clock.now()) + requests, clock.now());
    };
    charge(1, 8.0);
    charge(2, 2.0);
    // Two half-lives later the use of the first is two, and less than that of the second.
    clock.advance(HALF_LIFE * 2);
    let held = vec![at_once(&upstream, miss(9)).await.unwrap()];
    charge(2, 3.0);
    let order = wait_all(&upstream, &[miss(2), miss(1)]).await;
    let busiest = queue.busiest_clients(1, clock.now(), |client| client.to_string());
    let shown = json!({ "client": "0.0.0.2", "recent": 3.5, "waiting": 1, "in_flight": 0 });
    assert_eq!(busiest, [shown]);
    assert_eq!(end_all(held, &order, 2).await, [1, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_client_leaves_a_quarter_of_the_slots_to_those_that_have_none() {
    let clock = Clock::manual();
    let upstream = upstream("upstream.max_in_flight = 8", "", &clock);
    let mut held = Vec::new();
    for _ in 0..6 {
        held.push(at_once(&upstream, miss(1)).await.unwrap());
    }
    for client in [1, 2, 3] {
        let admitted = at_once(&upstream, miss(client)).await;
        let (is_admitted, expected) = (admitted.is_ok(), client != 1);
        assert_eq!(is_admitted, expected, "client {client}");
        held.extend(admitted.ok());
    }
    let full = at_once(&upstream, miss(4)).await.err().unwrap();
    assert_eq!(full.reason, Reason::NoSlot);
    let probe = RequestPriority::own(Priority::Probe);
    assert!(
        at_once(&upstream, probe).await.is_ok(),
        "a probe needs no slot"
    );
    // Under a budget of a few requests a second there are no more slots than that.
    let upstream = self::upstream("upstream.requests_per_second = 8", "a-key", &clock);
    let mut held = Vec::new();
    while let Ok(permit) = at_once(&upstream, miss(1)).await {
        held.push(permit);
    }
    assert_eq!(held.len(), 6);
}

#[tokio::test(start_paused = true)]
async fn no_request_waits_beyond_its_deadline_or_in_vain() {
    let clock = Clock::manual();
    let config = "upstream.max_in_flight = 1";
    let upstream = upstream(config, "", &clock);
    let _held = at_once(&upstream, miss(9)).await.unwrap();
    let began = Instant::now();
    let waited = upstream.acquire(miss(1), None, began + LONG).await;
    assert_eq!(waited.err().unwrap().reason, Reason::NoSlot);
    assert_eq!(began.elapsed(), LONG);
    assert_eq!(upstream.queue.len(), 0);
    // A spent minute lasts longer than the request may wait.
    let upstream = self::upstream("upstream.requests_per_minute = 1", "a-key", &clock);
    let mut sent = at_once(&upstream, miss(1)).await.unwrap();
    sent.mark_sent(true);
    drop(sent);
    let began = Instant::now();
    let denied = upstream.acquire(miss(2), None, began + LONG).await;
    let denied = denied.err().unwrap();
    assert_eq!(
        (denied.reason, began.elapsed()),
        (Reason::OverBudget, Duration::ZERO)
    );
    assert!(
        denied.retry_after > Some(Duration::from_secs(59)),
        "{denied:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_client_leaves_a_quarter_of_the_queue_to_others() {
    let upstream = upstream("upstream.max_in_flight = 1", "", &Clock::manual());
    let held = vec![at_once(&upstream, miss(9)).await.unwrap()];
    let order = wait_all(&upstream, &[miss(1); MAX_QUEUE * 3 / 4]).await;
    assert_refused_at_once(&upstream, 1).await;
    let _others = wait_all(&upstream, &[miss(2); MAX_QUEUE / 4]).await;
    assert_refused_at_once(&upstream, 3).await;
    let probe = RequestPriority::own(Priority::Probe);
    assert!(at_once(&upstream, probe).await.is_ok());
    assert_eq!(end_all(held, &order, 1).await, [0]);
}

#[tokio::test(start_paused = true)]
async fn of_too_many_clients_all_but_those_in_flight_are_forgotten() {
    let clock = Clock::manual();
    let upstream = upstream("", "", &clock);
    for client in 0..MAX_CLIENTS as u32 {
        drop(at_once(&upstream, miss(client)).await.unwrap());
    }
    assert_eq!(upstream.queue.state().clients.len(), MAX_CLIENTS);
    let _two = [
        at_once(&upstream, miss(0)).await,
        at_once(&upstream, miss(1)).await,
    ];
    assert_eq!(upstream.queue.state().clients.len(), 2);
}

#[tokio::test]
async fn whoever_does_not_wait_has_not_spent() {
    let (clock, place) = (Clock::manual(), tempfile::tempdir().unwrap());
    let settings = crate::state::Settings {
        path: place.path().join("state"),
        max_bytes: 1 << 20,
    };
    let of = Config::parse("p", "upstream.url = \"http://127.0.0.1:1\"");
    let keys = ProviderKeys {
        shared: ApiKey::list("a-key").unwrap(),
        ..ProviderKeys::default()
    };
    let opened = || crate::state::State::open(&settings, &clock).unwrap().spent;
    let spent = opened();
    let budgets = Arc::new(Budgets::new(None, spent.clone()));
    let of = of.unwrap().upstreams;
    let all = Upstreams::new(&of, &keys, None, &budgets, &clock, None).unwrap();
    all.take_over();
    let mut permit = all.first().permit(miss(1), None).ok().unwrap();
    assert!(permit.ready().await);
    let digest = permit.asked.key.key.digest;
    drop(permit);
    drop((spent, budgets, all));
    assert!(opened().earlier(&digest).ages.is_empty());
}
