//! The budget, counted by an upstream with a clock of its own: no key exceeds it,
//! whatever clients, failures, freezes and reloads there are. How it is divided, paced and
//! shared stands in `upstream::key`, `upstream::budget` and `upstream::queue`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use futures_util::future::join_all;
use ordgate::clock::{Clock, Moment};
use tokio::time::timeout;

use super::{endpoint, keyed, until_idle};
use crate::respect::ALL;
use crate::support::{Gate, Gateway, Reply, Setup, TOKEN, Upstream, token, until};

const MINUTE: usize = 30;
const SECOND: usize = 3;

/// Time-outs are real and soon over; the budget's time is the test's.
const CONFIG: &str = r#"
    upstream.requests_per_minute = 30
    upstream.requests_per_second = 3
    upstream.first_byte_timeout = "400ms"
    upstream.queue_timeout = "20ms"
    upstream.max_in_flight = 16
    chain.tip = { ordinals.every = "1s", runes.every = "1s" }
"#;

/// That no more were seen in any time of this length.
fn at_most(most: usize, span: Duration, seen: &[Moment]) {
    for window in seen.windows(most + 1) {
        let took = window[most].since(window[0]);
        assert!(took >= span, "{} within {took:?} of {span:?}", most + 1);
    }
}

/// Keys come and go, and bounds; at last all is as it was.
async fn reload(gateway: &Gateway, round: usize) {
    let done = match round % 6 {
        0 => gateway.rekey("first-key").await,
        1 => gateway.reload("upstream.requests_per_second = 2").await,
        2 => gateway.rekey("other-key,first-key").await,
        3 => gateway.reload("upstream.requests_per_minute = 28").await,
        4 => gateway.reload("upstream.requests_per_second = 3").await,
        _ => gateway.reload("upstream.requests_per_minute = 30").await,
    };
    assert_eq!(done.status, 200, "{}", done.text());
}

/// Half seconds go by, in which more is wanted than there is, and now and then a reload; how
/// much is answered.
async fn wanted(gateway: &Gateway, rounds: std::ops::Range<usize>) -> usize {
    let mut answered = 0;
    for round in rounds {
        let asked = (0..6).map(async |client| {
            let mut connection = gateway.client_from([127, 0, 0, 10 + client]).await;
            let target = token(10 * round + usize::from(client));
            connection.get(&target).await.status
        });
        for status in join_all(asked).await {
            assert!([200, 502, 503, 504].contains(&status), "{status}");
            answered += usize::from(status == 200);
        }
        if round % 20 == 10 {
            reload(gateway, round / 20).await;
        }
        gateway.advance(500);
    }
    answered
}

/// Failures and retries, requests of the tips, reloads that change keys and bounds, and a
/// server that is stopped for 75 s and then reads all that was sent meanwhile.
#[tokio::test]
async fn no_key_exceeds_its_budget_whatever_happens() {
    let clock = Clock::manual();
    let upstream = Upstream::start_by(&clock);
    let count = AtomicUsize::new(0);
    upstream.usually(move |seen| match seen.target().ends_with("/v1/") {
        true => Reply::json("{\"block_height\":840000}"),
        false => match count.fetch_add(1, SeqCst) % 13 {
            3 => Reply::status(500, "{}"),
            7 => Reply::status(503, "{}"),
            11 => Reply::nothing().reset(),
            _ => Reply::json("{}"),
        },
    });
    let setup = Setup::before(&upstream).chain().clock(&clock);
    let gateway = setup.keys("first-key,other-key").config(CONFIG).start();
    gateway.until_tips_are_known().await;
    let before = wanted(&gateway, 0..130).await;
    assert!(before >= MINUTE / 2, "{before}");
    upstream.freeze();
    let frozen = wanted(&gateway, 130..280).await;
    assert_eq!(frozen, 0, "it answers nothing");
    let in_flight = endpoint(&gateway, 0)["in_flight"].as_u64().unwrap();
    assert!((1..=2 * SECOND as u64).contains(&in_flight), "{in_flight}");
    upstream.thaw();
    until_idle(&gateway, "the thaw").await;
    let after = wanted(&gateway, 280..410).await;
    assert!(after >= MINUTE / 2, "{after}");
    let mut uses: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for seen in upstream.seen() {
        let key = seen.field("x-api-key").unwrap();
        uses.entry(key).or_default().push(seen.at);
    }
    assert_eq!(uses.len(), 2, "{:?}", uses.keys());
    for times in uses.values() {
        assert!(times.is_sorted());
        assert!(times.len() > MINUTE, "{}", times.len());
        at_most(SECOND, Duration::from_secs(1), times);
        at_most(MINUTE, Duration::from_secs(60), times);
    }
    let metrics = gateway.admin("/metrics").await;
    for reason in ["miss", "probe"] {
        let is_of = |line: &&str| {
            line.starts_with("ordgate_upstream_requests_total{")
                && line.contains(&format!("reason=\"{reason}\""))
        };
        let sent = metrics.text().lines().find(is_of);
        assert!(sent.is_some_and(|line| !line.ends_with(" 0")), "{reason}");
    }
}

