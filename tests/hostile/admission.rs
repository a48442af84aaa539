//! Clients that try to use up the upstream's budget or slots. The honest client's
//! misses are still answered, and its hits in any case.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use crate::support::{Answer, Client, Gate, Gateway, Reply, Setup, TOKEN, Upstream, token, until};

const HONEST: &str = "198.51.100.1";

/// Clients are identified by a forwarding field.
const CONFIG: &str = "clients.trusted_proxies = [\"127.0.0.1\"]\nupstream.retry = false\n";

/// The address of a hostile client.
fn hostile(number: usize) -> String {
    format!("203.0.113.{number}")
}

async fn get(connection: &mut Client, client: &str, target: &str) -> Answer {
    let fields = [("x-forwarded-for", client)];
    connection.request("GET", target, &fields).await
}

/// Sends a request on a new connection, and reads nothing.
async fn request_as(gateway: &Gateway, client: &str, target: &str) -> Client {
    let mut connection = gateway.client().await;
    let fields = [("x-forwarded-for", client)];
    connection.send_request("GET", target, &fields).await;
    connection
}

/// The version that an answer is of.
fn version(answer: &Answer) -> u64 {
    answer.json()["version"].as_u64().unwrap()
}

/// Clients that ask for one new thing after another until they are stopped; how
/// often they were refused.
struct Greedy {
    refused: Arc<AtomicUsize>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Greedy {
    fn start(gateway: &Gateway, clients: usize, connections: usize) -> Self {
        let (refused, next) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let task = |number: usize| {
            let (refused, next, public) = (refused.clone(), next.clone(), gateway.public);
            tokio::spawn(async move {
                let mut connection = Client::connect(public).await;
                let client = hostile(number % clients);
                loop {
                    let target = token(next.fetch_add(1, SeqCst));
                    let answer = get(&mut connection, &client, &target).await;
                    refused.fetch_add(usize::from(answer.status == 503), SeqCst);
                }
            })
        };
        let tasks = (0..connections).map(task).collect();
        Self { refused, tasks }
    }
}

impl Drop for Greedy {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// Stored responses are stale at once, so that each poll goes upstream.
const POLLED: &str = r#"
    [[route]]
    name = "token"
    path = "/ordinals/v1/brc-20/tokens/{ticker}"
    params.ticker = { type = "ticker" }
    response = "json"
    cache = { mode = "override", times = { 200 = "1ms" }, stale_if_error = "5m" }
"#;

/// So many greedy clients spend all that they can get; then one asks for four
/// new things and for one that changes each time.
async fn must_leave_misses(clients: usize) {
    const MINUTE: usize = 600;
    let upstream = Upstream::start();
    upstream.always(Reply::json(r#"{"version":0}"#));
    let budget = "upstream = { requests_per_minute = 600, requests_per_second = 600, queue_timeout = \"1s\" }";
    let setup = Setup::before(&upstream)
        .keys("a-key")
        .config(CONFIG)
        .config(budget);
    let gateway = setup.config("limit.enabled = false").config(POLLED).start();
    let mut own = gateway.client().await;
    assert_eq!(get(&mut own, HONEST, TOKEN).await.status, 200);
    let greedy = Greedy::start(&gateway, clients, 30);
    until("there is no more for them", || {
        greedy.refused.load(SeqCst) > 0
    })
    .await;
    let (mut served, mut fresh) = (0, 0);
    for round in 1..=4 {
        let miss = get(&mut own, HONEST, &token(1_000_000 + round)).await;
        served += usize::from(miss.status == 200);
        upstream.always(Reply::json(format!(r#"{{"version":{round}}}"#)));
        let polled = get(&mut own, HONEST, TOKEN).await;
        served += usize::from(polled.status == 200);
        fresh += usize::from(version(&polled) == round as u64);
    }
    assert_eq!((served, fresh), (8, 4), "beside {clients}");
    drop(greedy);
    assert!(upstream.count() <= MINUTE, "{}", upstream.count());
    let upstream = &gateway.admin("/status").await.json()["upstream"];
    assert_ne!(upstream["heaviest_clients"][0]["client"], HONEST);
}

#[tokio::test]
async fn misses_of_one_client_leave_budget_to_another() {
    must_leave_misses(1).await;
}

/// What is not answered yet counts in every second's budget, so that slow
/// requests take that before they take all slots.
#[tokio::test]
async fn slow_requests_of_one_client_leave_others_some_of_each_second() {
    let upstream = Upstream::start();
    let gate = Gate::new();
    let own = gate.clone();
    upstream.usually(move |seen| match seen.target().contains("/slow") {
        true => Reply::json("{}").behind(&own),
        false => Reply::json("{}"),
    });
    let budget =
        "upstream = { requests_per_second = 20, max_in_flight = 32, queue_timeout = \"100ms\" }";
    let setup = Setup::before(&upstream)
        .keys("a-key")
        .config(CONFIG)
        .config(budget);
    // No time goes by, so that all of this is in one second.
    let gateway = setup.manual().start();
    let slow = |number: usize| format!("/ordinals/v1/brc-20/tokens/slow{number}");
    let mut held = Vec::new();
    for number in 0..20 {
        held.push(request_as(&gateway, &hostile(1), &slow(number)).await);
    }
    upstream.until_requests(10).await;
    let mut honest = gateway.client().await;
    for number in 0..7 {
        let answer = get(&mut honest, HONEST, &token(number)).await;
        assert_eq!(answer.status, 200, "{number}: {}", answer.text());
    }
    assert_eq!(upstream.count(), 17);
    gate.open();
    let mut served = 0;
    for mut client in held {
        served += usize::from(client.answer("GET").await.status == 200);
    }
    assert!(served >= 10, "{served}");
}

#[tokio::test]
async fn a_client_over_its_share_of_slots_gets_429_and_is_counted() {
    let upstream = Upstream::start();
    let gate = Gate::new();
    upstream.always(Reply::json("{}").behind(&gate));
    let slots = "upstream = { max_in_flight = 4, queue_timeout = \"10ms\" }";
    let gateway = Setup::before(&upstream)
        .config(CONFIG)
        .config(slots)
        .start();
    let mut held = Vec::new();
    for number in 0..2 {
        held.push(request_as(&gateway, &hostile(1), &token(number)).await);
    }
    upstream.until_requests(2).await;
    let mut third = request_as(&gateway, &hostile(1), &token(3)).await;
    let refused = third.answer("GET").await;
    assert_eq!((refused.status, refused.number("retry-after")), (503, 1));
    let metrics = gateway.admin("/metrics").await;
    let counted =
        "ordgate_upstream_share_refusals_total{cause=\"slot-share\",upstream=\"default\"} 1\n";
    assert!(metrics.text().contains(counted), "{}", metrics.text());
    gate.open();
    for mut client in held {
        assert_eq!(client.answer("GET").await.status, 200);
    }
}

/// Two misses a minute, and as many requests as anyone likes.
const MISSES: &str = "limit.misses_per_minute = 2\n";

#[tokio::test]
async fn misses_are_limited_apart_from_hits() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .manual()
        .config(CONFIG)
        .config(MISSES)
        .start();
    let mut connection = gateway.client().await;
    for number in 0..2 {
        assert_eq!(
            get(&mut connection, HONEST, &token(number)).await.status,
            200
        );
    }
    let refused = get(&mut connection, HONEST, &token(2)).await;
    assert_eq!(refused.status, 429);
    assert_eq!(refused.must("retry-after"), "30");
    assert_eq!(refused.must("ratelimit"), "\"misses\";r=0;t=30");
    assert_eq!(refused.must("ratelimit-policy"), "\"misses\";q=2;w=60");
    let problem = refused.problem();
    assert!(
        problem["error"].as_str().unwrap().contains("again in 30 s"),
        "{problem}"
    );
    for _ in 0..10 {
        let hit = get(&mut connection, HONEST, &token(1)).await;
        assert_eq!(hit.status, 200, "hits go on");
        assert!(hit.must("ratelimit").starts_with("\"default\""));
    }
    assert_eq!(
        get(&mut connection, &hostile(1), &token(3)).await.status,
        200
    );
    // What is stored and stale is served rather than nothing.
    gateway.advance(11_000);
    let stale = get(&mut connection, HONEST, &token(1)).await;
    assert_eq!(stale.status, 200);
    assert_eq!(stale.must("age"), "11");
    assert_eq!(upstream.count(), 3);
    gateway.advance(19_000);
    assert_eq!(
        get(&mut connection, HONEST, &token(1)).await.must("age"),
        "0"
    );
    assert_eq!(get(&mut connection, HONEST, &token(2)).await.status, 429);
    // A reload takes the limit away, or another up.
    assert_eq!(
        gateway.reload("limit.misses_per_minute = 0").await.status,
        200
    );
    for number in 10..20 {
        assert_eq!(
            get(&mut connection, HONEST, &token(number)).await.status,
            200
        );
    }
    let metrics = gateway.admin("/metrics").await;
    for (result, count) in [("refused", 2), ("stale", 1)] {
        let line = format!("ordgate_misses_limited_total{{result=\"{result}\"}} {count}\n");
        assert!(metrics.text().contains(&line), "{}", metrics.text());
    }
    let status = gateway.admin("/status").await.json();
    assert_eq!(status["misses_limited"]["refused"], 2);
}

#[tokio::test]
async fn a_follower_that_takes_over_is_a_miss_of_its_client() {
    let upstream = Upstream::start();
    let gate = Gate::new();
    let held = gate.clone();
    upstream.usually(move |_| Reply::with(200, "cache-control: private\r\n", "{}").behind(&held));
    let gateway = Setup::before(&upstream)
        .manual()
        .config(CONFIG)
        .config(MISSES)
        .config(crate::support::respect::ALL)
        .start();
    let own = [("x-forwarded-for", HONEST)];
    let mut first = gateway.client().await;
    first.send_request("GET", "/v", &own).await;
    upstream.until_requests(1).await;
    let mut second = gateway.client().await;
    second.send_request("GET", "/v", &own).await;
    gateway.until_all_is_read().await;
    gate.open();
    upstream.until_requests(2).await;
    for client in [&mut first, &mut second] {
        assert_eq!(client.answer("GET").await.status, 200);
    }
    let third = get(&mut first, HONEST, "/v").await;
    assert_eq!(third.status, 429, "it has had its two");
    assert_eq!(upstream.count(), 2);
}

#[tokio::test]
async fn a_follower_is_no_miss_of_its_client() {
    let upstream = Upstream::start();
    let gate = Gate::new();
    upstream.once(&token(0), Reply::json("{}").behind(&gate));
    let gateway = Setup::before(&upstream)
        .manual()
        .config(CONFIG)
        .config(MISSES)
        .start();
    let mut leader = request_as(&gateway, &hostile(1), &token(0)).await;
    upstream.until_requests(1).await;
    let mut followers = Vec::new();
    for _ in 0..5 {
        followers.push(request_as(&gateway, HONEST, &token(0)).await);
    }
    until("one key is fetched", || gateway.fetching() == 1).await;
    for number in 1..3 {
        let mut own = gateway.client().await;
        assert_eq!(get(&mut own, HONEST, &token(number)).await.status, 200);
    }
    let mut own = gateway.client().await;
    assert_eq!(get(&mut own, HONEST, &token(3)).await.status, 429);
    gate.open();
    assert_eq!(leader.answer("GET").await.status, 200);
    for mut follower in followers {
        assert_eq!(follower.answer("GET").await.status, 200);
    }
}
