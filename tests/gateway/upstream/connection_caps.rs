//! An upstream that refuses requests beyond a number in flight: ordgate sends fewer
//! at once, and the breaker stays closed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use futures_util::future::join_all;

use super::{metric, until_idle};
use crate::support::respect;
use crate::support::{Gate, Gateway, Reply, Turnstile, Upstream, token, within};

/// What the upstream takes.
const CAP: usize = 4;
const CLIENTS: usize = 24;
const TIMES: usize = 15;

/// Everything as by default, but for the limits on clients and the budget.
const CONFIG: &str = r#"
    limit.enabled = false
    upstream.requests_per_minute = "unlimited"
    upstream.requests_per_second = "unlimited"
"#;

/// An answer that takes a while, whatever else is under way.
fn slow() -> Reply {
    Reply::json("{}").in_turn(&Turnstile::default(), Duration::from_millis(20))
}

/// How many requests may be under way at a base URL.
async fn limit(gateway: &Gateway, url: &str) -> f64 {
    let labels = format!("{{upstream=\"default\",endpoint=\"{url}\"}}");
    let name = format!("ordgate_upstream_in_flight_limit{labels}");
    metric(gateway, &name).await.parse().unwrap()
}

fn closes_beyond_cap() -> Upstream {
    let upstream = Upstream::start();
    upstream.usually(|_| slow());
    upstream.take_connections(CAP);
    upstream
}

fn answers_503_beyond_cap() -> Upstream {
    let (upstream, busy) = (Upstream::start(), Arc::new(()));
    upstream.usually(move |_| match Arc::strong_count(&busy) {
        count if count <= CAP => slow().holding(&busy),
        _ => Reply::status(503, "{}"),
    });
    upstream
}

/// Clients that each request one target after another; returns how often each
/// status was answered.
async fn load(gateway: &Gateway, target: impl Fn(usize) -> String) -> (usize, Vec<u16>) {
    let (next, target) = (AtomicUsize::new(0), &target);
    let clients = (0..CLIENTS).map(async |_| {
        let mut client = gateway.client().await;
        let mut statuses = Vec::new();
        for _ in 0..TIMES {
            let number = next.fetch_add(1, SeqCst);
            statuses.push(client.get(&target(number)).await.status);
        }
        statuses
    });
    let all = within("the load", join_all(clients)).await;
    let all: Vec<_> = all.into_iter().flatten().collect();
    let well = all.iter().filter(|status| **status == 200).count();
    (well, all)
}

/// Checks that nearly all requests succeeded, and how many were sent.
async fn converges(gateway: &Gateway, well: usize, all: &[u16]) {
    let tally = CLIENTS * TIMES;
    let others: Vec<_> = all.iter().filter(|status| **status != 200).collect();
    assert!(others.iter().all(|status| **status == 503), "{others:?}");
    assert!(well >= tally * 95 / 100, "{well} of {tally}");
    let status = gateway.status();
    let endpoint = &status["upstream"]["endpoints"][0];
    assert_eq!(endpoint["breaker"]["state"], "closed");
    let sent = usize::try_from(gateway.figure("/upstream/sent")).unwrap();
    assert!(sent <= tally + 3 * CLIENTS, "{sent} requests for {tally}");
    // What is refused is refused for the queue's time, not for the breaker.
    assert_eq!(status["upstream"]["breaker"]["refused"], 0);
    until_idle(gateway, "the load").await;
}

#[tokio::test]
async fn connections_beyond_a_cap_are_closed() {
    let upstream = closes_beyond_cap();
    let gateway = Gateway::with(&upstream, CONFIG);
    let (well, all) = load(&gateway, token).await;
    converges(&gateway, well, &all).await;
    // The log has the reason.
    let url = upstream.url();
    let status = gateway.admin("/status").await.json();
    let last = &status["upstream"]["endpoints"][0]["last_failure"];
    assert_eq!(last["reason"], "connection_terminated", "{last}");
    let limit = limit(&gateway, &url).await;
    assert!((1.0..=8.0).contains(&limit), "{limit}");
}

#[tokio::test]
async fn requests_beyond_a_cap_are_answered_with_503() {
    let upstream = answers_503_beyond_cap();
    let gateway = Gateway::with(&upstream, CONFIG);
    let (well, all) = load(&gateway, token).await;
    converges(&gateway, well, &all).await;
}

#[tokio::test]
async fn relayed_requests_beyond_a_cap_are_sent_again() {
    let upstream = closes_beyond_cap();
    let gateway = respect::plain(&upstream).config(CONFIG).start();
    let (well, all) = load(&gateway, |number| format!("/{number}")).await;
    converges(&gateway, well, &all).await;
}

#[tokio::test]
async fn an_upstream_that_closes_all_connections_opens_the_breaker() {
    let upstream = Upstream::start();
    upstream.take_connections(0);
    let gateway = Gateway::with(&upstream, CONFIG);
    let (well, all) = load(&gateway, token).await;
    assert_eq!(well, 0, "{all:?}");
    let status = gateway.status();
    let endpoint = &status["upstream"]["endpoints"][0];
    assert_ne!(endpoint["breaker"]["state"], "closed");
    // Ten failures in a row open it; the others were under way already, or tried
    // it after a while.
    let sent = gateway.figure("/upstream/sent");
    assert!(sent <= 64, "{sent}");
}

/// Servers close connections that are idle, perhaps just as a request is sent.
#[tokio::test]
async fn a_closed_idle_connection_does_not_count_as_a_cap() {
    let (upstream, gate) = (Upstream::start(), Gate::new());
    upstream.once(&token(1), Reply::json("{}").behind(&gate));
    upstream.once(&token(3), Reply::nothing().close());
    let gateway = Gateway::with(&upstream, CONFIG);
    let mut slow = gateway.start_get(&token(1)).await;
    upstream.until_requests(1).await;
    for number in [2, 3] {
        assert_eq!(gateway.get(&token(number)).await.status, 200, "{number}");
    }
    let seen = upstream.seen();
    let connections: Vec<_> = seen.iter().map(|seen| seen.connection).collect();
    assert_eq!(connections[1], connections[2], "it was idle");
    assert_ne!(connections[2], connections[3], "it was closed");
    assert_eq!(limit(&gateway, &upstream.url()).await, 32.0);
    gate.open();
    assert_eq!(slow.answer("GET").await.status, 200);
}