/// A handler that hangs: it takes one of each second until it answers or closes, after
/// reloads that take its key away and bring it back as well.
#[tokio::test]
async fn a_request_that_nobody_waits_for_counts_until_it_is_answered() {
    for closes in [false, true] {
        let upstream = Upstream::start();
        let gateway = keyed(&upstream, "a-key").config(CONFIG).start();
        let (gate, hangs) = (Gate::new(), token(100));
        upstream.once(&hangs, Reply::json("{}").behind(&gate));
        assert_eq!(gateway.get(&hangs).await.status, 504);
        for round in 0..3 {
            gateway.advance(61_000);
            for (number, expected) in [200, 200, 503].into_iter().enumerate() {
                let answered = gateway.get(&token(10 * round + number)).await;
                assert_eq!(answered.status, expected, "{round} {number}");
            }
            assert_eq!(endpoint(&gateway, 0)["in_flight"], 1);
            for keys in ["another-key", "a-key"] {
                assert_eq!(gateway.rekey(keys).await.status, 200);
            }
        }
        if closes {
            upstream.close_connections();
        } else {
            gate.open();
        }
        until("it has ended", || gateway.in_flight() == 0).await;
        gateway.advance(61_000);
        for number in 50..50 + SECOND {
            assert_eq!(gateway.get(&token(number)).await.status, 200);
        }
    }
}

/// A server that goes on with what nobody waits for any more, as one does that has
/// a thread for each request. One client sends what takes long and breaks it off,
/// again and again.
#[tokio::test]
async fn broken_off_requests_of_one_client_leave_budget_to_others() {
    for method in ["GET", "POST"] {
        let upstream = Upstream::start();
        let setup = Setup::before(&upstream).keys("a-key").config(ALL);
        let config = "upstream.requests_per_second = 8\nupstream.queue_timeout = \"20ms\"";
        let gateway = setup.config(config).start();
        let gate = Gate::new();
        for number in 0..24 {
            let target = format!("/slow/{number}");
            upstream.once(&target, Reply::json("{}").behind(&gate));
            let mut client = gateway.client_from([127, 0, 0, 11]).await;
            client.send_request(method, &target, &[]).await;
            let sent = upstream.until_requests(number + 1);
            if timeout(Duration::from_millis(50), sent).await.is_err() {
                break;
            }
        }
        let mut client = gateway.client_from([127, 0, 0, 12]).await;
        let answer = client.get("/quick").await;
        assert_eq!(answer.status, 200, "{method}: {:?}", upstream.targets());
        gate.open();
        until_idle(&gateway, method).await;
    }
}

#[tokio::test]
async fn a_spent_budget_does_not_affect_hits() {
    let upstream = Upstream::start();
    let setup = keyed(&upstream, "one").config("upstream.requests_per_minute = 2");
    let gateway = setup.start();
    assert_eq!(gateway.get(TOKEN).await.status, 200);
    assert_eq!(gateway.get(&token(1)).await.status, 200);
    let answer = gateway.get(&token(2)).await;
    super::must_wait(&answer, 61);
    let detail = answer.must("cache-status");
    assert_eq!(detail, "ordgate; fwd=uri-miss; detail=over_budget");
    let hit = gateway.get(TOKEN).await;
    assert_eq!(hit.must("cache-status"), "ordgate; hit; ttl=10");
    // Stale is better than nothing.
    gateway.advance(11_000);
    let stale = gateway.get(TOKEN).await;
    assert_eq!(stale.status, 200);
    let detail = "ordgate; fwd=stale; ttl=-1; detail=stale-if-error";
    assert_eq!(stale.must("cache-status"), detail);
    assert_eq!(upstream.count(), 2);
    until_idle(&gateway, "the fetch that has had no budget").await;
    gateway.advance(49_051);
    assert_eq!(gateway.get(&token(2)).await.status, 200);
    assert_eq!(upstream.count(), 3);
}

#[tokio::test]
async fn retries_use_the_budget() {
    let upstream = Upstream::start();
    upstream.always(Reply::nothing().close());
    let setup = keyed(&upstream, "a-key").config("upstream.requests_per_minute = 3");
    let gateway = setup.start();
    // One is left for the second, and no retry.
    for (number, asked) in [(1, 2), (2, 3), (3, 3)] {
        assert_ne!(gateway.get(&token(number)).await.status, 200);
        assert_eq!(upstream.count(), asked);
    }
}
