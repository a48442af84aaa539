//! Finality classes, and how long a response of each is stored.

use ordgate::sandbox::{Sandbox, Settings};

use super::{Ground, IMMUTABLE, acting, before, block, is_status, probe_all, targets, transaction};
use crate::support::{Client, Reply, Upstream};

const TICKER: &str = "/ordinals/v1/brc-20/tokens/pepe";

/// Probes at their usual pace, which is what clients are promised.
const OFTEN: &str = "chain.tip.runes.every = \"5s\"\nchain.tip.ordinals.every = \"5s\"";

/// A chain whose tip is the block after an empty one.
fn after_an_empty_block() -> Settings {
    Settings {
        blocks: 195,
        ..Settings::default()
    }
}

#[tokio::test]
async fn each_class_has_its_cache_control() {
    let ground = Ground::with(after_an_empty_block(), OFTEN).await;
    let tip = ground.tip();
    let empty = |answer: &str| answer.contains("\"results\":[]");
    let first = |height: u32| ground.sandbox.transactions_at(height)[0].clone();
    let (last, recent) = (IMMUTABLE, "public, max-age=5");
    let absent = "public, max-age=1";
    let rows = [
        (block(tip), recent, 5, false),
        (block(tip - 5), recent, 5, false),
        (block(tip - 6), last, 2_592_000, false),
        (block(tip - 60), last, 2_592_000, false),
        (transaction(&first(tip - 4)), recent, 5, false),
        (transaction(&first(tip - 7)), last, 2_592_000, false),
        (TICKER.to_owned(), recent, 5, false),
        // Nothing there: settled only where the block itself lies deep.
        (block(tip - 1), absent, 1, true),
        (block(tip - 11), last, 2_592_000, true),
        (block(tip + 1), absent, 1, true),
        (block(4_000_000_000_u32), absent, 1, true),
        (transaction(&"ab".repeat(32)), absent, 1, true),
        (block(format!("{:064x}", 0xab)), absent, 1, true),
        (
            format!("{}?offset=4000", transaction(&first(tip - 8))),
            absent,
            1,
            true,
        ),
        (
            "/ordinals/v1/brc-20/tokens/no-such".to_owned(),
            absent,
            1,
            false,
        ),
    ];
    for (target, control, ttl, nothing) in rows {
        let miss = ground.same(&target).await;
        assert_eq!(empty(miss.text()), nothing, "{target}");
        assert_eq!(miss.must("cache-control"), control, "{target}");
        let status = miss.status;
        assert_eq!(
            miss.must("cache-status"),
            format!("ordgate; fwd=uri-miss; fwd-status={status}; stored"),
            "{target}"
        );
        let hit = ground.costs(&target, 0).await;
        assert_eq!(hit.must("cache-control"), control, "{target}");
        assert_eq!(
            hit.must("cache-status"),
            format!("ordgate; hit; ttl={ttl}"),
            "{target}"
        );
        assert_eq!(hit.field("etag"), miss.field("etag"));
    }
}

#[tokio::test]
async fn max_age_is_at_most_the_interval_of_probes() {
    let every = "chain.tip.runes.every = \"2s\"\nchain.tip.ordinals.every = \"60s\"";
    let ground = Ground::with(Settings::default(), every).await;
    let recent = ground.same(&block(ground.tip())).await;
    assert_eq!(recent.must("cache-control"), "public, max-age=2");
    // A token's bound in time is shorter than this pace.
    let live = ground.same(TICKER).await;
    assert_eq!(live.must("cache-control"), "public, max-age=30");
}

