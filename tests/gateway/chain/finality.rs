//! Finality classes, and how long a response of each is stored.

use ordgate::sandbox::Settings;

use super::{Ground, IMMUTABLE, block, transaction};

const TICKER: &str = "/ordinals/v1/brc-20/tokens/pepe";

/// Probes at their usual pace, which is what clients are promised.
const OFTEN: &str = "chain.tip.runes.every = \"5s\"\nchain.tip.ordinals.every = \"5s\"";

/// A chain whose tip is the block after an empty one.
fn after_an_empty_block() -> Settings {
    Settings {
        blocks: 195,
        ..Settings::default()
    }
}

#[tokio::test]
async fn each_class_has_its_cache_control() {
    let ground = Ground::with(after_an_empty_block(), OFTEN).await;
    let tip = ground.tip();
    let first = |height: u32| transaction(&ground.sandbox.transactions_at(height)[0]);
    let beyond = format!("{}?offset=4000", first(tip - 8));
    let (last, recent, absent) = (2_592_000, 10, 1);
    let rows = [
        (block(tip), recent),
        (block(tip - 5), recent),
        (block(tip - 6), last),
        (first(tip - 4), recent),
        (first(tip - 7), last),
        (TICKER.to_owned(), recent),
        // Nothing there: settled only where the block itself lies deep.
        (block(tip - 1), absent),
        (block(tip - 11), last),
        (block(tip + 1), absent),
        (transaction(&"ab".repeat(32)), absent),
        (block(format!("{:064x}", 0xab)), absent),
        (beyond, absent),
        ("/ordinals/v1/brc-20/tokens/no-such".to_owned(), absent),
    ];
    for (target, ttl) in rows {
        let control = match ttl {
            2_592_000 => IMMUTABLE.to_owned(),
            _ => format!("public, max-age={ttl}"),
        };
        let miss = ground.same(&target).await;
        assert_eq!(miss.must("cache-control"), control, "{target}");
        let status = format!("ordgate; fwd=uri-miss; fwd-status={}; stored", miss.status);
        assert_eq!(miss.must("cache-status"), status, "{target}");
        let hit = ground.costs(&target, 0).await;
        assert_eq!(hit.must("cache-control"), control, "{target}");
        let status = format!("ordgate; hit; ttl={ttl}");
        assert_eq!(hit.must("cache-status"), status, "{target}");
        assert_eq!(hit.field("etag"), miss.field("etag"));
        if ttl == absent {
            ground.gateway.advance(999);
            ground.costs(&target, 0).await;
            ground.gateway.advance(1);
            ground.costs(&target, 1).await;
        }
    }
}

#[tokio::test]
async fn a_new_block_makes_stale_only_what_may_have_changed() {
    let ground = Ground::new().await;
    let deep = [block(ground.tip() - 30), block(ground.tip() - 16)];
    let open = [block(ground.tip() - 2), TICKER.to_owned()];
    // An empty block is final below one that is not empty.
    for target in open.iter().chain(&deep) {
        ground.costs(target, 1).await;
    }
    // The tip is still the same, so that all this was of it.
    ground.probe().await;
    ground.sandbox.advance(1);
    for target in deep.iter().chain(&open) {
        // Nobody has seen it yet.
        let before = ground.requests();
        ground.gateway.get(target).await;
        assert_eq!(ground.requests(), before, "{target}");
    }
    let before = ground.requests();
    ground.probe().await;
    assert_eq!(ground.requests() - before, 1, "the highest block");
    for target in &deep {
        ground.costs(target, 0).await;
    }
    for (target, requests, status) in [
        (&open[0], 0, "ordgate; hit; ttl=7200"),
        (&open[1], 1, "ordgate; fwd=stale; fwd-status=200; stored"),
    ] {
        let answer = ground.costs(target, requests).await;
        assert_eq!(answer.must("cache-status"), status);
        ground.costs(target, 0).await;
    }
}

#[tokio::test]
async fn a_clients_304_survives_a_block_that_changed_nothing() {
    let ground = Ground::new().await;
    let target = block(ground.tip() - 2);
    let first = ground.same(&target).await;
    let tag = first.must("etag").to_owned();
    ground.probe().await;
    for _ in 0..3 {
        let before = ground.requests();
        let known = [("if-none-match", &*tag)];
        let answer = ground.gateway.request("GET", &target, &known).await;
        assert_eq!(answer.status, 304);
        assert_eq!(answer.must("etag"), tag);
        assert_eq!(ground.requests(), before);
        ground.sandbox.advance(1);
        ground.probe().await;
    }
    // The upstream's own tag of before is none of ours.
    let tip = format!("\"{}\"", ground.sandbox.tip().hash);
    let known = [("if-none-match", &*tip)];
    let answer = ground.gateway.request("GET", &target, &known).await;
    assert_eq!(answer.status, 200);
}

#[tokio::test]
async fn an_answer_becomes_final_at_final_depth() {
    let ground = Ground::new().await;
    let target = block(ground.tip() - 2);
    for (depth, control) in [(2, "7200"), (5, "7200"), (6, "2592000, immutable")] {
        let deeper = depth - (ground.tip() - 840_197);
        ground.sandbox.advance(deeper);
        ground.probe().await;
        let answer = ground.same(&target).await;
        let expected = format!("public, max-age={control}");
        assert_eq!(answer.must("cache-control"), expected, "at depth {depth}");
    }
    ground.sandbox.advance(10);
    ground.probe().await;
    ground.costs(&target, 0).await;
}

#[tokio::test]
async fn final_ends_after_its_time() {
    let ground = Ground::new().await;
    let target = block(ground.tip() - 30);
    ground.costs(&target, 1).await;
    ground.gateway.advance(30 * 86_400_000 - 1);
    let hit = ground.costs(&target, 0).await;
    assert_eq!(hit.must("cache-status"), "ordgate; hit; ttl=0");
    assert_eq!(hit.must("age"), "2591999");
    ground.gateway.advance(1);
    ground.costs(&target, 1).await;
}
