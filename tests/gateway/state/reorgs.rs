//! What answers on disk are worth while the chain may have changed.

use std::fs;
use std::path::PathBuf;

use ordgate::sandbox::{Sandbox, Settings};

use super::answer_faults::files;
use super::answers::{Ground, TIMED, figure, is_from_disk};
use crate::chain::{block, is_status, reply};
use crate::support::{Gateway, Reply, until};

/// The first check of blocks has ended.
async fn until_checked(ground: &Ground, gateway: &Gateway, requests: usize) {
    until("the block was checked", || {
        ground.requests().len() > requests
    })
    .await;
    for tip in [0, 1] {
        gateway.check_blocks(tip).await;
    }
}

#[tokio::test]
async fn a_reorg_while_it_was_down_shows_no_orphaned_block() {
    let sandbox = Sandbox::new(Settings::default());
    let ground = Ground::chain(&sandbox);
    let gateway = ground.start().await;
    let tip = sandbox.tip().height;
    // Final, and orphaned by what follows; and far below it. The highest that is left is
    // requested, to check it.
    let (orphaned, checked, below) = (block(tip - 8), block(tip - 80), block(tip - 90));
    for target in [&orphaned, &checked, &below, &block(tip)] {
        gateway.get(target).await;
    }
    gateway.end().await;
    sandbox.reorg(10);
    let before = ground.requests().len();
    let gateway = ground.start().await;
    until_checked(&ground, &gateway, before).await;
    let truth = sandbox.answer(&http::Method::GET, &orphaned, &http::HeaderMap::new());
    let answer = gateway.get(&orphaned).await;
    assert!(!is_from_disk(&answer), "{}", answer.must("cache-status"));
    assert!(answer.body == truth.body, "it is of the new chain");
    let answer = gateway.get(&below).await;
    assert!(is_from_disk(&answer), "{}", answer.must("cache-status"));
}

#[tokio::test]
async fn without_an_upstream_final_answers_are_served_and_marked() {
    let sandbox = Sandbox::new(Settings::default());
    let ground = Ground::chain(&sandbox);
    let gateway = ground.start().await;
    let tip = sandbox.tip().height;
    let targets = [
        block(tip - 30),
        format!("{}?limit=3&offset=2", block(tip - 30)),
    ];
    let mut first = Vec::new();
    for target in &targets {
        first.push(gateway.get(target).await);
    }
    gateway.end().await;
    ground.upstream.always(Reply::nothing().reset());
    let gateway = ground.start().await;
    for (target, first) in targets.iter().zip(&first) {
        let answer = gateway.get(target).await;
        assert_eq!(answer.status, 200, "{target}");
        assert_eq!(answer.body, first.body);
        let status = answer.must("cache-status");
        assert!(status.ends_with("detail=stale-if-error"), "{status}");
    }
    assert!(figure(&gateway, "unchecked") >= 2);
    // It comes back.
    let own = sandbox.clone();
    ground
        .upstream
        .usually(move |seen| reply(&own, &seen.target()));
    until("the upstream is used again", || {
        gateway.status()["upstream"]["breaker"]["state"] == "closed"
    })
    .await;
    for tip in [0, 1] {
        gateway.probe(tip).await;
        gateway.check_blocks(tip).await;
    }
    let answer = gateway.get(&targets[0]).await;
    assert_eq!(answer.body, first[0].body);
}

#[tokio::test]
async fn a_reorg_that_was_seen_is_not_forgotten() {
    let sandbox = Sandbox::new(Settings::default());
    let ground = Ground::chain(&sandbox);
    let gateway = ground.start().await;
    let tip = sandbox.tip().height;
    let (orphaned, below) = (block(tip - 2), block(tip - 80));
    for target in [&orphaned, &below] {
        gateway.get(target).await;
    }
    sandbox.reorg(4);
    for tip in [0, 1] {
        gateway.probe(tip).await;
        gateway.check_blocks(tip).await;
    }
    let gateway = ground.restart(gateway).await;
    let truth = sandbox.answer(&http::Method::GET, &orphaned, &http::HeaderMap::new());
    let answer = gateway.get(&orphaned).await;
    assert!(answer.body == truth.body, "it is of the new chain");
    assert!(is_from_disk(&gateway.get(&below).await));
}

#[tokio::test]
async fn new_blocks_while_it_was_down_change_nothing() {
    let sandbox = Sandbox::new(Settings::default());
    let ground = Ground::chain(&sandbox);
    let gateway = ground.start().await;
    let tip = sandbox.tip().height;
    // Recent; they become final meanwhile. The first is requested, to check it.
    let (checked, target) = (block(tip - 1), block(tip - 3));
    gateway.get(&checked).await;
    gateway.get(&target).await;
    gateway.end().await;
    sandbox.advance(20);
    let before = ground.requests().len();
    let gateway = ground.start().await;
    until_checked(&ground, &gateway, before).await;
    let answer = gateway.get(&target).await;
    assert!(is_from_disk(&answer), "{}", answer.must("cache-status"));
    assert!(answer.must("cache-control").contains("immutable"));
    let asked = ground.requests().split_off(before);
    assert_eq!(asked.len(), 1, "one block is checked: {asked:?}");
    assert!(!is_status(&asked[0]));
}

#[tokio::test]
async fn while_the_blocks_below_a_new_tip_are_unchecked_recent_answers_are_stale() {
    let sandbox = Sandbox::new(Settings::default());
    let ground = Ground::chain(&sandbox);
    let gateway = ground.start().await;
    let tip = sandbox.tip().height;
    let (checked, orphaned) = (block(tip), block(tip - 2));
    for target in [&checked, &orphaned] {
        gateway.get(target).await;
    }
    let gateway = ground.restart(gateway).await;
    // The status has shown that the tip is the same.
    for tip in [0, 1] {
        gateway.check_blocks(tip).await;
    }
    // A reorg of which the status shows a new height alone; the block below cannot be had.
    sandbox.reorg(4);
    sandbox.advance(1);
    let own = sandbox.clone();
    ground
        .upstream
        .usually(move |seen| match is_status(&seen.target()) {
            true => reply(&own, &seen.target()),
            false => Reply::nothing().reset(),
        });
    for tip in [0, 1] {
        gateway.probe(tip).await;
        gateway.check_blocks(tip).await;
    }
    let answer = gateway.get(&orphaned).await;
    let status = answer.must("cache-status");
    assert!(status.ends_with("detail=stale-if-error"), "{status}");
}

#[tokio::test]
async fn files_of_former_tips_are_removed() {
    let ground = Ground::routes(TIMED);
    let gateway = ground.start().await;
    gateway.end().await;
    let answers = ground.directory.path().join("answers");
    for former in 0..9 {
        fs::write(answers.join(format!("blocks-{former}")), "former").unwrap();
    }
    let gateway = ground.start().await;
    let is_former = |path: &PathBuf| fs::read(path).unwrap_or_default() == b"former";
    until("few are left", || {
        files(&answers).into_iter().filter(is_former).count() == 4
    })
    .await;
    until("they are counted", || figure(&gateway, "bytes") >= 4 * 6).await;
    gateway.end().await;
}
