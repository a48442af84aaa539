//! The breaker: an upstream that does not answer gets no requests until its tip answers. No
//! client can open it by its choice of targets.

use super::metric;
use crate::support::upstream::{Seen, refusing, usual_body};
use crate::support::{Answer, Gateway, Reply, Setup, TOKEN, Upstream, token, until};

/// Nothing is sent again, and nobody waits in the queue.
const AT_ONCE: &str = r#"
    upstream.queue_timeout = "20ms"
    upstream.retry = false
"#;

async fn is_open(gateway: &Gateway) -> bool {
    let status = gateway.admin("/status").await.json();
    let endpoint = &status["upstream"]["endpoints"][0];
    let url = endpoint["url"].as_str().unwrap();
    let labels = format!("{{upstream=\"default\",endpoint=\"{url}\"}}");
    let open = metric(gateway, &format!("ordgate_upstream_breaker_open{labels}")).await;
    assert_eq!(open == "1.0", endpoint["condition"] == "broken");
    open == "1.0"
}

/// Checks that a request was refused because of the breaker.
fn assert_refused(answer: &Answer) {
    assert_eq!(answer.status, 503, "{answer:?}");
    let status = answer.must("proxy-status");
    assert_eq!(status, "ordgate; error=destination_unavailable");
    let detail = answer.must("cache-status");
    assert_eq!(detail, "ordgate; fwd=uri-miss; detail=breaker_open");
    assert!((1..=5).contains(&answer.number("retry-after")));
    answer.problem();
}

#[tokio::test]
async fn connections_that_are_closed_open_the_breaker_and_stale_answers_are_served() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream).config(AT_ONCE).manual().start();
    assert_eq!(gateway.get(TOKEN).await.status, 200);
    upstream.always(Reply::nothing().close());
    for number in 0..10 {
        assert!(!is_open(&gateway).await);
        assert_eq!(gateway.get(&token(number)).await.status, 502, "{number}");
    }
    assert!(is_open(&gateway).await);
    let asked = upstream.count();
    assert_refused(&gateway.get(&token(11)).await);
    gateway.advance(4_000);
    assert_eq!(gateway.get(TOKEN).await.status, 200);
    assert_eq!(upstream.count(), asked);
    // One request in five seconds tries it, and any answer ends that.
    upstream.always(Reply::status(500, "{}"));
    gateway.advance(1_000);
    assert_eq!(gateway.get(&token(12)).await.status, 502);
    assert!(!is_open(&gateway).await);
}

#[tokio::test]
async fn refused_connections_open_the_breaker() {
    let (_held, address) = refusing();
    let setup = Setup::at(&format!("http://{address}"));
    let gateway = setup.config(AT_ONCE).manual().start();
    for number in 0..10 {
        let answer = gateway.get(&token(number)).await;
        let status = answer.must("proxy-status");
        assert_eq!(status, "ordgate; error=connection_refused");
    }
    assert_refused(&gateway.get(TOKEN).await);
}

#[tokio::test]
async fn what_targets_answer_does_not_open_the_breaker() {
    let rows = [
        ("500", Reply::status(500, "{}")),
        ("503", Reply::with(503, "retry-after: 9\r\n", "{}")),
        ("404", Reply::status(404, "{}")),
        ("silent", Reply::nothing().hang()),
        (
            "truncated",
            Reply::raw("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{").close(),
        ),
        ("no JSON", Reply::with(200, "", "<html>")),
    ];
    for (name, reply) in rows {
        let upstream = Upstream::start();
        let gateway = Setup::before(&upstream)
            .config(AT_ONCE)
            .config("upstream.first_byte_timeout = \"300ms\"\nupstream.max_in_flight = 100")
            .start();
        upstream.always(reply);
        for number in 0..12 {
            let answer = gateway.get(&token(number)).await;
            assert_ne!(answer.status, 200, "{name}");
        }
        assert!(!is_open(&gateway).await, "{name}");
        upstream.always(Reply::json("{}"));
        assert_eq!(gateway.get(&token(50)).await.status, 200, "{name}");
    }
}

#[tokio::test]
async fn an_answer_of_the_tip_closes_the_breaker() {
    let upstream = Upstream::start();
    let answer = |seen: &Seen| match seen.target().ends_with("/") {
        true => Reply::json("{\"block_height\":840000}"),
        false => Reply::json(usual_body(&seen.target())),
    };
    upstream.usually(answer);
    let often = "chain.tip.ordinals.every = \"100ms\"\nchain.tip.runes.every = \"100ms\"";
    let gateway = Setup::before(&upstream)
        .chain()
        .config(AT_ONCE)
        .config(often)
        .start();
    gateway.until_tips_are_known().await;
    let condition = || gateway.status()["upstream"]["endpoints"][0]["condition"].clone();
    upstream.always(Reply::nothing().close());
    until("no connection lasts", || condition() == "broken").await;
    upstream.usually(answer);
    until("the tip has answered", || condition() == "sound").await;
    assert_eq!(gateway.get(&token(1)).await.status, 200);
}

/// A client may choose targets whose connections are closed.
#[tokio::test]
async fn while_the_tip_answers_the_breaker_does_not_open() {
    let upstream = Upstream::start();
    upstream.usually(|seen: &Seen| match seen.target().ends_with("/") {
        true => Reply::json("{\"block_height\":840000}"),
        false => Reply::nothing().close(),
    });
    let seldom = "chain.tip.ordinals.every = \"10m\"\nchain.tip.runes.every = \"10m\"";
    let gateway = Setup::before(&upstream)
        .chain()
        .config(AT_ONCE)
        .config(seldom)
        .start();
    gateway.until_tips_are_known().await;
    let condition = || gateway.status()["upstream"]["endpoints"][0]["condition"].clone();
    let asked = upstream.count();
    for number in 0..100 {
        assert_eq!(gateway.get(&token(number)).await.status, 502, "{number}");
        assert_eq!(condition(), "sound", "{number}");
    }
    until("the tip is asked for", || upstream.count() > asked + 100).await;
}
