//! An upstream that is the wrong server: its web framework answers that there is no
//! such route, which the API never does.

use crate::support::upstream::usual_body;
use crate::support::{Gateway, Process, Reply, Setup, TOKEN, Upstream, token};

/// What the reference upstream's framework answers where it has no route.
fn no_route(target: &str) -> Reply {
    let body = format!(
        r#"{{"message":"Route GET:{target} not found","error":"Not Found","statusCode":404}}"#
    );
    Reply::status(404, body)
}

/// An upstream that has no route at all.
fn wrong() -> Upstream {
    let upstream = Upstream::start();
    upstream.usually(|seen| no_route(&seen.target()));
    upstream
}

/// A route for tokens in a cache mode.
fn tokens(cache: &str) -> String {
    format!(
        "[[route]]\nname = \"tokens\"\npath = \"/ordinals/v1/brc-20/tokens/{{ticker}}\"\n\
         params.ticker = {{ type = \"ticker\" }}\ncache = {{ {cache} }}\n"
    )
}

const CHAIN: &str = "mode = \"chain\", stale_if_error = \"5m\"";
const OVERRIDE: &str =
    "mode = \"override\", times = { 200 = \"10s\", 4xx = \"10s\" }, stale_if_error = \"5m\"";
const RESPECT: &str = "mode = \"respect\", stale_if_error = \"5m\"";
const OFF: &str = "mode = \"off\"";

/// A gateway with a clock of its own; without probes, so that what is asked can
/// be counted.
fn gateway(upstream: &Upstream, cache: &str) -> Gateway {
    let setup = Setup::before(upstream).config(&tokens(cache));
    setup
        .config("chain.tip.ordinals.every = \"1h\"")
        .manual()
        .start()
}

/// Requests for anything but a tip's status.
fn requests(upstream: &Upstream) -> usize {
    let mut targets = upstream.targets();
    targets.retain(|target| !target.ends_with("/v1/"));
    targets.len()
}

#[tokio::test]
async fn a_wrong_upstream_gets_502_which_is_not_stored_and_opens_no_breaker() {
    for mode in [CHAIN, OVERRIDE, RESPECT, OFF] {
        let upstream = wrong();
        let gateway = gateway(&upstream, mode);
        for number in 0..60 {
            let answer = gateway.get(&token(number)).await;
            assert_eq!(answer.status, 502, "{mode}: {}", answer.text());
            assert_eq!(
                answer.must("proxy-status"),
                "ordgate; error=destination_not_found; received-status=404"
            );
            let problem = answer.problem().to_string();
            assert!(problem.contains("has no such path"), "{problem}");
            // The upstream is the operator's to know.
            let port = upstream.address().port().to_string();
            for secret in ["127.0.0.1", &*port, "Route GET", "/ordinals"] {
                assert!(!problem.contains(secret), "{secret} in {problem}");
            }
        }
        assert_eq!(requests(&upstream), 60, "{mode}: each target once");
        let head = gateway.request("HEAD", &token(0), &[]).await;
        assert_eq!(head.status, 502, "{mode}");
        let status = gateway.admin("/status").await.json();
        let endpoint = &status["upstream"]["endpoints"][0];
        assert_ne!(endpoint["condition"], "broken", "{status}");
        gateway.advance(60_000);
        upstream.usually(|seen| Reply::json(usual_body(&seen.target())));
        assert_eq!(gateway.get(&token(0)).await.status, 200, "{mode}");
    }
}

#[tokio::test]
async fn the_first_line_says_why_it_is_not_ready() {
    let upstream = wrong();
    let flags = ["serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    let url = upstream.flags();
    let flags: Vec<_> = flags
        .into_iter()
        .chain(url.iter().map(|flag| &**flag))
        .collect();
    let line = Process::start(&flags, &[]).line();
    let why = format!(
        "is not ready: the tip \"ordinals\" of the upstream \"default\" has never been known: {}/ordinals/v1/ answers that there is no such route",
        upstream.url()
    );
    assert!(
        line.starts_with("ordgate is listening on http://127.0.0.1:"),
        "{line}"
    );
    assert!(line.contains(&why), "{line}");
}

#[tokio::test]
async fn a_stale_response_is_served_instead() {
    for mode in [CHAIN, OVERRIDE, RESPECT] {
        let upstream = Upstream::start();
        let gateway = gateway(&upstream, mode);
        let fields = "content-type: application/json\r\ncache-control: max-age=10\r\n";
        upstream.once(TOKEN, Reply::with(200, fields, r#"{"n":1}"#));
        assert_eq!(gateway.get(TOKEN).await.status, 200, "{mode}");
        upstream.usually(|seen| no_route(&seen.target()));
        gateway.advance(31_000);
        for _ in 0..2 {
            let stale = gateway.get(TOKEN).await;
            assert_eq!((stale.status, stale.text()), (200, r#"{"n":1}"#), "{mode}");
            let cache_status = stale.must("cache-status");
            assert!(
                cache_status.contains("stale-if-error"),
                "{mode}: {cache_status}"
            );
        }
        gateway.advance(300_000);
        assert_eq!(gateway.get(TOKEN).await.status, 502, "{mode}: too old");
    }
}

#[tokio::test]
async fn similar_answers_are_forwarded() {
    for body in [
        r#"{"error":"Not found"}"#,
        r#"{"message":"Route not found","error":"Not Found"}"#,
        r#"{"statusCode":404,"error":"Not Found"}"#,
        r#"{"statusCode":"404","message":"Route not found"}"#,
        r#"{"statusCode":404,"message":null}"#,
        r#"{"statusCode":400,"message":"Bad Request"}"#,
        r#"{"body":{"statusCode":404,"message":"Route not found"}}"#,
        r#"[{"statusCode":404,"message":"Route not found"}]"#,
        r#""statusCode""#,
    ] {
        for mode in [CHAIN, OVERRIDE, RESPECT, OFF] {
            let upstream = Upstream::start();
            upstream.always(Reply::status(404, body));
            let gateway = gateway(&upstream, mode);
            let answer = gateway.get(TOKEN).await;
            assert_eq!((answer.status, answer.text()), (404, body), "{mode}");
        }
    }
    // Of another status it is the API's own.
    let body = r#"{"statusCode":400,"error":"Bad Request","message":"params/ticker"}"#;
    let upstream = Upstream::start();
    upstream.always(Reply::status(400, body));
    let answer = gateway(&upstream, CHAIN).get(TOKEN).await;
    assert_eq!((answer.status, answer.text()), (400, body));
}
