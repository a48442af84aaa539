//! Purging: what is purged is answered with no more, wherever it is, from the
//! moment that the operator has the answer; and nothing else goes.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use ordgate::sandbox::{Sandbox, Settings};
use serde_json::Value;

use crate::support::respect::{ok, plain};
use crate::support::{
    Answer, BLOCK, Client, Gate, Gateway, Process, Reply, Setup, TOKEN, Upstream, encoded, until,
};

/// A gateway in mode `chain` before a sandbox, and what to ask it.
struct Stage {
    gateway: Gateway,
    sandbox: Sandbox,
    /// What is asked, by the letter that tables call it by.
    urls: Vec<(char, String)>,
    /// A transaction, the block that has it, and that block's height.
    tx: String,
    hash: String,
    height: u32,
    /// The height of another block, below.
    below: u32,
}

impl Stage {
    fn new() -> Self {
        let sandbox = Sandbox::new(Settings::default());
        let gateway = Setup::alone().sandbox(&sandbox).chain().manual().start();
        let deep = sandbox.tip().height - 20;
        let mut heights = (0..100).map(|depth| deep - depth);
        // More than a window.
        let is_large = |height: &u32| sandbox.transactions_at(*height).len() > 80;
        let height = heights.find(is_large).unwrap();
        let has_any = |height: &u32| !sandbox.transactions_at(*height).is_empty();
        let below = heights.find(has_any).unwrap();
        // The newest comes first.
        let tx = sandbox.transactions_at(height).pop().unwrap();
        let hash = sandbox.hash_at(height).unwrap();
        let block = |name: &dyn std::fmt::Display, query: &str| {
            format!("/runes/v1/blocks/{name}/activity?{query}")
        };
        let urls = vec![
            ('o', TOKEN.to_owned()),
            ('p', "/ordinals/v1/brc-20/tokens/pepe".to_owned()),
            ('t', format!("/runes/v1/transactions/{tx}/activity?limit=5")),
            ('a', block(&height, "limit=5")),
            ('z', block(&height, "limit=5&offset=70")),
            ('h', block(&hash, "limit=7")),
            ('m', block(&height, "limit=5&offset=70&operation_type=mint")),
            ('b', block(&below, "limit=5")),
        ];
        Self {
            gateway,
            sandbox,
            urls,
            tx,
            hash,
            height,
            below,
        }
    }

    fn url(&self, letter: char) -> &str {
        &self.urls.iter().find(|(own, _)| *own == letter).unwrap().1
    }

    /// Has everything stored.
    async fn warm(&self) {
        let mut client = self.gateway.client().await;
        for (letter, url) in &self.urls {
            client.get(url).await;
            let hit = client.get(url).await;
            let said = hit.must("cache-status");
            assert!(said.starts_with("ordgate; hit"), "{letter} {url}: {said}");
        }
    }

    /// The letters of what is not stored.
    async fn gone(&self) -> String {
        let mut gone = String::new();
        for (letter, url) in &self.urls {
            if self.gateway.explain(url).await["stored"].is_null() {
                gone.push(*letter);
            }
        }
        gone
    }
}

fn text(answer: &Answer) -> Value {
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(answer.must("content-type"), "application/json");
    assert_eq!(answer.must("cache-control"), "no-store");
    answer.json()
}

