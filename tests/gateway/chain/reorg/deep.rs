//! Reorgs deeper than what counts as final, and the checks of blocks that prove how deep they are.

use ordgate::sandbox::{Fault, FaultKind, Sandbox, Settings};

use super::super::{
    Ground, IMMUTABLE, RUNES, before, block, height_of, probe_all, reply, tip_of, transaction,
};
use super::warm;
use crate::support::{Reply, Upstream, until};

#[tokio::test]
async fn a_reorg_deeper_than_final_invalidates_final_answers() {
    let ground = Ground::new().await;
    let tip = ground.tip();
    let deep: Vec<_> = (6..=7).map(|depth| block(tip - depth)).collect();
    let by_hash: Vec<_> = (6..=7)
        .map(|depth| block(ground.sandbox.hash_at(tip - depth).unwrap()))
        .collect();
    let id = ground.sandbox.transactions_at(tip - 7)[0].clone();
    let paths = [deep, by_hash, vec![transaction(&id)]].concat();
    for path in paths.iter().chain(&paths) {
        let answer = ground.same(path).await;
        if !answer.text().contains("\"results\":[]") {
            assert_eq!(answer.must("cache-control"), IMMUTABLE, "{path}");
        }
    }
    let settled = block(tip - 40);
    ground.same(&settled).await;
    ground.sandbox.reorg(8);
    // It is seen at its upper end alone.
    ground.probe().await;
    for path in &paths {
        ground.same(path).await;
    }
    ground.costs(&settled, 0).await;
}

/// Final answers about blocks between two depths: by height, by hash, by
/// transaction.
fn deep(sandbox: &Sandbox, depths: std::ops::RangeInclusive<u32>) -> Vec<String> {
    let tip = sandbox.tip().height;
    let mut paths = Vec::new();
    for height in depths.map(|depth| tip - depth) {
        let all = sandbox.transactions_at(height);
        if let Some(first) = all.first() {
            paths.push(block(height));
            paths.push(block(sandbox.hash_at(height).unwrap()));
            paths.push(transaction(first));
        }
    }
    paths
}

/// No recent block is requested, and the tip seems only to have grown.
#[tokio::test]
async fn a_deep_reorg_between_two_probes_is_detected() {
    for depth in [14, 30, 60] {
        let ground = Ground::new().await;
        let undone = deep(&ground.sandbox, 13..=depth - 1);
        let stands = deep(&ground.sandbox, 100..=101);
        warm(&ground, &undone).await;
        warm(&ground, &stands).await;
        ground.sandbox.reorg(depth);
        ground.sandbox.advance(1);
        let before = ground.requests();
        ground.probe_and_look().await;
        let looks = ground.requests() - before;
        // The probe, a look at each step, and at most one more probe that is due meanwhile.
        assert!(looks <= u64::from(3 + depth / 13), "{looks} at {depth}");
        assert!(tip_of(&ground.gateway, RUNES).reorgs > 0);
        for path in &undone {
            ground.same(path).await;
        }
        for path in &stands {
            ground.costs(path, 0).await;
        }
        // Nothing is looked at twice for one change.
        let before = ground.requests();
        ground.probe_and_look().await;
        assert_eq!(ground.requests(), before);
    }
}

/// What is deeper than all looks together leaves nothing that counts.
#[tokio::test]
async fn a_reorg_without_an_end_is_bounded() {
    let config = "chain.final_depth = 1";
    let ground = Ground::with(Settings::default(), config).await;
    let undone = deep(&ground.sandbox, 4..=119);
    warm(&ground, &undone).await;
    ground.sandbox.reorg(120);
    ground.sandbox.advance(1);
    let before = ground.requests();
    ground.probe_and_look().await;
    assert_eq!(ground.requests() - before, 16);
    for path in &undone {
        ground.same(path).await;
    }
}

/// The change is first seen in an answer's tag, and the probe loop does the rest.
#[tokio::test]
async fn a_deep_reorg_is_detected_by_a_tag() {
    let ground = Ground::new().await;
    let undone = deep(&ground.sandbox, 13..=29);
    warm(&ground, &undone).await;
    ground.sandbox.reorg(30);
    ground.sandbox.advance(1);
    ground.gateway.get(&block(ground.tip() - 120)).await;
    let gone = |path: &String| {
        let hash = path.split('/').nth(4).and_then(ordgate::pages::hash);
        hash.is_none_or(|hash| height_of(&ground.gateway, &hash).is_none())
    };
    until("all of it is forgotten", || undone.iter().all(gone)).await;
    for path in &undone {
        ground.same(path).await;
    }
}

/// An empty block at the height of the tip before shows nothing.
#[tokio::test]
async fn a_deep_reorg_below_an_empty_block_is_detected() {
    let sandbox = Sandbox::new(Settings::default());
    let (upstream, tip) = (Upstream::start(), sandbox.tip().height);
    let model = sandbox.clone();
    let empty = format!("{}?limit=60&offset=0", block(tip));
    upstream.usually(move |seen| {
        let target = seen.target();
        if target != empty {
            return reply(&model, &target);
        }
        let (status, fields, _) = super::super::own(&model, &target);
        Reply::with(
            status,
            &fields,
            r#"{"limit":60,"offset":0,"total":0,"results":[]}"#,
        )
    });
    let gateway = before(&upstream, "").await;
    let undone = deep(&sandbox, 13..=29);
    for path in undone.iter().chain(&undone) {
        gateway.get(path).await;
    }
    sandbox.reorg(30);
    sandbox.advance(1);
    probe_all(&gateway).await;
    gateway.check_blocks(RUNES).await;
    for path in &undone {
        let answer = gateway.get(path).await;
        let truth = sandbox.answer(&http::Method::GET, path, &http::HeaderMap::new());
        assert!(answer.body == truth.body, "{path}");
    }
}

/// In the ordinary case it is one request for each change of tip, and it proves
/// what is recent as well.
#[tokio::test]
async fn a_fork_search_is_one_request_and_validates_recent_answers() {
    let ground = Ground::new().await;
    let recent = [block(ground.tip() - 1), block(ground.tip() - 2)];
    for path in &recent {
        ground.costs(path, 1).await;
    }
    ground.probe_and_look().await;
    for round in 0..3 {
        ground.sandbox.advance(1);
        let before = ground.requests();
        ground.probe_and_look().await;
        ground.probe_and_look().await;
        let looks = ground.requests() - before;
        assert_eq!(looks, 1, "round {round}");
        for path in &recent {
            ground.costs(path, 0).await;
        }
    }
}

/// A look that fails is made again with the next probe.
#[tokio::test]
async fn a_failed_fork_search_is_repeated() {
    let config = "upstream.queue_timeout = \"20ms\"";
    let ground = Ground::with(Settings::default(), config).await;
    let undone = deep(&ground.sandbox, 13..=29);
    warm(&ground, &undone).await;
    ground.sandbox.reorg(30);
    ground.sandbox.advance(1);
    ground.probe().await;
    let fault = Fault::once(FaultKind::Close).times(u32::MAX);
    ground.sandbox.fault(fault);
    ground.gateway.check_blocks(RUNES).await;
    assert_eq!(tip_of(&ground.gateway, RUNES).reorgs, 0);
    ground.sandbox.clear_faults();
    ground.gateway.advance(60_000);
    ground.probe_and_look().await;
    assert!(tip_of(&ground.gateway, RUNES).reorgs > 0);
    for path in &undone {
        ground.same(path).await;
    }
}
