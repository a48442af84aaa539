//! If the preferred endpoint fails, another answers.

use std::time::Duration;

use futures_util::future::join_all;

use super::super::until_idle;
use super::{SOON, before, endpoint_in_use, endpoints, pair, status, tokens};
use crate::respect::ALL;
use crate::support::upstream::{refusing, usual_body};
use crate::support::{Gate, Gateway, Reply, Setup, TOKEN, Upstream, token, until, within};

/// So many requests find that an endpoint does not answer.
const TEN: usize = 10;

#[tokio::test]
async fn if_the_preferred_endpoint_fails_the_other_answers_at_once() {
    let html = "content-type: text/html\r\n";
    // With whether it answers at all.
    let rows = [
        ("reset", false, Reply::nothing().reset()),
        ("closed", false, Reply::nothing().close()),
        ("500", true, Reply::status(500, "{}")),
        (
            "503 for long",
            true,
            Reply::with(503, "retry-after: 900\r\n", "{}"),
        ),
        (
            "truncated",
            true,
            Reply::raw("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{").close(),
        ),
        ("garbage", false, Reply::raw("garbage\r\n\r\n").close()),
        ("HTML", true, Reply::with(200, html, "<html>")),
        ("redirect", true, Reply::with(302, "location: /\r\n", "")),
        ("silent", true, Reply::nothing().hang()),
        (
            "stalled",
            true,
            Reply::raw("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{").hang(),
        ),
        (
            "stalled chunks",
            true,
            Reply::raw("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n").hang(),
        ),
        (
            "slow",
            true,
            Reply::raw("HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\n")
                .drip(" ".repeat(9999), Duration::from_millis(5)),
        ),
    ];
    for (name, answers, reply) in rows {
        let upstreams = pair();
        let [preferred, other] = &upstreams;
        let (config, requests) = match name {
            "silent" => ("upstream.first_byte_timeout = \"100ms\"", 4),
            "stalled" | "stalled chunks" | "slow" => {
                ("upstream.response_body.grace = \"100ms\"", 4)
            }
            _ => ("", TEN + 2),
        };
        let gateway = before(&upstreams, config);
        preferred.always(reply);
        for number in 0..requests {
            let target = token(number);
            let answer = gateway.get(&target).await;
            assert_eq!(answer.text(), usual_body(&target), "{name}");
            // One failed attempt for each request, until the breaker opens: what a target
            // answers does not open it.
            let asked = if answers {
                number + 1
            } else {
                TEN.min(number + 1)
            };
            assert_eq!(tokens(preferred), asked, "{name}");
            assert_eq!(tokens(other), number + 1, "{name}");
            let left = !answers && number + 1 >= TEN;
            assert_eq!(endpoint_in_use(&gateway), usize::from(left), "{name}");
        }
        let state = status(&gateway);
        assert_eq!(state["switches"], u64::from(!answers), "{name}");
        assert_eq!(state["failed"], 0, "{name}: no request has");
        let condition = if answers { "sound" } else { "broken" };
        assert_eq!(state["endpoints"][0]["condition"], condition, "{name}");
        preferred.close_connections();
        until_idle(&gateway, name).await;
    }
}

#[tokio::test]
async fn a_closed_port_moves_requests_to_the_other_endpoint() {
    let (_held, address) = refusing();
    let other = Upstream::start();
    let urls = [format!("http://{address}"), other.url()];
    let setup = Setup::alone().config(&format!("upstream.url = {urls:?}"));
    let gateway = setup.config(SOON).manual().start();
    for number in 0..TEN + 2 {
        assert_eq!(gateway.get(&token(number)).await.status, 200);
    }
    let state = status(&gateway);
    assert_eq!(state["endpoints"][0]["sent"], 0, "it costs no budget");
    assert_eq!(state["endpoints"][0]["failed"], TEN);
    assert_eq!((endpoint_in_use(&gateway), tokens(&other)), (1, TEN + 2));
}

#[tokio::test]
async fn if_both_endpoints_fail_each_gets_one_request_and_the_client_an_error() {
    let upstreams = pair();
    let gateway = before(&upstreams, "");
    for upstream in &upstreams {
        upstream.always(Reply::nothing().close());
    }
    until_probed(&gateway).await;
    for number in 0..TEN - 1 {
        let answer = gateway.get(&token(number)).await;
        assert_eq!(answer.status, 502);
        answer.problem();
        assert_eq!(upstreams.each_ref().map(tokens), [number + 1; 2]);
    }
    gateway.get(&token(TEN)).await;
    // Both breakers are open.
    let answer = gateway.get(&token(TEN + 1)).await;
    assert_eq!(answer.status, 503);
    assert!(
        (1..=5).contains(&answer.number("retry-after")),
        "{answer:?}"
    );
    until_idle(&gateway, "both").await;
}

#[tokio::test]
async fn an_error_that_is_not_the_endpoints_fault_causes_no_failover() {
    let rows = [
        ("404", Reply::status(404, "{}"), 404),
        ("400", Reply::status(400, "{}"), 400),
        (
            "too large",
            Reply::raw("HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n").hang(),
            502,
        ),
    ];
    for (name, reply, expected) in rows {
        let upstreams = pair();
        let gateway = before(&upstreams, "");
        upstreams[0].always(reply);
        assert_eq!(gateway.get(TOKEN).await.status, expected, "{name}");
        assert_eq!(upstreams.each_ref().map(tokens), [1, 0], "{name}");
    }
}

