//! What outlives the process: a gateway is started again with the same state directory.

mod faults;
mod reorgs;

use std::path::PathBuf;

use ordgate::sandbox::{Sandbox, Settings};
use tempfile::TempDir;

use crate::chain::{RARELY, acting, block, is_status, transaction};
use crate::support::{Answer, Gate, Gateway, Reply, Setup, Upstream, until, within};

/// A state directory, an upstream, and gateways before it, one after the other.
struct Ground {
    directory: TempDir,
    upstream: Upstream,
    config: &'static str,
    is_chain: bool,
}

/// A route in mode `override`.
const TIMED: &str = r#"
    [[route]]
    name = "timed"
    path = "/timed/{name}"
    params.name = { type = "string" }
    cache = { mode = "override", times = { 200 = "1h", 404 = "30s" } }
"#;

impl Ground {
    /// Before an upstream that answers for a chain.
    fn chain(sandbox: &Sandbox) -> Self {
        Self::new(acting(sandbox), RARELY)
    }

    /// Before an upstream that answers any request of a route in mode `override`.
    fn timed() -> Self {
        Self::new(Upstream::start(), TIMED)
    }

    fn new(upstream: Upstream, config: &'static str) -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
            upstream,
            config,
            is_chain: config == RARELY,
        }
    }

    /// The state directory, which the first gateway creates.
    fn path(&self) -> PathBuf {
        self.directory.path().join("state")
    }

    fn setup(&self) -> Setup {
        let state = format!("state.path = \"{}\"", self.path().display());
        let setup = Setup::before(&self.upstream);
        let setup = if self.is_chain { setup.chain() } else { setup };
        setup.config(self.config).config(&state)
    }

    async fn start(&self) -> Gateway {
        let gateway = self.setup().start();
        if self.is_chain {
            until("the first probes", || {
                gateway.tips().iter().all(|tip| tip.probes > 0)
            })
            .await;
        }
        gateway
    }

    /// Ends a gateway and starts the next.
    async fn restart(&self, gateway: Gateway) -> Gateway {
        gateway.end().await;
        self.start().await
    }

    /// The requests but those for a status.
    fn requests(&self) -> Vec<String> {
        let mut targets = self.upstream.targets();
        targets.retain(|target| !is_status(target));
        targets
    }
}

fn is_from_disk(answer: &Answer) -> bool {
    answer.must("cache-status").ends_with("; detail=disk")
}

/// Waits until a target is in the state directory.
async fn until_on_disk(gateway: &Gateway, target: &str) {
    within("it is on disk", async {
        while gateway.explain(target).await["on_disk"] != true {}
    })
    .await;
}

#[tokio::test]
async fn final_answers_outlive_the_process_and_cost_one_request() {
    let sandbox = Sandbox::new(Settings::default());
    let ground = Ground::chain(&sandbox);
    let gateway = ground.start().await;
    let tip = sandbox.tip().height;
    let targets = [
        block(tip - 10),
        format!("{}?limit=7&offset=3", block(tip - 20)),
        transaction(&sandbox.transactions_at(tip - 15)[0]),
    ];
    let mut first = Vec::new();
    for target in &targets {
        first.push(gateway.get(target).await);
    }
    // The highest is requested again, to check it. What is recent is not kept.
    let (highest, recent) = (block(tip - 8), block(tip - 2));
    gateway.get(&highest).await;
    gateway.get(&recent).await;
    let gateway = ground.restart(gateway).await;
    let asked = targets.len() + 2;
    until("a block is checked", || ground.requests().len() > asked).await;
    let before = ground.requests().len();
    for (target, first) in targets.iter().zip(&first) {
        let again = gateway.get(target).await;
        assert_eq!(again.body, first.body, "{target}");
        let status = again.must("cache-status");
        assert!(is_from_disk(&again), "{target}: {status}");
        assert_eq!(again.field("etag"), first.field("etag"));
        assert_eq!(again.must("cache-control"), first.must("cache-control"));
        let hit = gateway.get(target).await;
        let status = hit.must("cache-status");
        assert!(status.starts_with("ordgate; hit; ttl="), "{status}");
        assert!(!is_from_disk(&hit), "it is in memory again");
    }
    assert_eq!(ground.requests()[before..], [""; 0]);
    let other = gateway.get(&recent).await;
    assert!(!is_from_disk(&other), "{}", other.must("cache-status"));
    assert_eq!(before, asked + 1, "one check: {:?}", ground.requests());
}

#[tokio::test]
async fn answers_from_disk_are_conditional_and_have_a_head() {
    let ground = Ground::timed();
    let mut gateway = ground.start().await;
    let etag = gateway.get("/timed/a").await.must("etag").to_owned();
    let condition = ("if-none-match", &*etag);
    for (method, fields, status) in [
        ("GET", &[condition][..], 304),
        ("HEAD", &[], 200),
        ("GET", &[], 200),
    ] {
        gateway = ground.restart(gateway).await;
        let answer = gateway.request(method, "/timed/a", fields).await;
        assert_eq!(answer.status, status, "{method} {fields:?}");
        assert!(is_from_disk(&answer), "{}", answer.must("cache-status"));
        assert_eq!(answer.must("etag"), etag);
    }
    assert_eq!(ground.upstream.count(), 1);
}

#[tokio::test]
async fn what_is_on_disk_of_another_meaning_is_not_found() {
    let ground = Ground::timed();
    let gateway = ground.start().await;
    gateway.get("/timed/a").await;
    gateway.end().await;
    let other = TIMED.replace("200 = \"1h\"", "200 = \"2h\"");
    let gateway = ground.setup().config(&other).start();
    assert!(!is_from_disk(&gateway.get("/timed/a").await));
    assert_eq!(ground.upstream.count(), 2);
}

#[tokio::test]
async fn a_purge_outlives_the_process_and_holds_for_what_was_asked_for_before() {
    let ground = Ground::timed();
    let gateway = ground.start().await;
    for target in ["/timed/a", "/timed/b"] {
        gateway.get(target).await;
    }
    let (gate, old) = (Gate::new(), "[\"old\"]");
    let reply = Reply::json(old).behind(&gate);
    ground.upstream.once("/timed/c", reply);
    let mut client = gateway.start_get("/timed/c").await;
    ground.upstream.until_requests(3).await;
    for target in ["/timed/a", "/timed/c"] {
        let purged = gateway.purge(&format!("url={target}")).await;
        assert_eq!(purged.status, 200);
    }
    gate.open();
    // Who asked before may get the earlier answer, which is not stored.
    assert_eq!(client.answer("GET").await.status, 200);
    let gateway = ground.restart(gateway).await;
    assert!(!is_from_disk(&gateway.get("/timed/a").await));
    assert!(is_from_disk(&gateway.get("/timed/b").await));
    assert_ne!(gateway.get("/timed/c").await.text(), old);
    // It is stored again; then everything goes.
    until_on_disk(&gateway, "/timed/a").await;
    assert_eq!(gateway.purge("all").await.status, 200);
    assert_eq!(gateway.explain("/timed/a").await["on_disk"], false);
    let gateway = ground.restart(gateway).await;
    assert!(!is_from_disk(&gateway.get("/timed/a").await));
    assert_eq!(ground.upstream.count(), 6);
}
