//! `/explain` describes what the next request does, and the next request does it.

mod targets;

use ordgate::probe::ProbeOutcome;
use ordgate::sandbox::{Sandbox, Settings};
use serde_json::{Value, json};

use crate::chain::{RARELY, acting};
use crate::support::respect::{ok, plain};
use crate::support::{BLOCK, BLOCK_CANONICAL, Gateway, Reply, Setup, TOKEN, Upstream, encoded};

fn before(sandbox: &Sandbox) -> Gateway {
    Setup::alone().sandbox(sandbox).chain().manual().start()
}

/// Requests that the sandbox has had, but for its status paths.
fn requests(sandbox: &Sandbox) -> u64 {
    let counts = sandbox.counts();
    counts.total - counts.status
}

fn does(explained: &Value) -> &str {
    let next = &explained["next"];
    assert!(next["why"].as_str().is_some_and(|why| !why.is_empty()));
    next["does"].as_str().unwrap()
}

fn next_requests(explained: &Value) -> Vec<&str> {
    let next = &explained["next"];
    assert_eq!(next["asks"], next["upstream_requests"], "the old name");
    let targets = next["upstream_requests"].as_array().unwrap();
    targets
        .iter()
        .map(|target| target.as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn a_token_is_explained_before_and_after_it_is_stored() {
    let sandbox = Sandbox::new(Settings::default());
    let gateway = before(&sandbox);
    gateway.until_tips_are_known().await;
    let url = "/ordinals/v1/brc-20/tokens/ORDI?unknown=1";
    let cold = gateway.explain(url).await;
    assert_eq!(cold["url"], url);
    assert_eq!(cold["route"], "brc20-token");
    assert_eq!(cold["mode"], "chain");
    assert_eq!(cold["key"], TOKEN);
    assert_eq!(cold["validates"], true);
    assert_eq!(cold["under_way"], false);
    assert_eq!(cold["stored"], Value::Null);
    assert_eq!(cold["tip"]["name"], "ordinals");
    assert_eq!(cold["tip"]["height"], sandbox.tip().height);
    assert_eq!(does(&cold), "fetch");
    assert_eq!(next_requests(&cold), [TOKEN]);
    assert_eq!(requests(&sandbox), 0, "it sends no request");

    let answer = gateway.get(url).await;
    gateway.advance(2000);
    let warm = gateway.explain(url).await;
    let stored = &warm["stored"];
    assert_eq!(stored["status"], 200);
    assert_eq!(stored["bytes"], answer.body.len());
    assert_eq!(stored["etag"], answer.must("etag"));
    assert_eq!(stored["content_type"], answer.must("content-type"));
    assert_eq!(stored["class"], "live");
    assert_eq!(stored["age_seconds"], 2.0);
    assert_eq!(stored["lifetime_seconds"], 30.0);
    assert_eq!(stored["received"], gateway.date(-2));
    assert_eq!(stored["epoch"]["stored"], stored["epoch"]["present"]);
    assert_eq!(stored["freshness"]["is"], "fresh");
    assert_eq!(stored["tags"], json!({ "ticker": "ordi" }));
    assert!(stored["heights"]["from"].is_u64(), "of its deploy");
    assert_eq!(does(&warm), "hit");
    assert_eq!(next_requests(&warm), [""; 0]);

    sandbox.advance(1);
    assert_eq!(gateway.probe(0).await, ProbeOutcome::Learned);
    let stale = gateway.explain(url).await;
    assert_eq!(stale["stored"]["freshness"]["is"], "stale");
    assert_eq!(
        stale["stored"]["freshness"]["usable_if_upstream_fails"],
        true
    );
    assert_ne!(
        stale["stored"]["epoch"]["stored"],
        stale["stored"]["epoch"]["present"]
    );
    assert_eq!(does(&stale), "fetch");
    assert!(
        stale["next"]["why"]
            .as_str()
            .unwrap()
            .contains("the stored response is served")
    );
    assert_eq!(requests(&sandbox), 1);
}

/// A block with more than 80 transactions, deep below the tip.
struct Block {
    sandbox: Sandbox,
    gateway: Gateway,
    height: u32,
    hash: String,
}

impl Block {
    async fn start() -> Self {
        let sandbox = Sandbox::new(Settings::default());
        let gateway = before(&sandbox);
        gateway.until_tips_are_known().await;
        let deep = sandbox.tip().height - 20;
        let is_large = |height: &u32| sandbox.transactions_at(*height).len() > 80;
        let height = (0..100).map(|depth| deep - depth).find(is_large).unwrap();
        Self {
            hash: sandbox.hash_at(height).unwrap(),
            sandbox,
            gateway,
            height,
        }
    }

    fn page(&self, limit: u32, offset: u32) -> String {
        page(&self.height.to_string(), limit, offset)
    }

    fn page_by_hash(&self, limit: u32, offset: u32) -> String {
        page(&self.hash, limit, offset)
    }

    /// The first two windows, with these states.
    fn windows(&self, states: [&str; 2]) -> Vec<(String, String)> {
        let window = |(offset, state): (u32, &str)| (self.page(60, offset), state.to_owned());
        [0, 60].into_iter().zip(states).map(window).collect()
    }
}

fn page(block: &str, limit: u32, offset: u32) -> String {
    format!("/runes/v1/blocks/{block}/activity?limit={limit}&offset={offset}")
}

fn windows(explained: &Value) -> Vec<(String, String)> {
    let windows = explained["pages"]["windows"].as_array().unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let states = windows
        .iter()
        .map(|window| (text(&window["key"]), text(&window["freshness"]["is"])));
    states.collect()
}

#[tokio::test]
async fn a_page_is_explained_with_its_windows() {
    let block = Block::start().await;
    let gateway = &block.gateway;
    let cold = gateway.explain(&block.page(20, 50)).await;
    assert_eq!(cold["pages"]["sliceable"], true);
    assert_eq!(cold["pages"]["upstream_page"], 60);
    assert_eq!(windows(&cold), block.windows(["absent", "absent"]));
    assert_eq!(
        next_requests(&cold),
        [block.page(60, 0), block.page(60, 60)]
    );

    gateway.get(&block.page(5, 0)).await;
    assert_eq!(requests(&block.sandbox), 1);
    let half = gateway.explain(&block.page(20, 50)).await;
    assert_eq!(windows(&half), block.windows(["fresh", "absent"]));
    assert_eq!(does(&half), "fetch");
    assert_eq!(next_requests(&half), [block.page(60, 60)]);
    gateway.get(&block.page(20, 50)).await;
    assert_eq!(requests(&block.sandbox), 2, "as explained");

    let past_the_end = gateway.explain(&block.page(20, 1_000_000)).await;
    assert_eq!(does(&past_the_end), "cut from stored windows");
    let filtered = format!("{}&operation_type=mint", block.page(20, 0));
    assert_eq!(does(&gateway.explain(&filtered).await), "fetch");
}

#[tokio::test]
async fn a_page_by_hash_is_explained_under_its_height_once_that_is_known() {
    let block = Block::start().await;
    let (gateway, height, hash) = (&block.gateway, block.height, &block.hash);
    let cold = gateway.explain(&block.page_by_hash(20, 50)).await;
    assert_eq!(cold["key"], block.page_by_hash(20, 50));
    assert_eq!(cold["block"], json!({ "hash": hash, "height": null }));
    let windows = [block.page_by_hash(60, 0), block.page_by_hash(60, 60)];
    assert_eq!(next_requests(&cold), windows);

    gateway.get(&block.page(60, 0)).await;
    let url = block.page_by_hash(20, 40);
    let alias = gateway.explain(&url).await;
    assert_eq!(alias["key"], block.page(20, 40));
    assert_eq!(alias["key_by_hash"], url);
    assert_eq!(alias["block"], json!({ "hash": hash, "height": height }));
    assert_eq!(does(&alias), "cut from stored windows");
    assert_eq!(gateway.get(&url).await.status, 200);
    let alias = gateway.explain(&url).await;
    assert_eq!(does(&alias), "hit");
    let stored = &alias["stored"];
    assert_eq!(stored["class"], "final");
    assert_eq!(stored["heights"], json!({ "from": height, "to": height }));
    let tags = &stored["tags"];
    assert_eq!(tags["items"], 20);
    let only = json!([{ "height": height, "hash": hash }]);
    assert_eq!(tags["blocks"]["first"], only);
    let txs = tags["transactions"]["first"].as_array().unwrap();
    assert_eq!(tags["transactions"]["count"], txs.len());
}

#[tokio::test]
async fn a_transaction_is_explained_with_the_block_it_is_cut_from() {
    let block = Block::start().await;
    let gateway = &block.gateway;
    let window = gateway.get(&block.page(60, 0)).await.json();
    let tx = window["results"][1]["location"]["tx_id"].as_str().unwrap();
    let url = format!("/runes/v1/transactions/{tx}/activity");
    let explained = gateway.explain(&url).await;
    let from = &explained["derived_from"];
    assert_eq!(from["route"], "rune-block-activity");
    assert_eq!(from["seen_in"]["height"], block.height);
    assert_eq!(from["seen_in"]["freshness"]["is"], "fresh");
    assert_eq!(does(&explained), "cut from stored windows");
    let answer = gateway.get(&url).await;
    assert!(answer.must("cache-status").starts_with("ordgate; hit"));
    assert_eq!(requests(&block.sandbox), 1);
}

#[tokio::test]
async fn explaining_changes_nothing() {
    let sandbox = Sandbox::new(Settings::default());
    let gateway = before(&sandbox);
    gateway.until_tips_are_known().await;
    let urls = [TOKEN, BLOCK, sandbox.examples().transaction()].map(str::to_owned);
    gateway.get(&urls[1]).await;
    let entries = || (gateway.entries(), gateway.figure("/cache/bytes"));
    let (before, count) = (entries(), requests(&sandbox));
    for _ in 0..3 {
        for url in &urls {
            let once = gateway.explain(url).await;
            assert_eq!(once, gateway.explain(url).await);
        }
    }
    assert_eq!(entries(), before);
    assert_eq!(requests(&sandbox), count);
    let status = gateway.admin("/status").await.json();
    assert_eq!(status["requests"].as_array().unwrap().len(), 1, "{status}");
}

#[tokio::test]
async fn modes_override_and_off_are_explained() {
    let upstream = Upstream::start();
    let routes = r#"
        [[route]]
        name = "tokens"
        path = "/ordinals/v1/brc-20/tokens/{ticker}"
        params.ticker = { type = "ticker" }
        cache = { mode = "override", times = { 200 = "10s" }, stale_while_revalidate = "20s", stale_if_error = "60s" }
        [[route]]
        name = "blocks"
        path = "/runes/v1/blocks/{block}/activity"
        params.block = { type = "block" }
        query.limit = { type = "integer", min = 1, max = 60, default = 20 }
        query.offset = { type = "integer", min = 0, max = 100, default = 0 }
        cache = { mode = "off" }
    "#;
    let gateway = Setup::before(&upstream).config(routes).manual().start();
    let off = gateway.explain(BLOCK).await;
    assert_eq!((off["mode"].as_str(), does(&off)), (Some("off"), "fetch"));
    assert_eq!(next_requests(&off), [BLOCK_CANONICAL]);

    assert_eq!(next_requests(&gateway.explain(TOKEN).await), [TOKEN]);
    gateway.get(TOKEN).await;
    for (passed, is, next) in [
        (0, "fresh", "hit"),
        (9_999, "fresh", "hit"),
        (1, "stale", "stale hit and refresh"),
        (20_000, "stale", "fetch"),
        (40_000, "stale", "fetch"),
    ] {
        gateway.advance(passed);
        let explained = gateway.explain(TOKEN).await;
        assert_eq!(explained["stored"]["freshness"]["is"], is);
        assert_eq!(does(&explained), next, "{explained}");
    }
    let last = gateway.explain(TOKEN).await;
    let why = last["next"]["why"].as_str().unwrap();
    assert!(why.contains("too old to be served"), "{why}");
    assert_eq!(upstream.count(), 1);
}

#[tokio::test]
async fn mode_respect_is_explained() {
    let upstream = Upstream::start();
    upstream.always(ok(
        &[
            "cache-control: max-age=60, stale-while-revalidate=10",
            "etag: \"e\"",
            "vary: accept",
        ],
        "body",
    ));
    let gateway = plain(&upstream).manual().start();
    let cold = gateway.explain("/v?a=1").await;
    assert_eq!(cold["mode"], "respect");
    assert_eq!(cold["key"], "/v?a=1");
    assert_eq!(cold["stored"]["count"], 0);
    assert_eq!(next_requests(&cold), ["/v?a=1"]);
    gateway.get("/v?a=1").await;
    gateway
        .request("GET", "/v?a=1", &[("accept", "text/plain")])
        .await;
    gateway.advance(5000);
    let warm = gateway.explain("/v?a=1").await;
    assert_eq!(warm["stored"]["count"], 2);
    let variant = &warm["stored"]["newest_first"][1];
    assert_eq!(variant["status"], 200);
    assert_eq!(variant["bytes"], 4);
    assert_eq!(variant["etag"], "\"e\"");
    assert_eq!(variant["vary"], "accept");
    assert_eq!(variant["age_seconds"], 5);
    assert_eq!(variant["lifetime_seconds"], 60);
    assert_eq!(
        variant["freshness"],
        json!({ "is": "fresh", "ttl_seconds": 55 })
    );
    assert_eq!(does(&warm), "hit");
    gateway.advance(60_000);
    assert_eq!(
        does(&gateway.explain("/v?a=1").await),
        "stale hit and refresh"
    );
    gateway.advance(60_000);
    let stale = gateway.explain("/v?a=1").await;
    assert_eq!(does(&stale), "fetch");
    assert!(stale["next"]["why"].as_str().unwrap().contains("validated"));
    assert_eq!(upstream.count(), 2);
}

#[tokio::test]
async fn without_windows_the_page_itself_is_explained() {
    let upstream = Upstream::start();
    upstream.usually(|seen| match &*seen.target() {
        "/runes/v1/" | "/ordinals/v1/" => Reply::json("{\"block_height\":840100}"),
        _ => Reply::json("{\"limit\":20,\"offset\":0,\"total\":9,\"results\":[]}"),
    });
    let gateway = Setup::before(&upstream).chain().manual().start();
    gateway.until_tips_are_known().await;
    gateway.get(BLOCK).await;
    let other = "/runes/v1/blocks/840001/activity?limit=20&offset=0";
    let plain = gateway.explain(other).await;
    assert_eq!(plain["pages"]["sliceable"], false);
    assert_eq!(next_requests(&plain), [other]);
    let chain = gateway.admin("/status").await.json()["chain"].clone();
    assert_eq!(chain["routes"][1]["sliceable"], false, "{chain}");
}

#[tokio::test]
async fn refused_urls_are_explained() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream).chain().start();
    for (url, next, words) in [
        (
            "/nowhere",
            "refuse with 404",
            "/runes/v1/blocks/{block}/activity",
        ),
        ("https://x.example", "refuse with 404", "/runes/v1/"),
        ("/openapi.json", "answer itself", "ordgate's own"),
        (
            "/runes/v1/blocks/x/activity",
            "refuse with 400",
            "\"x\" came",
        ),
        (
            "/runes/v1/blocks/1/activity?limit=0",
            "refuse with 400",
            "\"0\" came",
        ),
    ] {
        let explained = gateway.explain(url).await;
        assert_eq!(does(&explained), next, "{url}");
        let why = explained["next"]["why"].as_str().unwrap();
        assert!(why.contains(words), "{url}: {why}");
        let path = match url.strip_prefix("https://x.example") {
            Some(_) => "/",
            None => url,
        };
        let status = gateway.get(path).await.status.to_string();
        assert!(
            next.ends_with(&status) || status == "200",
            "{url}: {status}"
        );
    }
    let one = encoded(TOKEN);
    for (query, words) in [
        ("", "url must be"),
        ("?", "url must be"),
        ("?url=", "url must be"),
        ("?url=nowhere", "\"nowhere\" came"),
        ("?url=%zz", "percent-encoded"),
        ("?URL=/x", "\"URL=/x\" came"),
        (
            "?url=/runes/v1/blocks/1/activity?limit=5&offset=3",
            "\"offset=3\" came",
        ),
        (&format!("?url={one}&url={one}"), "once"),
    ] {
        let answer = gateway.admin(&format!("/explain{query}")).await;
        assert_eq!(answer.status, 400, "{query}");
        assert_eq!(answer.must("content-type"), "application/problem+json");
        let problem = answer.json();
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains(words), "{query}: {detail}");
    }
}

