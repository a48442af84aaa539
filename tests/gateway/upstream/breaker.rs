//! The breaker: an upstream that keeps failing gets no requests, then a few, then
//! all.

use super::{metric, must_wait};
use crate::support::respect;
use crate::support::upstream::refusing;
use crate::support::{Answer, Gate, Gateway, Reply, Setup, TOKEN, Upstream, token};

/// Three failures open it.
const SOON: &str = r#"
    upstream.breaker = { failures = 3, pause = "2s", max_pause = "8s" }
    upstream.queue_timeout = "20ms"
    upstream.retry.limit = 0
    upstream.max_body_bytes = "1KiB"
"#;

fn soon(upstream: &Upstream) -> Gateway {
    Setup::before(upstream).config(SOON).manual().start()
}

async fn state(gateway: &Gateway) -> String {
    let status = gateway.admin("/status").await.json();
    let state = status["upstream"]["breaker"]["state"].as_str().unwrap();
    let url = status["upstream"]["url"].as_str().unwrap();
    let labels = format!("{{upstream=\"default\",endpoint=\"{url}\",state=\"{state}\"}}");
    let name = format!("ordgate_upstream_breaker_state{labels}");
    assert_eq!(metric(gateway, &name).await, "1.0");
    state.to_owned()
}

/// Checks that the upstream got no request; returns for how long it gets none.
fn is_open(answer: &Answer) -> u64 {
    assert_eq!(answer.status, 503, "{answer:?}");
    assert_eq!(
        answer.must("proxy-status"),
        "ordgate; error=destination_unavailable"
    );
    assert_eq!(
        answer.must("cache-status"),
        "ordgate; fwd=uri-miss; detail=breaker_open"
    );
    answer.problem();
    answer.number("retry-after")
}

/// Fails until it opens: each of these clients gets the true error.
async fn open(gateway: &Gateway, upstream: &Upstream) {
    upstream.always(Reply::status(500, "{}"));
    for number in 0..3 {
        assert_eq!(state(gateway).await, "closed");
        let answer = gateway.get(&token(900 + number)).await;
        assert_eq!(answer.status, 502);
        assert!(answer.must("proxy-status").contains("received-status=500"));
    }
    assert_eq!(state(gateway).await, "open");
}

#[tokio::test]
async fn failures_of_the_upstream_open_the_breaker() {
    let rows = [
        ("500", Reply::status(500, "{}"), 502),
        ("410", Reply::status(410, "{}"), 502),
        ("503", Reply::with(503, "retry-after: 9\r\n", "{}"), 503),
        ("closed", Reply::nothing().close(), 502),
        ("reset", Reply::nothing().reset(), 502),
        ("silent", Reply::nothing().hang(), 504),
        ("garbage", Reply::raw("garbage\r\n\r\n").close(), 502),
        (
            "truncated",
            Reply::raw("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{").close(),
            502,
        ),
        ("no JSON", Reply::with(200, "", "<html>"), 502),
    ];
    for (name, reply, status) in rows {
        let upstream = Upstream::start();
        let setup = Setup::before(&upstream).config(SOON).manual();
        let gateway = match name {
            "silent" => setup
                .config("upstream.first_byte_timeout = \"50ms\"")
                .start(),
            _ => setup.start(),
        };
        upstream.always(reply);
        for number in 0..3 {
            assert_eq!(gateway.get(&token(number)).await.status, status, "{name}");
        }
        let asked = upstream.count();
        for number in 0..5 {
            let wait = is_open(&gateway.get(&token(number)).await);
            assert!((2..=3).contains(&wait), "{name}: {wait}");
        }
        assert_eq!(upstream.count(), asked, "{name}");
        let status = gateway.admin("/status").await.json();
        assert_eq!(status["upstream"]["breaker"]["refused"], 5);
    }
}

#[tokio::test]
async fn other_failures_do_not_open_the_breaker() {
    let rows = [
        ("404", Reply::status(404, "{}")),
        ("400", Reply::status(400, "{}")),
        ("401", Reply::status(401, "{}")),
        ("408", Reply::status(408, "{}")),
        ("too large", Reply::with(200, "", "x".repeat(2000))),
    ];
    for (name, reply) in rows {
        let upstream = Upstream::start();
        let gateway = soon(&upstream);
        upstream.always(reply);
        for number in 0..8 {
            gateway.get(&token(number)).await;
        }
        assert_eq!(upstream.count(), 8, "{name}");
        assert_eq!(state(&gateway).await, "closed", "{name}");
    }
    // To be throttled, and to have no budget.
    let upstream = Upstream::start();
    let gateway = soon(&upstream);
    upstream.always(Reply::with(429, "retry-after: 5\r\n", "{}"));
    for number in 0..8 {
        must_wait(&gateway.get(&token(number)).await, 5);
    }
    assert_eq!(state(&gateway).await, "closed");
}

