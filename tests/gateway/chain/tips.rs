//! How the tip is found, and what applies while it is unknown.

mod outages;

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::Duration;

use ordgate::sandbox::{Fault, FaultKind, Sandbox, Settings};

use super::{
    Ground, ORDINALS, RUNES, acting, before, block, for_status, probe_all, reply, retagged,
    targets, tip_of, transaction,
};
use crate::support::{Reply, Upstream, until};

const TICKER: &str = "/ordinals/v1/brc-20/tokens/pepe";

fn sandbox() -> Sandbox {
    Sandbox::new(Settings::default())
}

/// Something that is wrong with a status until it is mended.
fn broken_status(sandbox: &Sandbox, wrong: Reply) -> (Upstream, Arc<AtomicBool>) {
    let (upstream, sandbox) = (Upstream::start(), sandbox.clone());
    let broken = Arc::new(AtomicBool::new(true));
    let is_broken = broken.clone();
    upstream.usually(
        move |seen| match for_status(seen) && is_broken.load(SeqCst) {
            true => wrong.clone(),
            false => reply(&sandbox, &seen.target()),
        },
    );
    (upstream, broken)
}

#[tokio::test]
async fn an_answer_with_the_tips_hash_counts_as_a_probe() {
    let config = "chain.tip.runes.every = \"5s\"\nchain.tip.ordinals.every = \"5s\"";
    let sandbox = sandbox();
    let (upstream, broken) = broken_status(&sandbox, Reply::status(500, "{}"));
    broken.store(false, SeqCst);
    let gateway = before(&upstream, config).await;
    let tip = sandbox.tip().height;
    let recent = block(tip);
    gateway.get(&recent).await;
    broken.store(true, SeqCst);
    for round in 1..10 {
        gateway.advance(9_000);
        // Some answer or other: each has the tag.
        gateway.get(&block(tip - 20 - round)).await;
        assert!(tip_of(&gateway, RUNES).known);
        let asked = targets(&upstream).len();
        gateway.get(&recent).await;
        assert_eq!(targets(&upstream).len(), asked);
    }
    // A new tip's tag confirms nothing, but shows the new tip.
    sandbox.advance(1);
    gateway.advance(9_000);
    gateway.get(&block(tip - 40)).await;
    let asked = targets(&upstream).len();
    gateway.get(&recent).await;
    assert_eq!(targets(&upstream).len(), asked + 1);
    gateway.advance(1_001);
    gateway.get(&block(tip - 41)).await;
    assert!(!tip_of(&gateway, RUNES).known);
}

#[tokio::test]
async fn a_token_that_changes_ahead_of_the_tip_shows_within_its_bound() {
    let ground = Ground::new().await;
    let old = ground.costs(TICKER, 1).await;
    ground.sandbox.tokens_ahead();
    assert_ne!(ground.truth(TICKER).body, old.body);
    for _ in 0..3 {
        // The tip is probed and unchanged: that proves nothing.
        ground.gateway.advance(9_999);
        ground.probe().await;
        assert_eq!(ground.gateway.get(TICKER).await.body, old.body);
    }
    ground.gateway.advance(3);
    let new = ground.costs(TICKER, 1).await;
    assert_ne!(new.body, old.body);
}

#[tokio::test]
async fn mode_chain_never_sends_a_validator() {
    let sandbox = sandbox();
    let upstream = acting(&sandbox);
    let gateway = before(&upstream, "").await;
    for _ in 0..3 {
        for target in [
            TICKER.to_owned(),
            block(sandbox.tip().height),
            block(840_150),
        ] {
            let tag = gateway.get(&target).await.must("etag").to_owned();
            let fields = [("if-none-match", &*tag), ("cache-control", "no-cache")];
            gateway.request("GET", &target, &fields).await;
        }
        sandbox.advance(1);
        probe_all(&gateway).await;
        gateway.advance(31_000);
    }
    assert!(targets(&upstream).len() >= 7);
    for seen in upstream.seen() {
        for name in ["if-none-match", "if-modified-since", "cache-control"] {
            assert_eq!(seen.field(name), None, "{}", seen.target());
        }
    }
}

