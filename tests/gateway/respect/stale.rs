//! When stale responses are served.

use super::{ALL, did, is_hit, manual, not_modified, ok};
use crate::support::upstream::refusing;
use crate::support::{Gate, Reply, Setup, Upstream, until};

#[tokio::test]
async fn must_revalidate_is_not_served_stale() {
    for (directive, is_served) in [
        ("stale-if-error=60", true),
        ("stale-if-error=60, must-revalidate", false),
        ("stale-if-error=60, proxy-revalidate", false),
        ("stale-if-error=60, no-cache", false),
        ("stale-if-error=4", false),
        ("public", false),
    ] {
        let upstream = Upstream::start();
        let gateway = manual(&upstream);
        let control = format!("cache-control: max-age=10, {directive}");
        upstream.once("/v", ok(&[&control], "body"));
        gateway.get("/v").await;
        gateway.advance(15_000);
        let ways = [
            Reply::with(500, "", "sorry"),
            Reply::with(503, "", "sorry"),
            Reply::nothing().close(),
            Reply::raw("nonsense\r\n\r\n"),
        ];
        for (at, way) in ways.into_iter().enumerate() {
            upstream.always(way);
            let answer = gateway.get("/v").await;
            let what = format!("{directive}, way {at}: {answer:?}");
            if is_served {
                assert_eq!((answer.status, answer.text()), (200, "body"), "{what}");
                assert_eq!(answer.number("age"), 15, "{what}");
                let outcome = did(&answer);
                assert_eq!(
                    outcome, "fwd=stale; ttl=-5; detail=stale-if-error",
                    "{what}"
                );
            } else if at < 2 {
                assert_eq!(answer.text(), "sorry", "{what}");
            } else {
                assert!(matches!(answer.status, 502 | 504), "{what}");
                assert!(answer.must("proxy-status").starts_with("ordgate; error="));
            }
        }
    }
}

#[tokio::test]
async fn stale_if_error_of_the_route_applies_to_all_responses() {
    let upstream = Upstream::start();
    let route = ALL.replace("\"respect\"", "\"respect\", stale_if_error = \"60s\"");
    let gateway = Setup::before(&upstream).config(&route).manual().start();
    upstream.once("/v", ok(&["cache-control: max-age=10"], "body"));
    gateway.get("/v").await;
    upstream.always(Reply::with(502, "", "sorry"));
    gateway.advance(70_000);
    assert_eq!(gateway.get("/v").await.text(), "body");
    gateway.advance(1000);
    assert_eq!(gateway.get("/v").await.text(), "sorry");
}

#[tokio::test]
async fn an_answer_that_is_no_failure_is_not_replaced_by_a_stale_response() {
    let upstream = Upstream::start();
    let gateway = manual(&upstream);
    let control = "cache-control: max-age=10, stale-if-error=60";
    upstream.once("/v", ok(&[control], "body"));
    gateway.get("/v").await;
    gateway.advance(15_000);
    for status in [404, 410, 429, 501] {
        upstream.once(
            "/v",
            Reply::with(status, "cache-control: no-store\r\n", "no"),
        );
        assert_eq!(gateway.get("/v").await.status, status);
    }
}

#[tokio::test]
async fn a_closed_port_without_a_stored_response_gets_502() {
    let (_held, address) = refusing();
    let gateway = Setup::at(&format!("http://{address}")).config(ALL).start();
    let answer = gateway.get("/v").await;
    assert_eq!(answer.status, 502);
    assert_eq!(
        answer.must("proxy-status"),
        "ordgate; error=connection_refused"
    );
    answer.problem();
}

#[tokio::test]
async fn stale_while_revalidate_serves_stale_and_validates_once() {
    let upstream = Upstream::start();
    let gateway = manual(&upstream);
    let fields = [
        "cache-control: max-age=10, stale-while-revalidate=20",
        "etag: \"one\"",
    ];
    upstream.once("/v", ok(&fields, "body"));
    gateway.get("/v").await;
    gateway.advance(15_000);
    let gate = Gate::new();
    upstream.once("/v", not_modified(&fields).behind(&gate));
    for _ in 0..5 {
        let stale = gateway.get("/v").await;
        assert_eq!((stale.text(), &*did(&stale)), ("body", "hit; ttl=-5"));
        assert_eq!(stale.number("age"), 15);
    }
    upstream.until_requests(2).await;
    let asked = upstream.seen()[1].field("if-none-match");
    assert_eq!(asked.unwrap(), "\"one\"");
    gate.open();
    let mut fresh = gateway.get("/v").await;
    while did(&fresh) != "hit; ttl=10" {
        fresh = gateway.get("/v").await;
    }
    assert_eq!(upstream.count(), 2);
    gateway.advance(31_000);
    upstream.once("/v", ok(&fields, "new"));
    let late = gateway.get("/v").await;
    assert_eq!(late.text(), "new", "the window has closed");
    assert!(!is_hit(&late));
}

#[tokio::test]
async fn a_refresh_of_a_range_request_fetches_the_whole() {
    let upstream = Upstream::start();
    let gateway = manual(&upstream);
    let fields = ["cache-control: max-age=10, stale-while-revalidate=20"];
    upstream.once("/v", ok(&fields, "body"));
    gateway.get("/v").await;
    gateway.advance(15_000);
    upstream.once("/v", ok(&fields, "fresh"));
    let asked = [("range", "bytes=0-0"), ("if-none-match", "\"mine\"")];
    let part = gateway.request("HEAD", "/v", &asked[1..]).await;
    assert_eq!(part.status, 200);
    until("it is refreshed", || upstream.count() == 2).await;
    let seen = &upstream.seen()[1];
    assert_eq!(seen.method(), "GET");
    for name in ["range", "if-none-match"] {
        assert_eq!(seen.field(name), None, "{name}");
    }
}