#[tokio::test]
async fn selectors_and_what_they_mean() {
    let stage = Stage::new();
    let url = |letter| format!("url={}", encoded(stage.url(letter)));
    let Stage {
        tx,
        hash,
        height,
        below,
        ..
    } = &stage;
    let upper = hash.to_uppercase();
    let other = "ab".repeat(32);
    let public = format!("http://{}{TOKEN}", stage.gateway.public);
    for (query, gone) in [
        // URLs, however they are spelt.
        (url('o'), "o"),
        (format!("url={TOKEN}"), "o"),
        (
            "url=/ordinals/v1/brc-20/tokens/ORDI%3Funknown=1".to_owned(),
            "o",
        ),
        (format!("url={}", encoded(&public)), "o"),
        (
            format!(
                "url={}",
                encoded("https://api.example/ordinals/v1/brc-20/tokens/pepe")
            ),
            "p",
        ),
        ("url=/ordinals/v1/brc-20/tokens/nobody".to_owned(), ""),
        (format!("{}&{}", url('o'), url('p')), "op"),
        // All of a list goes; a block by both its names.
        (url('a'), "azhm"),
        (url('z'), "azhm"),
        (url('h'), "azhm"),
        (format!("url=/runes/v1/blocks/0{height}/activity"), "azhm"),
        (format!("url=/runes/v1/blocks/{upper}/activity"), "azhm"),
        (url('b'), "b"),
        // A transaction goes with the pages of its block that have it.
        (url('t'), "tah"),
        (format!("tag=tx:{tx}"), "tah"),
        (format!("tag=tx:{}", tx.to_uppercase()), "tah"),
        (format!("tag=tx:{other}"), ""),
        // All that names a block.
        (format!("tag=block:{hash}"), "tazhm"),
        (format!("tag=block:{upper}"), "tazhm"),
        (format!("tag=block:{other}"), ""),
        (format!("tag=height:{height}"), "tazhm"),
        (format!("tag=height:{below}&tag=tx:{other}"), "b"),
        (format!("tag=height:{height}%2B"), "tazhm"),
        (format!("tag=height:{below}%2B"), "tazhmb"),
        ("tag=height:4294967295".to_owned(), ""),
        // Tickers, as they are folded.
        ("tag=ticker:ordi".to_owned(), "o"),
        ("tag=ticker:OrDi&tag=ticker:PEPE".to_owned(), "op"),
        ("tag=ticker:ord".to_owned(), ""),
        // Routes, and all.
        ("route=brc20-token".to_owned(), "op"),
        ("route=rune-block-activity".to_owned(), "azhmb"),
        (
            "route=brc20-token&route=rune-transaction-activity".to_owned(),
            "opt",
        ),
        ("all".to_owned(), "optazhmb"),
        ("all=true".to_owned(), "optazhmb"),
    ] {
        stage.warm().await;
        assert_eq!(stage.gone().await, "");
        let before = stage
            .gateway
            .server()
            .first_gateway()
            .cache
            .store()
            .purges();
        let purged = text(&stage.gateway.purge(&query).await);
        let number = purged["number"].as_u64().unwrap();
        assert!(number > before, "{query}: {purged}");
        let selectors = query.split('&').count();
        assert_eq!(purged["purged"].as_array().unwrap().len(), selectors);
        assert!(purged["purged"][0]["means"].is_array(), "{purged}");
        assert_eq!(stage.gone().await, gone, "{query}: {purged}");
        // What is gone is asked for again, and is as it was.
        if let Some(letter) = gone.chars().next() {
            let asked = stage.gateway.get(stage.url(letter)).await;
            let said = asked.must("cache-status");
            assert!(said.starts_with("ordgate; fwd=uri-miss"), "{query}: {said}");
            let path = stage.url(letter);
            let own = stage
                .sandbox
                .answer(&http::Method::GET, path, &http::HeaderMap::new());
            assert_eq!(asked.body, own.body);
        }
    }
}

/// A POST to the admin side with a body.
async fn post(gateway: &Gateway, target: &str, body: &str) -> Answer {
    let length = body.len();
    let mut client = Client::connect(gateway.admin).await;
    client
        .send(format!(
            "POST {target} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n{body}"
        ))
        .await;
    client.answer("POST").await
}

#[tokio::test]
async fn the_same_in_json() {
    let stage = Stage::new();
    let pair = serde_json::json!({ "url": [stage.url('o'), stage.url('p')] });
    for (body, gone) in [
        (format!("{{\"url\":\"{TOKEN}\"}}"), "o"),
        (pair.to_string(), "op"),
        ("{\"route\":\"brc20-token\"}".to_owned(), "op"),
        ("{\"tag\":[\"ticker:ordi\"]}".to_owned(), "o"),
        (" { \"all\" : true } ".to_owned(), "optazhmb"),
    ] {
        stage.warm().await;
        text(&post(&stage.gateway, "/purge", &body).await);
        assert_eq!(stage.gone().await, gone, "{body}");
    }
}

