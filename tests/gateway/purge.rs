//! Purging: from the moment the operator has the answer, purged responses are never
//! served again, wherever they are; all others stay.

mod command;
mod races;
mod refused;

use std::collections::BTreeSet;

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
    let public = encoded(&format!("http://{}{TOKEN}", stage.gateway.public));
    // What is gone, and what purges it. URLs, however they are spelt; all of a list goes; a
    // block by both its names; a transaction with the pages of its block that have it.
    let rows = format!(
        "
        o {o} url={TOKEN} url=/ordinals/v1/brc-20/tokens/ORDI%3Funknown=1 url={public}
        o tag=ticker:OrDi
        op {o}&{p} tag=ticker:ordi&tag=ticker:PEPE route=brc20-token
        azhm {a} {z} {h} url=/runes/v1/blocks/0{height}/activity
        azhm url=/runes/v1/blocks/{upper}/activity
        b {b} tag=height:{below}&tag=tx:{other}
        tah {t} tag=tx:{tx} tag=tx:{tx_upper}
        tazhm tag=block:{hash} tag=block:{upper} tag=height:{height} tag=height:{height}%2B
        tazhmb tag=height:{below}%2B
        azhmb route=rune-block-activity
        opt route=brc20-token&route=rune-transaction-activity
        optazhmb all all=true
        - url=/ordinals/v1/brc-20/tokens/nobody tag=tx:{other} tag=block:{other}
        - tag=height:4294967295 tag=ticker:ord
        ",
        o = url('o'),
        p = url('p'),
        a = url('a'),
        z = url('z'),
        h = url('h'),
        b = url('b'),
        t = url('t'),
        tx_upper = tx.to_uppercase(),
    );
    let rows = rows.lines().flat_map(|line| {
        let mut words = line.split_whitespace();
        let gone = words.next().unwrap_or("").replace('-', "");
        words.map(move |query| (query.to_owned(), gone.clone()))
    });
    for (query, gone) in rows {
        stage.warm().await;
        assert_eq!(stage.gone().await, "");
        let before = stage.gateway.figure("/chain/purges");
        let purged = text(&stage.gateway.purge(&query).await);
        let number = purged["number"].as_u64().unwrap();
        assert!(number > before, "{query}: {purged}");
        let selectors = query.split('&').count();
        assert_eq!(purged["purged"].as_array().unwrap().len(), selectors);
        let found: BTreeSet<_> = stage.gone().await.chars().collect();
        assert_eq!(found, gone.chars().collect(), "{query}: {purged}");
        // Purged responses are fetched again, unchanged.
        if let Some(letter) = gone.chars().next() {
            let asked = stage.gateway.get(stage.url(letter)).await;
            let cache_status = asked.must("cache-status");
            assert!(
                cache_status.starts_with("ordgate; fwd=uri-miss"),
                "{query}: {cache_status}"
            );
            let path = stage.url(letter);
            let own = stage.sandbox.answer(path);
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
        (format!("{{\"url\":[\"{TOKEN}\"]}}"), "o"),
        (pair.to_string(), "op"),
        ("{\"route\":[\"brc20-token\"]}".to_owned(), "op"),
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
    let fields = [
        "cache-control: max-age=60",
        "etag: \"e\"",
        "vary: accept-language",
    ];
    upstream.always(ok(&fields, "body"));
    let gateway = plain(&upstream).manual().start();
    let ask = async |target: &str, language: &str| {
        let fields = [("accept-language", language)];
        gateway.request("GET", target, &fields).await;
        upstream.count()
    };
    for (target, language) in [("/v?a=1", "de"), ("/v?a=1", "en"), ("/v?a=2", "de")] {
        ask(target, language).await;
    }
    let count = async |url: &str| gateway.explain(url).await["stored"]["count"].as_u64();
    assert_eq!(count("/v?a=1").await, Some(2));
    text(&gateway.purge(&format!("url={}", encoded("/v?a=1"))).await);
    assert_eq!(
        (count("/v?a=1").await, count("/v?a=2").await),
        (Some(0), Some(1))
    );
    assert_eq!(
        (ask("/v?a=1", "de").await, ask("/v?a=2", "de").await),
        (4, 4)
    );
    let validator = upstream.seen().pop().unwrap().field("if-none-match");
    assert_eq!(validator, None, "there is nothing to validate");
}
