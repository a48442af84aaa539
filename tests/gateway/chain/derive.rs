//! Transactions that are answered from their block's stored windows.

use ordgate::sandbox::Sandbox;
use serde_json::Value;

use super::{Ground, block, transaction};

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
async fn absence_is_never_inferred() {
    let ground = Ground::new().await;
    let height = ground.tip() - 1;
    ground.costs(&block(height), 1).await;
    ground.costs(&transaction(&"ab".repeat(32)), 1).await;
}
