//! Tips that are unknown, or have been lost.

use std::sync::atomic::Ordering::SeqCst;

use ordgate::sandbox::{Fault, FaultKind, Sandbox, Settings};

use super::super::{
    Ground, IMMUTABLE, ORDINALS, RUNES, acting, before, block, probe_all, reply, settled, targets,
    tip_of,
};
use super::{TICKER, broken_status, sandbox};
use crate::support::{Gate, Gateway, Reply, Setup, Upstream};

#[tokio::test]
async fn without_a_known_tip_answers_have_fixed_lifetimes() {
    let no_route =
        r#"{"message":"Route GET:/runes/v1/ not found","error":"Not Found","statusCode":404}"#;
    #[rustfmt::skip]
    let failures = [
        (Reply::status(500, "{}"), "fails with 500"),
        (Reply::status(404, r#"{"error":"Not found"}"#), "answers 404"),
        (Reply::status(404, no_route), "answers that there is no such route"),
        (Reply::json("nonsense"), "fails: "),
        (Reply::json("[840199]"), "has no block_height"),
        (Reply::json(r#"{"block_height":"840199"}"#), "is no height"),
        (Reply::json(r#"{"status":"ready"}"#), "has no block_height"),
        (Reply::nothing().reset(), "fails: "),
    ];
    for (wrong, why) in failures {
        let sandbox = sandbox();
        let (upstream, broken) = broken_status(&sandbox, wrong);
        let gateway = before(&upstream, "").await;
        let tip = tip_of(&gateway, RUNES);
        assert!(!tip.known);
        let trouble = tip.trouble.unwrap_or_default();
        assert!(trouble.contains(why), "{trouble} for {why}");
        // That a height is missing may be known from another replica's request.
        if why != "has no block_height" {
            let url = format!("{}/runes/v1/ ", upstream.url());
            assert!(trouble.contains(&url), "{trouble} for {url}");
        }
        let recent = block(sandbox.tip().height);
        // However deep the block is: that is not yet known.
        let deep = block(sandbox.tip().height - 60);
        for target in [&*deep, TICKER, &*recent] {
            let asked = targets(&upstream).len();
            let miss = gateway.get(target).await;
            assert_eq!(miss.reusable_for(), 1, "{target}");
            gateway.advance(999);
            let hit = gateway.get(target).await;
            assert_eq!(hit.must("cache-status"), "ordgate; hit; ttl=0", "{target}");
            assert_eq!(targets(&upstream).len(), asked + 1, "{target}");
            gateway.advance(1);
            gateway.get(target).await;
            assert_eq!(targets(&upstream).len(), asked + 2, "{target}");
        }

        broken.store(false, SeqCst);
        probe_all(&gateway).await;
        let tip = tip_of(&gateway, RUNES);
        assert!(tip.known, "{why}");
        assert_eq!(tip.height, Some(sandbox.tip().height));
        assert_eq!(tip.trouble, None);
        let last = gateway.get(&block(sandbox.tip().height - 61)).await;
        assert_eq!(last.must("cache-control"), IMMUTABLE, "{why}");
        let asked = targets(&upstream).len();
        gateway.get(&recent).await;
        gateway.advance(3_000_000);
        gateway.get(&recent).await;
        assert!(targets(&upstream).len() <= asked + 1, "the epoch counts");
    }
}

#[tokio::test]
async fn in_a_full_outage_cached_answers_are_served() {
    let config = "upstream.queue_timeout = \"20ms\"\nchain.tip.runes.every = \"30s\"";
    let ground = Ground::with(Settings::default(), config).await;
    let (recent, last) = (block(ground.tip() - 1), block(ground.tip() - 30));
    let mut warm = Vec::new();
    for target in [&*recent, TICKER, &last] {
        warm.push((target, ground.same(target).await));
    }
    ground.sandbox.advance(1);
    for tip in [ORDINALS, RUNES] {
        ground.gateway.probe(tip).await;
    }
    ground
        .sandbox
        .fault(Fault::once(FaultKind::Close).times(u32::MAX));
    // What is recent is served for one interval though it is not checked.
    let hit = ground.costs(&recent, 0).await;
    assert_eq!(hit.must("cache-status"), "ordgate; hit; ttl=30");
    for passed in [30, 60, 209] {
        ground.gateway.advance(passed * 1000);
        for (target, old) in &warm {
            let answer = ground.gateway.get(target).await;
            assert_eq!((answer.status, &answer.body), (200, &old.body), "{target}");
            let status = answer.must("cache-status");
            match *target == last {
                true => assert!(status.starts_with("ordgate; hit; ttl=259"), "{status}"),
                false => {
                    assert!(status.ends_with("detail=stale-if-error"), "{status}");
                    let is_over = *target == TICKER || passed > 30;
                    assert!(status.contains("ttl=-") || !is_over, "{status}");
                }
            }
        }
    }
    // Beyond its bound it is no better than an error; what is final is.
    ground.gateway.advance(32_000);
    for target in [&*recent, TICKER] {
        let error = ground.gateway.get(target).await;
        assert!(matches!(error.status, 502 | 503), "{target}: {error:?}");
        error.problem();
    }
    assert_eq!(ground.gateway.get(&last).await.status, 200);
    ground.sandbox.clear_faults();
    ground.probe().await;
    ground.same(&recent).await;
    ground.same(TICKER).await;
}

/// A gateway whose first probes wait for a gate.
fn before_held_back_statuses(sandbox: &Sandbox) -> (Gate, Upstream, Gateway) {
    let (gate, upstream) = (Gate::new(), acting(sandbox));
    for path in super::super::STATUSES {
        upstream.once(path, reply(sandbox, path).behind(&gate));
    }
    let setup = Setup::before(&upstream)
        .chain()
        .config(super::super::RARELY);
    let gateway = setup.manual().start();
    (gate, upstream, gateway)
}

#[tokio::test]
async fn a_status_that_is_held_back_does_not_hold_up_the_first_answers() {
    let sandbox = sandbox();
    let (gate, upstream, gateway) = before_held_back_statuses(&sandbox);
    let deep = block(sandbox.tip().height - 30);
    // It waits for a second at most; then the block's depth is unknown.
    let first = gateway.get(&deep).await;
    assert_eq!(first.status, 200);
    assert_eq!(first.reusable_for(), 1);
    gate.open();
    settled(&gateway).await;
    assert!(tip_of(&gateway, RUNES).known);
    // What came before the tip was known is of no epoch that is known.
    let again = gateway.get(&deep).await;
    assert_eq!(again.must("cache-control"), IMMUTABLE);
    assert_eq!(targets(&upstream).len(), 2);
}

#[tokio::test]
async fn the_first_answers_wait_for_the_first_status() {
    let sandbox = sandbox();
    let (gate, upstream, gateway) = before_held_back_statuses(&sandbox);
    let mut client = gateway.start_get(&block(sandbox.tip().height - 30)).await;
    upstream.until_requests(2).await;
    assert_eq!(targets(&upstream), [""; 0]);
    gate.open();
    let first = client.answer("GET").await;
    assert_eq!(first.must("cache-control"), IMMUTABLE);
}
