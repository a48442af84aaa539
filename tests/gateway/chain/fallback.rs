//! Upstreams whose pages cannot be used as windows: ordgate requests pages as
//! clients do, and tries windows again later.

use http::{HeaderMap, Method};
use ordgate::sandbox::{Sandbox, Settings};
use serde_json::Value;

use super::{Ground, acting, before, block, is_status, own, reply, targets, transaction};
use crate::support::gateway::shipped_routes;
use crate::support::{Gate, Gateway, Reply, Upstream};

/// The routes that have pages, by their numbers.
const TRANSACTIONS: &str = "rune-transaction-activity";
const BLOCKS: &str = "rune-block-activity";

/// Whether ordgate cuts pages of this route from windows.
fn is_sliceable(gateway: &Gateway, name: &str) -> bool {
    let status = gateway.status();
    let mut routes = status["chain"]["routes"].as_array().unwrap().iter();
    routes.find(|route| route["route"] == name).unwrap()["sliceable"] == true
}

/// The sandbox's answer with another body.
fn rewritten(sandbox: &Sandbox, target: &str, change: impl Fn(&mut Value)) -> Reply {
    let (status, fields, body) = own(sandbox, target);
    let mut body: Value = serde_json::from_slice(&body).unwrap();
    change(&mut body);
    Reply::with(status, &fields, body.to_string())
}

fn limit(target: &str) -> Option<u64> {
    let at = target.find("limit=")? + 6;
    let digits: String = target[at..]
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    digits.parse().ok()
}

/// An upstream that does something odd with windows.
type Odd = fn(&Sandbox, &str) -> Reply;

const ODD: [(&str, Odd); 5] = [
    ("caps the limit", |sandbox, target| {
        reply(sandbox, &target.replace("limit=60", "limit=50"))
    }),
    ("refuses the limit", |sandbox, target| {
        match limit(target) > Some(20) {
            true => {
                let body = r#"{"statusCode":400,"error":"Bad Request","message":"querystring/limit must be <= 20"}"#;
                Reply::with(400, "content-type: application/json\r\n", body)
            }
            false => reply(sandbox, target),
        }
    }),
    ("counts the page for the total", |sandbox, target| {
        rewritten(sandbox, target, |body| {
            body["total"] = body["results"].as_array().unwrap().len().into();
        })
    }),
    ("has another member in its envelope", |sandbox, target| {
        rewritten(sandbox, target, |body| body["next"] = "/more".into())
    }),
    ("has lists for pages", |sandbox, target| {
        rewritten(sandbox, target, |body| *body = body["results"].take())
    }),
];

fn odd(sandbox: &Sandbox, manner: Odd) -> Upstream {
    let (upstream, sandbox) = (Upstream::start(), sandbox.clone());
    upstream.usually(move |seen| match is_status(&seen.target()) {
        true => reply(&sandbox, &seen.target()),
        false => manner(&sandbox, &seen.target()),
    });
    upstream
}

/// The upstream's own page, requested as it is.
async fn plainly(gateway: &Gateway, upstream: &Upstream, target: &str) {
    let before = targets(upstream).len();
    let answer = gateway.get(target).await;
    assert_eq!(answer.status, 200, "{target}");
    assert_eq!(targets(upstream)[before..], [target.to_owned()]);
}

