//! What answers on disk are worth while the chain may have changed.

use std::time::Duration;

use ordgate::clock::Clock;
use ordgate::sandbox::{Sandbox, Settings};

use super::{Ground, is_from_disk, until_on_disk};
use crate::chain::{block, is_status, reply};
use crate::support::{Gateway, Reply, until};

async fn check_blocks(gateway: &Gateway) {
    for tip in [0, 1] {
        gateway.check_blocks(tip).await;
    }
}

/// Seen before the next start, or while it was down.
#[tokio::test]
async fn after_a_reorg_no_orphaned_block_is_shown_and_what_stands_is() {
    for (is_seen, depth) in [(true, 10), (false, 10), (false, 150)] {
        let sandbox = Sandbox::new(Settings::default());
        let ground = Ground::chain(&sandbox);
        let mut gateway = ground.start().await;
        let tip = sandbox.tip().height;
        // Final, and orphaned by what follows; and far below it.
        let (orphaned, below) = (block(tip - 8), [block(tip - 160), block(tip - 170)]);
        for target in [&orphaned, &below[0], &below[1]] {
            gateway.get(target).await;
        }
        if is_seen {
            sandbox.reorg(depth);
            for tip in [0, 1] {
                gateway.probe(tip).await;
            }
            check_blocks(&gateway).await;
            gateway = ground.restart(gateway).await;
        } else {
            gateway.end().await;
            sandbox.reorg(depth);
            gateway = ground.start().await;
        }
        check_blocks(&gateway).await;
        let truth = sandbox.answer(&orphaned);
        let answer = gateway.get(&orphaned).await;
        assert!(!is_from_disk(&answer), "{}", answer.must("cache-status"));
        assert!(answer.body == truth.body, "it is of the new chain");
        until_on_disk(&gateway, &below[1]).await;
        let answer = gateway.get(&below[1]).await;
        assert!(is_from_disk(&answer), "{}", answer.must("cache-status"));
    }
}

#[tokio::test]
async fn without_an_upstream_final_answers_are_stale_for_a_while() {
    let sandbox = Sandbox::new(Settings::default());
    let ground = Ground::chain(&sandbox);
    let gateway = ground.start().await;
    let tip = sandbox.tip().height;
    // The highest is requested again, to check it.
    gateway.get(&block(tip - 20)).await;
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
    let clock = Clock::manual();
    let gateway = ground.setup().clock(&clock).start();
    until("the probes have failed", || {
        gateway.tips().iter().all(|tip| tip.failures > 0)
    })
    .await;
    let before = ground.requests().len();
    for (target, first) in targets.iter().zip(&first) {
        let answer = gateway.get(target).await;
        assert_eq!(answer.status, 200, "{target}");
        assert_eq!(answer.body, first.body);
        let status = answer.must("cache-status");
        assert!(status.ends_with("detail=stale-if-error"), "{status}");
    }
    assert_eq!(ground.requests()[before..], [""; 0], "no fetch each");
    // They are as bad as no answers later on.
    clock.advance(Duration::from_secs(301));
    assert_eq!(gateway.get(&targets[0]).await.status, 502);
    // The upstream is there again.
    let own = sandbox.clone();
    ground
        .upstream
        .usually(move |seen| reply(&own, &seen.target()));
    clock.advance(Duration::from_secs(61));
    for tip in [0, 1] {
        gateway.probe(tip).await;
    }
    check_blocks(&gateway).await;
    let answer = gateway.get(&targets[1]).await;
    assert_eq!(answer.body, first[1].body);
    assert!(is_from_disk(&answer), "{}", answer.must("cache-status"));
}

#[tokio::test]
async fn readers_wait_for_one_check_and_then_get_a_stale_answer() {
    let sandbox = Sandbox::new(Settings::default());
    let ground = Ground::chain(&sandbox);
    let gateway = ground.start().await;
    let tip = sandbox.tip().height;
    let targets = [block(tip - 30), block(tip - 31), block(tip - 32)];
    for target in &targets {
        gateway.get(target).await;
    }
    gateway.end().await;
    // The status comes, and no block.
    let own = sandbox.clone();
    ground
        .upstream
        .usually(move |seen| match is_status(&seen.target()) {
            true => reply(&own, &seen.target()),
            false => Reply::nothing(),
        });
    let before = ground.requests().len();
    let gateway = ground.start().await;
    let mut clients = Vec::new();
    for target in &targets {
        clients.push(gateway.start_get(target).await);
    }
    for mut client in clients {
        let answer = client.answer("GET").await;
        let status = answer.must("cache-status");
        assert!(status.ends_with("detail=stale-if-error"), "{status}");
    }
    let asked = &ground.requests()[before..];
    assert_eq!(asked.len(), 1, "one check: {asked:?}");
}