#[tokio::test]
async fn what_cannot_be_understood_purges_nothing() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream).chain().start();
    let many = "tag=height:1&".repeat(101);
    for (query, words) in [
        ("", "nothing"),
        ("url=", "url must be"),
        ("url=%ff", "percent-encoded"),
        ("url=nowhere", "\"nowhere\" came"),
        ("url=/nowhere", "/runes/v1/blocks/{block}/activity"),
        ("url=ftp://x/runes/v1/blocks/1/activity", "http"),
        ("url=/runes/v1/blocks/x/activity", "\"x\" came"),
        ("url=/runes/v1/blocks/1/activity?limit=99", "\"99\" came"),
        (
            "url=/runes/v1/blocks/1/activity?limit=5&offset=3",
            "offset=3",
        ),
        ("url=/openapi.json", "/openapi.json"),
        ("route=", "route must be"),
        ("route=nobody", "brc20-token, rune-transaction-activity"),
        ("tag=nothing", "block:HASH"),
        ("tag=what:1", "\"what:1\" came"),
        ("tag=block:840000", "64 hexadecimal digits"),
        ("tag=tx:840000", "64 hexadecimal digits"),
        ("tag=height:", "height:N+"),
        ("tag=height:-1", "height:N+"),
        ("tag=height:%2B1", "height:N+"),
        ("tag=height:1%2B%2B", "height:N+"),
        // A plus that is not encoded is a blank.
        ("tag=height:1+", "height:N+"),
        ("tag=height:4294967296", "height:N+"),
        ("tag=ticker:", "a ticker"),
        ("tag=ticker:%0a", "a ticker"),
        ("all=false", "\"false\" came"),
        ("every", "url=URL, route=NAME, tag=TAG or all"),
        ("URL=/x", "url=URL, route=NAME, tag=TAG or all"),
        ("all&tag=height:1", "all and tag"),
        ("tag=height:1&route=brc20-token", "tag and route"),
        ("tag=height:1&tag=what:1", "\"what:1\" came"),
        (&many, "at most 100"),
    ] {
        let answer = gateway.purge(query).await;
        assert_eq!(answer.status, 400, "{query}: {}", answer.text());
        assert_eq!(answer.must("content-type"), "application/problem+json");
        let problem = answer.json();
        assert_eq!(problem["status"], 400);
        assert_eq!(problem["error"], problem["detail"]);
        for member in ["parameter", "received", "allowed"] {
            assert!(problem[member].is_string(), "{query}: {problem}");
        }
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains(words), "{query}: {detail}");
    }
    for (target, body, words) in [
        ("/purge", "all", "JSON object"),
        ("/purge", "[]", "JSON object"),
        ("/purge", "{}", "nothing"),
        ("/purge", "{\"url\":[]}", "nothing"),
        ("/purge", "{\"all\":false}", "\"false\" came"),
        ("/purge", "{\"tag\":1}", "a text or a list of texts"),
        ("/purge", "{\"every\":true}", "unknown field `every`"),
        (
            "/purge",
            "{\"tag\":\"a\",\"tag\":\"height:1\"}",
            "duplicate",
        ),
        (
            "/purge",
            "{\"all\":true,\"tag\":\"height:1\"}",
            "tag and all",
        ),
        ("/purge", "{\"url\":\"/nowhere\"}", "\"/nowhere\" came"),
        ("/purge?all", "{\"all\":true}", "a query and a body"),
    ] {
        let answer = post(&gateway, target, body).await;
        assert_eq!(answer.status, 400, "{body}: {}", answer.text());
        let problem = answer.json();
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains(words), "{body}: {detail}");
    }
    let long = format!("{{\"url\":\"{}\"}}", "x".repeat(70_000));
    let answer = post(&gateway, "/purge", &long).await;
    assert_eq!(answer.status, 413, "{}", answer.text());
    assert_eq!(gateway.server().first_gateway().cache.store().purges(), 0);
}

