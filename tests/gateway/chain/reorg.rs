//! Reorgs: whatever shows one, orphaned answers are not served again.

mod deep;
mod under_way;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;

use ordgate::sandbox::{Fault, FaultKind, Sandbox, Settings};

use super::{
    Ground, IMMUTABLE, RUNES, acting, before, block, probe_all, reply, retagged, targets, tip_of,
    transaction,
};
use crate::support::{Reply, Upstream, until};

/// All that a sandbox has to say of its highest blocks: by height, by hash, by
/// transaction.
fn near_the_tip(sandbox: &Sandbox, depth: u32) -> Vec<String> {
    let tip = sandbox.tip().height;
    let mut paths = Vec::new();
    for height in (tip + 1).saturating_sub(depth)..=tip {
        paths.push(block(height));
        paths.push(format!("{}?limit=60&offset=3", block(height)));
        paths.push(block(sandbox.hash_at(height).unwrap()));
        let all = sandbox.transactions_at(height);
        paths.extend(all.iter().take(3).map(|id| transaction(id)));
    }
    paths
}

/// Asks for everything twice, so that all of it is stored.
async fn warm(ground: &Ground, paths: &[String]) {
    for path in paths.iter().chain(paths) {
        ground.same(path).await;
    }
}

#[tokio::test]
async fn a_tip_that_goes_down_and_up_again_is_one_reorg() {
    let ground = Ground::new().await;
    let paths = near_the_tip(&ground.sandbox, 4);
    warm(&ground, &paths).await;
    ground.sandbox.rollback(3);
    ground.probe().await;
    assert_eq!(tip_of(&ground.gateway, RUNES).reorgs, 1);
    for path in &paths {
        let answer = ground.same(path).await;
        if answer.text().contains("\"results\":[]") {
            assert_eq!(answer.must("cache-control"), "public, max-age=1", "{path}");
        }
    }
    // Halfway nothing is there, for a second at the most.
    ground.gateway.advance(1000);
    ground.sandbox.apply();
    let now = near_the_tip(&ground.sandbox, 4);
    for path in paths.iter().chain(&now) {
        ground.same(path).await;
    }
    ground.probe().await;
    for path in paths.iter().chain(&now) {
        ground.same(path).await;
    }
}

#[tokio::test]
async fn another_hash_at_the_height_of_the_tip_is_a_reorg() {
    let ground = Ground::new().await;
    let old = near_the_tip(&ground.sandbox, 5);
    warm(&ground, &old).await;
    ground.sandbox.reorg(3);
    ground.probe().await;
    assert_eq!(tip_of(&ground.gateway, RUNES).reorgs, 1);
    let new = near_the_tip(&ground.sandbox, 5);
    for path in old.iter().chain(&new).chain(&old) {
        ground.same(path).await;
    }
}

#[tokio::test]
async fn a_body_that_names_another_hash_is_a_reorg() {
    // Without tags only bodies show it.
    let sandbox = Sandbox::new(Settings::default());
    let upstream = Upstream::start();
    let own = sandbox.clone();
    upstream.usually(move |seen| retagged(&own, &seen.target(), None));
    let gateway = before(&upstream, "").await;
    let tip = sandbox.tip().height;
    let old = near_the_tip(&sandbox, 3);
    for path in &old {
        gateway.get(path).await;
    }
    let last = block(tip - 40);
    assert_eq!(gateway.get(&last).await.must("cache-control"), IMMUTABLE);
    sandbox.reorg(3);
    probe_all(&gateway).await;
    assert_eq!(tip_of(&gateway, RUNES).reorgs, 0, "its height is the same");
    // A transaction that has not been requested names the new block.
    let known = |id: &String| old.iter().any(|path| path.contains(&**id));
    let all = sandbox.transactions_at(tip - 2);
    let other = all.iter().find(|id| !known(id)).unwrap();
    let seen = gateway.get(&transaction(other)).await;
    assert!(seen.text().contains(&sandbox.hash_at(tip - 2).unwrap()));
    assert_eq!(tip_of(&gateway, RUNES).reorgs, 1);
    for path in old.iter().chain(&near_the_tip(&sandbox, 3)) {
        let answer = gateway.get(path).await;
        let truth = sandbox.answer(&http::Method::GET, path, &http::HeaderMap::new());
        assert!(answer.body == truth.body, "{path}");
    }
    let asked = targets(&upstream).len();
    gateway.get(&last).await;
    assert_eq!(
        targets(&upstream).len(),
        asked,
        "far below nothing has changed"
    );
}

