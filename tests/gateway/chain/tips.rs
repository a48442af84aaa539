//! How the tip is found, and what applies while it is unknown.

mod outages;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;

use ordgate::sandbox::{Sandbox, Settings};

use super::{
    Ground, ORDINALS, RUNES, acting, before, block, for_status, probe_all, reply, retagged,
    targets, tip_of,
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
        // After a new tip, one is for a block that was known before the last epoch.
        assert_eq!(targets(&upstream).len(), 2 * (round + 1) + round / 2);
        sandbox.advance(1);
        probe_all(&gateway).await;
        assert_ne!(gateway.get(TICKER).await.body, body);
        assert_ne!(gateway.get(&block(sandbox.tip().height)).await.body, recent);
    }
    assert_eq!(tip_of(&gateway, ORDINALS).reorgs, 0);
}

#[tokio::test]
async fn an_answer_with_another_tag_is_not_stored_and_the_status_is_asked_for() {
    let ground = Ground::new().await;
    ground.costs(&block(ground.tip() - 1), 1).await;
    ground.sandbox.advance(1);
    let target = block(ground.tip() - 40);
    let passed_on = ground.costs(&target, 1).await;
    assert_eq!(
        passed_on.must("cache-status"),
        "ordgate; fwd=uri-miss; fwd-status=200"
    );
    assert_eq!(passed_on.must("cache-control"), "no-store");
    // The next status would be due in an hour.
    until("the new tip is known", || {
        tip_of(&ground.gateway, RUNES).height == Some(ground.tip())
    })
    .await;
    ground.costs(&target, 1).await;
    ground.costs(&target, 0).await;
    // The other indexer says for itself how far it is.
    assert!(tip_of(&ground.gateway, ORDINALS).height < Some(ground.tip()));
}