#[tokio::test]
async fn refused_connections_open_the_breaker() {
    let (_held, address) = refusing();
    let gateway = Setup::at(&format!("http://{address}"))
        .config(SOON)
        .manual()
        .start();
    for number in 0..3 {
        let answer = gateway.get(&token(number)).await;
        let status = answer.must("proxy-status");
        assert_eq!(status, "ordgate; error=connection_refused");
    }
    is_open(&gateway.get(TOKEN).await);
}

#[tokio::test]
async fn one_success_resets_the_count() {
    let upstream = Upstream::start();
    let gateway = soon(&upstream);
    for round in 0..4 {
        for number in 0..2 {
            let target = token(10 * round + number);
            upstream.once(&target, Reply::status(500, "{}"));
            assert_eq!(gateway.get(&target).await.status, 502);
        }
        // So that the share is small.
        for number in 2..4 {
            assert_eq!(gateway.get(&token(10 * round + number)).await.status, 200);
        }
    }
    assert_eq!(state(&gateway).await, "closed");
}

#[tokio::test]
async fn a_share_of_failures_opens_the_breaker() {
    let upstream = Upstream::start();
    let gateway = Setup::before(&upstream)
        .config("upstream.breaker = { failures = 10, share = 60 }")
        .manual()
        .start();
    let fails = |number: usize| !number.is_multiple_of(3);
    for number in 0..20 {
        let target = token(number);
        if fails(number) {
            upstream.once(&target, Reply::status(500, "{}"));
        }
        let expected = if fails(number) { 502 } else { 200 };
        assert_eq!(gateway.get(&target).await.status, expected, "{number}");
    }
    is_open(&gateway.get(&token(20)).await);
}

#[tokio::test]
async fn stale_answers_are_served_without_waiting() {
    let upstream = Upstream::start();
    let gateway = soon(&upstream);
    assert_eq!(gateway.get(TOKEN).await.status, 200);
    open(&gateway, &upstream).await;
    let asked = upstream.count();
    upstream.always(Reply::nothing().hang());
    assert_eq!(gateway.get(TOKEN).await.status, 200);
    gateway.advance(1900);
    assert_eq!(gateway.get(TOKEN).await.status, 200);
    gateway.advance(10_000);
    // It is stale now; and one sees how things are while others do not wait.
    let _trying = gateway.start_get(&token(1)).await;
    upstream.until_requests(asked + 1).await;
    let stale = gateway.get(TOKEN).await;
    assert_eq!(stale.status, 200);
    assert_eq!(
        stale.must("cache-status"),
        "ordgate; fwd=stale; ttl=-1; detail=stale-if-error"
    );
    assert_eq!(upstream.count(), asked + 1);
}

#[tokio::test]
async fn after_the_pause_one_trial_request_is_sent() {
    let upstream = Upstream::start();
    let gateway = soon(&upstream);
    open(&gateway, &upstream).await;
    let asked = upstream.count();
    gateway.advance(2600);
    assert_eq!(state(&gateway).await, "half-open");

    let gates = [Gate::new(), Gate::new()];
    upstream.always(Reply::json("{}").behind(&gates[0]));
    let _first = gateway.start_get(&token(0)).await;
    upstream.until_requests(asked + 1).await;
    assert_eq!(is_open(&gateway.get(&token(1)).await), 1);
    gates[0].open();
    assert_eq!(gateway.get(&token(0)).await.status, 200);

    // One has come back well: now three pass at once.
    upstream.always(Reply::json("{}").behind(&gates[1]));
    let mut clients = Vec::new();
    for number in 2..5 {
        clients.push(gateway.start_get(&token(number)).await);
    }
    upstream.until_requests(asked + 4).await;
    is_open(&gateway.get(&token(6)).await);
    gates[1].open();
    for number in 2..5 {
        assert_eq!(gateway.get(&token(number)).await.status, 200);
    }
    assert_eq!(state(&gateway).await, "closed");
}

