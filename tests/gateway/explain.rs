//! `/explain` describes what the next request does, and the next request does it.

use ordgate::sandbox::{Sandbox, Settings};
use serde_json::Value;

use crate::chain::{RARELY, acting};
use crate::support::{Gateway, Setup, TOKEN, Upstream, encoded};

fn before(sandbox: &Sandbox) -> Gateway {
    Setup::alone().sandbox(sandbox).chain().manual().start()
}

/// Requests that the sandbox has had, but for its status paths.
fn requests(sandbox: &Sandbox) -> u64 {
    let counts = sandbox.counts();
    counts.total - counts.status
}

fn does(explained: &Value) -> &str {
    let next = &explained["next"];
    assert!(next["why"].as_str().is_some_and(|why| !why.is_empty()));
    next["does"].as_str().unwrap()
}

fn next_requests(explained: &Value) -> Vec<&str> {
    let next = &explained["next"];
    let targets = next["upstream_requests"].as_array().unwrap();
    targets
        .iter()
        .map(|target| target.as_str().unwrap())
        .collect()
}

#[tokio::test]
async fn a_token_is_explained_before_and_after_it_is_stored() {
    let sandbox = Sandbox::new(Settings::default());
    let gateway = before(&sandbox);
    gateway.until_tips_are_known().await;
    let url = "/ordinals/v1/brc-20/tokens/ORDI?unknown=1";
    let cold = gateway.explain(url).await;
    assert_eq!(cold["url"], url);
    assert_eq!(cold["route"], "brc20-token");
    assert_eq!(cold["mode"], "chain");
    assert_eq!(cold["key"], TOKEN);
    assert_eq!(cold["validates"], true);
    assert_eq!(cold["under_way"], false);
    assert_eq!(cold["stored"], Value::Null);
    assert_eq!(cold["tip"]["name"], "ordinals");
    assert_eq!(cold["tip"]["height"], sandbox.tip().height);
    assert_eq!(does(&cold), "fetch");
    assert_eq!(next_requests(&cold), [TOKEN]);
    assert_eq!(requests(&sandbox), 0, "it sends no request");
    assert_eq!(
        cold,
        gateway.explain(url).await,
        "nor does it change anything"
    );

    let answer = gateway.get(url).await;
    gateway.advance(2000);
    let warm = gateway.explain(url).await;
    let stored = &warm["stored"];
    assert_eq!(stored["status"], 200);
    assert_eq!(stored["bytes"], answer.body.len());
    assert_eq!(stored["etag"], answer.must("etag"));
    assert_eq!(stored["content_type"], answer.must("content-type"));
    assert_eq!(stored["class"], "live");
    assert_eq!(stored["age_seconds"], 2.0);
    assert_eq!(stored["lifetime_seconds"], 600.0);
    assert_eq!(stored["received"], gateway.date(-2));
    assert_eq!(stored["epoch"]["stored"], stored["epoch"]["present"]);
    assert_eq!(stored["freshness"]["is"], "fresh");
    assert!(stored["heights"]["from"].is_u64(), "of its deploy");
    assert_eq!(does(&warm), "hit");
    assert_eq!(next_requests(&warm), [""; 0]);

    sandbox.advance(1);
    assert!(gateway.probe(0).await);
    let stale = gateway.explain(url).await;
    assert_eq!(stale["stored"]["freshness"]["is"], "stale");
    assert_eq!(
        stale["stored"]["freshness"]["usable_if_upstream_fails"],
        true
    );
    assert_ne!(
        stale["stored"]["epoch"]["stored"],
        stale["stored"]["epoch"]["present"]
    );
    assert_eq!(does(&stale), "fetch");
    assert!(
        stale["next"]["why"]
            .as_str()
            .unwrap()
            .contains("the stored response is served")
    );
    assert_eq!(requests(&sandbox), 1);
}

