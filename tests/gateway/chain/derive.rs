//! Transactions that are answered from their block's stored windows.

use ordgate::sandbox::{Sandbox, Settings};
use serde_json::Value;

use super::{Ground, acting, before, block, targets, transaction};
use crate::support::gateway::shipped_routes;

/// Where each transaction of a block begins and ends in its list.
fn runs(sandbox: &Sandbox, height: u32) -> Vec<(String, usize, usize)> {
    let mut runs: Vec<(String, usize, usize)> = Vec::new();
    let mut at = 0;
    loop {
        let page = format!("{}?limit=60&offset={at}", block(height));
        let answer = sandbox.answer(&http::Method::GET, &page, &http::HeaderMap::new());
        let page: Value = serde_json::from_slice(&answer.body).unwrap();
        let items = page["results"].as_array().unwrap();
        if items.is_empty() {
            return runs;
        }
        for item in items {
            let id = item["location"]["tx_id"].as_str().unwrap();
            match runs.last_mut() {
                Some((last, _, end)) if last == id => *end += 1,
                _ => runs.push((id.to_owned(), at, at + 1)),
            }
            at += 1;
        }
    }
}

#[tokio::test]
async fn a_transaction_within_a_window_is_a_hit() {
    let ground = Ground::new().await;
    for height in [ground.tip() - 1, ground.tip() - 40] {
        ground.costs(&block(height), 1).await;
        let found = runs(&ground.sandbox, height);
        let end = found.last().unwrap().2;
        let whole = found.iter().filter(|(_, _, to)| *to < 60 || end <= 60);
        for (id, from, to) in whole {
            let items = to - from;
            for limit in [1, 2, 20, 60] {
                for offset in [0, 1, items - 1, items, items + 1, 5000] {
                    let page = format!("{}?limit={limit}&offset={offset}", transaction(id));
                    let answer = ground.costs(&page, 0).await;
                    let status = answer.must("cache-status");
                    assert!(status.starts_with("ordgate; hit"), "{page}: {status}");
                }
            }
        }
    }
}

#[tokio::test]
async fn a_transaction_at_a_windows_edge_needs_the_next_window() {
    let ground = Ground::new().await;
    // One of the largest blocks.
    let height = 840_173;
    let found = runs(&ground.sandbox, height);
    let window = |number: usize| format!("{}?limit=60&offset={}", block(height), number * 60);
    let within = |edge: usize| {
        let over = found
            .iter()
            .find(|(_, from, to)| *from < edge && edge < *to);
        over.map(|(id, _, _)| id.clone())
    };
    let number = (3..15).find(|n| within(n * 60).is_some()).unwrap();
    let over = within(number * 60).unwrap();
    let inside = found
        .iter()
        .find(|(_, from, to)| *from > (number - 1) * 60 && *to < number * 60)
        .map(|(id, _, _)| id.clone())
        .unwrap();
    ground.costs(&window(number - 1), 1).await;
    ground.costs(&transaction(&inside), 0).await;
    ground
        .costs(&format!("{}?limit=1", transaction(&over)), 1)
        .await;
    ground.costs(&window(number), 1).await;
    // Another page of it, which its own stored window does not need.
    let fresh = Ground::new().await;
    fresh.costs(&window(number), 1).await;
    fresh.costs(&window(number - 1), 1).await;
    for page in ["?limit=1", "?limit=60", "?offset=1&limit=3", "?offset=4000"] {
        fresh
            .costs(&format!("{}{page}", transaction(&over)), 0)
            .await;
    }
}

#[tokio::test]
async fn a_transaction_that_ends_at_an_edge_may_continue() {
    let ground = Ground::new().await;
    let height = 840_173;
    let found = runs(&ground.sandbox, height);
    let ends = found
        .iter()
        .find(|(_, from, to)| to % 60 == 0 && from / 60 == (to - 1) / 60);
    let begins = found.iter().find(|(_, from, to)| {
        *from > 0 && from % 60 == 0 && from / 60 == (to - 1) / 60 && to % 60 != 0
    });
    for (id, from, _) in ends.into_iter().chain(begins) {
        let ground = Ground::new().await;
        let own = from / 60 * 60;
        ground
            .costs(&format!("{}?limit=60&offset={own}", block(height)), 1)
            .await;
        ground.costs(&transaction(id), 1).await;
    }
    assert!(ends.is_some() || begins.is_some());
    // The first and the last of the list have no neighbour there.
    for (id, from, to) in [&found[0], found.last().unwrap()] {
        for own in from / 60..to.div_ceil(60) {
            let window = format!("{}?limit=60&offset={}", block(height), own * 60);
            ground.costs(&window, 1).await;
        }
        ground.costs(&transaction(id), 0).await;
    }
}

#[tokio::test]
async fn filtered_lists_are_never_used() {
    let ground = Ground::new().await;
    let height = ground.tip() - 13;
    for operation in ["etching", "mint", "burn", "send", "receive"] {
        let page = format!("{}?limit=60&operation_type={operation}", block(height));
        ground.costs(&page, 1).await;
    }
    for (id, _, _) in runs(&ground.sandbox, height).iter().take(10) {
        ground.costs(&transaction(id), 1).await;
    }
}

#[tokio::test]
async fn absence_is_never_inferred() {
    let ground = Ground::new().await;
    let height = ground.tip() - 1;
    ground.costs(&block(height), 1).await;
    ground.costs(&transaction(&"ab".repeat(32)), 1).await;
}

#[tokio::test]
async fn a_derived_answer_is_purged_with_its_block() {
    let ground = Ground::new().await;
    let height = ground.tip();
    ground.costs(&block(height), 1).await;
    let id = ground.sandbox.transactions_at(height)[0].clone();
    ground.costs(&transaction(&id), 0).await;
    ground.sandbox.reorg(1);
    ground.probe().await;
    for path in [transaction(&id), block(height)] {
        ground.same(&path).await;
    }
}

#[tokio::test]
async fn a_derived_answer_has_the_max_age_of_its_block() {
    let ground = Ground::new().await;
    for (depth, control) in [(2, "public, max-age=3600"), (20, super::IMMUTABLE)] {
        let height = ground.tip() - depth;
        ground.costs(&block(height), 1).await;
        let id = ground.sandbox.transactions_at(height)[0].clone();
        let derived = ground.costs(&transaction(&id), 0).await;
        assert_eq!(derived.must("cache-control"), control);
    }
}

#[tokio::test]
async fn a_route_that_is_not_derived_goes_upstream() {
    let sandbox = Sandbox::new(Settings::default());
    let upstream = acting(&sandbox);
    let routes = shipped_routes();
    let routes = routes.replace("derived_from = \"rune-block-activity\"\n", "");
    let gateway = before(&upstream, &routes).await;
    let height = sandbox.tip().height - 20;
    gateway.get(&block(height)).await;
    gateway
        .get(&transaction(&sandbox.transactions_at(height)[0]))
        .await;
    assert_eq!(targets(&upstream).len(), 2);
}
