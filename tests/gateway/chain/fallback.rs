//! Upstreams whose pages cannot be used as windows: ordgate requests pages as
//! clients do.

use ordgate::sandbox::{Sandbox, Settings};
use serde_json::Value;

use super::{before, block, is_status, own, reply, targets};
use crate::support::{Reply, Upstream};

/// The sandbox's answer with another body.
fn rewritten(sandbox: &Sandbox, target: &str, change: impl Fn(&mut Value)) -> Reply {
    let (status, fields, body) = own(sandbox, target);
    let mut body: Value = serde_json::from_slice(&body).unwrap();
    change(&mut body);
    Reply::with(status, &fields, body.to_string())
}

/// A 400 with a message, which is JSON.
fn refusal(message: &str) -> Reply {
    let body = format!(r#"{{"statusCode":400,"error":"Bad Request","message":{message}}}"#);
    Reply::with(400, "content-type: application/json\r\n", body)
}

/// An upstream that does something odd with windows.
type Odd = fn(&Sandbox, &str) -> Reply;

const ODD: [(&str, Odd); 5] = [
    ("caps the limit", |sandbox, target| {
        reply(sandbox, &target.replace("limit=60", "limit=50"))
    }),
    ("refuses the limit", |sandbox, target| {
        match target.contains("limit=60") {
            true => refusal(r#""querystring/limit must be <= 20""#),
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

#[tokio::test]
async fn pages_are_requested_as_they_are_where_windows_cannot_be_cut() {
    let page = |offset: u32| format!("{}?limit=20&offset={offset}", block(840_173));
    for (what, manner) in ODD {
        let sandbox = Sandbox::new(Settings::default());
        let upstream = odd(&sandbox, manner);
        let gateway = before(&upstream, "").await;
        // What the upstream is asked for a page.
        let asked = async |offset| {
            let before = targets(&upstream).len();
            let answer = gateway.get(&page(offset)).await;
            assert_eq!(answer.status, 200, "{what}");
            targets(&upstream).split_off(before)
        };
        assert_eq!(asked(70).await.last(), Some(&page(70)), "{what}");
        assert_eq!(asked(70).await, [""; 0], "what comes so is stored as ever");
        // What was stored in place of the window is not requested again.
        assert_eq!(asked(80).await, [page(80)], "{what}");
        let own = sandbox.clone();
        upstream.usually(move |seen| reply(&own, &seen.target()));
        let window = format!("{}?limit=60&offset=240", block(840_173));
        assert_eq!(asked(240).await, [window]);
        assert_eq!(asked(270).await, [""; 0], "{what}");
    }
}

/// Which refusals hold for every page stands in `upstream::answer`.
#[tokio::test]
async fn a_refused_window_is_not_the_answer_for_the_page() {
    for (message, requests) in [
        // The window is refused, and so is the page, which is requested itself.
        (r#""querystring/limit must be <= 10""#, 2),
        // About something that all pages have in common.
        (r#""params/block must match a schema in anyOf""#, 1),
    ] {
        let upstream = Upstream::start();
        upstream.usually(move |seen| match is_status(&seen.target()) {
            true => Reply::json(r#"{"block_height":840199}"#),
            false => refusal(message),
        });
        let gateway = before(&upstream, "").await;
        for second in 1..=2 {
            for _poll in 0..3 {
                let answer = gateway.get(&block(840_173)).await;
                assert_eq!(answer.status, 400, "{message}");
                assert_eq!(targets(&upstream).len(), requests * second, "{message}");
            }
            gateway.advance(1000);
        }
    }
}