#[tokio::test]
async fn the_next_request_does_what_was_explained() {
    let sandbox = Sandbox::new(Settings::default());
    let upstream = acting(&sandbox);
    // A probe by the clock would be among the requests that are counted.
    let setup = Setup::before(&upstream).chain().config(RARELY);
    let gateway = setup.manual().start();
    gateway.until_tips_are_known().await;
    let mut random = 1_u64;
    let mut below = |bound: usize| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        usize::try_from(random >> 33).unwrap() % bound
    };
    let mut seen = std::collections::BTreeMap::new();
    let mut client = gateway.client().await;
    for round in 0..400 {
        if round % 20 == 19 {
            sandbox.advance(1);
            for tip in [0, 1] {
                assert_eq!(gateway.probe(tip).await, ProbeOutcome::Learned);
            }
        }
        let height = sandbox.tip().height - u32::try_from(below(9)).unwrap();
        let block = match below(2) {
            0 => height.to_string(),
            _ => sandbox.hash_at(height).unwrap(),
        };
        let txs = sandbox.transactions_at(height);
        let query = format!("limit={}&offset={}", 1 + below(60), 10 * below(10));
        let url = match below(8) {
            0 => ["ordi", "pepe", "nobody"][below(3)].to_owned(),
            1 | 2 if !txs.is_empty() => {
                format!("/runes/v1/transactions/{}/activity", txs[below(txs.len())])
            }
            3 => format!("/runes/v1/blocks/{block}/activity?{query}&operation_type=mint"),
            _ => format!("/runes/v1/blocks/{block}/activity?{query}"),
        };
        let url = match url.starts_with('/') {
            true => url,
            false => format!("/ordinals/v1/brc-20/tokens/{url}"),
        };
        let explained = gateway.explain(&url).await;
        let before = upstream.count();
        let answer = client.get(&url).await;
        let mut asked = upstream.targets().split_off(before);
        let mut expected: Vec<_> = next_requests(&explained)
            .into_iter()
            .map(str::to_owned)
            .collect();
        let proof = explained["next"]["why"]
            .as_str()
            .unwrap()
            .contains("anchor block is unchanged");
        // What follows on a proof is not foreseen.
        asked.truncate(if proof { 1 } else { usize::MAX });
        asked.sort_unstable();
        expected.sort_unstable();
        assert_eq!(asked, expected, "{round}: {url}: {explained:#}");
        let hit = answer.must("cache-status").starts_with("ordgate; hit");
        let does = does(&explained).to_owned();
        if !proof {
            assert_eq!(hit, does != "fetch", "{round}: {url}: {explained:#}");
        }
        *seen.entry((does, proof)).or_insert(0) += 1;
    }
    // All of it has come up.
    for (does, proof) in [
        ("hit", false),
        ("cut from stored windows", false),
        ("fetch", false),
        ("fetch", true),
    ] {
        assert!(seen.contains_key(&(does.to_owned(), proof)), "{seen:?}");
    }
}