#[tokio::test]
async fn a_body_that_does_not_come_is_not_waited_for() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let mut client = Client::connect(gateway.admin).await;
    client
        .send("POST /purge HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n{")
        .await;
    assert_eq!(client.answer("POST").await.status, 408);
}

#[tokio::test]
async fn no_page_in_a_browser_can_purge() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let own = format!("http://{}", gateway.admin);
    let mut client = Client::connect(gateway.admin).await;
    for fields in [
        &[("origin", "https://elsewhere.example")][..],
        &[("origin", "null")],
        &[("origin", &own), ("sec-fetch-site", "same-origin")],
        &[("sec-fetch-site", "cross-site")],
        &[("sec-fetch-site", "same-site")],
        &[("sec-fetch-site", "")],
    ] {
        let answer = client.request("POST", "/purge?all", fields).await;
        assert_eq!(answer.status, 403, "{fields:?}");
        let problem = answer.json();
        let detail = problem["detail"].as_str().unwrap();
        assert!(
            detail.contains(fields[0].0) || detail.contains("origin"),
            "{detail}"
        );
    }
    assert_eq!(gateway.server().first_gateway().cache.store().purges(), 0);
    for site in ["same-origin", "none"] {
        let fields = [("sec-fetch-site", site)];
        let answer = client.request("POST", "/purge?all", &fields).await;
        assert_eq!(answer.status, 200, "{site}");
    }
}

#[tokio::test]
async fn without_the_token_nothing_is_purged() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream).token("secret").start();
    for fields in [&[][..], &[("authorization", "Bearer wrong")]] {
        let mut client = Client::connect(gateway.admin).await;
        let answer = client.request("POST", "/purge?all", fields).await;
        assert_eq!(answer.status, 401);
        assert_eq!(gateway.server().first_gateway().cache.store().purges(), 0);
    }
    let mut client = Client::connect(gateway.admin).await;
    let fields = [("authorization", "Bearer secret")];
    let answer = client.request("POST", "/purge?all", &fields).await;
    assert_eq!(answer.status, 200);
}

/// An upstream with status paths, whose other answers have a number that grows
/// with each request; what is asked, and where the number stands.
fn numbered(upstream: &Upstream, body: impl Fn(&str, u64) -> String + Send + 'static) {
    let count = AtomicU64::new(0);
    upstream.usually(move |seen| {
        let target = seen.target();
        match &*target {
            "/runes/v1/" | "/ordinals/v1/" => Reply::json("{\"block_height\":840100}"),
            _ => Reply::with(
                200,
                "content-type: application/json\r\ncache-control: max-age=60\r\n",
                body(&target, count.fetch_add(1, SeqCst)),
            ),
        }
    });
}

/// The hash of the block that all items are of.
fn hash() -> String {
    format!("{:0>64}", "0a".repeat(28))
}

/// An item of a block at a height, with a number in it.
fn item(height: u32, number: u64) -> String {
    let (hash, tx) = (hash(), "0b".repeat(32));
    format!(
        "{{\"n\":{number},\"location\":{{\"block_hash\":\"{hash}\",\"block_height\":{height},\"tx_id\":\"{tx}\",\"tx_index\":1,\"timestamp\":1}}}}"
    )
}

/// A page, or a token, by what is asked.
fn body(target: &str, number: u64) -> String {
    let limit = target.split("limit=").nth(1);
    let limit = limit.map(|rest| rest.split('&').next().unwrap());
    match limit {
        Some(limit) if target.contains("offset=60") => {
            format!("{{\"limit\":{limit},\"offset\":60,\"total\":0,\"results\":[]}}")
        }
        Some(limit) => {
            let item = item(840_000, number);
            format!("{{\"limit\":{limit},\"offset\":0,\"total\":1,\"results\":[{item}]}}")
        }
        None => format!("{{\"n\":{number}}}"),
    }
}

