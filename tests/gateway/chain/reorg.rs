//! Reorgs: however one is seen, nothing of what it undid is answered with
//! again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use ordgate::sandbox::{Fault, FaultKind, Sandbox, Settings};

use super::{
    Ground, IMMUTABLE, RUNES, acting, before, block, fill, probe_all, reply, retagged, standing,
    targets, transaction,
};
use crate::support::{Gate, Reply, Upstream, until};

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
async fn a_lower_status_and_a_higher_one_again() {
    let ground = Ground::new().await;
    let paths = near_the_tip(&ground.sandbox, 4);
    warm(&ground, &paths).await;
    ground.sandbox.rollback(3);
    ground.probe().await;
    assert_eq!(standing(&ground.gateway, RUNES).reorgs, 1);
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
async fn another_hash_at_the_height_of_the_tip() {
    let ground = Ground::new().await;
    let old = near_the_tip(&ground.sandbox, 5);
    warm(&ground, &old).await;
    ground.sandbox.reorg(3);
    ground.probe().await;
    assert_eq!(standing(&ground.gateway, RUNES).reorgs, 1);
    let new = near_the_tip(&ground.sandbox, 5);
    for path in old.iter().chain(&new).chain(&old) {
        ground.same(path).await;
    }
}

#[tokio::test]
async fn a_body_in_passing() {
    // Without tags only bodies can tell.
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
    assert_eq!(
        standing(&gateway, RUNES).reorgs,
        0,
        "its height is the same"
    );
    // A transaction that nobody has asked for names the block that took over.
    let known = |id: &String| old.iter().any(|path| path.contains(&**id));
    let all = sandbox.transactions_at(tip - 2);
    let other = all.iter().find(|id| !known(id)).unwrap();
    let seen = gateway.get(&transaction(other)).await;
    assert!(seen.text().contains(&sandbox.hash_at(tip - 2).unwrap()));
    assert_eq!(standing(&gateway, RUNES).reorgs, 1);
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
async fn what_had_items_and_has_none_was_undone() {
    let sandbox = Sandbox::new(Settings::default());
    let upstream = Upstream::start();
    let own = sandbox.clone();
    upstream.usually(move |seen| match super::for_status(seen) {
        // It lags, and goes on saying what it has said.
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
    assert_eq!(standing(&gateway, RUNES).reorgs, 1);
    let empty = gateway.get(&upper).await;
    assert!(empty.text().contains("\"results\":[]"));
}

#[tokio::test]
async fn orphans_do_not_come_back_in_an_outage() {
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

/// An answer of before the reorg that comes after it.
#[tokio::test]
async fn fills_under_way_are_asked_for_again() {
    let sandbox = Sandbox::new(Settings::default());
    let height = sandbox.tip().height - 1;
    let id = sandbox.transactions_at(height)[0].clone();
    let hash = sandbox.hash_at(height).unwrap();
    let of_hash = format!("{}?limit=60&offset=0", block(&hash));
    let rows = [
        (
            block(height),
            format!("{}?limit=60&offset=0", block(height)),
        ),
        (block(&hash), of_hash),
        (
            transaction(&id),
            format!("{}?limit=60&offset=0", transaction(&id)),
        ),
    ];
    for (path, asked) in rows {
        let sandbox = Sandbox::new(Settings::default());
        let (upstream, gate) = (acting(&sandbox), Gate::new());
        let gateway = before(&upstream, "").await;
        upstream.once(&asked, reply(&sandbox, &asked).behind(&gate));
        let mut clients = [gateway.client().await, gateway.client().await];
        for client in &mut clients {
            client.ask("GET", &path, &[]).await;
        }
        until("it is asked", || targets(&upstream).contains(&asked)).await;
        sandbox.reorg(2);
        probe_all(&gateway).await;
        assert_eq!(standing(&gateway, RUNES).reorgs, 1);
        gate.open();
        let truth = |path: &str| sandbox.answer(&http::Method::GET, path, &http::HeaderMap::new());
        for client in &mut clients {
            let answer = client.answer("GET").await;
            assert_eq!(answer.status, 200);
            assert!(
                answer.body == truth(&path).body,
                "{path}: {}",
                answer.text()
            );
        }
        for path in [&path, &block(height), &block(&hash)] {
            let answer = gateway.get(path).await;
            assert!(!answer.text().contains(&hash), "{path}");
            assert!(answer.body == truth(path).body, "{path}");
        }
    }
}

/// The same where the answer that comes late is the first that tells of its
/// block, and the reorg was seen at another.
#[tokio::test]
async fn an_old_answer_below_the_tip_that_comes_late() {
    let sandbox = Sandbox::new(Settings::default());
    let tip = sandbox.tip().height;
    let (upstream, gate) = (acting(&sandbox), Gate::new());
    let gateway = before(&upstream, "").await;
    let path = block(tip - 2);
    let asked = format!("{path}?limit=60&offset=0");
    let old = sandbox.hash_at(tip - 2).unwrap();
    upstream.once(&asked, reply(&sandbox, &asked).behind(&gate));
    let mut client = gateway.client().await;
    client.ask("GET", &path, &[]).await;
    until("it is asked", || targets(&upstream).contains(&asked)).await;
    sandbox.reorg(3);
    // Seen at the tip alone.
    gateway.get(&block(tip)).await;
    probe_all(&gateway).await;
    gate.open();
    let answer = client.answer("GET").await;
    assert!(!answer.text().contains(&old));
    assert!(!gateway.get(&path).await.text().contains(&old));
    assert_eq!(
        fill(&gateway)
            .chain
            .height_of(RUNES, &ordgate::pages::hash(&old).unwrap()),
        None
    );
}

/// The same where the block has not been seen before, so that no reorg is: of
/// two that contradict each other the one that was asked for later is believed.
#[tokio::test]
async fn of_two_answers_the_later_question_counts() {
    let sandbox = Sandbox::new(Settings::default());
    let (upstream, gate) = (Upstream::start(), Gate::new());
    let model = sandbox.clone();
    upstream.usually(move |seen| retagged(&model, &seen.target(), None));
    let gateway = before(&upstream, "").await;
    let height = sandbox.tip().height - 2;
    let (path, old) = (block(height), sandbox.hash_at(height).unwrap());
    let asked = format!("{path}?limit=60&offset=0");
    upstream.once(&asked, retagged(&sandbox, &asked, None).behind(&gate));
    let mut client = gateway.client().await;
    client.ask("GET", &path, &[]).await;
    until("it is asked", || targets(&upstream).contains(&asked)).await;
    sandbox.reorg(3);
    gateway
        .get(&transaction(&sandbox.transactions_at(height)[0]))
        .await;
    assert_eq!(standing(&gateway, RUNES).reorgs, 0);
    gate.open();
    assert!(!client.answer("GET").await.text().contains(&old));
    assert!(!gateway.get(&path).await.text().contains(&old));
    assert_eq!(standing(&gateway, RUNES).reorgs, 0);
}

/// The answer that shows a reorg has no part in what it undoes.
#[tokio::test]
async fn what_tells_of_a_reorg_is_fetched_once() {
    let sandbox = Sandbox::new(Settings::default());
    let upstream = Upstream::start();
    let model = sandbox.clone();
    upstream.usually(move |seen| retagged(&model, &seen.target(), None));
    let gateway = before(&upstream, "").await;
    let height = sandbox.tip().height - 2;
    gateway
        .get(&transaction(&sandbox.transactions_at(height)[0]))
        .await;
    sandbox.reorg(3);
    let asked = targets(&upstream).len();
    let page = format!("{}?limit=3", block(height));
    let answer = gateway.get(&page).await;
    assert_eq!(standing(&gateway, RUNES).reorgs, 1);
    let truth = sandbox.answer(&http::Method::GET, &page, &http::HeaderMap::new());
    assert!(answer.body == truth.body);
    assert_eq!(targets(&upstream).len(), asked + 1);
    let hit = gateway.get(&page).await;
    assert!(hit.must("cache-status").starts_with("ordgate; hit"));
}

/// A tag of before says that the chain was rolled back, or that another server
/// lags: what bears it is of no epoch, until the status has spoken.
#[tokio::test]
async fn an_answer_with_the_tag_of_a_tip_before_is_not_kept() {
    let ground = Ground::new().await;
    let (first, second) = (block(ground.tip() - 2), block(ground.tip() - 3));
    ground.costs(&first, 1).await;
    ground.sandbox.advance(1);
    ground.probe().await;
    ground.costs(&first, 1).await;
    ground.sandbox.rollback(1);
    ground.costs(&second, 1).await;
    ground.costs(&second, 1).await;
}

#[tokio::test]
async fn a_reorg_deeper_than_what_counts_as_final() {
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

#[tokio::test]
async fn a_reorg_that_is_seen_between_two_windows_of_a_page() {
    let sandbox = Sandbox::new(Settings {
        blocks: 174,
        ..Settings::default()
    });
    // The tip is one of the largest blocks.
    let tip = sandbox.tip().height;
    let (upstream, gate) = (acting(&sandbox), Gate::new());
    let gateway = before(&upstream, "").await;
    let window = |offset| format!("{}?limit=60&offset={offset}", block(tip));
    upstream.once(&window(0), reply(&sandbox, &window(0)).behind(&gate));
    upstream.once(&window(60), reply(&sandbox, &window(60)).behind(&gate));
    let mut client = gateway.client().await;
    let path = format!("{}?limit=60&offset=30", block(tip));
    client.ask("GET", &path, &[]).await;
    until("both are asked", || targets(&upstream).len() == 2).await;
    sandbox.reorg(1);
    probe_all(&gateway).await;
    gate.open();
    let truth = sandbox.answer(&http::Method::GET, &path, &http::HeaderMap::new());
    assert!(client.answer("GET").await.body == truth.body);
    assert!(gateway.get(&path).await.body == truth.body);
}

/// The same where one window was there before the reorg, and the other, past the
/// end of the list, comes after it and contradicts nothing.
#[tokio::test]
async fn a_window_that_is_held_while_the_other_is_waited_for() {
    let sandbox = Sandbox::new(Settings::default());
    let tip = sandbox.tip().height;
    let (upstream, gate) = (acting(&sandbox), Gate::new());
    let gateway = before(&upstream, "").await;
    let window = |offset| format!("{}?limit=60&offset={offset}", block(tip));
    upstream.once(&window(60), reply(&sandbox, &window(60)).behind(&gate));
    let mut client = gateway.client().await;
    let path = format!("{}?limit=60&offset=1", block(tip));
    client.ask("GET", &path, &[]).await;
    until("both are asked", || targets(&upstream).len() == 2).await;
    // The page and its second window are still under way.
    let under_way = || fill(&gateway).collapse.len();
    until("the first has come", || under_way() == 2).await;
    sandbox.reorg(1);
    probe_all(&gateway).await;
    gate.open();
    let truth = sandbox.answer(&http::Method::GET, &path, &http::HeaderMap::new());
    let answer = client.answer("GET").await;
    assert!(answer.body == truth.body, "{}", answer.text());
}

#[tokio::test]
async fn an_emptiness_that_counted_as_final_goes_as_well() {
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
async fn any_history() {
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
    assert!(standing(&ground.gateway, RUNES).reorgs > 5);
}

/// A status that never says that anything happened.
#[tokio::test]
async fn a_reorg_that_only_tags_tell_of() {
    let sandbox = Sandbox::new(Settings::default());
    let upstream = acting(&sandbox);
    let gateway = before(&upstream, "").await;
    let tip = sandbox.tip().height;
    let path = block(tip - 1);
    gateway.get(&path).await;
    let told = Arc::new(AtomicBool::new(false));
    let (own, is_told) = (sandbox.clone(), told.clone());
    upstream.usually(move |seen| {
        if super::for_status(seen) {
            is_told.store(true, SeqCst);
        }
        reply(&own, &seen.target())
    });
    sandbox.reorg(2);
    // An old block's answer has the new tip's tag, and that has the tip asked
    // for out of turn, though it is not due for an hour.
    gateway.get(&block(tip - 60)).await;
    until("the tip is asked for", || told.load(SeqCst)).await;
    until("the reorg is seen", || {
        standing(&gateway, RUNES).reorgs == 1
    })
    .await;
    let truth = sandbox.answer(&http::Method::GET, &path, &http::HeaderMap::new());
    assert!(gateway.get(&path).await.body == truth.body);
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

/// Nobody asks for what is recent, and the tip only seems to have grown.
#[tokio::test]
async fn a_deep_reorg_between_two_probes() {
    for depth in [14, 30, 60] {
        let ground = Ground::new().await;
        let undone = deep(&ground.sandbox, 13..=depth - 1);
        let stands = deep(&ground.sandbox, 100..=101);
        warm(&ground, &undone).await;
        warm(&ground, &stands).await;
        ground.sandbox.reorg(depth);
        ground.sandbox.advance(1);
        let before = ground.asked();
        ground.probe_and_look().await;
        let looks = ground.asked() - before;
        assert!(looks <= u64::from(2 + depth / 13), "{looks} at {depth}");
        assert!(standing(&ground.gateway, RUNES).reorgs > 0);
        for path in &undone {
            ground.same(path).await;
        }
        for path in &stands {
            ground.costs(path, 0).await;
        }
        // Nothing is looked at twice for one change.
        let before = ground.asked();
        ground.probe_and_look().await;
        assert_eq!(ground.asked(), before);
    }
}

/// What is deeper than all looks together leaves nothing that counts.
#[tokio::test]
async fn a_reorg_without_an_end() {
    let config = "chain.final_depth = 1";
    let ground = Ground::with(Settings::default(), config).await;
    let undone = deep(&ground.sandbox, 4..=119);
    warm(&ground, &undone).await;
    ground.sandbox.reorg(120);
    ground.sandbox.advance(1);
    let before = ground.asked();
    ground.probe_and_look().await;
    assert_eq!(ground.asked() - before, 16);
    for path in &undone {
        ground.same(path).await;
    }
}

/// The change is first seen in an answer's tag, and the probe loop does the rest.
#[tokio::test]
async fn a_deep_reorg_that_a_tag_tells_of() {
    let ground = Ground::new().await;
    let undone = deep(&ground.sandbox, 13..=29);
    warm(&ground, &undone).await;
    ground.sandbox.reorg(30);
    ground.sandbox.advance(1);
    ground.gateway.get(&block(ground.tip() - 120)).await;
    let gone = |path: &String| {
        let fill = fill(&ground.gateway);
        let hash = path.split('/').nth(4).and_then(ordgate::pages::hash);
        hash.is_none_or(|hash| fill.chain.height_of(RUNES, &hash).is_none())
    };
    until("all of it is forgotten", || undone.iter().all(gone)).await;
    for path in &undone {
        ground.same(path).await;
    }
}

/// An empty block at the height of the tip before shows nothing.
#[tokio::test]
async fn a_deep_reorg_below_an_empty_block() {
    let sandbox = Sandbox::new(Settings::default());
    let (upstream, tip) = (Upstream::start(), sandbox.tip().height);
    let model = sandbox.clone();
    let empty = format!("{}?limit=60&offset=0", block(tip));
    upstream.usually(move |seen| {
        let target = seen.target();
        if target != empty {
            return reply(&model, &target);
        }
        let (status, fields, _) = super::own(&model, &target);
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
    fill(&gateway).look_at_blocks(RUNES).await;
    for path in &undone {
        let answer = gateway.get(path).await;
        let truth = sandbox.answer(&http::Method::GET, path, &http::HeaderMap::new());
        assert!(answer.body == truth.body, "{path}");
    }
}

/// In the ordinary case it is one request for each change of tip, and it proves
/// what is recent as well.
#[tokio::test]
async fn a_look_is_one_request_and_proves_what_is_recent() {
    let ground = Ground::new().await;
    let recent = [block(ground.tip() - 1), block(ground.tip() - 2)];
    for path in &recent {
        ground.costs(path, 1).await;
    }
    ground.probe_and_look().await;
    for round in 0..3 {
        ground.sandbox.advance(1);
        let before = ground.asked();
        ground.probe_and_look().await;
        ground.probe_and_look().await;
        let looks = ground.asked() - before;
        assert_eq!(looks, 1, "round {round}");
        for path in &recent {
            ground.costs(path, 0).await;
        }
    }
}

/// A look that fails is made again with the next probe.
#[tokio::test]
async fn a_look_that_fails_is_made_again() {
    let config = "upstream.queue_timeout = \"20ms\"";
    let ground = Ground::with(Settings::default(), config).await;
    let undone = deep(&ground.sandbox, 13..=29);
    warm(&ground, &undone).await;
    ground.sandbox.reorg(30);
    ground.sandbox.advance(1);
    ground.probe().await;
    let fault = Fault::once(FaultKind::Close).times(u32::MAX);
    ground.sandbox.fault(fault);
    fill(&ground.gateway).look_at_blocks(RUNES).await;
    assert_eq!(standing(&ground.gateway, RUNES).reorgs, 0);
    ground.sandbox.clear_faults();
    ground.gateway.advance(60_000);
    ground.probe_and_look().await;
    assert!(standing(&ground.gateway, RUNES).reorgs > 0);
    for path in &undone {
        ground.same(path).await;
    }
}
