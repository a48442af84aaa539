//! Upstreams whose pages cannot be used as windows: ordgate requests pages as
//! clients do, and tries windows again later.

use http::{HeaderMap, Method};
use ordgate::sandbox::{Sandbox, Settings};
use serde_json::Value;

use super::{before, block, is_status, own, reply, targets};
use crate::support::{Gateway, Reply, Upstream};

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