#[tokio::test]
async fn pages_are_requested_as_they_are_for_a_while() {
    let large = block(840_173);
    for (what, manner) in ODD {
        let sandbox = Sandbox::new(Settings::default());
        let upstream = odd(&sandbox, manner);
        let gateway = before(&upstream, "").await;
        let page = |offset: u32| format!("{large}?limit=20&offset={offset}");
        assert!(is_sliceable(&gateway, BLOCKS));
        let answer = gateway.get(&page(70)).await;
        assert_eq!(answer.status, 200, "{what}");
        let asked = targets(&upstream);
        assert_eq!(asked.last(), Some(&page(70)), "{what}: {asked:?}");
        assert!(!is_sliceable(&gateway, BLOCKS), "{what}");
        let routes = gateway.admin("/status").await.json()["chain"]["routes"].clone();
        let routes = routes.as_array().unwrap().iter();
        let mut blocks = routes.filter(|route| route["route"] == "rune-block-activity");
        assert_eq!(blocks.next().unwrap()["sliceable"], false, "{what}");
        plainly(&gateway, &upstream, &page(0)).await;
        plainly(&gateway, &upstream, &page(20)).await;
        // What comes plainly is stored as ever.
        let asked = targets(&upstream).len();
        let again = gateway.get(&page(20)).await;
        let status = again.must("cache-status");
        assert!(status.starts_with("ordgate; hit; ttl="), "{status}");
        assert_eq!(targets(&upstream).len(), asked);
        // The other route is not judged by it.
        assert!(is_sliceable(&gateway, TRANSACTIONS));

        // Tried again after a minute, then after two.
        gateway.advance(59_999);
        plainly(&gateway, &upstream, &page(140)).await;
        gateway.advance(1);
        assert!(is_sliceable(&gateway, BLOCKS));
        let before = targets(&upstream).len();
        gateway.get(&page(180)).await;
        assert!(targets(&upstream).len() > before + 1, "{what}");
        gateway.advance(119_999);
        assert!(!is_sliceable(&gateway, BLOCKS), "{what}");
        gateway.advance(1);
        // Now it answers.
        let own = sandbox.clone();
        upstream.usually(move |seen| reply(&own, &seen.target()));
        let before = targets(&upstream).len();
        gateway.get(&page(240)).await;
        assert_eq!(
            targets(&upstream)[before..],
            [format!("{large}?limit=60&offset=240")]
        );
        gateway.get(&page(270)).await;
        let asked = targets(&upstream)[before..].to_vec();
        assert_eq!(asked.len(), 1, "{what}: {asked:?}");
        // What came in place of a window before is not taken for one.
        let page = page(190);
        let truth = sandbox.answer(&Method::GET, &page, &HeaderMap::new());
        assert!(gateway.get(&page).await.body == truth.body, "{what}");
        assert!(is_sliceable(&gateway, BLOCKS));
    }
}

#[tokio::test]
async fn a_refused_path_is_refused_for_every_page() {
    // The reference refuses a hash that does not begin with zeros, whatever the
    // page.
    let ground = Ground::with(Settings::default(), "chain.hash_zeros = 0").await;
    let refused = block("ab".repeat(32));
    for _ in 0..3 {
        let answer = ground.costs(&refused, 1).await;
        assert_eq!(answer.status, 400);
        assert_eq!(answer.must("cache-control"), "public, max-age=1");
        assert!(is_sliceable(&ground.gateway, BLOCKS));
        let explained = ground.gateway.explain(&refused).await;
        assert_eq!(explained["next"]["does"], "hit", "{explained}");
        ground.gateway.advance(999);
        for page in ["", "?limit=60", "?limit=7&offset=4000", "?offset=90"] {
            ground.costs(&format!("{refused}{page}"), 0).await;
        }
        let head = ground.gateway.request("HEAD", &refused, &[]).await;
        assert_eq!(head.status, 400);
        ground.gateway.advance(1);
    }
    // Another list has nothing to do with it, be it of the same block.
    ground
        .costs(&format!("{refused}?operation_type=mint"), 1)
        .await;
    // Nor is the first page the one that is asked for first.
    let other = block("cd".repeat(32));
    ground.costs(&format!("{other}?offset=70"), 1).await;
    ground.costs(&format!("{other}?offset=70"), 0).await;
    ground.costs(&other, 0).await;
    let purged = ground.gateway.purge(&format!("url={other}")).await;
    assert_eq!(purged.status, 200);
    ground.costs(&format!("{other}?offset=70"), 1).await;
    let page = |height: u32, offset: u32| format!("{}?limit=20&offset={offset}", block(height));
    ground.costs(&page(840_173, 0), 1).await;
    ground.costs(&page(840_173, 20), 0).await;
}

