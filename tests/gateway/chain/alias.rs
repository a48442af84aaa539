//! A block by its height and by its hash is one stored response.

use ordgate::sandbox::Settings;

use super::{
    Ground, acting, before, block, is_status, own, probe_all, reply, retagged, targets, transaction,
};
use crate::support::{Gate, Reply, Upstream};
use ordgate::sandbox::Sandbox;

#[tokio::test]
async fn a_block_by_hash_is_a_hit_after_its_height() {
    let ground = Ground::new().await;
    for depth in [0, 3, 30] {
        let height = ground.tip() - depth;
        let hash = ground.sandbox.hash_at(height).unwrap();
        ground.costs(&block(height), 1).await;
        let hit = ground.costs(&block(&hash), 0).await;
        assert!(hit.must("cache-status").starts_with("ordgate; hit"));
        let upper = hash.to_uppercase();
        let hit = ground.gateway.get(&block(&upper)).await;
        assert!(hit.must("cache-status").starts_with("ordgate; hit"));
        // So do its other pages, as far as the window has them.
        ground
            .costs(&format!("{}?limit=3&offset=2", block(&hash)), 0)
            .await;
    }
}

#[tokio::test]
async fn a_block_by_height_is_a_hit_after_its_hash() {
    let ground = Ground::new().await;
    for depth in [1, 30] {
        let height = ground.tip() - depth;
        let hash = ground.sandbox.hash_at(height).unwrap();
        ground.costs(&block(&hash), 1).await;
        ground.costs(&block(height), 0).await;
        ground.costs(&block(&hash), 0).await;
        // The window is the height's, and so are all pages that it has.
        let page = format!("{}?limit=2&offset=1", block(height));
        ground.costs(&page, 0).await;
    }
}

#[tokio::test]
async fn a_block_of_known_height_is_requested_by_height() {
    let sandbox = Sandbox::new(Settings::default());
    let upstream = acting(&sandbox);
    let gateway = before(&upstream, "").await;
    let tip = sandbox.tip().height;
    let hash = sandbox.hash_at(tip - 1).unwrap();
    gateway.get(&block(&hash)).await;
    assert_eq!(
        targets(&upstream),
        [format!("{}?limit=60&offset=0", block(&hash))]
    );
    sandbox.advance(1);
    probe_all(&gateway).await;
    gateway.get(&block(&hash)).await;
    gateway
        .get(&format!("{}?operation_type=mint", block(&hash)))
        .await;
    for target in &targets(&upstream)[1..] {
        assert!(!target.contains("/blocks/0000"), "{target}");
    }
    assert_eq!(targets(&upstream).len(), 3);
    // The status' word alone does not count: its tag is decided before its
    // height, and may be of the tip before.
    let tip = block(sandbox.tip().hash);
    gateway.get(&tip).await;
    assert_eq!(targets(&upstream)[3], format!("{tip}?limit=60&offset=0"));
}

#[tokio::test]
async fn a_transaction_shows_its_blocks_height() {
    let sandbox = Sandbox::new(Settings::default());
    let upstream = acting(&sandbox);
    let gateway = before(&upstream, "").await;
    let height = sandbox.tip().height - 20;
    let id = &sandbox.transactions_at(height)[0];
    gateway.get(&transaction(id)).await;
    let hash = sandbox.hash_at(height).unwrap();
    let by_hash = gateway.get(&block(&hash)).await;
    assert_eq!(
        targets(&upstream)[1],
        format!("{}?limit=60&offset=0", block(height))
    );
    let truth = sandbox.answer(&http::Method::GET, &block(&hash), &http::HeaderMap::new());
    assert!(by_hash.body == truth.body);
}

#[tokio::test]
async fn a_reorg_separates_height_and_hash() {
    let ground = Ground::new().await;
    let tip = ground.tip();
    let old = ground.sandbox.hash_at(tip).unwrap();
    ground.costs(&block(tip), 1).await;
    ground.costs(&block(&old), 0).await;
    ground.sandbox.reorg(1);
    // Before it is known, height and hash still are what they were.
    let before = ground.requests();
    assert!(ground.gateway.get(&block(&old)).await.text().contains(&old));
    assert_eq!(ground.requests(), before);
    ground.probe().await;
    let new = ground.sandbox.hash_at(tip).unwrap();
    for _ in 0..2 {
        let orphan = ground.same(&block(&old)).await;
        assert!(orphan.text().contains("\"results\":[]"));
        assert_eq!(orphan.must("cache-control"), "public, max-age=1");
        ground.same(&block(&new)).await;
        ground.same(&block(tip)).await;
    }
    assert_eq!(ground.requests() - before, 2);
}