/// The number in an answer.
fn number(answer: &Answer) -> u64 {
    assert_eq!(answer.status, 200, "{}", answer.text());
    let rest = answer.text().split("\"n\":").nth(1).unwrap();
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap();
    rest[..end].parse().unwrap()
}

const RESPECT: &str = r#"
    [[route]]
    name = "tokens"
    path = "/ordinals/v1/brc-20/tokens/{ticker}"
    params.ticker = { type = "ticker" }
    cache = { mode = "respect" }
"#;

#[tokio::test]
async fn what_was_asked_for_before_is_neither_answered_with_nor_stored() {
    let window = "/runes/v1/blocks/840000/activity?limit=60&offset=0";
    let tx = "0b".repeat(32);
    let hash = hash();
    for (setup, url, asked, query) in [
        (
            Setup::before as fn(&Upstream) -> Setup,
            TOKEN,
            TOKEN,
            "all".to_owned(),
        ),
        (Setup::before, TOKEN, TOKEN, format!("url={TOKEN}")),
        (
            |u| Setup::before(u).chain(),
            TOKEN,
            TOKEN,
            format!("url={TOKEN}"),
        ),
        (
            |u| Setup::before(u).chain(),
            TOKEN,
            TOKEN,
            "tag=ticker:ORDI".to_owned(),
        ),
        (
            |u| Setup::before(u).chain(),
            BLOCK,
            window,
            format!("url={BLOCK}"),
        ),
        (
            |u| Setup::before(u).chain(),
            BLOCK,
            window,
            "tag=height:840000".to_owned(),
        ),
        // What is on its way is told by what it says.
        (
            |u| Setup::before(u).chain(),
            BLOCK,
            window,
            format!("tag=tx:{tx}"),
        ),
        (
            |u| Setup::before(u).chain(),
            BLOCK,
            window,
            format!("tag=block:{hash}"),
        ),
        (
            |u| Setup::before(u).chain(),
            BLOCK,
            window,
            format!("url=/runes/v1/blocks/{hash}/activity"),
        ),
        (
            |u| Setup::before(u).config(RESPECT),
            TOKEN,
            TOKEN,
            format!("url={TOKEN}"),
        ),
        (
            |u| Setup::before(u).config(RESPECT),
            TOKEN,
            TOKEN,
            "route=tokens".to_owned(),
        ),
    ] {
        let upstream = Upstream::start();
        numbered(&upstream, |target, number| body(target, number + 1));
        let gate = Gate::new();
        let old = Reply::with(
            200,
            "content-type: application/json\r\ncache-control: max-age=60\r\n",
            body(asked, 0),
        );
        upstream.once(asked, old.behind(&gate));
        let gateway = setup(&upstream).manual().start();
        let mut early = gateway.client().await;
        early.ask("GET", url, &[]).await;
        until("it is asked", || {
            upstream.targets().iter().any(|t| t == asked)
        })
        .await;
        text(&gateway.purge(&query).await);
        let mut late = gateway.client().await;
        late.ask("GET", url, &[]).await;
        gate.open();
        // Who has asked before may get what there was before.
        assert_eq!(early.answer("GET").await.status, 200, "{query}");
        assert!(number(&late.answer("GET").await) > 0, "{query}");
        let hit = gateway.get(url).await;
        assert!(number(&hit) > 0, "{query}");
        let said = hit.must("cache-status");
        assert!(said.starts_with("ordgate; hit"), "{query}: {said}");
    }
}