#[tokio::test]
async fn an_equal_tag_is_no_proof_of_an_equal_body() {
    // A block whose time lies before its parent's leaves the ordinals' tag as
    // it was: so it is here with every block.
    let sandbox = sandbox();
    let upstream = Upstream::start();
    let own = sandbox.clone();
    upstream.usually(move |seen| retagged(&own, &seen.target(), Some("\"1713571767\"")));
    let gateway = before(&upstream, "").await;
    for round in 0..3 {
        let body = gateway.get(TICKER).await.body;
        let recent = gateway.get(&block(sandbox.tip().height)).await.body;
        assert_eq!(gateway.get(TICKER).await.body, body);
        assert_eq!(targets(&upstream).len(), 2 * (round + 1));
        sandbox.advance(1);
        probe_all(&gateway).await;
        assert_ne!(gateway.get(TICKER).await.body, body);
        assert_ne!(gateway.get(&block(sandbox.tip().height)).await.body, recent);
    }
    assert_eq!(tip_of(&gateway, ORDINALS).reorgs, 0);
}

#[tokio::test]
async fn tags_of_resources_do_not_change_the_tip() {
    let sandbox = sandbox();
    let upstream = Upstream::start();
    let own = sandbox.clone();
    upstream.usually(move |seen| {
        let target = seen.target();
        retagged(
            &own,
            &target,
            Some(&format!(
                "W/\"{:x}-{}\"",
                target.len(),
                target.replace('/', "_")
            )),
        )
    });
    let gateway = before(&upstream, "").await;
    let tip = sandbox.tip().height;
    let mut paths: Vec<_> = (0..6).map(|depth| block(tip - depth)).collect();
    paths.extend(
        sandbox
            .transactions_at(tip - 7)
            .iter()
            .map(|id| transaction(id)),
    );
    for _ in 0..3 {
        for path in &paths {
            gateway.get(path).await;
        }
    }
    let asked = targets(&upstream);
    assert_eq!(asked.len(), paths.len(), "{asked:#?}");
    assert_eq!(tip_of(&gateway, RUNES).epoch, 1);
    // Blocks come and are seen as ever.
    sandbox.advance(1);
    probe_all(&gateway).await;
    gateway.get(&paths[0]).await;
    gateway.get(&paths[0]).await;
    assert_eq!(targets(&upstream).len(), paths.len() + 1);
}

#[tokio::test]
async fn a_status_whose_tag_differs_from_that_of_answers_is_not_trusted() {
    // Such as one that a cache before the upstream holds for a while: at first
    // the tags agree, then they do not, though nothing has changed.
    let sandbox = sandbox();
    let upstream = Upstream::start();
    let own = sandbox.clone();
    let round = Arc::new(AtomicU32::new(0));
    let present = round.clone();
    upstream.usually(move |seen| match for_status(seen) {
        true => retagged(&own, &seen.target(), Some("\"of-the-status\"")),
        false => {
            let tag = match present.load(SeqCst) {
                0 => "\"of-the-status\"".to_owned(),
                round => format!("\"of-answers-{round}\""),
            };
            retagged(&own, &seen.target(), Some(&tag))
        }
    });
    let gateway = before(&upstream, "").await;
    let tip = sandbox.tip().height;
    for next in 1..=4 {
        gateway.get(&block(tip - next)).await;
        round.store(next, SeqCst);
        probe_all(&gateway).await;
    }
    // By now they are not believed any more.
    let epoch = tip_of(&gateway, RUNES).epoch;
    for next in 5..=9 {
        gateway.get(&block(tip - next)).await;
        round.store(next, SeqCst);
    }
    assert_eq!(tip_of(&gateway, RUNES).epoch, epoch);
    for depth in 6..=9 {
        let answer = gateway.get(&block(tip - depth)).await;
        let did = answer.must("cache-status");
        assert!(!did.contains("fwd="), "{did}");
    }
}

