//! A request that takes unusually long is sent a second time, if hedging is enabled
//! and the budget allows it.

use std::time::Duration;

use tokio::time::Instant;

use super::until_idle;
use crate::support::upstream::usual_body;
use crate::support::{Gate, Gateway, Reply, Setup, TOKEN, Upstream, token, until};

/// Answers of late that it takes at the least.
const SAMPLES: usize = 20;

/// After so many answers that took no time.
async fn after_answers(upstream: &Upstream, answers: usize, config: &str) -> Gateway {
    let gateway = Setup::before(upstream).manual().config(config).start();
    for number in 0..answers {
        assert_eq!(gateway.get(&token(number)).await.status, 200);
    }
    gateway
}

const ENABLED: &str = "upstream.hedge.enabled = true";

async fn hedges(gateway: &Gateway) -> u64 {
    let status = gateway.admin("/status").await.json();
    status["upstream"]["sent_for"]["hedge"].as_u64().unwrap()
}

/// Lets a request hang for far longer than any hedge waits, while others are
/// answered; then lets it go.
async fn waits_alone(gateway: &Gateway, upstream: &Upstream, why: &str) {
    let gate = Gate::new();
    let asked = upstream.count();
    upstream.once(TOKEN, Reply::json("{}").behind(&gate));
    let mut client = gateway.start_get(TOKEN).await;
    upstream.until_requests(asked + 1).await;
    let began = Instant::now();
    until(why, || began.elapsed() > Duration::from_millis(100)).await;
    assert_eq!(upstream.count(), asked + 1, "{why}");
    gate.open();
    assert_eq!(client.answer("GET").await.status, 200, "{why}");
    assert_eq!(hedges(gateway).await, 0, "{why}");
    until_idle(gateway, why).await;
}

#[tokio::test]
async fn a_hanging_request_is_answered_by_its_hedge() {
    let upstream = Upstream::start();
    let gateway = after_answers(&upstream, SAMPLES, ENABLED).await;
    let (before, asked) = (hedges(&gateway).await, upstream.count());
    upstream.once(TOKEN, Reply::nothing().hang());
    assert_eq!(gateway.get(TOKEN).await.text(), usual_body(TOKEN));
    assert_eq!(hedges(&gateway).await, before + 1);
    let seen = upstream.seen();
    let [first, second] = &seen[asked..] else {
        panic!("{seen:?}")
    };
    assert_eq!(first.raw, second.raw);
    assert_ne!(first.connection, second.connection);
    let status = gateway.admin("/status").await.json();
    assert_eq!(status["upstream"]["failed"], 0);
    assert_eq!(status["upstream"]["answered"], SAMPLES + 1);
    until_idle(&gateway, "a hedge").await;
}

#[tokio::test]
async fn the_first_of_both_answers_is_used() {
    // One of the two fails: the other is waited for.
    for second_fails in [true, false] {
        let upstream = Upstream::start();
        let gateway = after_answers(&upstream, SAMPLES, ENABLED).await;
        let asked = upstream.count();
        let gate = Gate::new();
        let [well, ill] = [Reply::json(r#"{"well":1}"#), Reply::status(500, "{}")];
        let (first, second) = match second_fails {
            true => (well.behind(&gate), ill),
            false => (ill.behind(&gate), well),
        };
        upstream.once(TOKEN, first);
        upstream.once(TOKEN, second);
        let mut client = gateway.start_get(TOKEN).await;
        upstream.until_requests(asked + 2).await;
        gate.open();
        let answer = client.answer("GET").await;
        assert_eq!((answer.status, answer.text()), (200, r#"{"well":1}"#));
        until_idle(&gateway, "a hedge of which one fails").await;
        assert_eq!(upstream.count(), asked + 2, "and no third");
    }
}

#[tokio::test]
async fn with_little_budget_nothing_is_hedged() {
    let upstream = Upstream::start();
    // Of 36 there are 15 left when it hangs.
    let config = format!("{ENABLED}\nupstream.requests_per_minute = 36");
    let gateway = after_answers(&upstream, SAMPLES, &config).await;
    waits_alone(&gateway, &upstream, "less than half of the budget is left").await;

    let upstream = Upstream::start();
    let config = format!("{ENABLED}\nupstream.max_in_flight = 1\nupstream.min_in_flight = 1");
    let gateway = after_answers(&upstream, SAMPLES, &config).await;
    waits_alone(&gateway, &upstream, "there is no place for another").await;
}

#[tokio::test]
async fn one_clients_hedges_leave_slots_for_others() {
    let upstream = Upstream::start();
    let config = format!("{ENABLED}\nupstream.max_in_flight = 8\nupstream.min_in_flight = 8");
    let gateway = after_answers(&upstream, SAMPLES, &config).await;
    let asked = upstream.count();
    let gate = Gate::new();
    let held = gate.clone();
    upstream.usually(move |seen| Reply::json(usual_body(&seen.target())).behind(&held));
    let mut clients = Vec::new();
    for number in 0..4 {
        clients.push(gateway.start_get(&token(100 + number)).await);
    }
    // Half of the slots are all that one client may have, hedges among them.
    upstream.until_requests(asked + 4).await;
    let began = Instant::now();
    until("hedges are due", || {
        began.elapsed() > Duration::from_millis(100)
    })
    .await;
    assert_eq!(upstream.count(), asked + 4);
    gate.open();
    for mut client in clients {
        assert_eq!(client.answer("GET").await.status, 200);
    }
    until_idle(&gateway, "hedges").await;
}

#[tokio::test]
async fn nothing_is_hedged_before_latencies_are_known() {
    let upstream = Upstream::start();
    let gateway = after_answers(&upstream, SAMPLES - 1, ENABLED).await;
    waits_alone(&gateway, &upstream, "there are too few answers").await;
}

#[tokio::test]
async fn nothing_is_hedged_unless_configured() {
    let upstream = Upstream::start();
    let gateway = after_answers(&upstream, 2 * SAMPLES, "").await;
    waits_alone(&gateway, &upstream, "it is off by default").await;
}