#[tokio::test]
async fn a_hash_separated_by_an_unseen_reorg_is_requested_by_hash() {
    let ground = Ground::new().await;
    let tip = ground.tip();
    let old = ground.sandbox.hash_at(tip - 2).unwrap();
    ground.costs(&block(tip - 2), 1).await;
    ground.sandbox.reorg(3);
    ground.sandbox.advance(1);
    // The new tip is one higher, and nothing says that any block was undone.
    ground.probe().await;
    ground.same(&block(&old)).await;
    ground.same(&block(tip - 2)).await;
    ground
        .same(&block(ground.sandbox.hash_at(tip - 2).unwrap()))
        .await;
}

#[tokio::test]
async fn a_stale_block_does_not_stand_in_for_another_hash() {
    let (sandbox, upstream) = (Sandbox::new(Settings::default()), Upstream::start());
    let own = sandbox.clone();
    upstream.usually(move |seen| retagged(&own, &seen.target(), None));
    // So few heights are remembered that the block's is soon forgotten.
    let config = "chain.index_blocks = 16\nchain.final_depth = 1\n";
    let gateway = before(&upstream, config).await;
    let height = sandbox.tip().height;
    let old = sandbox.hash_at(height).unwrap();
    gateway.get(&block(height)).await;
    sandbox.advance(20);
    for above in 1..=20 {
        gateway.get(&block(height + above)).await;
    }
    sandbox.reorg(21);
    // Nothing shows the reorg at that height.
    probe_all(&gateway).await;
    let new = sandbox.hash_at(height).unwrap();
    assert_ne!(new, old);
    let id = &sandbox.transactions_at(height)[0];
    gateway.get(&transaction(id)).await;
    upstream.always(Reply::status(500, "{}"));
    // What is stored of the height is the other block.
    let by_height = gateway.get(&block(height)).await;
    let status = by_height.must("cache-status");
    assert!(status.contains("detail=stale-if-error"), "{status}");
    assert!(by_height.text().contains(&old));
    let by_hash = gateway.get(&block(&new)).await;
    assert_eq!(by_hash.status, 502, "{}", by_hash.text());
}

#[tokio::test]
async fn an_answer_orphaned_meanwhile_is_not_served() {
    for by_hash in [false, true] {
        let sandbox = Sandbox::new(Settings::default());
        let upstream = acting(&sandbox);
        let gateway = before(&upstream, "cache.stale_wait = \"20s\"").await;
        let height = sandbox.tip().height;
        let old = sandbox.hash_at(height).unwrap();
        let target = match by_hash {
            true => block(&old),
            false => block(height),
        };
        gateway.get(&block(height)).await;
        sandbox.advance(1);
        probe_all(&gateway).await;
        let gate = Gate::new();
        let (held, model) = (gate.clone(), sandbox.clone());
        upstream.usually(move |seen| match is_status(&seen.target()) {
            true => reply(&model, &seen.target()),
            false => Reply::status(500, "{}").behind(&held),
        });
        let asked = upstream.count();
        let mut client = gateway.start_get(&target).await;
        upstream.until_requests(asked + 1).await;
        sandbox.reorg(2);
        probe_all(&gateway).await;
        gate.open();
        let answer = client.answer("GET").await;
        assert_eq!(answer.status, 502, "{target}: {}", answer.text());
        assert!(!answer.text().contains(&old));
    }
}

#[tokio::test]
async fn an_answer_without_blocks_is_not_stored_by_height() {
    let sandbox = Sandbox::new(Settings::default());
    let upstream = acting(&sandbox);
    let gateway = before(&upstream, "").await;
    let window = |hash: &str| format!("{}?limit=60&offset=0", block(hash));
    // The answer for a block that does not exist yet.
    let nothing = reply(&sandbox, &window(&"0".repeat(64)));
    sandbox.advance(1);
    let height = sandbox.tip().height;
    let hash = sandbox.hash_at(height).unwrap();
    let gate = Gate::new();
    upstream.once(&window(&hash), nothing.behind(&gate));
    let asked = upstream.count();
    let mut client = gateway.start_get(&block(&hash)).await;
    upstream.until_requests(asked + 1).await;
    // By the time that it comes, the block's height is known.
    let id = &sandbox.transactions_at(height)[0];
    gateway.get(&transaction(id)).await;
    gate.open();
    assert_eq!(client.answer("GET").await.status, 200);
    let by_height = gateway.get(&block(height)).await;
    let (_, _, truth) = own(&sandbox, &block(height));
    assert!(by_height.body == truth, "{}", by_height.text());
}