#[tokio::test]
async fn without_tags_heights_show_a_new_tip() {
    let sandbox = sandbox();
    let upstream = Upstream::start();
    let own = sandbox.clone();
    upstream.usually(move |seen| retagged(&own, &seen.target(), None));
    let gateway = before(&upstream, "").await;
    let below = block(sandbox.tip().height - 1);
    gateway.get(&below).await;
    gateway.get(&below).await;
    assert_eq!(targets(&upstream).len(), 1);
    sandbox.advance(1);
    // Its own height says that there is a new tip, before any probe.
    let top = block(sandbox.tip().height);
    gateway.get(&top).await;
    gateway.get(&below).await;
    assert_eq!(targets(&upstream).len(), 3);
    assert_eq!(tip_of(&gateway, RUNES).height, Some(sandbox.tip().height));
    sandbox.advance(1);
    probe_all(&gateway).await;
    gateway.get(&below).await;
    assert_eq!(targets(&upstream).len(), 4);
}

#[tokio::test]
async fn an_answer_can_show_a_new_tip() {
    let ground = Ground::new().await;
    let warm = block(ground.tip() - 1);
    ground.costs(&warm, 1).await;
    ground.costs(TICKER, 1).await;
    // No status comes meanwhile, after which ordgate would check the blocks by itself.
    let prompt = Fault::once(FaultKind::Stall(Duration::ZERO)).on("/runes/v1/blocks");
    let never = Fault::once(FaultKind::Stall(Duration::from_secs(600))).on("/runes/v1/");
    for fault in [prompt, never] {
        ground.sandbox.fault(fault.times(u32::MAX));
    }
    ground.sandbox.advance(1);
    // Any other answer brings its tag.
    ground.costs(&block(ground.tip() - 40), 1).await;
    ground.costs(&warm, 1).await;
    ground.costs(&warm, 0).await;
    // The other indexer says for itself how far it is.
    let counts = ground.sandbox.counts().token;
    ground.gateway.get(TICKER).await;
    assert_eq!(ground.sandbox.counts().token, counts);
}

#[tokio::test]
async fn an_index_that_fills_is_noticed() {
    let settings = Settings {
        blocks: 0,
        ..Settings::default()
    };
    let ground = Ground::with(settings, "").await;
    assert!(!tip_of(&ground.gateway, RUNES).known);
    let target = block(840_000);
    let nothing = ground.costs(&target, 1).await;
    assert_eq!(nothing.must("cache-control"), "public, max-age=1");
    ground.gateway.advance(1000);
    ground.sandbox.advance(1);
    ground.probe().await;
    assert!(tip_of(&ground.gateway, RUNES).known);
    ground.costs(&target, 1).await;
    ground.costs(&target, 0).await;
    assert_eq!(tip_of(&ground.gateway, RUNES).height, Some(840_000));
}

/// Two servers of one upstream, of which one is a block behind: each answer of
/// the other is a hint, and half of the budget once went to following them.
#[tokio::test]
async fn servers_that_disagree_do_not_spend_the_budget() {
    let (ahead, behind) = (sandbox(), sandbox());
    ahead.advance(1);
    let upstream = Upstream::start();
    let turn = AtomicU32::new(0);
    upstream.usually(move |seen| {
        let is_ahead = turn.fetch_add(1, SeqCst).is_multiple_of(2);
        reply(if is_ahead { &ahead } else { &behind }, &seen.target())
    });
    let gateway = before(&upstream, "").await;
    let probes = || -> Vec<_> {
        let seen = upstream.seen();
        let probes = seen
            .iter()
            .filter(|seen| seen.target() == super::STATUSES[1]);
        probes.map(|seen| seen.at).collect()
    };
    let mut client = gateway.client().await;
    let mut number = 0_u32;
    for asked in 2..=5 {
        // Of any four some are of the one and some of the other.
        for _ in 0..4 {
            number += 1;
            client.get(&transaction(&format!("{number:064x}"))).await;
        }
        until("the tip is asked for", || probes().len() >= asked).await;
    }
    let probes = probes();
    let pauses: Vec<_> = probes.windows(2).map(|two| two[1].since(two[0])).collect();
    // They follow at once, and then less and less.
    for (pause, least) in pauses.iter().zip([0, 230, 480, 980]) {
        assert!(pause.as_millis() >= least, "{pauses:?}");
    }
}
