//! Mode `chain`: what is shared must agree with the chain as each replica knows it.

use http::{HeaderMap, Method};
use ordgate::sandbox::{Sandbox, Settings};

use super::*;

/// The tips by their numbers.
const TIPS: [u16; 2] = [0, 1];
const RUNES: u16 = 1;

/// Tests trigger probes.
const RARELY: &str = "chain.tip.runes.every = \"1h\"\nchain.tip.ordinals.every = \"1h\"";

/// Two replicas before an upstream that answers as a sandbox does.
struct Pair {
    sandbox: Sandbox,
    upstream: Upstream,
    replicas: Vec<Gateway>,
    _engine: Server,
}

impl Pair {
    async fn start() -> Self {
        let (engine, clock) = (Server::start(), Clock::manual());
        let sandbox = Sandbox::new(Settings::default());
        let upstream = Upstream::start();
        let model = sandbox.clone();
        upstream.usually(move |seen| reply(&model, &seen.target()));
        let replicas = replicas(2, &engine, &clock, || {
            Setup::before(&upstream).chain().config(RARELY)
        });
        in_sync(&replicas).await;
        let pair = Self {
            sandbox,
            upstream,
            replicas,
            _engine: engine,
        };
        pair.probe(0).await;
        pair.probe(1).await;
        // An answer shows what the tags of this upstream mean.
        for (replica, height) in pair.replicas.iter().zip([10, 11]) {
            replica.get(&pair.block_at(height)).await;
            let token = pair.sandbox.examples().tokens[usize::from(height == 11)].clone();
            replica.get(&token_path(&token)).await;
        }
        pair
    }

    async fn probe(&self, replica: usize) {
        for tip in TIPS {
            self.replicas[replica].probe(tip).await;
        }
        self.replicas[replica].check_blocks(RUNES).await;
    }

    fn tip(&self) -> u32 {
        self.sandbox.tip().height
    }

    fn block_at(&self, height: u32) -> String {
        block(self.tip() - height)
    }

    /// Asks the first replica and then the second one. Returns the `cache-status` of both
    /// and how many requests there were.
    async fn ask(&self, target: &str) -> ([String; 2], usize) {
        let before = self.upstream.count();
        let writes = async || {
            let now = responses(&self.replicas[0]).await;
            let sum = |name: &str| now[name].as_u64().unwrap();
            (sum("stored") + sum("overtaken"), sum("queued"))
        };
        let one = self.get(0, target).await;
        until_settled(writes).await;
        let two = self.get(1, target).await;
        ([one, two], self.upstream.count() - before)
    }

    /// The `cache-status` of an answer, which must be the sandbox's own.
    async fn get(&self, replica: usize, target: &str) -> String {
        let answer = self.replicas[replica].get(target).await;
        let truth = self.sandbox.answer(&Method::GET, target, &HeaderMap::new());
        assert_eq!(answer.status, truth.status.as_u16(), "{target}");
        assert_eq!(answer.body, truth.body, "{target}");
        answer.must("cache-status").to_owned()
    }
}

/// Waits until nothing is queued.
async fn until_settled(writes: impl AsyncFn() -> (u64, u64)) {
    for _ in 0..1000 {
        let (before, queued) = writes().await;
        tokio::time::sleep(Duration::from_millis(10)).await;
        if queued == 0 && writes().await == (before, 0) {
            return;
        }
    }
    panic!("responses are stored without end");
}

fn block(height: u32) -> String {
    format!("/runes/v1/blocks/{height}/activity?limit=60&offset=0")
}

fn token_path(name: &str) -> String {
    match name.starts_with('/') {
        true => name.to_owned(),
        false => format!("/ordinals/v1/brc-20/tokens/{name}"),
    }
}

