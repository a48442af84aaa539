//! An upstream that is the wrong server: its web framework answers that there is no
//! such route, which the API never does. Which answers are such is in `upstream::answer`.

use crate::support::upstream::usual_body;
use crate::support::{Process, Reply, Setup, Upstream, token};

/// What the reference upstream's framework answers where it has no route.
fn no_route(target: &str) -> Reply {
    let message = format!("Route GET:{target} not found");
    Reply::status(
        404,
        format!(r#"{{"message":"{message}","error":"Not Found","statusCode":404}}"#),
    )
}

const MODES: [&str; 4] = [
    "mode = \"chain\", stale_if_error = \"5m\"",
    "mode = \"override\", times = { 200 = \"10s\", 4xx = \"10s\" }, stale_if_error = \"5m\"",
    "mode = \"respect\", stale_if_error = \"5m\"",
    "mode = \"off\"",
];

#[tokio::test]
async fn a_wrong_upstream_gets_502_which_is_not_stored_and_opens_no_breaker() {
    for mode in MODES {
        let upstream = Upstream::start();
        let route = format!(
            "chain.tip.ordinals.every = \"1h\"\n[[route]]\nname = \"tokens\"\n\
             path = \"/ordinals/v1/brc-20/tokens/{{ticker}}\"\n\
             params.ticker = {{ type = \"ticker\" }}\ncache = {{ {mode} }}\n"
        );
        let gateway = Setup::before(&upstream).config(&route).manual().start();
        let requests = || {
            let targets = upstream.targets().into_iter();
            targets.filter(|target| target.contains("tokens")).count()
        };
        let fields = "content-type: application/json\r\ncache-control: max-age=10\r\n";
        upstream.once(&token(0), Reply::with(200, fields, r#"{"n":1}"#));
        assert_eq!(gateway.get(&token(0)).await.status, 200, "{mode}");
        upstream.usually(|seen| no_route(&seen.target()));
        gateway.advance(31_000);
        if !mode.contains("off") {
            let stale = gateway.get(&token(0)).await;
            assert_eq!((stale.status, stale.text()), (200, r#"{"n":1}"#), "{mode}");
            let detail = stale.must("cache-status");
            assert!(detail.contains("stale-if-error"), "{mode}: {detail}");
            gateway.advance(300_000);
        }
        let before = requests();
        for number in 0..12 {
            let answer = gateway.get(&token(number)).await;
            assert_eq!(answer.status, 502, "{mode}: {}", answer.text());
            let expected = "ordgate; error=destination_not_found; received-status=404";
            assert_eq!(answer.must("proxy-status"), expected);
            let problem = answer.problem().to_string();
            assert!(problem.contains("has no such path"), "{problem}");
            // The upstream is the operator's to know.
            for secret in [
                "127.0.0.1",
                &upstream.address().port().to_string(),
                "Route GET",
            ] {
                assert!(!problem.contains(secret), "{secret} in {problem}");
            }
        }
        assert_eq!(requests() - before, 12, "{mode}: each target once");
        let condition = gateway.status()["upstream"]["endpoints"][0]["condition"].clone();
        assert_ne!(condition, "broken", "{mode}");
        // What is the API's own passes as it is.
        gateway.advance(60_000);
        let own = r#"{"error":"Not found"}"#;
        upstream.once(&token(20), Reply::status(404, own));
        upstream.usually(|seen| Reply::json(usual_body(&seen.target())));
        let answer = gateway.get(&token(20)).await;
        assert_eq!((answer.status, answer.text()), (404, own), "{mode}");
        assert_eq!(gateway.get(&token(1)).await.status, 200, "{mode}");
    }
}

#[tokio::test]
async fn the_first_line_says_why_it_is_not_ready() {
    let upstream = Upstream::start();
    upstream.usually(|seen| no_route(&seen.target()));
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
