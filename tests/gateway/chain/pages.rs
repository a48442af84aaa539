//! Pages that are cut from windows equal the upstream's, and most need no request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use http::{HeaderMap, Method};
use ordgate::sandbox::{Fault, FaultKind, Sandbox, Settings};

use super::{Ground, acting, before, block, probe_all, reply, targets, transaction};
use crate::support::gateway::shipped_routes;
use crate::support::{Gate, Reply, until};

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
async fn pages_of_one_operation_are_cut_from_its_windows() {
    let ground = Ground::new().await;
    for operation in ["etching", "mint", "burn", "send", "receive"] {
        for (limit, offset, cost) in [(20, 0, 1), (60, 0, 0), (5, 17, 0), (20, 40, 0)] {
            let page = format!(
                "{}?limit={limit}&offset={offset}&operation_type={operation}",
                block(LARGE)
            );
            ground.costs(&page, cost).await;
            ground.costs(&page, 0).await;
        }
    }
    // They are lists of their own.
    ground.costs(&block(LARGE), 1).await;
}

#[tokio::test]
async fn a_page_past_the_end_of_a_known_list_is_a_hit() {
    let ground = Ground::new().await;
    for height in [LARGE + 4, LARGE] {
        let path = block(height);
        let total = total(&ground, &path);
        let first = ground.costs(&path, 1).await;
        for offset in [
            total,
            total + 1,
            total.next_multiple_of(60),
            1_000_000,
            (1 << 53) - 1,
        ] {
            for limit in [1, 20, 60] {
                let page = format!("{path}?limit={limit}&offset={offset}");
                let answer = ground.costs(&page, 0).await;
                assert!(answer.text().contains("\"total\":0,\"results\":[]"));
                assert_eq!(answer.must("cache-control"), first.must("cache-control"));
            }
        }
    }
}

#[tokio::test]
async fn two_windows_are_fetched_at_once() {
    let sandbox = Sandbox::new(Settings::default());
    let (upstream, gate) = (acting(&sandbox), Gate::new());
    let gateway = before(&upstream, "").await;
    let window = |offset| format!("{}?limit=60&offset={offset}", block(LARGE));
    for offset in [60, 120] {
        upstream.once(
            &window(offset),
            reply(&sandbox, &window(offset)).behind(&gate),
        );
    }
    let page = format!("{}?limit=60&offset=100", block(LARGE));
    let mut clients = [gateway.client().await, gateway.client().await];
    for client in &mut clients {
        client.send_request("GET", &page, &[]).await;
    }
    // Neither is answered until both are requested.
    until("both are asked", || targets(&upstream).len() == 2).await;
    let mut asked = targets(&upstream);
    asked.sort();
    assert_eq!(asked, [window(120), window(60)]);
    gate.open();
    let truth = sandbox.answer(&Method::GET, &page, &HeaderMap::new());
    for client in &mut clients {
        let answer = client.answer("GET").await;
        assert!(answer.body == truth.body);
        let status = answer.must("cache-status");
        assert!(status.starts_with("ordgate; fwd=uri-miss; fwd-status=200; stored"));
    }
    assert_eq!(targets(&upstream).len(), 2);
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

#[tokio::test]
async fn an_error_in_one_of_two_windows_keeps_the_other() {
    let ground = Ground::new().await;
    let page = format!("{}?limit=60&offset=30", block(LARGE));
    ground.costs(&block(LARGE), 1).await;
    ground
        .sandbox
        .fault(Fault::once(FaultKind::Garbage).on("/runes/v1/blocks"));
    let error = ground.gateway.get(&page).await;
    assert_eq!(error.status, 502);
    error.problem();
    // The stored window is kept, and the other is requested again.
    ground.costs(&page, 1).await;
    ground.costs(&page, 0).await;
}

#[tokio::test]
async fn the_stale_page_is_served_if_a_window_fails() {
    let ground = Ground::with(
        Settings {
            blocks: 174,
            ..Settings::default()
        },
        "",
    )
    .await;
    let page = format!("{}?limit=60&offset=30", block(ground.tip()));
    let old = ground.same(&page).await;
    ground.sandbox.advance(1);
    ground.probe().await;
    // Both windows, and what would prove that they still stand.
    let broken = Fault::once(FaultKind::Garbage)
        .times(3)
        .on("/runes/v1/blocks");
    ground.sandbox.fault(broken);
    let stale = ground.gateway.get(&page).await;
    assert_eq!((stale.status, stale.body), (200, old.body));
    assert!(
        stale
            .fields
            .iter()
            .any(|(_, value)| value.ends_with("detail=stale-if-error"))
    );
}

#[tokio::test]
async fn a_head_request_is_answered_from_windows() {
    let ground = Ground::new().await;
    let page = format!("{}?limit=60&offset=30", block(LARGE));
    let head = ground.gateway.request("HEAD", &page, &[]).await;
    assert_eq!(
        head.number("content-length"),
        ground.truth(&page).body.len() as u64
    );
    assert_eq!(ground.requests(), 2);
    let get = ground.costs(&page, 0).await;
    assert_eq!(get.must("etag"), head.must("etag"));
}

#[tokio::test]
async fn the_envelope_is_the_upstreams() {
    // Its members have another order, and blanks between them.
    let upstream = crate::support::Upstream::start();
    upstream.usually(|seen| match super::for_status(seen) {
        true => Reply::json(r#"{"block_height":7}"#),
        false => Reply::json(
            "{ \"results\" : [ 1, 2 ,3 ],\n\"total\": 3, \"offset\" :0,\"limit\": 60 }\n",
        ),
    });
    let gateway = before(&upstream, "").await;
    let answer = gateway.get(&format!("{}?limit=2&offset=1", block(1))).await;
    assert_eq!(
        answer.text(),
        "{ \"results\" : [2 ,3],\n\"total\": 3, \"offset\" :1,\"limit\": 2 }\n"
    );
    assert_eq!(targets(&upstream).len(), 1);
    probe_all(&gateway).await;
}