#[tokio::test]
async fn a_leader_that_has_its_answer_hands_it_to_nobody_who_comes_after_a_purge() {
    let upstream = Upstream::start();
    numbered(&upstream, |target, number| body(target, number + 1));
    let window = |offset| format!("/runes/v1/blocks/840000/activity?limit=60&offset={offset}");
    let gate = Gate::new();
    // The one answers for all; the other keeps it from being handed over.
    upstream.once(&window(0), Reply::status(404, "{\"n\":0}"));
    upstream.once(&window(60), Reply::json(body(&window(60), 0)).behind(&gate));
    let gateway = Setup::before(&upstream).chain().manual().start();
    let page = format!("{BLOCK}?limit=5&offset=58");
    let mut early = gateway.client().await;
    early.ask("GET", &page, &[]).await;
    let store = gateway.server().first_gateway().cache.store();
    until("both are asked, and one has come", || {
        store.sweep(ordgate::clock::Moment::default(), |_| {
            std::time::Duration::ZERO
        });
        store.size().entries == 1 && upstream.targets().contains(&window(60))
    })
    .await;
    text(&gateway.purge(&format!("url={BLOCK}")).await);
    let gateway_holds = || Arc::strong_count(gateway.server().first_gateway());
    let before = gateway_holds();
    let mut late = gateway.client().await;
    late.ask("GET", &page, &[]).await;
    until("it waits", || gateway_holds() > before).await;
    gate.open();
    early.answer("GET").await;
    assert_eq!(late.answer("GET").await.status, 200);
}

#[tokio::test]
async fn while_many_ask_no_answer_is_of_before_a_purge() {
    for chain in [false, true] {
        let upstream = Upstream::start();
        numbered(&upstream, body);
        let setup = Setup::before(&upstream).config("server.workers = 2\nlimit.enabled = false");
        let setup = if chain { setup.chain() } else { setup };
        let gateway = Arc::new(setup.start());
        let over = Arc::new(AtomicBool::new(false));
        let mut asking = Vec::new();
        for client in 0..6 {
            let (gateway, over) = (gateway.clone(), over.clone());
            let url = if client % 2 == 0 { TOKEN } else { BLOCK };
            asking.push(tokio::spawn(async move {
                let mut client = gateway.client().await;
                while !over.load(SeqCst) {
                    number(&client.get(url).await);
                }
            }));
        }
        let mut client = gateway.client().await;
        for round in 0..60 {
            for url in [TOKEN, BLOCK] {
                let before = number(&client.get(url).await);
                let query = match round % 3 {
                    0 => "all".to_owned(),
                    1 => format!("url={url}"),
                    _ => "route=brc20-token&route=rune-block-activity".to_owned(),
                };
                text(&gateway.purge(&query).await);
                let after = number(&client.get(url).await);
                assert!(after > before, "{query}: {after} after {before}");
            }
        }
        over.store(true, SeqCst);
        for client in asking {
            client.await.unwrap();
        }
    }
}

#[tokio::test]
async fn variants_of_a_target_go_together() {
    let upstream = Upstream::start();
    upstream.usually(|seen| {
        let said = seen.field("accept-language").unwrap_or_default();
        ok(
            &[
                "cache-control: max-age=60",
                "etag: \"e\"",
                "vary: accept-language",
            ],
            &said,
        )
    });
    let gateway = plain(&upstream).manual().start();
    let mut client = gateway.client().await;
    for target in ["/v?a=1", "/v?a=2"] {
        for language in ["de", "en"] {
            client
                .request("GET", target, &[("accept-language", language)])
                .await;
        }
    }
    let count = |explained: Value| explained["stored"]["count"].as_u64();
    assert_eq!(count(gateway.explain("/v?a=1").await), Some(2));
    text(&gateway.purge(&format!("url={}", encoded("/v?a=1"))).await);
    assert_eq!(count(gateway.explain("/v?a=1").await), Some(0));
    assert_eq!(
        count(gateway.explain("/v?a=2").await),
        Some(2),
        "another target"
    );
    let asked = upstream.count();
    client
        .request("GET", "/v?a=1", &[("accept-language", "de")])
        .await;
    assert_eq!(upstream.count(), asked + 1);
    let seen = upstream.seen().pop().unwrap();
    assert_eq!(
        seen.field("if-none-match"),
        None,
        "there is nothing to validate"
    );
    client
        .request("GET", "/v?a=2", &[("accept-language", "de")])
        .await;
    assert_eq!(upstream.count(), asked + 1);
}

