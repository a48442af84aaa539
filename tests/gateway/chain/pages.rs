//! Pages that are cut from windows equal the upstream's, and most need no request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use http::{HeaderMap, Method};
use ordgate::sandbox::{Sandbox, Settings};

use super::{Ground, acting, before, block, reply, targets, transaction};
use crate::support::gateway::shipped_routes;
use crate::support::{Gate, Reply};

/// The highest of the largest blocks.
const LARGE: u32 = 840_173;

/// The shipped routes with windows of another size, as TOML.
pub(super) fn windows_of(size: u32) -> String {
    let routes = shipped_routes();
    routes
        .replace("upstream_page = 60", &format!("upstream_page = {size}"))
        .replace("max = 60", &format!("max = {}", size.max(60)))
}

/// How many windows a page touches, where the list has them.
fn touched(size: u64, limit: u64, offset: u64, total: u64) -> Vec<u64> {
    let end = (offset + limit).min(total);
    (offset / size..end.div_ceil(size)).collect()
}

fn total(ground: &Ground, path: &str) -> u64 {
    let page: serde_json::Value = serde_json::from_slice(&ground.truth(path).body).unwrap();
    page["total"].as_u64().unwrap()
}

#[tokio::test]
async fn every_page_is_the_upstreams_own() {
    for size in [7, 60, 10_000] {
        let settings = Settings {
            max_limit: size.max(60),
            ..Settings::default()
        };
        let ground = Ground::with(settings, &windows_of(size)).await;
        let size = u64::from(size);
        let id = ground.sandbox.transactions_at(LARGE)[0].clone();
        for path in [
            block(LARGE),
            block(LARGE - 2),
            block(LARGE + 1),
            transaction(&id),
        ] {
            let total = total(&ground, &path);
            let mut stored = std::collections::BTreeSet::new();
            for limit in [1, 2, 6, 7, 8, 20, 59, 60] {
                for offset in [0, 1, 6, 7, 13, 20, 53, 59, 60, 61, 119, 120, total - 1] {
                    let page = format!("{path}?limit={limit}&offset={offset}");
                    let before = ground.requests();
                    let answer = ground.same(&page).await;
                    let cost = ground.requests() - before;
                    assert_eq!(answer.status, 200, "{page}");
                    // At the least one window has to be seen; what lies past
                    // the end of a list that is known is not asked for.
                    let needs = touched(size, limit, offset, total);
                    let missing = needs.iter().filter(|n| !stored.contains(*n)).count() as u64;
                    let blind = match stored.is_empty() {
                        true => (offset + limit).div_ceil(size) - offset / size,
                        false => missing,
                    };
                    // A transaction may come from its block's windows.
                    let is_derived = path == transaction(&id) && cost == 0;
                    assert!(
                        cost == blind || is_derived,
                        "{page}: {cost} and not {blind}"
                    );
                    stored.extend(needs);
                    let hit = ground.costs(&page, 0).await;
                    let status = hit.must("cache-status");
                    assert!(
                        status.starts_with("ordgate; hit; ttl=2"),
                        "{page}: {status}"
                    );
                }
            }
        }
    }
}

#[tokio::test]
async fn pages_that_share_a_window_share_its_fetch() {
    let sandbox = Sandbox::new(Settings::default());
    let (upstream, gate) = (acting(&sandbox), Gate::new());
    let gateway = before(&upstream, "").await;
    let window = format!("{}?limit=60&offset=0", block(LARGE));
    upstream.once(&window, reply(&sandbox, &window).behind(&gate));
    let mut pending = Vec::new();
    for offset in 0..30 {
        let page = format!("{}?limit=5&offset={offset}", block(LARGE));
        let client = gateway.start_get(&page).await;
        pending.push((page, client));
    }
    gateway.until_all_is_read().await;
    gate.open();
    for (page, mut client) in pending {
        let truth = sandbox.answer(&Method::GET, &page, &HeaderMap::new());
        assert!(client.answer("GET").await.body == truth.body, "{page}");
    }
    assert_eq!(targets(&upstream), [window]);
}

#[tokio::test]
async fn windows_of_different_moments_are_fetched_again() {
    let sandbox = Sandbox::new(Settings {
        blocks: 174,
        ..Settings::default()
    });
    // The tip is one of the largest blocks. Without tags nothing but bodies
    // tells of its replacement.
    let tip = sandbox.tip().height;
    let upstream = crate::support::Upstream::start();
    let own = sandbox.clone();
    upstream.usually(move |seen| super::retagged(&own, &seen.target(), None));
    let gateway = before(&upstream, "").await;
    gateway
        .get(&format!("{}?limit=60&offset=0", block(tip)))
        .await;
    sandbox.reorg(1);
    let page = format!("{}?limit=60&offset=30", block(tip));
    let truth = sandbox.answer(&Method::GET, &page, &HeaderMap::new());
    let answer = gateway.get(&page).await;
    assert!(answer.body == truth.body, "{}", answer.text());
    let again = gateway.get(&page).await;
    assert!(again.body == truth.body);
    assert!(again.must("cache-status").starts_with("ordgate; hit"));
}

#[tokio::test]
async fn if_windows_never_agree_the_page_itself_is_fetched() {
    // A list that grows with each request, and is of no block.
    let upstream = crate::support::Upstream::start();
    let grown = Arc::new(AtomicU32::new(100));
    let growing = grown.clone();
    upstream.usually(move |seen| {
        let target = seen.target();
        if super::is_status(&target) {
            return Reply::with(
                200,
                "content-type: application/json\r\n",
                r#"{"block_height":7}"#,
            );
        }
        let number = |name: &str| {
            let at = target.find(name).unwrap() + name.len();
            let digits: String = target[at..]
                .chars()
                .take_while(char::is_ascii_digit)
                .collect();
            digits.parse::<u32>().unwrap()
        };
        let (limit, offset) = (number("limit="), number("offset="));
        let total = growing.fetch_add(1, SeqCst);
        let items: Vec<_> = (offset..(offset + limit).min(total))
            .map(|n| n.to_string())
            .collect();
        let list = items.join(",");
        Reply::json(format!(
            "{{\"limit\":{limit},\"offset\":{offset},\"total\":{total},\"results\":[{list}]}}"
        ))
    });
    let gateway = before(&upstream, "").await;
    let page = format!("{}?limit=60&offset=30", block(1));
    let answer = gateway.get(&page).await;
    assert_eq!(answer.status, 200);
    let json = answer.json();
    assert_eq!(json["results"][0], 30);
    assert_eq!(json["results"][59], 89);
    // Two further attempts, and then the page itself.
    assert_eq!(targets(&upstream).last(), Some(&page));
    assert_eq!(targets(&upstream).len(), 7);
}