/// Waits until the standby has been probed, where nothing else was sent.
pub(super) async fn until_probed(gateway: &Gateway) {
    let state = || gateway.of_upstreams("answered") + gateway.of_upstreams("failed") == 1;
    until("the probe has ended", state).await;
}

#[tokio::test]
async fn any_answer_to_a_standby_probe_counts_as_sound() {
    let html = "content-type: text/html\r\n";
    let rows = [
        ("a page", Reply::with(200, html, "<html>")),
        ("no page", Reply::with(404, html, "<html>")),
        ("a redirect", Reply::with(302, "location: /docs\r\n", "")),
        ("nothing", Reply::raw("HTTP/1.1 204 No Content\r\n\r\n")),
        ("503", Reply::status(503, "{}")),
    ];
    for (name, reply) in rows {
        let upstreams = pair();
        upstreams[1].once("/", reply);
        let gateway = before(&upstreams, "");
        upstreams[1].until_requests(1).await;
        until_probed(&gateway).await;
        assert_eq!(endpoints(&gateway)[1]["condition"], "sound", "{name}");
        assert_eq!(upstreams[1].targets(), ["/"], "{name}");
        until_idle(&gateway, name).await;
    }
}

/// A request that has been admitted keeps its position before requests that wait
/// for the preferred endpoint.
#[tokio::test]
async fn a_failover_does_not_queue_again() {
    let upstreams = pair();
    let [one, other] = &upstreams;
    let gateway = before(
        &upstreams,
        "upstream.max_in_flight = 2\nupstream.queue_timeout = \"20s\"",
    );
    let [held, fails] = [Gate::new(), Gate::new()];
    one.always(Reply::json("{}").behind(&held));
    one.once(&token(0), Reply::status(500, "{}").behind(&fails));
    let mut clients = Vec::new();
    for number in 0..5 {
        clients.push(gateway.start_get(&token(number)).await);
        until("it is asked, or waits", || {
            tokens(one) + gateway.queued() == number + 1
        })
        .await;
    }
    fails.open();
    // Three wait; one of them takes the free slot.
    assert_eq!(clients.remove(0).answer("GET").await.status, 200);
    assert_eq!(tokens(other), 1);
    held.open();
    for mut client in clients {
        assert_eq!(client.answer("GET").await.status, 200);
    }
    until_idle(&gateway, "a line").await;
}

/// What obeys the origin's fields passes on whatever an origin says; what it
/// could not say anything to goes elsewhere, if it is safe to repeat.
#[tokio::test]
async fn plain_requests_fail_over_if_that_is_safe() {
    let rows = [
        ("GET", Reply::nothing().reset(), 200, [1, 1]),
        ("HEAD", Reply::nothing().reset(), 200, [1, 1]),
        ("POST", Reply::nothing().reset(), 502, [1, 0]),
        ("PUT", Reply::nothing().close(), 502, [1, 0]),
        ("DELETE", Reply::nothing().hang(), 504, [1, 0]),
        ("GET", Reply::nothing().hang(), 200, [1, 1]),
        ("GET", Reply::status(500, "{}"), 500, [1, 0]),
        ("GET", Reply::status(410, "{}"), 410, [1, 0]),
    ];
    for (method, reply, expected, asked) in rows {
        let upstreams = pair();
        let [one, other] = &upstreams;
        let gateway = Setup::before_all(&[one, other])
            .config(ALL)
            .config(SOON)
            .config("upstream.first_byte_timeout = \"300ms\"")
            .manual()
            .start();
        one.always(reply);
        let target = "/some/tokens/here";
        let answer = gateway.request(method, target, &[]).await;
        assert_eq!(answer.status, expected, "{method}");
        assert_eq!(upstreams.each_ref().map(tokens), asked, "{method}");
        one.close_connections();
        until_idle(&gateway, method).await;
    }
}

/// A server that takes no more connections and finishes a long answer, as one does
/// that is being replaced.
#[tokio::test]
async fn a_long_answer_does_not_hide_that_an_endpoint_accepts_no_more() {
    let upstreams = pair();
    let [preferred, other] = &upstreams;
    let setup = Setup::before_all(&[preferred, other]).config(ALL);
    let gateway = setup.start();
    let long = Reply::raw("HTTP/1.1 200 OK\r\ncontent-length: 99999\r\n\r\nx");
    let every = Duration::from_millis(1);
    preferred.once("/long", long.drip("x".repeat(99_998), every));
    let mut client = gateway.start_get("/long").await;
    client.some(1).await;
    preferred.take_connections(0);
    let until_left = async {
        while endpoint_in_use(&gateway) == 0 {
            let mut clients = [gateway.client().await, gateway.client().await];
            let asks = clients.iter_mut().enumerate();
            let asks = asks.map(async |(at, client)| client.get(&format!("/{at}")).await);
            join_all(asks).await;
        }
    };
    within("the other endpoint is used", until_left).await;
    client.some(1).await;
}
