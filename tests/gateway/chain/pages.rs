//! Pages that are cut from windows equal the upstream's, and most need no request.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

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

#[tokio::test]
async fn every_page_is_the_upstreams_own() {
    for size in [7, 60, 10_000_u32] {
        let settings = Settings {
            max_limit: size.max(60),
            ..Settings::default()
        };
        let ground = Ground::with(settings, &windows_of(size)).await;
        let size = u64::from(size);
        let id = transaction(&ground.sandbox.transactions_at(LARGE)[0]);
        for path in [block(LARGE), block(LARGE - 2), block(LARGE + 1), id.clone()] {
            let truth: serde_json::Value =
                serde_json::from_slice(&ground.truth(&path).body).unwrap();
            let total = truth["total"].as_u64().unwrap();
            let mut stored = std::collections::BTreeSet::new();
            for limit in [1, 6, 7, 8, 20, 60] {
                for offset in [0, 6, 7, 13, 53, 59, 60, 61, 119, 120, total - 1] {
                    let page = format!("{path}?limit={limit}&offset={offset}");
                    let before = ground.requests();
                    let answer = ground.same(&page).await;
                    let cost = ground.requests() - before;
                    assert_eq!(answer.status, 200, "{page}");
                    // The windows that it touches and that are not stored. What lies past the
                    // end of a list is asked for only while that is not known.
                    let end = if stored.is_empty() {
                        offset + limit
                    } else {
                        total.min(offset + limit)
                    };
                    let needs = offset / size..end.div_ceil(size);
                    let missing = needs.filter(|window| stored.insert(*window)).count() as u64;
                    // A transaction may come from its block's windows.
                    let is_derived = path == id && cost == 0;
                    assert!(
                        cost == missing || is_derived,
                        "{page}: {cost}, not {missing}"
                    );
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
        let truth = sandbox.answer(&page);
        assert!(client.answer("GET").await.body == truth.body, "{page}");
    }
    assert_eq!(targets(&upstream), [window]);
}

#[tokio::test]
async fn a_page_of_more_than_sixteen_windows_is_requested_itself() {
    let ground = Ground::with(Settings::default(), &windows_of(3)).await;
    let page = |limit, offset| format!("{}?limit={limit}&offset={offset}", block(LARGE));
    ground.costs(&page(45, 1), 16).await;
    ground.costs(&page(46, 61), 1).await;
}

/// A page would be of two moments if one of its windows outlived a purge or a reorg by the
/// fetch of another.
#[tokio::test]
async fn a_window_that_was_purged_meanwhile_is_in_no_page() {
    let sandbox = Sandbox::new(Settings::default());
    let (upstream, gate) = (acting(&sandbox), Gate::new());
    let gateway = before(&upstream, "").await;
    let page = |limit, offset| format!("{}?limit={limit}&offset={offset}", block(LARGE));
    let (first, second, both) = (page(60, 0), page(60, 60), page(20, 50));
    gateway.get(&first).await;
    upstream.once(&second, reply(&sandbox, &second).behind(&gate));
    let seen = upstream.count();
    let mut client = gateway.start_get(&both).await;
    upstream.until_requests(seen + 1).await;
    gateway.purge(&format!("url={}", block(LARGE))).await;
    gate.open();
    assert_eq!(client.answer("GET").await.status, 200);
    assert_eq!(targets(&upstream), [first, second.clone(), second, both]);
}

#[tokio::test]
async fn windows_of_different_moments_are_not_joined() {
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
    let truth = sandbox.answer(&page);
    let answer = gateway.get(&page).await;
    assert!(answer.body == truth.body, "{}", answer.text());
    let again = gateway.get(&page).await;
    assert!(again.body == truth.body);
    assert!(again.must("cache-status").starts_with("ordgate; hit"));
}

/// A list that grows with each request, and is of no block.
#[tokio::test]
async fn if_windows_disagree_the_page_itself_is_fetched() {
    let upstream = crate::support::Upstream::start();
    let grown = AtomicU32::new(100);
    upstream.usually(move |seen| {
        let target = seen.target();
        if super::is_status(&target) {
            return Reply::json(r#"{"block_height":7}"#);
        }
        let numbers: Vec<u32> = target
            .split(['=', '&'])
            .filter_map(|part| part.parse().ok())
            .collect();
        let (limit, offset) = (numbers[0], numbers[1]);
        let total = grown.fetch_add(1, SeqCst);
        let items: Vec<_> = (offset..(offset + limit).min(total)).collect();
        Reply::json(format!(
            "{{\"limit\":{limit},\"offset\":{offset},\"total\":{total},\"results\":{items:?}}}"
        ))
    });
    let gateway = before(&upstream, "").await;
    let page = format!("{}?limit=60&offset=30", block(1));
    let json = gateway.get(&page).await.json();
    assert_eq!(
        (&json["results"][0], &json["results"][59]),
        (&30.into(), &89.into())
    );
    assert_eq!(targets(&upstream).last(), Some(&page));
    assert_eq!(targets(&upstream).len(), 3);
}
