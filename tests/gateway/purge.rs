//! Purging: from the moment the operator has the answer, purged responses are never
//! served again, wherever they are; all others stay.

mod command;
mod races;
mod refused;

use ordgate::sandbox::{Sandbox, Settings};
use serde_json::Value;

use crate::support::respect::{ok, plain};
use crate::support::{Answer, Client, Gateway, Setup, TOKEN, Upstream, encoded};

/// A gateway in mode `chain` in front of a sandbox, and targets.
struct Stage {
    gateway: Gateway,
    sandbox: Sandbox,
    /// The targets, by the letter that tables use.
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
            let cache_status = hit.must("cache-status");
            assert!(
                cache_status.starts_with("ordgate; hit"),
                "{letter} {url}: {cache_status}"
            );
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
async fn each_selector_purges_what_it_names() {
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
        let before = stage.gateway.figure("/chain/purges");
        let purged = text(&stage.gateway.purge(&query).await);
        let number = purged["number"].as_u64().unwrap();
        assert!(number > before, "{query}: {purged}");
        let selectors = query.split('&').count();
        assert_eq!(purged["purged"].as_array().unwrap().len(), selectors);
        assert!(purged["purged"][0]["means"].is_array(), "{purged}");
        assert_eq!(stage.gone().await, gone, "{query}: {purged}");
        // Purged responses are fetched again, unchanged.
        if let Some(letter) = gone.chars().next() {
            let asked = stage.gateway.get(stage.url(letter)).await;
            let cache_status = asked.must("cache-status");
            assert!(
                cache_status.starts_with("ordgate; fwd=uri-miss"),
                "{query}: {cache_status}"
            );
            let path = stage.url(letter);
            let own = stage
                .sandbox
                .answer(&http::Method::GET, path, &http::HeaderMap::new());
            assert_eq!(asked.body, own.body);
        }
    }
}

/// A POST to the admin listener with a body.
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
async fn selectors_in_json_purge_the_same() {
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
async fn a_purge_removes_all_variants_of_a_target() {
    let upstream = Upstream::start();
    upstream.usually(|seen| {
        let value = seen.field("accept-language").unwrap_or_default();
        ok(
            &[
                "cache-control: max-age=60",
                "etag: \"e\"",
                "vary: accept-language",
            ],
            &value,
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
