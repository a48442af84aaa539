//! How the tip is learned, and what counts where it is not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};

use ordgate::sandbox::{Fault, FaultKind, Sandbox, Settings};

use super::{
    Ground, IMMUTABLE, ORDINALS, RUNES, acting, before, block, fill, for_status, probe_all, reply,
    retagged, settled, standing, targets, transaction,
};
use crate::support::{Gate, Gateway, Reply, Setup, Upstream, until};

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
async fn without_a_status_times_count_until_it_is_there() {
    let failures = [
        (Reply::status(500, "{}"), "fails with 500"),
        (
            Reply::status(404, r#"{"error":"Not found"}"#),
            "answers 404",
        ),
        (
            Reply::status(
                404,
                r#"{"message":"Route GET:/runes/v1/ not found","error":"Not Found","statusCode":404}"#,
            ),
            "answers that there is no such route",
        ),
        (Reply::status(410, "{}"), "fails with 410"),
        (Reply::json("nonsense"), "fails: "),
        (Reply::json("[840199]"), "not with a JSON object"),
        (Reply::json(r#"{"block_height":"840199"}"#), "is no height"),
        (Reply::json(r#"{"block_height":-1}"#), "is no height"),
        (Reply::json(r#"{"status":"ready"}"#), "has no block_height"),
        (Reply::nothing().reset(), "fails: "),
    ];
    for (wrong, why) in failures {
        let sandbox = sandbox();
        let (upstream, broken) = broken_status(&sandbox, wrong);
        let gateway = before(&upstream, "").await;
        let tip = standing(&gateway, RUNES);
        assert!(!tip.known);
        let trouble = tip.trouble.unwrap_or_default();
        assert!(trouble.contains(why), "{trouble} for {why}");
        let told = gateway.admin("/status").await.json()["chain"]["tips"][1].clone();
        assert_eq!(told["name"], "runes");
        assert_eq!(told["known"], false);
        assert_eq!(told["trouble"], trouble);

        let recent = block(sandbox.tip().height);
        // However deep it lies: nothing has said so yet.
        let deep = block(sandbox.tip().height - 60);
        for target in [&*deep, TICKER, &*recent] {
            let asked = targets(&upstream).len();
            let miss = gateway.get(target).await;
            assert_eq!(miss.must("cache-control"), "public, max-age=10", "{target}");
            gateway.advance(9_999);
            let hit = gateway.get(target).await;
            assert_eq!(hit.must("cache-status"), "ordgate; hit; ttl=0", "{target}");
            assert_eq!(targets(&upstream).len(), asked + 1, "{target}");
            gateway.advance(1);
            gateway.get(target).await;
            assert_eq!(targets(&upstream).len(), asked + 2, "{target}");
        }

        broken.store(false, SeqCst);
        probe_all(&gateway).await;
        let tip = standing(&gateway, RUNES);
        assert!(tip.known, "{why}");
        assert_eq!(tip.height, Some(sandbox.tip().height));
        assert_eq!(tip.trouble, None);
        let told = gateway.admin("/status").await.json()["chain"]["tips"][1].clone();
        assert_eq!(told["known"], true);
        assert_eq!(told["height"], sandbox.tip().height);
        assert!(told["trouble"].is_null());
        let last = gateway.get(&block(sandbox.tip().height - 61)).await;
        assert_eq!(last.must("cache-control"), IMMUTABLE, "{why}");
        let asked = targets(&upstream).len();
        gateway.get(&recent).await;
        gateway.advance(3_000_000);
        gateway.get(&recent).await;
        assert!(targets(&upstream).len() <= asked + 1, "the epoch counts");
    }
}

/// A look at a block is tried again after each probe, but not for ever at that
/// pace where blocks cannot be listed.
#[tokio::test]
async fn looks_that_go_on_failing_become_seldom() {
    let (upstream, sandbox) = (Upstream::start(), sandbox());
    let inner = sandbox.clone();
    upstream.usually(move |seen| match for_status(seen) {
        true => reply(&inner, &seen.target()),
        false => Reply::status(500, "{}"),
    });
    let gateway = before(&upstream, "upstream.retry.limit = 0\n").await;
    probe_all(&gateway).await;
    sandbox.advance(1);
    let asked = targets(&upstream).len();
    for _ in 0..48 {
        probe_all(&gateway).await;
        fill(&gateway).look_at_blocks(RUNES).await;
        gateway.advance(5_000);
    }
    let looks = targets(&upstream).len() - asked;
    assert!((8..=14).contains(&looks), "{looks} in four minutes");
}

#[tokio::test]
async fn what_came_before_the_first_tip_is_stale_as_soon_as_there_is_one() {
    let sandbox = sandbox();
    let (upstream, broken) = broken_status(&sandbox, Reply::status(500, "{}"));
    let gateway = before(&upstream, "").await;
    // A token teaches nothing of the chain, a block its own height.
    let recent = block(sandbox.tip().height);
    for target in [TICKER, &*recent] {
        gateway.get(target).await;
        let hit = gateway.get(target).await;
        assert!(
            hit.must("cache-status").starts_with("ordgate; hit"),
            "{target}"
        );
    }
    broken.store(false, SeqCst);
    probe_all(&gateway).await;
    let token = gateway.get(TICKER).await;
    let said = "ordgate; fwd=stale; fwd-status=200; stored";
    assert_eq!(token.must("cache-status"), said);
    let asked = targets(&upstream).len();
    gateway.get(&recent).await;
    assert_eq!(targets(&upstream).len(), asked + 1);
    for target in [TICKER, &*recent] {
        let hit = gateway.get(target).await;
        assert!(
            hit.must("cache-status").starts_with("ordgate; hit"),
            "{target}"
        );
    }
}

#[tokio::test]
async fn a_tip_that_is_lost_later_leaves_the_times() {
    let config = "chain.tip.runes.every = \"5s\"\nchain.tip.ordinals.every = \"5s\"";
    let sandbox = sandbox();
    let (upstream, broken) = broken_status(&sandbox, Reply::status(500, "{}"));
    broken.store(false, SeqCst);
    let gateway = before(&upstream, config).await;
    // Nothing but the status tells of the tip.
    let (own, is_broken) = (sandbox.clone(), broken.clone());
    upstream.usually(
        move |seen| match for_status(seen) && is_broken.load(SeqCst) {
            true => Reply::status(500, "{}"),
            false => retagged(&own, &seen.target(), None),
        },
    );
    let (recent, last) = (
        block(sandbox.tip().height),
        block(sandbox.tip().height - 30),
    );
    let first = gateway.get(&recent).await;
    gateway.get(&last).await;
    assert_eq!(targets(&upstream).len(), 2);
    gateway.advance(9_000);
    probe_all(&gateway).await;
    broken.store(true, SeqCst);
    // One probe may fail: twice its pace it is believed.
    gateway.advance(10_000);
    assert!(standing(&gateway, RUNES).known);
    assert_eq!(gateway.get(&recent).await.body, first.body);
    assert_eq!(targets(&upstream).len(), 2);
    gateway.advance(1);
    assert!(!standing(&gateway, RUNES).known);
    gateway.get(&recent).await;
    assert_eq!(targets(&upstream).len(), 3);
    gateway.get(&last).await;
    assert_eq!(targets(&upstream).len(), 3, "what is final is final");
    gateway.advance(9_999);
    gateway.get(&recent).await;
    assert_eq!(targets(&upstream).len(), 3);
    gateway.advance(1);
    gateway.get(&recent).await;
    assert_eq!(targets(&upstream).len(), 4);
    probe_all(&gateway).await;
    assert!(standing(&gateway, RUNES).trouble.is_some());
    broken.store(false, SeqCst);
    probe_all(&gateway).await;
    assert!(standing(&gateway, RUNES).known);
    assert_eq!(standing(&gateway, RUNES).trouble, None);
}

#[tokio::test]
async fn an_answer_that_bears_the_tips_hash_is_as_good_as_a_status() {
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
        assert!(standing(&gateway, RUNES).known);
        let asked = targets(&upstream).len();
        gateway.get(&recent).await;
        assert_eq!(targets(&upstream).len(), asked);
    }
    // The tag of a new tip confirms nothing, but tells of it.
    sandbox.advance(1);
    gateway.advance(9_000);
    gateway.get(&block(tip - 40)).await;
    let asked = targets(&upstream).len();
    gateway.get(&recent).await;
    assert_eq!(targets(&upstream).len(), asked + 1);
    gateway.advance(1_001);
    gateway.get(&block(tip - 41)).await;
    assert!(!standing(&gateway, RUNES).known);
}

#[tokio::test]
async fn in_an_outage_of_everything_what_is_warm_is_served() {
    let config = "upstream.queue_timeout = \"20ms\"";
    let ground = Ground::with(Settings::default(), config).await;
    let (recent, last) = (block(ground.tip() - 1), block(ground.tip() - 30));
    let mut warm = Vec::new();
    for target in [&*recent, TICKER, &last] {
        warm.push((target, ground.same(target).await));
    }
    ground.sandbox.advance(1);
    ground.probe().await;
    ground
        .sandbox
        .fault(Fault::once(FaultKind::Close).times(u32::MAX));
    for passed in [0, 60, 239] {
        ground.gateway.advance(passed * 1000);
        for (target, old) in &warm {
            let answer = ground.gateway.get(target).await;
            assert_eq!((answer.status, &answer.body), (200, &old.body), "{target}");
            let status = answer.must("cache-status");
            match *target == last {
                true => assert!(status.starts_with("ordgate; hit; ttl=259"), "{status}"),
                false => {
                    assert!(status.ends_with("detail=stale-if-error"), "{status}");
                    assert!(status.contains("ttl=-") || passed == 0, "{status}");
                }
            }
        }
    }
    // Beyond its bound it is no better than an error; what is final is.
    ground.gateway.advance(10_000);
    for target in [&*recent, TICKER] {
        let error = ground.gateway.get(target).await;
        assert!(matches!(error.status, 502 | 503), "{target}: {error:?}");
        error.problem();
    }
    assert_eq!(ground.gateway.get(&last).await.status, 200);
    ground.sandbox.clear_faults();
    ground.gateway.advance(5_000);
    ground.same(&recent).await;
    ground.same(TICKER).await;
}

/// What would prove that a block still stands is not asked for and then the
/// block as well, where nobody answers.
#[tokio::test]
async fn an_upstream_that_is_gone_is_asked_once_for_each() {
    let sandbox = sandbox();
    let upstream = acting(&sandbox);
    let gateway = before(&upstream, "").await;
    let tip = sandbox.tip().height;
    let lower = block(tip - 2);
    for path in [&lower, &block(tip - 1)] {
        gateway.get(path).await;
    }
    sandbox.advance(1);
    probe_all(&gateway).await;
    drop(upstream);
    let upstreams = &gateway.server().first_gateway().upstreams;
    let failed = || -> u64 {
        let each = upstreams.iter();
        each.map(|(_, one)| one.tally().failed.load(SeqCst)).sum()
    };
    // The first may find that a connection has ended.
    gateway.get(&lower).await;
    for _ in 0..2 {
        let before = failed();
        let stale = gateway.get(&lower).await;
        let status = stale.must("cache-status");
        assert!(status.ends_with("detail=stale-if-error"), "{status}");
        assert_eq!(failed() - before, 1);
    }
}

#[tokio::test]
async fn a_token_that_changes_ahead_of_the_tip_shows_within_its_bound() {
    let ground = Ground::new().await;
    let old = ground.costs(TICKER, 1).await;
    ground.sandbox.tokens_ahead();
    assert_ne!(ground.truth(TICKER).body, old.body);
    for _ in 0..3 {
        // The tip is asked and is as it was: that proves nothing.
        ground.gateway.advance(9_999);
        ground.probe().await;
        assert_eq!(ground.gateway.get(TICKER).await.body, old.body);
    }
    ground.gateway.advance(3);
    let new = ground.costs(TICKER, 1).await;
    assert_ne!(new.body, old.body);
}

#[tokio::test]
async fn the_upstream_is_never_asked_whether_anything_changed() {
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
    assert_eq!(standing(&gateway, ORDINALS).reorgs, 0);
}

#[tokio::test]
async fn tags_of_resources_are_no_sign_of_the_tip() {
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
    assert_eq!(standing(&gateway, RUNES).epoch, 1);
    // Blocks come and are seen as ever.
    sandbox.advance(1);
    probe_all(&gateway).await;
    gateway.get(&paths[0]).await;
    gateway.get(&paths[0]).await;
    assert_eq!(targets(&upstream).len(), paths.len() + 1);
}

#[tokio::test]
async fn a_status_whose_tag_is_not_that_of_answers_is_seen_through() {
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
    let epoch = standing(&gateway, RUNES).epoch;
    for next in 5..=9 {
        gateway.get(&block(tip - next)).await;
        round.store(next, SeqCst);
    }
    assert_eq!(standing(&gateway, RUNES).epoch, epoch);
    let asked = targets(&upstream).len();
    for depth in 6..=9 {
        gateway.get(&block(tip - depth)).await;
    }
    assert_eq!(targets(&upstream).len(), asked);
}

#[tokio::test]
async fn without_tags_heights_tell() {
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
    assert_eq!(standing(&gateway, RUNES).height, Some(sandbox.tip().height));
    sandbox.advance(1);
    probe_all(&gateway).await;
    gateway.get(&below).await;
    assert_eq!(targets(&upstream).len(), 4);
}

#[tokio::test]
async fn a_new_tip_is_seen_in_passing() {
    let ground = Ground::new().await;
    let warm = block(ground.tip() - 1);
    ground.costs(&warm, 1).await;
    ground.costs(TICKER, 1).await;
    ground.sandbox.advance(1);
    // Anything else that is asked brings its tag.
    ground.costs(&block(ground.tip() - 40), 1).await;
    ground.costs(&warm, 1).await;
    ground.costs(&warm, 0).await;
    // The other indexer says for itself how far it is.
    let counts = ground.sandbox.counts().token;
    ground.gateway.get(TICKER).await;
    assert_eq!(ground.sandbox.counts().token, counts);
}

/// A gateway whose first probes wait for a gate.
fn before_held_back_statuses(sandbox: &Sandbox) -> (Gate, Upstream, Gateway) {
    let (gate, upstream) = (Gate::new(), acting(sandbox));
    for path in super::STATUSES {
        upstream.once(path, reply(sandbox, path).behind(&gate));
    }
    let setup = Setup::before(&upstream).chain().config(super::RARELY);
    let gateway = setup.manual().start();
    (gate, upstream, gateway)
}

#[tokio::test]
async fn a_status_that_is_held_back_does_not_hold_up_the_first_answers() {
    let sandbox = sandbox();
    let (gate, upstream, gateway) = before_held_back_statuses(&sandbox);
    let deep = block(sandbox.tip().height - 30);
    // It waits for a second at most; then nobody knows how deep that lies.
    let first = gateway.get(&deep).await;
    assert_eq!(first.status, 200);
    assert_eq!(first.must("cache-control"), "public, max-age=10");
    gate.open();
    settled(&gateway).await;
    assert!(standing(&gateway, RUNES).known);
    // What came before the tip was known is of no epoch that is known.
    let again = gateway.get(&deep).await;
    assert_eq!(again.must("cache-control"), IMMUTABLE);
    assert_eq!(targets(&upstream).len(), 2);
}

#[tokio::test]
async fn the_first_answers_wait_for_the_first_status() {
    let sandbox = sandbox();
    let (gate, upstream, gateway) = before_held_back_statuses(&sandbox);
    let mut client = gateway.client().await;
    client
        .ask("GET", &block(sandbox.tip().height - 30), &[])
        .await;
    upstream.asked(2).await;
    assert_eq!(targets(&upstream), [""; 0]);
    gate.open();
    let first = client.answer("GET").await;
    assert_eq!(first.must("cache-control"), IMMUTABLE);
}

#[tokio::test]
async fn an_index_that_fills_is_noticed() {
    let settings = Settings {
        blocks: 0,
        ..Settings::default()
    };
    let ground = Ground::with(settings, "").await;
    assert!(!standing(&ground.gateway, RUNES).known);
    let target = block(840_000);
    let nothing = ground.costs(&target, 1).await;
    assert_eq!(nothing.must("cache-control"), "public, max-age=1");
    ground.gateway.advance(1000);
    ground.sandbox.advance(1);
    ground.probe().await;
    assert!(standing(&ground.gateway, RUNES).known);
    ground.costs(&target, 1).await;
    ground.costs(&target, 0).await;
    assert_eq!(fill(&ground.gateway).chain.tip(RUNES), Some(840_000));
}

/// Two servers of one upstream, of which one is a block behind: each answer of
/// the other is a hint, and half of the budget once went to following them.
#[tokio::test]
async fn servers_that_are_not_at_one_do_not_cost_the_budget() {
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