fn reply(sandbox: &Sandbox, target: &str) -> Reply {
    let answer = sandbox.answer(&Method::GET, target, &HeaderMap::new());
    let fields = answer.headers.iter();
    let fields = fields.filter(|(name, _)| *name != "content-length");
    let fields: String = fields
        .map(|(name, value)| format!("{name}: {}\r\n", value.to_str().unwrap()))
        .collect();
    Reply::with(answer.status.as_u16(), &fields, &answer.body)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_class_is_shared_between_replicas_with_the_same_tip() {
    if !is_installed() {
        return;
    }
    let pair = Pair::start().await;
    let missing = format!("/runes/v1/transactions/{}/activity", "0".repeat(64));
    let tokens = pair.sandbox.examples().tokens;
    for (what, target) in [
        ("final", pair.block_at(50)),
        ("recent", pair.block_at(1)),
        ("live", token_path(&tokens[2])),
        ("absent", missing),
    ] {
        let ([one, two], requests) = pair.ask(&target).await;
        assert!(one.contains("fwd="), "{what}: {one}");
        assert!(two.ends_with("; detail=shared"), "{what}: {two}");
        assert_eq!(requests, 1, "{what}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recent_response_is_shared_after_the_next_block_and_a_live_one_is_not() {
    if !is_installed() {
        return;
    }
    let pair = Pair::start().await;
    let (recent, live) = (
        pair.block_at(1),
        token_path(&pair.sandbox.examples().tokens[2]),
    );
    for target in [&recent, &live] {
        pair.get(0, target).await;
    }
    stored_all(&pair).await;
    pair.sandbox.advance(1);
    pair.probe(1).await;
    let status = pair.get(1, &recent).await;
    assert!(status.ends_with("; detail=shared"), "{status}");
    let status = pair.get(1, &live).await;
    assert!(status.contains("fwd="), "{status}");
    let unusable = &responses(&pair.replicas[1]).await["unusable"];
    assert_eq!(unusable["chain"], 1, "{unusable}");
}

/// Waits until the first replica has stored what it has fetched.
async fn stored_all(pair: &Pair) {
    until_settled(async || {
        let now = responses(&pair.replicas[0]).await;
        (
            now["stored"].as_u64().unwrap(),
            now["queued"].as_u64().unwrap(),
        )
    })
    .await;
}

/// The first replica does not know of the reorg, and its responses are in the engine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_response_of_an_orphaned_block_is_not_used_by_who_knows_the_new_tip() {
    if !is_installed() {
        return;
    }
    let pair = Pair::start().await;
    let near: Vec<_> = (0..3).map(|depth| pair.block_at(depth)).collect();
    for target in &near {
        pair.get(0, target).await;
    }
    stored_all(&pair).await;
    pair.sandbox.reorg(3);
    pair.probe(1).await;
    for target in &near {
        // The answer is compared with the sandbox's own.
        let status = pair.get(1, target).await;
        assert!(!status.contains("detail=shared"), "{target}: {status}");
    }
}

impl Pair {
    /// Adds blocks to the chain, up to one with items: it is checked at the next tip, and an
    /// answer without items does not name its block.
    fn advance(&self) {
        loop {
            self.sandbox.advance(1);
            let tip = self.block_at(0);
            let answer = self.sandbox.answer(&Method::GET, &tip, &HeaderMap::new());
            if !String::from_utf8_lossy(&answer.body).contains("\"total\":0,") {
                return;
            }
        }
    }

    /// How many blocks were requested so far.
    fn block_requests(&self) -> usize {
        let targets = self.upstream.targets();
        let blocks = targets.iter().filter(|target| target.contains("/blocks/"));
        blocks.count()
    }

    /// Has a replica learn the tip and check the chain. Returns how many blocks it requests.
    async fn block_requests_of(&self, replica: usize) -> usize {
        in_sync(&self.replicas).await;
        let before = self.block_requests();
        self.probe(replica).await;
        self.block_requests() - before
    }
}

/// The second one takes the block that the first one has requested under the same tip.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_replica_checks_the_chain_for_all_after_a_new_tip() {
    if !is_installed() {
        return;
    }
    let pair = Pair::start().await;
    let recent = pair.block_at(1);
    pair.get(1, &recent).await;
    let (mut requests, mut at_once) = (Vec::new(), Vec::new());
    while at_once.len() < 5 {
        pair.advance();
        let one = pair.block_requests_of(0).await;
        stored_all(&pair).await;
        requests.push([one, pair.block_requests_of(1).await]);
        // It knows that the chain is the same.
        let status = pair.get(1, &recent).await;
        assert!(status.starts_with("ordgate; hit"), "{status}");
        assert_eq!(pair.block_requests_of(1).await, 0);
        pair.advance();
        let before = pair.block_requests();
        let ((), ()) = tokio::join!(pair.probe(0), pair.probe(1));
        at_once.push(pair.block_requests() - before);
    }
    eprintln!("blocks requested: {requests:?}, and by both at once {at_once:?}");
    // A busy machine may be out of sync for a moment.
    let in_turn = requests.iter().filter(|counts| **counts == [1, 0]).count();
    let at_once = at_once.iter().filter(|count| **count == 1).count();
    assert!(in_turn >= 2 && at_once >= 2, "{in_turn} {at_once}");
}

/// The first replica has never known the block that was replaced, so that its checks find no
/// reorg, and what it has fetched under the new tip shows another block.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reorg_that_another_replica_cannot_see_is_found_by_the_one_that_can() {
    if !is_installed() {
        return;
    }
    let pair = Pair::start().await;
    pair.sandbox.advance(1);
    pair.probe(1).await;
    let replaced = pair.block_at(0);
    pair.get(1, &replaced).await;
    pair.sandbox.reorg(1);
    pair.sandbox.advance(1);
    pair.probe(0).await;
    pair.get(0, &replaced).await;
    stored_all(&pair).await;
    let status = async |replica: usize| pair.replicas[replica].admin("/status").await.json();
    let journal = &status(0).await["shared"]["journal"];
    let records = (&journal["tail"], &journal["waiting"]);
    assert_eq!(records, (&0.into(), &0.into()), "it sees no reorg");
    // Its answers are compared with the sandbox's own.
    pair.probe(1).await;
    pair.get(1, &replaced).await;
    let began = Instant::now();
    loop {
        let journal = &status(1).await["shared"]["journal"];
        if journal["records"]["sent"] == 1 {
            return;
        }
        assert!(
            began.elapsed() < support::PATIENCE,
            "it purges: {journal:#}"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
