//! An upstream whose process is stopped and continues. Its kernel has accepted what
//! was sent meanwhile, including requests that nobody waits for any more, and the
//! process reads all of it at once.

use std::time::Duration;

use futures_util::future::join_all;
use ordgate::clock::{Clock, Moment};
use socket2::{Domain, Socket, Type};
use tokio::time::timeout;

use super::{key, until_idle};
use crate::respect::ALL;
use crate::support::{Gate, Gateway, Reply, Setup, Upstream, token, until};

const MINUTE: usize = 30;
const SECOND: usize = 3;

/// Time-outs are real and soon over; the budget's time is the test's.
const CONFIG: &str = r#"
    upstream.requests_per_minute = 30
    upstream.requests_per_second = 3
    upstream.first_byte_timeout = "400ms"
    upstream.queue_timeout = "20ms"
    upstream.max_in_flight = 16
"#;

/// Half a second goes by, in which more is wanted than there is; how much of it is
/// answered.
async fn wanted(gateway: &Gateway, next: &mut usize) -> usize {
    let asked = (0..4).map(|client| {
        *next += 1;
        let (from, target) = ([127, 0, 0, 10 + client], token(*next));
        async move {
            let mut client = gateway.client_from(from).await;
            client.get(&target).await.status
        }
    });
    let statuses = join_all(asked).await;
    gateway.advance(500);
    for status in &statuses {
        assert!([200, 503, 504].contains(status), "{status}");
    }
    statuses.iter().filter(|status| **status == 200).count()
}

/// The requests in flight at an endpoint, those included that nobody waits for.
async fn in_flight(gateway: &Gateway, at: usize) -> u64 {
    let status = gateway.admin("/status").await.json();
    let shown = &status["upstream"]["endpoints"][at]["in_flight"];
    shown.as_u64().unwrap()
}

/// Waits until every exchange has ended.
async fn none_in_flight(gateway: &Gateway) {
    until("all exchanges have ended", || gateway.in_flight() == 0).await;
}

/// That no more were seen in any time of this length.
fn at_most(most: usize, span: Duration, seen: &[Moment]) {
    for window in seen.windows(most + 1) {
        let took = window[most].since(window[0]);
        assert!(took >= span, "{} within {took:?} of {span:?}", most + 1);
    }
}

/// Demand before, while and after the server is stopped for 75 s.
#[tokio::test]
async fn a_server_that_stops_never_sees_more_than_the_budget() {
    let clock = Clock::manual();
    let upstream = Upstream::start_by(&clock);
    let setup = Setup::before(&upstream).keys("a-key").clock(&clock);
    let gateway = setup.config(CONFIG).start();
    let (mut next, mut before, mut while_frozen) = (0, 0, 0);
    for _ in 0..130 {
        before += wanted(&gateway, &mut next).await;
    }
    assert!(before >= MINUTE, "{before}");
    upstream.freeze();
    for _ in 0..150 {
        while_frozen += wanted(&gateway, &mut next).await;
    }
    assert_eq!(while_frozen, 0, "it answers nothing");
    let counted = in_flight(&gateway, 0).await;
    upstream.thaw();
    upstream.until_requests(before + SECOND).await;
    none_in_flight(&gateway).await;
    let seen: Vec<_> = upstream.seen().iter().map(|seen| seen.at).collect();
    at_most(MINUTE, Duration::from_secs(60), &seen);
    assert_eq!(counted, SECOND as u64);
    // It is back as soon as a second is over; the breaker has no say here.
    gateway.advance(1_050);
    assert_eq!(wanted(&gateway, &mut next).await, SECOND);
    for _ in 0..130 {
        wanted(&gateway, &mut next).await;
    }
    until_idle(&gateway, "the thaw").await;
    let seen: Vec<_> = upstream.seen().iter().map(|seen| seen.at).collect();
    assert!(seen.is_sorted());
    assert!(seen.len() >= before + MINUTE, "{}", seen.len());
    at_most(SECOND, Duration::from_secs(1), &seen);
    at_most(MINUTE, Duration::from_secs(60), &seen);
}

fn frozen_with_all_of_a_second(upstream: &Upstream) -> Gateway {
    let setup = Setup::before(upstream).keys("a-key").manual();
    let gateway = setup.config(CONFIG).start();
    upstream.freeze();
    gateway
}

