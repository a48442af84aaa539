//! Transactions that are answered from their block's stored windows.

use serde_json::Value;

use super::{Ground, block, transaction};

/// Where each transaction of a block begins and ends in its list.
fn runs(ground: &Ground, height: u32) -> Vec<(String, usize, usize)> {
    let mut runs: Vec<(String, usize, usize)> = Vec::new();
    let mut at = 0;
    loop {
        let page = ground.truth(&format!("{}?limit=60&offset={at}", block(height)));
        let page: Value = serde_json::from_slice(&page.body).unwrap();
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
        let found = runs(&ground, height);
        let ends = found.last().unwrap().2 <= 60;
        for (id, from, to) in found.iter().filter(|(_, _, to)| *to < 60 || ends) {
            let items = to - from;
            for (limit, offset) in [(1, 0), (2, 1), (20, items - 1), (60, items), (60, 5000)] {
                let page = format!("{}?limit={limit}&offset={offset}", transaction(id));
                let answer = ground.costs(&page, 0).await;
                let status = answer.must("cache-status");
                assert!(status.starts_with("ordgate; hit"), "{page}: {status}");
            }
        }
    }
    // That one does not exist is never inferred.
    ground.costs(&transaction(&"ab".repeat(32)), 1).await;
}

#[tokio::test]
async fn a_transaction_at_a_windows_edge_needs_the_next_window() {
    let ground = Ground::new().await;
    // One of the largest blocks.
    let height = 840_173;
    let found = runs(&ground, height);
    let window = |number: usize| format!("{}?limit=60&offset={}", block(height), number * 60);
    let over = |edge: usize| {
        found
            .iter()
            .find(|(_, from, to)| *from < edge && edge < *to)
    };
    let number = (3..15).find(|n| over(n * 60).is_some()).unwrap();
    let edge = number * 60;
    let across = transaction(&over(edge).unwrap().0);
    let inside = found
        .iter()
        .find(|(_, from, to)| *from > edge - 60 && *to < edge);
    ground.costs(&window(number - 1), 1).await;
    ground.costs(&transaction(&inside.unwrap().0), 0).await;
    ground.costs(&format!("{across}?limit=1"), 1).await;
    let fresh = Ground::new().await;
    for number in [number, number - 1] {
        fresh.costs(&window(number), 1).await;
    }
    for page in ["?limit=1", "?limit=60", "?offset=1&limit=3", "?offset=4000"] {
        fresh.costs(&format!("{across}{page}"), 0).await;
    }
}
