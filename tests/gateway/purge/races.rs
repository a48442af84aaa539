//! Answers that were requested before a purge, and arrive after it.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use super::text;
use crate::support::{Answer, BLOCK, Gate, Reply, Setup, TOKEN, Upstream, until};

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
pub(super) fn hash() -> String {
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
pub(super) fn body(target: &str, number: u64) -> String {
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
pub(super) fn number(answer: &Answer) -> u64 {
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
async fn an_answer_requested_before_a_purge_is_neither_served_nor_stored() {
    let window = "/runes/v1/blocks/840000/activity?limit=60&offset=0";
    let tx = "0b".repeat(32);
    let hash = hash();
    let timed: fn(&Upstream) -> Setup = Setup::before;
    let chain: fn(&Upstream) -> Setup = |u| Setup::before(u).chain();
    let respect: fn(&Upstream) -> Setup = |u| Setup::before(u).config(RESPECT);
    for (setup, url, asked, query) in [
        (timed, TOKEN, TOKEN, "all".to_owned()),
        (timed, TOKEN, TOKEN, format!("url={TOKEN}")),
        (chain, TOKEN, TOKEN, format!("url={TOKEN}")),
        (chain, TOKEN, TOKEN, "tag=ticker:ORDI".to_owned()),
        (chain, BLOCK, window, format!("url={BLOCK}")),
        // An answer under way is identified by its body.
        (chain, BLOCK, window, format!("tag=tx:{tx}")),
        (chain, BLOCK, window, format!("tag=block:{hash}")),
        (respect, TOKEN, TOKEN, format!("url={TOKEN}")),
        (respect, TOKEN, TOKEN, "route=tokens".to_owned()),
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
        let mut early = gateway.start_get(url).await;
        until("it is asked", || {
            upstream.targets().iter().any(|t| t == asked)
        })
        .await;
        text(&gateway.purge(&query).await);
        let mut late = gateway.start_get(url).await;
        gate.open();
        // Earlier requests may get earlier answers.
        assert_eq!(early.answer("GET").await.status, 200, "{query}");
        assert!(number(&late.answer("GET").await) > 0, "{query}");
        let hit = gateway.get(url).await;
        assert!(number(&hit) > 0, "{query}");
        let cache_status = hit.must("cache-status");
        assert!(
            cache_status.starts_with("ordgate; hit"),
            "{query}: {cache_status}"
        );
    }
}

#[tokio::test]
async fn clients_after_a_purge_do_not_share_an_earlier_fetch() {
    let upstream = Upstream::start();
    numbered(&upstream, |target, number| body(target, number + 1));
    let window = |offset| format!("/runes/v1/blocks/840000/activity?limit=60&offset={offset}");
    let gate = Gate::new();
    // The one answers for all; the other keeps it from being handed over.
    upstream.once(&window(0), Reply::status(404, "{\"n\":0}"));
    upstream.once(&window(60), Reply::json(body(&window(60), 0)).behind(&gate));
    let gateway = Setup::before(&upstream).chain().manual().start();
    let page = format!("{BLOCK}?limit=5&offset=58");
    let mut early = gateway.start_get(&page).await;
    until("both are asked, and one has come", || {
        gateway.entries() == 1 && upstream.targets().contains(&window(60))
    })
    .await;
    text(&gateway.purge(&format!("url={BLOCK}")).await);
    let mut late = gateway.start_get(&page).await;
    gateway.until_all_is_read().await;
    gate.open();
    early.answer("GET").await;
    assert_eq!(late.answer("GET").await.status, 200);
}