/// Asks as often as a second allows, all in vain.
async fn in_vain(gateway: &Gateway) {
    // One client alone leaves others a part of what may be in flight.
    for number in 0..SECOND {
        let mut client = gateway.client_from([127, 0, 0, 20 + number as u8]).await;
        assert_eq!(client.get(&token(900 + number)).await.status, 504);
    }
    gateway.advance(600_000);
    assert_eq!(gateway.get(&token(903)).await.status, 503, "they count");
    assert_eq!(in_flight(gateway, 0).await, SECOND as u64);
}

#[tokio::test]
async fn the_budget_of_a_stopped_server_is_free_again_when_it_is_killed() {
    let upstream = Upstream::start();
    let gateway = frozen_with_all_of_a_second(&upstream);
    in_vain(&gateway).await;
    let address = upstream.address();
    drop(upstream);
    none_in_flight(&gateway).await;
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.bind(&address.into()).unwrap();
    let upstream = Upstream::start_on(socket);
    gateway.advance(1_050);
    for number in 0..SECOND {
        assert_eq!(gateway.get(&token(number)).await.status, 200);
    }
    assert_eq!(upstream.count(), SECOND, "none of what was sent before");
    assert_eq!(key(&gateway, 0).await["budget_left"], MINUTE - 2 * SECOND);
}

/// A reload that takes key and endpoint away and brings them back forgets nothing.
#[tokio::test]
async fn requests_in_flight_count_after_a_reload() {
    let (upstream, other) = (Upstream::start(), Upstream::start());
    let gateway = frozen_with_all_of_a_second(&upstream);
    in_vain(&gateway).await;
    let elsewhere = gateway.reload(&other.config()).await;
    assert_eq!(elsewhere.status, 200, "{}", elsewhere.text());
    assert_eq!(
        gateway.get(&token(1)).await.status,
        503,
        "one key, one budget"
    );
    assert_eq!(gateway.rekey("another-key").await.status, 200);
    assert_eq!(
        gateway.get(&token(2)).await.status,
        200,
        "that is another one"
    );
    assert_eq!(gateway.reload(&upstream.config()).await.status, 200);
    assert_eq!(gateway.rekey("a-key").await.status, 200);
    assert_eq!(gateway.get(&token(3)).await.status, 503);
    upstream.thaw();
    upstream.until_requests(SECOND).await;
    let left = async || key(&gateway, 0).await["budget_left"].as_u64().unwrap();
    // Once the connections have ended they count for a minute.
    let mut all_ended = false;
    for _ in 0..500 {
        gateway.advance(60_050);
        all_ended = left().await == MINUTE as u64;
        if all_ended {
            break;
        }
        tokio::task::yield_now().await;
    }
    assert!(all_ended, "they are given back");
    assert_eq!(gateway.get(&token(4)).await.status, 200);
}

/// A handler that hangs: it takes one of each second until it answers.
#[tokio::test]
async fn a_request_that_nobody_waits_for_counts_until_it_is_answered() {
    let upstream = Upstream::start();
    let setup = Setup::before(&upstream).keys("a-key").manual();
    let gateway = setup.config(CONFIG).start();
    let (gate, hangs) = (Gate::new(), token(100));
    upstream.once(&hangs, Reply::json("{}").behind(&gate));
    assert_eq!(gateway.get(&hangs).await.status, 504);
    for round in 0..3 {
        gateway.advance(61_000);
        for number in 0..SECOND {
            let expected = if number < SECOND - 1 { 200 } else { 503 };
            let answered = gateway.get(&token(10 * round + number)).await;
            assert_eq!(answered.status, expected, "{round} {number}");
        }
        assert_eq!(in_flight(&gateway, 0).await, 1);
    }
    gate.open();
    none_in_flight(&gateway).await;
    gateway.advance(61_000);
    for number in 0..SECOND {
        assert_eq!(gateway.get(&token(50 + number)).await.status, 200);
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
        let slow = Reply::json("{}").behind(&gate);
        for number in 0..24 {
            let target = format!("/slow/{number}");
            upstream.once(&target, slow.clone());
            let mut client = gateway.client_from([127, 0, 0, 11]).await;
            client.send_request(method, &target, &[]).await;
            let sent = timeout(
                Duration::from_millis(50),
                upstream.until_requests(number + 1),
            )
            .await;
            drop(client);
            if sent.is_err() {
                break;
            }
        }
        let mut client = gateway.client_from([127, 0, 0, 12]).await;
        let answer = client.get("/quick").await;
        assert_eq!(answer.status, 200, "{method}: {:?}", upstream.targets());
        gate.open();
        none_in_flight(&gateway).await;
        until_idle(&gateway, method).await;
    }
}
