//! The limit of requests in flight follows the latency of answers.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use super::{metric, until_idle};
use crate::support::{Gateway, Reply, Setup, Turnstile, Upstream, token, within};

const MOST: u64 = 24;

fn limit(gateway: &Gateway) -> u64 {
    gateway.figure("/upstream/endpoints/0/in_flight_limit")
}

/// Clients who ask for one thing after another, each for its own, until this
/// holds. More of them than may be under way, so that the limit is used.
async fn load(gateway: &Gateway, what: &str, mut holds: impl FnMut() -> bool) {
    let (over, next) = (AtomicBool::new(false), AtomicUsize::new(0));
    let clients = (0..2 * MOST).map(async |_| {
        let mut client = gateway.client().await;
        while !over.load(SeqCst) {
            let number = next.fetch_add(1, SeqCst);
            // Clients that wait too long are refused, which does not
            // matter here.
            let answer = client.get(&token(number)).await;
            assert!(matches!(answer.status, 200 | 503), "{answer:?}");
        }
    });
    let watch = async {
        crate::support::until(what, &mut holds).await;
        over.store(true, SeqCst);
    };
    let ((), _all) = within(what, async {
        futures_util::future::join(watch, join_all(clients)).await
    })
    .await;
}

/// A server that does one thing at a time, each for much longer than a busy machine adds: the more
/// it is asked at once, the longer each of them takes.
fn one_at_a_time(upstream: &Upstream) {
    let turnstile = Turnstile::default();
    upstream.usually(move |_| Reply::json("{}").in_turn(&turnstile, Duration::from_millis(25)));
}

fn bounds(least: u64) -> String {
    // The breaker has no part in this; nor have clients' limits.
    format!(
        "upstream.max_in_flight = {MOST}\nupstream.min_in_flight = {least}\n\
         limit.enabled = false\nupstream.breaker.enabled = false"
    )
}

#[tokio::test]
async fn the_limit_falls_if_requests_only_queue_and_rises_again() {
    let upstream = Upstream::start();
    let gateway = Gateway::with(&upstream, &bounds(2));
    assert_eq!(limit(&gateway), MOST, "it begins at most");
    one_at_a_time(&upstream);
    // One cut is enough here: how far it falls is checked where time is an argument.
    load(&gateway, "the limit goes down", || {
        limit(&gateway) <= MOST / 2
    })
    .await;
    let low = limit(&gateway);
    let url = upstream.url();
    let name =
        format!("ordgate_upstream_in_flight_limit{{upstream=\"default\",endpoint=\"{url}\"}}");
    assert_eq!(metric(&gateway, &name).await, format!("{low}.0"));
    until_idle(&gateway, "the load").await;

    // The server has got more hands.
    upstream.always(Reply::json("{}"));
    load(&gateway, "the limit comes back", || {
        limit(&gateway) >= low + 4
    })
    .await;
    until_idle(&gateway, "the second load").await;
}

#[tokio::test]
async fn an_overloaded_upstream_lowers_the_limit() {
    for (reply, config) in [
        (Reply::status(503, "{}"), ""),
        (Reply::status(504, "{}"), ""),
        (
            Reply::nothing().hang(),
            "upstream.first_byte_timeout = \"50ms\"",
        ),
    ] {
        let upstream = Upstream::start();
        upstream.always(reply);
        let setup = Setup::before(&upstream).config(&bounds(2)).manual();
        let gateway = setup.config(config).start();
        assert!(gateway.get(&token(0)).await.status >= 500);
        let once = limit(&gateway);
        assert!(once < MOST);
        // What fails together counts once.
        assert!(gateway.get(&token(1)).await.status >= 500);
        assert_eq!(limit(&gateway), once);
        for number in 2..20 {
            gateway.advance(1_000);
            gateway.get(&token(number)).await;
        }
        assert_eq!(limit(&gateway), 2, "and never to nothing");
    }
}

#[tokio::test]
async fn a_fixed_limit_does_not_change() {
    let upstream = Upstream::start();
    let gateway = Gateway::with(&upstream, &bounds(MOST));
    one_at_a_time(&upstream);
    let began = Instant::now();
    load(&gateway, "a load", || {
        assert_eq!(limit(&gateway), MOST);
        began.elapsed() > Duration::from_millis(1500)
    })
    .await;
    upstream.always(Reply::status(503, "{}"));
    gateway.get("/ordinals/v1/brc-20/tokens/last").await;
    assert_eq!(limit(&gateway), MOST);
}
