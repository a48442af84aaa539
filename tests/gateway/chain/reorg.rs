//! Reorgs: whatever shows one, orphaned answers are not served again. Answers that are under
//! way meanwhile, and pages of several windows, are the simulation's.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;

use ordgate::sandbox::{Fault, FaultKind, Sandbox, Settings};
use serde_json::json;

use super::{Ground, RUNES, acting, before, block, reply, tip_of, transaction};
use crate::support::until;

/// All that a sandbox has to say of its highest blocks: by height, by hash, by
/// transaction.
fn near_the_tip(sandbox: &Sandbox, depths: std::ops::Range<u32>) -> Vec<String> {
    let tip = sandbox.tip().height;
    let mut paths = Vec::new();
    for height in depths.map(|depth| tip - depth) {
        paths.push(block(height));
        paths.push(format!("{}?limit=60&offset=3", block(height)));
        paths.push(block(sandbox.hash_at(height).unwrap()));
        let all = sandbox.transactions_at(height);
        paths.extend(all.iter().take(2).map(|id| transaction(id)));
    }
    paths
}

/// Asks for everything twice, so that all of it is stored.
async fn warm(ground: &Ground, paths: &[String]) {
    for path in paths.iter().chain(paths) {
        ground.same(path).await;
    }
    // The tip is still the same, so that all this was of it.
    ground.probe().await;
}

#[tokio::test]
async fn another_hash_at_the_height_of_the_tip_is_a_reorg() {
    let ground = Ground::new().await;
    let old = near_the_tip(&ground.sandbox, 0..5);
    warm(&ground, &old).await;
    ground.sandbox.reorg(3);
    ground.probe().await;
    assert_eq!(tip_of(&ground.gateway, RUNES).reorgs, 1);
    let new = near_the_tip(&ground.sandbox, 0..5);
    for path in old.iter().chain(&new).chain(&old) {
        ground.same(path).await;
    }
    ground.gateway.advance(60_000);
    let tip = tip_of(&ground.gateway, RUNES);
    assert_eq!(tip.moved_seconds_ago, Some(60.0));
    let reorg = json!({ "seconds_ago": 60.0, "blocks": 3 });
    assert_eq!(tip.last_reorg, Some(reorg));
}

#[tokio::test]
async fn orphans_are_not_served_in_an_outage() {
    let ground = Ground::with(Settings::default(), "upstream.queue_timeout = \"20ms\"").await;
    let tip = ground.tip();
    let orphan = ground.sandbox.hash_at(tip).unwrap();
    let id = ground.sandbox.transactions_at(tip)[0].clone();
    let gone = [block(tip), block(&orphan), transaction(&id)];
    warm(&ground, &gone).await;
    let last = block(tip - 40);
    ground.same(&last).await;
    ground.probe().await;
    ground.sandbox.reorg(1);
    ground.probe().await;
    ground
        .sandbox
        .fault(Fault::once(FaultKind::Close).times(u32::MAX));
    for _ in 0..2 {
        for path in &gone {
            let answer = ground.gateway.get(path).await;
            assert!(matches!(answer.status, 502 | 503), "{path}");
            assert!(!answer.text().contains(&orphan));
            answer.problem();
        }
        assert_eq!(ground.gateway.get(&last).await.status, 200);
    }
    ground.sandbox.clear_faults();
    ground.probe().await;
    ground.gateway.advance(10_000);
    for path in &gone {
        ground.same(path).await;
    }
}

/// A status that never says that anything happened.
#[tokio::test]
async fn a_reorg_shown_only_by_tags_is_detected() {
    let sandbox = Sandbox::new(Settings::default());
    let upstream = acting(&sandbox);
    let gateway = before(&upstream, "").await;
    let tip = sandbox.tip().height;
    let path = block(tip - 1);
    gateway.get(&path).await;
    let requested = Arc::new(AtomicBool::new(false));
    let (own, is_requested) = (sandbox.clone(), requested.clone());
    upstream.usually(move |seen| {
        if super::for_status(seen) {
            is_requested.store(true, SeqCst);
        }
        reply(&own, &seen.target())
    });
    sandbox.reorg(2);
    // An old block's answer has the new tip's tag, which triggers a probe,
    // although the next is due in an hour.
    gateway.get(&block(tip - 60)).await;
    until("the tip is asked for", || requested.load(SeqCst)).await;
    until("the new tip is seen", || tip_of(&gateway, RUNES).epoch == 2).await;
    let truth = sandbox.answer(&path);
    assert!(gateway.get(&path).await.body == truth.body);
}

/// What is deeper than all looks together leaves nothing that counts.
#[tokio::test]
async fn a_reorg_without_an_end_is_bounded() {
    let config = "chain.final_depth = 1";
    let ground = Ground::with(Settings::default(), config).await;
    let undone = near_the_tip(&ground.sandbox, 4..120);
    warm(&ground, &undone).await;
    ground.sandbox.reorg(120);
    ground.sandbox.advance(1);
    let before = ground.requests();
    ground.probe().await;
    // 4, 5, 7, 11, 19, 35, and 67 blocks down.
    assert_eq!(ground.requests() - before, 7);
    for path in &undone {
        ground.same(path).await;
    }
}