#[tokio::test]
async fn client_errors_are_stored_for_a_second() {
    let token = "/ordinals/v1/brc-20/tokens/pepe".to_owned();
    for status in [400, 402, 404, 405, 406, 409, 414, 418, 422, 451] {
        let upstream = Upstream::start();
        upstream.usually(move |seen| match is_status(&seen.target()) {
            true => Reply::json(r#"{"block_height":840199}"#),
            false => Reply::status(status, r#"{"error":"No"}"#),
        });
        let gateway = before(&upstream, "").await;
        // The page is the window.
        for target in [&token, &(block(840_000) + "?limit=60")] {
            let asked = targets(&upstream).len();
            let miss = gateway.get(target).await;
            assert_eq!((miss.status, miss.text()), (status, r#"{"error":"No"}"#));
            assert_eq!(miss.must("cache-control"), "public, max-age=1");
            assert_eq!(
                miss.must("cache-status"),
                format!("ordgate; fwd=uri-miss; fwd-status={status}; stored")
            );
            gateway.advance(999);
            let hit = gateway.get(target).await;
            assert_eq!((hit.status, hit.text()), (status, r#"{"error":"No"}"#));
            assert_eq!(hit.must("cache-status"), "ordgate; hit; ttl=0");
            assert_eq!(targets(&upstream).len(), asked + 1, "{status} {target}");
            gateway.advance(1);
            assert_eq!(gateway.get(target).await.status, status);
            assert_eq!(targets(&upstream).len(), asked + 2, "{status} {target}");
        }
    }
}

#[tokio::test]
async fn absent_answers_are_stored_for_a_second() {
    let ground = Ground::new().await;
    let targets = [
        block(ground.tip() + 1),
        transaction(&"ab".repeat(32)),
        "/ordinals/v1/brc-20/tokens/no-such".to_owned(),
    ];
    for target in targets {
        ground.costs(&target, 1).await;
        ground.gateway.advance(999);
        let hit = ground.costs(&target, 0).await;
        assert_eq!(hit.must("cache-status"), "ordgate; hit; ttl=0");
        ground.gateway.advance(1);
        ground.costs(&target, 1).await;
    }
}

#[tokio::test]
async fn absent_answers_end_with_the_next_block() {
    let ground = Ground::new().await;
    let next = block(ground.tip() + 1);
    ground.costs(&next, 1).await;
    ground.sandbox.advance(1);
    ground.probe().await;
    // The epoch has ended, so not even the second is waited for.
    let there = ground.costs(&next, 1).await;
    assert!(!there.text().contains("\"results\":[]"));
    ground.costs(&next, 0).await;
}

#[tokio::test]
async fn a_new_block_makes_stale_only_what_may_have_changed() {
    let ground = Ground::new().await;
    let deep = [block(ground.tip() - 30), block(ground.tip() - 16)];
    let open = [block(ground.tip() - 2), TICKER.to_owned()];
    for target in deep.iter().chain(&open) {
        ground.costs(target, 1).await;
    }
    // The tip is still the same, so that all this was of it.
    ground.probe().await;
    ground.sandbox.advance(1);
    for target in deep.iter().chain(&open) {
        // Nobody has seen it yet.
        let before = ground.requests();
        ground.gateway.get(target).await;
        assert_eq!(ground.requests(), before, "{target}");
    }
    ground.probe().await;
    for target in &deep {
        ground.costs(target, 0).await;
    }
    for (target, status) in open.iter().zip([
        // Its own block has been looked at, and stands.
        "ordgate; hit; ttl=3600",
        "ordgate; fwd=stale; fwd-status=200; stored",
    ]) {
        let stale = ground.costs(target, 1).await;
        assert_eq!(stale.must("cache-status"), status);
        ground.costs(target, 0).await;
    }
}

#[tokio::test]
async fn after_a_new_block_many_clients_cause_one_request() {
    let ground = Ground::new().await;
    let targets = [block(ground.tip() - 1), TICKER.to_owned()];
    for target in &targets {
        ground.same(target).await;
    }
    ground.sandbox.advance(1);
    ground.probe().await;
    for target in &targets {
        let mut clients: Vec<Client> = Vec::new();
        for _ in 0..60 {
            clients.push(ground.gateway.client().await);
        }
        let before = ground.requests();
        for client in &mut clients {
            client.send_request("GET", target, &[]).await;
        }
        for client in &mut clients {
            let answer = client.answer("GET").await;
            ground.is_truth(target, &answer);
        }
        assert_eq!(ground.requests() - before, 1, "{target}");
    }
}

#[tokio::test]
async fn a_clients_304_survives_a_block_that_changed_nothing() {
    let ground = Ground::new().await;
    let target = block(ground.tip() - 2);
    let first = ground.same(&target).await;
    let tag = first.must("etag").to_owned();
    for fetched in [0, 1, 1] {
        let before = ground.requests();
        let known = [("if-none-match", &*tag)];
        let answer = ground.gateway.request("GET", &target, &known).await;
        assert_eq!(answer.status, 304);
        assert_eq!(answer.must("etag"), tag);
        assert_eq!(ground.requests() - before, fetched);
        ground.sandbox.advance(1);
        ground.probe().await;
    }
    // The upstream's own tag of before is none of ours.
    let tip = format!("\"{}\"", ground.sandbox.tip().hash);
    let known = [("if-none-match", &*tip)];
    let answer = ground.gateway.request("GET", &target, &known).await;
    assert_eq!(answer.status, 200);
}

#[tokio::test]
async fn an_answer_becomes_final_at_final_depth() {
    let ground = Ground::new().await;
    let target = block(ground.tip() - 2);
    for (depth, control) in [(2, "3600"), (5, "3600"), (6, "2592000, immutable")] {
        let deeper = depth - (ground.tip() - 840_197);
        ground.sandbox.advance(deeper);
        ground.probe().await;
        let answer = ground.same(&target).await;
        let expected = format!("public, max-age={control}");
        assert_eq!(answer.must("cache-control"), expected, "at depth {depth}");
    }
    ground.sandbox.advance(10);
    ground.probe().await;
    ground.costs(&target, 0).await;
}

#[tokio::test]
async fn an_unchanged_block_validates_those_below() {
    let ground = Ground::new().await;
    let below = block(ground.tip() - 3);
    let above = block(ground.tip() - 2);
    ground.costs(&below, 1).await;
    ground.costs(&above, 1).await;
    // A block that was seen counts as seen under a tip where that was still the
    // same afterwards.
    ground.probe().await;
    ground.sandbox.advance(1);
    ground.probe().await;
    ground.costs(&above, 1).await;
    // Its hash commits to what is below, so that is known to stand as well.
    let hit = ground.costs(&below, 0).await;
    assert_eq!(hit.must("cache-control"), "public, max-age=3600");
    ground.probe().await;
    ground.sandbox.advance(3);
    ground.probe().await;
    for cost in [1, 0] {
        ground.costs(&below, cost).await;
        ground.costs(&above, 0).await;
    }
    for _ in 0..2 {
        let hit = ground.costs(&below, 0).await;
        assert_eq!(hit.must("cache-control"), IMMUTABLE);
    }
    // But not for what any block may change, nor for what lies above it.
    ground.costs(TICKER, 1).await;
    let tip = block(ground.tip());
    ground.costs(&tip, 1).await;
    ground.sandbox.advance(1);
    ground.probe().await;
    ground.costs(&block(ground.tip() - 2), 1).await;
    ground.costs(TICKER, 1).await;
    ground.costs(&tip, 1).await;
}

/// `age` is the time since the answer was received or shown to be unchanged, and
/// what `/explain` says of it.
#[tokio::test]
async fn age_and_ttl_are_true_if_the_upstream_fails() {
    let sandbox = Sandbox::new(Settings::default());
    let upstream = acting(&sandbox);
    let gateway = before(&upstream, OFTEN).await;
    let recent = block(sandbox.tip().height - 2);
    for target in [TICKER, &recent] {
        assert_eq!(gateway.get(target).await.number("age"), 0, "{target}");
    }
    for _ in 0..4 {
        gateway.advance(5_000);
        probe_all(&gateway).await;
    }
    gateway.advance(1_000);
    // That the tip is the same shows that a block stands, and nothing of a token.
    for (target, age) in [(TICKER, 21), (&*recent, 1)] {
        let hit = gateway.get(target).await;
        assert!(hit.must("cache-status").contains("; hit"), "{hit:?}");
        assert_eq!(hit.number("age"), age, "{target}");
    }
    gateway.advance(12_000);
    upstream.always(Reply::status(500, "{}"));
    for (target, age) in [(TICKER, 33), (&*recent, 13)] {
        let stale = gateway.get(target).await;
        assert_eq!(stale.status, 200, "{target}");
        assert_eq!(stale.number("age"), age, "{target}");
        let explained = gateway.explain(target).await;
        assert_eq!(
            explained["stored"]["age_seconds"].as_f64(),
            Some(age as f64),
            "{explained}"
        );
    }
    gateway.advance(60_000);
    for (target, age) in [(TICKER, 93), (&*recent, 73)] {
        let stale = gateway.get(target).await;
        assert_eq!(stale.status, 200, "{target}");
        assert_eq!(stale.number("age"), age, "{target}");
    }
}

#[tokio::test]
async fn final_ends_after_its_time() {
    let ground = Ground::new().await;
    let target = block(ground.tip() - 30);
    ground.costs(&target, 1).await;
    ground.gateway.advance(30 * 86_400_000 - 1);
    let hit = ground.costs(&target, 0).await;
    assert_eq!(hit.must("cache-status"), "ordgate; hit; ttl=0");
    assert_eq!(hit.must("age"), "2591999");
    ground.gateway.advance(1);
    ground.costs(&target, 1).await;
}

#[tokio::test]
async fn spellings_of_one_request_share_a_stored_response() {
    let ground = Ground::new().await;
    let height = ground.tip() - 20;
    let id = &ground.sandbox.transactions_at(height)[0];
    let spellings = [
        [
            block(height),
            block(format!("000{height}")),
            format!("{}?offset=0&limit=20", block(height)),
            format!("{}?limit=20&utm=x", block(height)),
        ],
        [
            transaction(id),
            transaction(&id.to_uppercase()),
            format!("{}?limit=020", transaction(id)),
            format!("{}?offset=0", transaction(id)),
        ],
        [
            TICKER.to_owned(),
            TICKER.replace("pepe", "PEPE"),
            TICKER.replace("pepe", "p%65Pe"),
            format!("{TICKER}?x"),
        ],
    ];
    for [first, others @ ..] in spellings {
        let own = ground.same(&first).await;
        let before = ground.requests();
        for other in others {
            let answer = ground.gateway.get(&other).await;
            // Such as a limit with a zero before it.
            if answer.status == 400 {
                answer.problem();
                continue;
            }
            assert_eq!(answer.body, own.body, "{other}");
            assert!(answer.must("cache-status").starts_with("ordgate; hit"));
            let head = ground.gateway.request("HEAD", &other, &[]).await;
            assert_eq!(head.number("content-length"), own.body.len() as u64);
            assert_eq!(head.must("etag"), own.must("etag"));
        }
        assert_eq!(ground.requests(), before, "{first}");
    }
}