#[tokio::test]
async fn its_memory_is_free_soon() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream);
    let mut client = gateway.client().await;
    for number in 0..50 {
        client.get(&crate::support::token(number)).await;
    }
    let store = gateway.server().first_gateway().cache.store();
    gateway.server().first_gateway().maintain();
    assert_eq!(store.size().entries, 50);
    text(&gateway.purge("all").await);
    // Sooner than anybody asks for any of it.
    until("it is free", || store.size().entries == 0).await;
}

#[tokio::test]
async fn the_command_purges_and_says_what() {
    let upstream = Upstream::start();
    let mut secret = tempfile::NamedTempFile::new().unwrap();
    secret.write_all(b"a-token\n").unwrap();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let token_file = format!("admin.token_file = \"{}\"\n", secret.path().display());
    file.write_all(token_file.as_bytes()).unwrap();
    let config = file.path().display().to_string();
    let token = [("ORDGATE_ADMIN_TOKEN", "a-token")];
    let (_process, public, admin) = Process::before(&upstream, &["--config", &config], &[]);
    let admin = admin.to_string();
    let mut client = Client::connect(public).await;
    let hit = async |client: &mut Client| {
        let answer = client.get(TOKEN).await;
        answer.must("cache-status").starts_with("ordgate; hit")
    };
    for (arguments, variables) in [
        (&["--url", TOKEN][..], &token[..]),
        (&["--url", TOKEN, "--url", BLOCK], &token),
        (&["--tag", "ticker:ORDI", "--config", &config], &[]),
        (&["--route", "brc20-token", "--config", &config], &[]),
        (&["--all"], &token),
    ] {
        client.get(TOKEN).await;
        assert!(hit(&mut client).await);
        let arguments = [&["purge", "--admin", &admin], arguments].concat();
        let left = Process::run(&arguments, variables);
        assert_eq!(left.code(), Some(0), "{}", left.errors);
        let said: Value = serde_json::from_str(&left.out).unwrap();
        assert!(said["purged"][0]["means"].is_array(), "{said}");
        assert!(!hit(&mut client).await, "{arguments:?}");
    }
    client.get(TOKEN).await;
    for (arguments, variables, code, words) in [
        (&["--all"][..], &[][..], 1, "ORDGATE_ADMIN_TOKEN"),
        (
            &["--all"],
            &[("ORDGATE_ADMIN_TOKEN", "wrong")][..],
            1,
            "ORDGATE_ADMIN_TOKEN",
        ),
        (&["--url", "/nowhere"], &token, 1, "\"/nowhere\" came"),
        (&["--tag", "what:1"], &token, 1, "block:HASH"),
        (&[], &token, 2, "--url"),
        (&["--all", "--url", TOKEN], &token, 2, "--all"),
        (
            &["--all", "--config", "/no/such/file"],
            &token,
            2,
            "/no/such/file",
        ),
    ] {
        let arguments = [&["purge", "--admin", &admin], arguments].concat();
        let left = Process::run(&arguments, variables);
        assert_eq!(left.code(), Some(code), "{arguments:?}: {}", left.errors);
        assert_eq!(left.out, "");
        assert!(
            left.errors.contains(words),
            "{arguments:?}: {}",
            left.errors
        );
        assert!(!left.errors.contains("wrong\""), "{}", left.errors);
        assert!(!left.errors.contains("panicked"), "{}", left.errors);
    }
    assert!(hit(&mut client).await);
}

#[test]
fn a_command_that_finds_nobody_says_where_it_looked() {
    let (_held, nobody) = crate::support::upstream::refusing();
    let nobody = nobody.to_string();
    let left = Process::run(&["purge", "--all", "--admin", &nobody], &[]);
    assert_eq!(left.code(), Some(1));
    assert!(left.errors.contains(&nobody), "{}", left.errors);
    assert!(left.errors.contains("--admin"), "{}", left.errors);
}

#[tokio::test]
async fn a_command_that_finds_another_says_so() {
    let upstream = Upstream::start();
    let other = upstream.address().to_string();
    let left = Process::run(&["purge", "--all", "--admin", &other], &[]);
    assert_eq!(left.code(), Some(1));
    assert!(
        left.errors.contains("no ordgate's admin side"),
        "{}",
        left.errors
    );
}