#[tokio::test]
async fn a_block_that_becomes_empty_is_a_reorg() {
    let sandbox = Sandbox::new(Settings::default());
    let upstream = Upstream::start();
    let own = sandbox.clone();
    upstream.usually(move |seen| match super::for_status(seen) {
        // It lags, and keeps reporting the old tip.
        true => Reply::json(r#"{"status":"ready","block_height":840199}"#),
        false => retagged(&own, &seen.target(), None),
    });
    let gateway = before(&upstream, "").await;
    let (upper, top) = (block(840_198), block(840_199));
    let window = format!("{top}?limit=60");
    for path in [&upper, &top] {
        gateway.get(path).await;
    }
    sandbox.rollback(2);
    // Somebody gets the window itself past the one that is stored.
    gateway.advance(30 * 86_400_000);
    let empty = gateway.get(&window).await;
    assert!(empty.text().contains("\"results\":[]"));
    assert_eq!(tip_of(&gateway, RUNES).reorgs, 1);
    let empty = gateway.get(&upper).await;
    assert!(empty.text().contains("\"results\":[]"));
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
    ground.sandbox.reorg(1);
    ground.probe().await;
    ground
        .sandbox
        .fault(Fault::once(FaultKind::Close).times(u32::MAX));
    for _ in 0..2 {
        for path in &gone {
            let answer = ground.gateway.get(path).await;
            assert!(matches!(answer.status, 502 | 503), "{path}: {answer:?}");
            assert!(!answer.text().contains(&orphan));
            answer.problem();
        }
        assert_eq!(ground.gateway.get(&last).await.status, 200);
    }
    ground.sandbox.clear_faults();
    ground.gateway.advance(10_000);
    for path in &gone {
        ground.same(path).await;
    }
}

#[tokio::test]
async fn a_reorg_purges_final_empty_lists() {
    let ground = Ground::with(
        Settings {
            blocks: 200,
            ..Settings::default()
        },
        "",
    )
    .await;
    // Deep enough, and without activity.
    let empty = block(840_193);
    let answer = ground.same(&empty).await;
    assert_eq!(answer.must("cache-control"), IMMUTABLE);
    assert!(answer.text().contains("\"results\":[]"));
    ground.sandbox.reorg(7);
    ground.probe().await;
    let filled = ground.same(&empty).await;
    assert!(
        !filled.text().contains("\"results\":[]"),
        "a replacement brings something"
    );
}

/// Whatever happens to the chain, in whatever order: once the tips are known,
/// every answer is the upstream's own.
#[tokio::test]
async fn answers_are_true_after_any_history() {
    let ground = Ground::new().await;
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    };
    let mut paths: Vec<String> = near_the_tip(&ground.sandbox, 6);
    for round in 0..60 {
        match random(6) {
            0 | 1 => ground.sandbox.advance(1 + random(3) as u32),
            2 => drop(ground.sandbox.reorg(1 + random(9) as u32)),
            3 => drop(ground.sandbox.rollback(1 + random(9) as u32)),
            4 => drop(ground.sandbox.apply()),
            _ => {}
        }
        if random(3) == 0 {
            // Something is learned in passing, before any probe.
            let height = ground.tip() - random(4) as u32;
            ground.gateway.get(&block(height)).await;
        }
        ground.probe().await;
        // What is absent may be out of date for its second.
        ground.gateway.advance(1000);
        paths.extend(near_the_tip(&ground.sandbox, 3));
        for _ in 0..40 {
            let path = &paths[random(paths.len() as u64) as usize];
            let answer = ground.gateway.get(path).await;
            let truth = ground.truth(path);
            assert!(
                answer.body == truth.body && answer.status == truth.status.as_u16(),
                "round {round}: {path} {:?}",
                answer.fields
            );
        }
    }
    assert!(tip_of(&ground.gateway, RUNES).reorgs > 5);
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
    until("the reorg is seen", || tip_of(&gateway, RUNES).reorgs == 1).await;
    let truth = sandbox.answer(&http::Method::GET, &path, &http::HeaderMap::new());
    assert!(gateway.get(&path).await.body == truth.body);
}