#[tokio::test]
async fn a_trial_that_fails_lengthens_the_pause() {
    let upstream = Upstream::start();
    let gateway = soon(&upstream);
    open(&gateway, &upstream).await;
    let mut asked = upstream.count();
    let mut pause = 2;
    for (round, least) in [4, 8, 8, 8].into_iter().enumerate() {
        gateway.advance(pause * 1250 + 1);
        let answer = gateway.get(&token(round)).await;
        assert_eq!(answer.status, 502, "the one that tries gets the true error");
        asked += 1;
        let wait = is_open(&gateway.get(TOKEN).await);
        assert!((least..=least + 1).contains(&wait), "{wait}");
        assert!(wait <= 8, "{wait}");
        assert_eq!(upstream.count(), asked);
        pause = least;
    }
    gateway.advance(10_000);
    upstream.always(Reply::json("{}"));
    for number in 0..3 {
        assert_eq!(gateway.get(&token(number)).await.status, 200);
    }
    assert_eq!(state(&gateway).await, "closed");
}

/// A server that fails often, but not often enough to open the breaker, is used again
/// after an outage.
#[tokio::test]
async fn single_failures_among_trials_do_not_open_the_breaker_again() {
    let upstream = Upstream::start();
    let gateway = soon(&upstream);
    open(&gateway, &upstream).await;
    gateway.advance(2600);
    upstream.always(Reply::json("{}"));
    for (number, fails) in [false, true, true, false, true, false]
        .into_iter()
        .enumerate()
    {
        assert_eq!(state(&gateway).await, "half-open", "{number}");
        let target = token(number);
        if fails {
            upstream.once(&target, Reply::status(500, "{}"));
        }
        let expected = if fails { 502 } else { 200 };
        assert_eq!(gateway.get(&target).await.status, expected, "{number}");
    }
    assert_eq!(state(&gateway).await, "closed");
    // As many in a row as open it otherwise do so here, for as long as before.
    open(&gateway, &upstream).await;
    gateway.advance(2600);
    upstream.once(&token(10), Reply::json("{}"));
    assert_eq!(gateway.get(&token(10)).await.status, 200);
    for number in 11..14 {
        assert_eq!(state(&gateway).await, "half-open", "{number}");
        assert_eq!(gateway.get(&token(number)).await.status, 502);
    }
    let wait = is_open(&gateway.get(TOKEN).await);
    assert!((2..=3).contains(&wait), "{wait}");
}

#[tokio::test]
async fn client_errors_do_not_open_the_breaker() {
    let upstream = Upstream::start();
    let gateway = respect::plain(&upstream).config(SOON).manual().start();
    upstream.always(Reply::with(502, "", "sorry"));
    for number in 0..9 {
        let answer = gateway.get(&format!("/{number}")).await;
        assert_eq!((answer.status, answer.text()), (502, "sorry"));
    }
    // What is no answer is another matter.
    upstream.always(Reply::nothing().reset());
    for number in 0..3 {
        assert_eq!(gateway.get(&format!("/{number}")).await.status, 502);
    }
    let asked = upstream.count();
    let answer = gateway.get("/other").await;
    assert_eq!(answer.status, 503);
    assert!((2..=3).contains(&answer.number("retry-after")));
    assert_eq!(upstream.count(), asked);
    gateway.advance(2600);
    upstream.always(Reply::with(200, "", "well"));
    assert_eq!(gateway.get("/other").await.text(), "well");
}

#[tokio::test]
async fn the_breaker_can_be_off() {
    for (config, most) in [
        ("upstream.breaker.enabled = false", 30),
        ("", 10),
        ("upstream.breaker.failures = 1", 1),
    ] {
        let upstream = Upstream::start();
        let gateway = Setup::before(&upstream).config(config).manual().start();
        upstream.always(Reply::status(500, "{}"));
        for number in 0..30 {
            gateway.get(&token(number)).await;
        }
        assert_eq!(upstream.count(), most, "{config}");
    }
}

/// A trial is over when its answer begins: a long body, or a client that reads
/// slowly, keeps nobody else from the endpoint.
#[tokio::test]
async fn a_long_body_does_not_prolong_a_trial() {
    let upstream = Upstream::start();
    let setup = respect::plain(&upstream).config(SOON).manual();
    let gateway = setup
        .config("upstream.breaker = { failures = 1, pause = \"2s\", max_pause = \"8s\" }")
        .start();
    upstream.once("/drops", Reply::nothing().close());
    assert_eq!(gateway.get("/drops").await.status, 502);
    is_open(&gateway.get("/other").await);
    gateway.advance(3_000);
    let gate = Gate::new();
    let long = Reply::raw("HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\nhalf");
    upstream.once("/long", long.then(&gate, "half"));
    let mut client = gateway.start_get("/long").await;
    client.some(1).await;
    let answer = gateway.get("/other").await;
    assert_eq!(answer.status, 200, "{answer:?}");
    gate.open();
}
