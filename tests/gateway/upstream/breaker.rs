//! The breaker: an upstream that does not answer gets no requests until its tip answers. No
//! client can open it by its choice of targets.

use super::{endpoint, metric};
use crate::support::upstream::{Seen, refusing, usual_body};
use crate::support::{Answer, Gateway, Reply, Setup, TOKEN, Upstream, token, until};

/// Nothing is sent again, and nobody waits in the queue.
const AT_ONCE: &str = "upstream.queue_timeout = \"20ms\"\nupstream.retry = false";

async fn is_open(gateway: &Gateway) -> bool {
    let endpoint = endpoint(gateway, 0);
    let url = endpoint["url"].as_str().unwrap();
    let labels = format!("{{upstream=\"default\",endpoint=\"{url}\",condition=\"broken\"}}");
    let open = metric(gateway, &format!("ordgate_upstream_condition{labels}")).await;
    assert_eq!(open == "1", endpoint["condition"] == "broken");
    open == "1"
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
async fn connections_that_are_closed_or_refused_open_the_breaker_and_stale_answers_are_served() {
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
    let (_held, address) = refusing();
    let setup = Setup::at(&format!("http://{address}"));
    let gateway = setup.config(AT_ONCE).manual().start();
    for number in 0..10 {
        assert_eq!(gateway.get(&token(number)).await.status, 502);
    }
    assert_refused(&gateway.get(TOKEN).await);
}

#[tokio::test]
async fn what_targets_answer_does_not_open_the_breaker() {
    let cut = "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{";
    let rows = [
        ("500", Reply::status(500, "{}")),
        ("503", Reply::with(503, "retry-after: 9\r\n", "{}")),
        ("silent", Reply::nothing().hang()),
        ("truncated", Reply::raw(cut).close()),
        ("no JSON", Reply::with(200, "", "<html>")),
    ];
    for (name, reply) in rows {
        let upstream = Upstream::start();
        let times = "upstream.first_byte_timeout = \"300ms\"\nupstream.max_in_flight = 100";
        let setup = Setup::before(&upstream).config(AT_ONCE);
        let gateway = setup.config(times).start();
        upstream.always(reply);
        for number in 0..12 {
            assert_ne!(gateway.get(&token(number)).await.status, 200, "{name}");
        }
        assert!(!is_open(&gateway).await, "{name}");
        // One target that always fails changes nothing for others.
        upstream.always(Reply::json("{}"));
        assert_eq!(gateway.get(&token(50)).await.status, 200, "{name}");
    }
}

/// Before what answers status paths, and closes the connections of others, unless it is well.
async fn before_tips(upstream: &Upstream, every: &str) -> Gateway {
    upstream.usually(status_only);
    let tips = format!("chain.tip = {{ ordinals.every = \"{every}\", runes.every = \"{every}\" }}");
    let setup = Setup::before(upstream).chain().config(AT_ONCE);
    let gateway = setup.config(&tips).start();
    gateway.until_tips_are_known().await;
    gateway
}

fn status_only(seen: &Seen) -> Reply {
    match seen.target().ends_with("/v1/") {
        true => Reply::json("{\"block_height\":840000}"),
        false => Reply::nothing().close(),
    }
}

#[tokio::test]
async fn an_answer_of_the_tip_closes_the_breaker() {
    let upstream = Upstream::start();
    let gateway = before_tips(&upstream, "100ms").await;
    let condition = || endpoint(&gateway, 0)["condition"].clone();
    upstream.always(Reply::nothing().close());
    until("no connection lasts", || condition() == "broken").await;
    upstream.usually(|seen| match seen.target().ends_with("/v1/") {
        true => status_only(seen),
        false => Reply::json(usual_body(&seen.target())),
    });
    until("the tip has answered", || condition() == "sound").await;
    assert_eq!(gateway.get(&token(1)).await.status, 200);
}

/// A client may choose targets whose connections are closed.
#[tokio::test]
async fn while_the_tip_answers_the_breaker_does_not_open() {
    let upstream = Upstream::start();
    let gateway = before_tips(&upstream, "10m").await;
    let asked = upstream.count();
    for number in 0..100 {
        assert_eq!(gateway.get(&token(number)).await.status, 502, "{number}");
        assert_eq!(endpoint(&gateway, 0)["condition"], "sound", "{number}");
    }
    until("the tip is asked for", || upstream.count() > asked + 100).await;
}