/// A 400 with a message, which is JSON.
fn refusal(message: &str) -> Reply {
    let body = format!(r#"{{"statusCode":400,"error":"Bad Request","message":{message}}}"#);
    Reply::with(400, "content-type: application/json\r\n", body)
}

#[tokio::test]
async fn a_refused_window_is_not_the_answer_for_the_page() {
    let list = block(840_173);
    for (message, requests) in [
        // The page is refused: it is requested itself.
        (r#""querystring/limit must be <= 10""#, 2),
        (r#""querystring/offset must be >= 100""#, 2),
        (r#""querystring.limit should be <= 10""#, 2),
        (
            r#""params/block must match pattern, querystring/limit must be <= 10""#,
            2,
        ),
        // It is unknown what is refused.
        (r#""Client Error""#, 2),
        (r#""page size is too large""#, 2),
        ("400", 2),
        ("null", 2),
        (r#"["params/block"]"#, 2),
        // About something that all pages have in common.
        (r#""params/block must match a schema in anyOf""#, 1),
        (r#""params must have required property 'block'""#, 1),
        (
            r#""querystring/operation_type must be equal to one of the allowed values""#,
            1,
        ),
    ] {
        let upstream = Upstream::start();
        upstream.usually(move |seen| match is_status(&seen.target()) {
            true => Reply::json(r#"{"block_height":840199}"#),
            false => refusal(message),
        });
        let gateway = before(&upstream, "").await;
        for second in 1..=2 {
            for _poll in 0..3 {
                let answer = gateway.get(&list).await;
                assert_eq!(answer.status, 400, "{message}");
                assert_eq!(targets(&upstream).len(), requests * second, "{message}");
            }
            // The page was refused as well, so it was not the window.
            assert!(is_sliceable(&gateway, BLOCKS), "{message}");
            gateway.advance(1000);
        }
    }
}

#[tokio::test]
async fn a_refused_path_is_requested_once_for_all_clients() {
    let upstream = Upstream::start();
    let gate = Gate::new();
    let held = gate.clone();
    upstream.usually(move |seen| match is_status(&seen.target()) {
        true => Reply::json(r#"{"block_height":840199}"#),
        false => refusal(r#""params/block must match a schema in anyOf""#).behind(&held),
    });
    let gateway = before(&upstream, "chain.hash_zeros = 0").await;
    let list = block("ab".repeat(32));
    let mut pending = Vec::new();
    for page in ["", "?limit=60", "?offset=20", "?limit=7"] {
        pending.push(gateway.start_get(&format!("{list}{page}")).await);
    }
    gateway.until_all_is_read().await;
    gate.open();
    for mut client in pending {
        assert_eq!(client.answer("GET").await.status, 400);
    }
    assert_eq!(targets(&upstream), [format!("{list}?limit=60&offset=0")]);
}

#[tokio::test]
async fn a_larger_window_than_the_upstream_allows_still_serves_pages() {
    let routes = shipped_routes();
    let routes = routes.replace("upstream_page = 60", "upstream_page = 1000");
    let sandbox = Sandbox::new(Settings::default());
    let upstream = acting(&sandbox);
    let gateway = before(&upstream, &routes).await;
    let id = sandbox.transactions_at(840_173)[0].clone();
    for path in [block(840_173), transaction(&id)] {
        for (limit, offset) in [(60, 0), (60, 30), (20, 60)] {
            let page = format!("{path}?limit={limit}&offset={offset}");
            let truth = sandbox.answer(&Method::GET, &page, &HeaderMap::new());
            let answer = gateway.get(&page).await;
            assert_eq!(answer.status, 200, "{page}: {}", answer.text());
            assert!(answer.body == truth.body, "{page}");
        }
    }
    // One window was tried on each route.
    let tried = targets(&upstream)
        .iter()
        .filter(|t| t.contains("limit=1000"))
        .count();
    assert_eq!(tried, 2);
}

#[tokio::test]
async fn a_window_that_is_too_large_to_store_is_not_used() {
    let routes = shipped_routes();
    let routes = routes.replace("upstream_page = 60", "upstream_page = 1000");
    let settings = Settings {
        max_limit: 1000,
        ..Settings::default()
    };
    let config = format!("upstream.max_body_bytes = \"100KiB\"\n{routes}");
    let ground = Ground::with(settings, &config).await;
    // The window is tried, and then the page is requested.
    ground.costs(&block(840_173), 2).await;
    assert!(!is_sliceable(&ground.gateway, BLOCKS));
    ground
        .costs(&format!("{}?offset=20", block(840_173)), 1)
        .await;
}

#[tokio::test]
async fn a_404_is_an_answer() {
    let upstream = Upstream::start();
    upstream.usually(|seen| match is_status(&seen.target()) {
        true => Reply::json(r#"{"block_height":840199}"#),
        false => Reply::status(404, r#"{"error":"Not found"}"#),
    });
    let gateway = before(&upstream, "").await;
    for height in [840_199, 840_000] {
        let answer = gateway.get(&block(height)).await;
        assert_eq!(
            (answer.status, answer.text()),
            (404, r#"{"error":"Not found"}"#)
        );
        // It is not an answer of the API, so it decides nothing.
        assert_eq!(
            answer.must("cache-control"),
            "public, max-age=1",
            "{height}"
        );
    }
    assert!(is_sliceable(&gateway, BLOCKS));
    assert_eq!(targets(&upstream).len(), 2);
}
