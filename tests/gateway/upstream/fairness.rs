//! The order of the queue: a client with many requests waits behind its own, and
//! misses come before revalidations.

use std::collections::{HashMap, HashSet};

use crate::support::{Answer, Client, Gate, Gateway, Reply, Setup, Upstream, token, until};

/// The client that wants much, and the one that wants little.
const GREEDY: &str = "198.51.100.1";
const MODEST: &str = "198.51.100.2";

/// Clients are identified by a forwarding field, and wait for long.
const CONFIG: &str = r#"
    clients.trusted_proxies = ["127.0.0.1"]
    upstream.queue_timeout = "60s"
    upstream.retry = false
"#;

/// Two requests under way at once, and each until its gate is opened.
struct Narrow {
    upstream: Upstream,
    gateway: Gateway,
    gates: HashMap<String, Gate>,
    opened: HashSet<String>,
}

impl Narrow {
    fn new(setup: impl FnOnce(Setup) -> Setup) -> Self {
        let upstream = Upstream::start();
        let targets = (0..2000).map(token);
        let gates: HashMap<_, _> = targets.map(|target| (target, Gate::new())).collect();
        let own = gates.clone();
        upstream.usually(move |seen| Reply::json("{}").behind(&own[&seen.target()]));
        let two = "upstream = { max_in_flight = 2 }";
        let gateway = setup(Setup::before(&upstream).config(CONFIG).config(two)).start();
        Self {
            upstream,
            gateway,
            gates,
            opened: HashSet::new(),
        }
    }

    fn waiting(&self) -> usize {
        self.gateway.queued()
    }

    async fn wait_for(&self, waiting: usize) {
        until("so many wait", || self.waiting() == waiting).await;
    }

    /// Lets the one that has been under way for longest end, and waits until
    /// the next is sent; its target.
    async fn next(&mut self) -> String {
        let targets = self.upstream.targets();
        let shut = targets.iter().find(|target| !self.opened.contains(*target));
        self.open(&shut.unwrap().clone());
        self.upstream.until_requests(targets.len() + 1).await;
        self.upstream.targets().swap_remove(targets.len())
    }

    /// Lets one end.
    fn open(&mut self, target: &str) {
        self.gates[target].open();
        self.opened.insert(target.to_owned());
    }
}

async fn request_as(gateway: &Gateway, client: &str, number: usize) -> Client {
    let mut connection = gateway.client().await;
    let fields = [("x-forwarded-for", client)];
    connection
        .send_request("GET", &token(number), &fields)
        .await;
    connection
}

/// So many requests of the greedy client's, of which two are under way.
async fn crowd(narrow: &Narrow, many: usize) -> Vec<Client> {
    let mut crowd = Vec::new();
    for number in 0..many {
        crowd.push(request_as(&narrow.gateway, GREEDY, number).await);
        narrow.wait_for((number + 1).saturating_sub(2)).await;
    }
    narrow.upstream.until_requests(2).await;
    crowd
}

fn must_be_refused(answer: &Answer) {
    assert_eq!(answer.status, 503, "{answer:?}");
    assert!(
        (1..=2).contains(&answer.number("retry-after")),
        "{answer:?}"
    );
    answer.problem();
}

#[tokio::test]
async fn a_hundred_requests_of_one_client_do_not_hold_up_another() {
    let mut narrow = Narrow::new(|setup| setup);
    let crowd = crowd(&narrow, 100).await;
    for number in 1000..1010 {
        let before = narrow.waiting();
        let mut modest = request_as(&narrow.gateway, MODEST, number).await;
        narrow.wait_for(before + 1).await;
        let mut between = 0;
        while narrow.next().await != token(number) {
            between += 1;
            assert!(between <= 1, "it is its turn");
        }
        let sent = narrow.upstream.count();
        narrow.open(&token(number));
        assert_eq!(modest.answer("GET").await.status, 200);
        narrow.upstream.until_requests(sent + 1).await;
    }
    drop(crowd);
}

#[tokio::test]
async fn clients_take_turns_with_the_budget() {
    let upstream = Upstream::start();
    let tight = "upstream.requests_per_second = 5\nupstream.max_queue = 200";
    let setup = Setup::before(&upstream)
        .keys("a-key")
        .config(CONFIG)
        .config(tight);
    let gateway = setup.start();
    let mut crowd = Vec::new();
    for number in 0..100 {
        crowd.push(request_as(&gateway, GREEDY, number).await);
    }
    until("most of them wait", || gateway.queued() > 60).await;
    for number in 1000..1006 {
        let before = upstream.count();
        let mut modest = request_as(&gateway, MODEST, number).await;
        assert_eq!(modest.answer("GET").await.status, 200);
        let targets = upstream.targets();
        let sent = targets.iter().position(|target| *target == token(number));
        // One may go before it, and a second's worth while it is on its way
        // into the line.
        assert!(sent.unwrap() <= before + 1 + 5, "{targets:?}");
    }
    assert!(gateway.queued() > 20, "the greedy one waits on");
}

#[tokio::test]
async fn a_full_queue_refuses_the_client_with_the_most_requests() {
    let mut narrow = Narrow::new(|setup| setup.config("upstream.max_queue = 10"));
    let mut crowd = crowd(&narrow, 12).await;
    // These are refused at once: the gates are shut, and the queue's time-out
    // is a minute.
    for number in 100..120 {
        let mut surplus = request_as(&narrow.gateway, GREEDY, number).await;
        must_be_refused(&surplus.answer("GET").await);
    }
    let mut modest = request_as(&narrow.gateway, MODEST, 1000).await;
    // The last request of the greedy client is refused in its favour.
    let mut last = crowd.pop().unwrap();
    must_be_refused(&last.answer("GET").await);
    assert_eq!(narrow.waiting(), 10);
    // It has had less of the budget, and so goes before all of the greedy one's.
    assert_eq!(narrow.next().await, token(1000));
    narrow.open(&token(1000));
    assert_eq!(modest.answer("GET").await.status, 200);
    for number in 100..120 {
        assert!(!narrow.upstream.targets().contains(&token(number)));
    }
}

#[tokio::test]
async fn a_miss_overtakes_waiting_revalidations() {
    let mut narrow = Narrow::new(Setup::manual);
    for number in 10..14 {
        narrow.open(&token(number));
        assert_eq!(narrow.gateway.get(&token(number)).await.status, 200);
    }
    narrow.gateway.advance(11_000);
    let mut clients = Vec::new();
    for number in [0, 1, 10, 11, 12, 13] {
        clients.push(request_as(&narrow.gateway, GREEDY, number).await);
        if number > 1 {
            narrow.wait_for(number - 9).await;
        }
    }
    clients.push(request_as(&narrow.gateway, GREEDY, 50).await);
    narrow.wait_for(5).await;
    narrow.upstream.until_requests(4 + 2).await;
    assert_eq!(narrow.next().await, token(50));
    // Their gates are open as of before: the rest follow one another.
    narrow.next().await;
    narrow.upstream.until_requests(4 + 2 + 5).await;
    let targets = narrow.upstream.targets();
    assert_eq!(targets[4 + 2 + 1..], [10, 11, 12, 13].map(token));
}
