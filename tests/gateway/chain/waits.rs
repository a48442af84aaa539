//! Fetches that depend on one another never deadlock.

use ordgate::sandbox::{Sandbox, Settings};

use super::pages::windows_of;
use super::{acting, before, block, probe_all, reply, targets};
use crate::support::{Gate, until};

/// Larger than what a block is proved by: there one item does.
const WINDOW: u32 = 200;

#[tokio::test]
async fn pages_of_one_window_in_any_order_after_a_new_block() {
    for order in [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ] {
        let sandbox = Sandbox::new(Settings {
            max_limit: WINDOW,
            ..Settings::default()
        });
        let upstream = acting(&sandbox);
        let gateway = before(&upstream, &windows_of(WINDOW)).await;
        let path = block(sandbox.tip().height);
        let pages = ["?limit=1", "?limit=200", "?limit=2&offset=1"];
        let pages = order.map(|at| format!("{path}{}", pages[at]));
        for page in &pages {
            assert_eq!(gateway.get(page).await.status, 200);
        }
        sandbox.advance(1);
        probe_all(&gateway).await;
        let (asked, gate) = (targets(&upstream).len(), Gate::new());
        let (held, own) = (gate.clone(), sandbox.clone());
        upstream.usually(move |seen| reply(&own, &seen.target()).behind(&held));
        let fetches = || gateway.fetching();
        let mut pending = Vec::new();
        for page in &pages {
            let (mut client, before) = (gateway.client().await, fetches());
            client.send_request("GET", page, &[]).await;
            until("it waits", || fetches() > before).await;
            pending.push(client);
        }
        gate.open();
        let mut answers = Vec::new();
        for mut client in pending {
            answers.push(client.answer("GET").await);
        }
        for (page, answer) in pages.iter().zip(answers) {
            let truth = sandbox.answer(&http::Method::GET, page, &http::HeaderMap::new());
            assert_eq!(answer.status, 200, "{order:?} {page}");
            assert!(answer.body == truth.body, "{order:?} {page}");
            let how = answer.must("cache-status");
            assert!(!how.contains("ttl=-"), "{order:?} {page} is stale: {how}");
        }
        let asked = targets(&upstream).len() - asked;
        assert!(asked <= 2, "{order:?}: an item and a window at the most");
    }
}
