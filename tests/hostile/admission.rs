//! Clients that try to use up the upstream's budget or slots. The honest client's
//! misses are still answered, and its hits in any case.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use crate::support::{
    Answer, Client, Gate, Gateway, Reply, Setup, TOKEN, Upstream, token, until, within,
};

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

/// A client that asks for one new thing after another until it is stopped; how often it was
/// refused.
struct Greedy {
    refused: Arc<AtomicUsize>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Greedy {
    fn start(gateway: &Gateway, connections: usize) -> Self {
        let (refused, next) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
        let task = |_| {
            let (refused, next, public) = (refused.clone(), next.clone(), gateway.public);
            tokio::spawn(async move {
                let mut connection = Client::connect(public).await;
                let client = hostile(1);
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

/// A greedy client spends all that it can get; then another asks for four new things and for
/// one that changes each time.
#[tokio::test]
async fn misses_of_one_client_leave_budget_to_another() {
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
    let greedy = Greedy::start(&gateway, 30);
    until("there is no more for them", || {
        greedy.refused.load(SeqCst) > 0
    })
    .await;
    let mut served = 0;
    for round in 1..=4 {
        let miss = get(&mut own, HONEST, &token(1_000_000 + round)).await;
        served += usize::from(miss.status == 200);
        upstream.always(Reply::json(format!(r#"{{"version":{round}}}"#)));
        // A fetch that has to wait for its turn keeps its place: the client gets the stale
        // answer meanwhile.
        let polled = async {
            loop {
                let polled = get(&mut own, HONEST, TOKEN).await;
                assert_eq!(polled.status, 200);
                if version(&polled) == round as u64 {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        within("its fetch is sent", polled).await;
    }
    assert_eq!(served, 4);
    drop(greedy);
    assert!(upstream.count() <= MINUTE, "{}", upstream.count());
    let upstream = &gateway.admin("/status").await.json()["upstream"];
    assert_ne!(upstream["heaviest_clients"][0]["client"], HONEST);
}

#[tokio::test]
async fn one_client_leaves_a_quarter_of_the_slots_to_others() {
    let upstream = Upstream::start();
    let gate = Gate::new();
    upstream.always(Reply::json("{}").behind(&gate));
    let slots = "upstream = { max_in_flight = 4, queue_timeout = \"10ms\" }";
    let gateway = Setup::before(&upstream)
        .config(CONFIG)
        .config(slots)
        .start();
    let mut held = Vec::new();
    for number in 0..3 {
        held.push(request_as(&gateway, &hostile(1), &token(number)).await);
    }
    upstream.until_requests(3).await;
    let mut fourth = request_as(&gateway, &hostile(1), &token(3)).await;
    let refused = fourth.answer("GET").await;
    assert_eq!((refused.status, refused.number("retry-after")), (503, 1));
    assert_eq!(refused.problem()["reason"], "no_slot");
    held.push(request_as(&gateway, HONEST, &token(4)).await);
    upstream.until_requests(4).await;
    gate.open();
    for mut client in held {
        assert_eq!(client.answer("GET").await.status, 200);
    }
}

#[tokio::test]
async fn a_hundred_requests_of_one_client_do_not_hold_up_another() {
    let upstream = Upstream::start();
    let (first, rest) = (Gate::new(), Gate::new());
    upstream.once(&token(0), Reply::json("{}").behind(&first));
    upstream.always(Reply::json("{}").behind(&rest));
    let slots = "upstream = { max_in_flight = 2, queue_timeout = \"60s\" }";
    let setup = Setup::before(&upstream).config(CONFIG).config(slots);
    let gateway = setup.config("limit.enabled = false").start();
    let mut held = vec![request_as(&gateway, &hostile(1), &token(0)).await];
    upstream.until_requests(1).await;
    for number in 1..100 {
        held.push(request_as(&gateway, &hostile(1), &token(number)).await);
    }
    until("they wait", || gateway.queued() == 98).await;
    let mut honest = request_as(&gateway, HONEST, &token(1000)).await;
    until("it waits", || gateway.queued() == 99).await;
    first.open();
    upstream.until_requests(3).await;
    assert_eq!(upstream.targets()[2], token(1000), "it is its turn");
    rest.open();
    assert_eq!(honest.answer("GET").await.status, 200);
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