#[tokio::test]
async fn refused_urls_are_explained() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream).chain().start();
    #[rustfmt::skip]
    let rows = [
        ("/nowhere", "refuse with 404", "/runes/v1/blocks/{block}/activity"),
        ("https://x.example", "refuse with 404", "/runes/v1/"),
        ("/openapi.json", "answer itself", "ordgate's own"),
        ("/runes/v1/blocks/x/activity", "refuse with 400", "\"x\" came"),
        ("/runes/v1/blocks/1/activity?limit=0", "refuse with 400", "\"0\" came"),
    ];
    for (url, next, words) in rows {
        let explained = gateway.explain(url).await;
        assert_eq!(does(&explained), next, "{url}");
        let why = explained["next"]["why"].as_str().unwrap();
        assert!(why.contains(words), "{url}: {why}");
        let path = match url.strip_prefix("https://x.example") {
            Some(_) => "/",
            None => url,
        };
        let status = gateway.get(path).await.status.to_string();
        assert!(
            next.ends_with(&status) || status == "200",
            "{url}: {status}"
        );
    }
    let one = encoded(TOKEN);
    let twice = format!("?url={one}&url={one}");
    for (query, words) in [
        ("", "url must be"),
        ("?url=nowhere", "\"nowhere\" came"),
        ("?url=%zz", "percent-encoded"),
        (
            "?url=/runes/v1/blocks/1/activity?limit=5&offset=3",
            "given once and alone",
        ),
        (&twice, "once"),
    ] {
        let answer = gateway.admin(&format!("/explain{query}")).await;
        assert_eq!(answer.status, 400, "{query}");
        assert_eq!(answer.must("content-type"), "application/problem+json");
        let problem = answer.json();
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains(words), "{query}: {detail}");
    }
}

#[tokio::test]
async fn the_next_request_does_what_was_explained() {
    let sandbox = Sandbox::new(Settings::default());
    let upstream = acting(&sandbox);
    // A probe by the clock would be among the requests that are counted.
    let setup = Setup::before(&upstream).chain().config(RARELY);
    let gateway = setup.manual().start();
    gateway.until_tips_are_known().await;
    let mut random = 1_u64;
    let mut below = |bound: usize| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        usize::try_from(random >> 33).unwrap() % bound
    };
    let mut seen = std::collections::BTreeMap::new();
    let mut client = gateway.client().await;
    for round in 0..400 {
        if round % 20 == 19 {
            sandbox.advance(1);
            for tip in [0, 1] {
                assert!(gateway.probe(tip).await);
            }
        }
        let height = sandbox.tip().height - u32::try_from(below(9)).unwrap();
        let block = match below(2) {
            0 => height.to_string(),
            _ => sandbox.hash_at(height).unwrap(),
        };
        let txs = sandbox.transactions_at(height);
        let query = format!("limit={}&offset={}", 1 + below(60), 10 * below(10));
        let url = match below(8) {
            0 => ["ordi", "pepe", "nobody"][below(3)].to_owned(),
            1 | 2 if !txs.is_empty() => {
                format!("/runes/v1/transactions/{}/activity", txs[below(txs.len())])
            }
            3 => format!("/runes/v1/blocks/{block}/activity?{query}&operation_type=mint"),
            _ => format!("/runes/v1/blocks/{block}/activity?{query}"),
        };
        let url = match url.starts_with('/') {
            true => url,
            false => format!("/ordinals/v1/brc-20/tokens/{url}"),
        };
        let explained = gateway.explain(&url).await;
        let before = upstream.count();
        let answer = client.get(&url).await;
        let mut asked = upstream.targets().split_off(before);
        let mut expected: Vec<_> = next_requests(&explained)
            .into_iter()
            .map(str::to_owned)
            .collect();
        asked.sort_unstable();
        expected.sort_unstable();
        assert_eq!(asked, expected, "{round}: {url}: {explained:#}");
        let hit = answer.must("cache-status").starts_with("ordgate; hit");
        let does = does(&explained).to_owned();
        assert_eq!(hit, does != "fetch", "{round}: {url}: {explained:#}");
        *seen.entry(does).or_insert(0) += 1;
    }
    // All of it has come up.
    for does in ["hit", "cut from stored windows", "fetch"] {
        assert!(seen.contains_key(does), "{seen:?}");
    }
}
