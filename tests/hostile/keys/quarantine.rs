//! A target that the upstream refuses does not quarantine the key: that needs a
//! refusal of the status path too.

use serde_json::Value;

use crate::support::respect::all_below;
use crate::support::upstream::Seen;
use crate::support::{Answer, Gate, Gateway, ROUTES, Reply, Setup, Upstream, token, until};

/// The status paths of the shipped configuration.
const STATUS: [&str; 2] = ["/ordinals/v1/", "/runes/v1/"];

fn keyed(upstream: &Upstream, keys: &str) -> Gateway {
    Setup::before(upstream).keys(keys).manual().start()
}

fn is_forbidden(target: &str) -> bool {
    target.contains("forbidden")
}

fn forbidden(number: usize) -> String {
    format!("{}-forbidden", token(number))
}

/// Refuses some targets to every key.
fn refusing(status: u16) -> Upstream {
    let upstream = Upstream::start();
    upstream.usually(move |seen| match is_forbidden(&seen.target()) {
        true => Reply::status(status, r#"{"telling":"not this one"}"#),
        false => Reply::json("{}"),
    });
    upstream
}

async fn states(gateway: &Gateway) -> Vec<String> {
    let status = gateway.admin("/status").await.json();
    let keys = status["upstream"]["keys"].as_array().unwrap().iter();
    keys.map(|key: &Value| key["state"].as_str().unwrap().to_owned())
        .collect()
}

fn count(upstream: &Upstream, which: impl Fn(&Seen) -> bool) -> usize {
    upstream.seen().iter().filter(|seen| which(seen)).count()
}

fn key_checks(upstream: &Upstream) -> usize {
    count(upstream, |seen| STATUS.contains(&&*seen.target()))
}

fn is_502_of(answer: &Answer, status: u16) {
    assert_eq!(answer.status, 502, "{answer:?}");
    assert_eq!(
        answer.must("proxy-status"),
        format!("ordgate; error=http_protocol_error; received-status={status}")
    );
    assert!(!answer.problem().to_string().contains("telling"));
}

#[tokio::test]
async fn a_refused_target_does_not_quarantine_the_key() {
    for status in [401, 403] {
        let upstream = refusing(status);
        let gateway = keyed(&upstream, "one,other,third");
        is_502_of(&gateway.get(&forbidden(0)).await, status);
        assert_eq!(states(&gateway).await, ["ready"; 3], "{status}");
        for number in 0..6 {
            assert_eq!(gateway.get(&token(number)).await.status, 200);
        }
        let refused = count(&upstream, |seen| is_forbidden(&seen.target()));
        assert_eq!(refused, 1, "no second key has tried it");
        assert_eq!(key_checks(&upstream), 1);
    }
}

/// A key that is withdrawn while a client has targets refused is found out, and
/// the honest client sees nothing of it.
#[tokio::test]
async fn a_revoked_key_is_detected() {
    let upstream = refusing(403);
    let gateway = keyed(&upstream, "one,other");
    for number in 0..4 {
        is_502_of(&gateway.get(&forbidden(number)).await, 403);
    }
    upstream.usually(|seen| match seen.field("x-api-key").as_deref() {
        Some("one") => Reply::status(401, "{}"),
        _ => Reply::json("{}"),
    });
    gateway.advance(60_000);
    for number in 0..6 {
        assert_eq!(gateway.get(&token(number)).await.status, 200);
    }
    assert_eq!(states(&gateway).await, ["quarantined", "ready"]);
}

/// Requests that are refused at the same time wait for one key check.
#[tokio::test]
async fn key_checks_run_one_at_a_time() {
    let upstream = Upstream::start();
    let gate = Gate::new();
    let held = gate.clone();
    upstream.usually(move |seen| match STATUS.contains(&&*seen.target()) {
        true => Reply::json("{}").behind(&held),
        false => Reply::status(403, "{}"),
    });
    let gateway = keyed(&upstream, "one");
    let mut clients = Vec::new();
    for number in 0..8 {
        clients.push(gateway.start_get(&forbidden(number)).await);
    }
    upstream.until_requests(9).await;
    // Their slots are free meanwhile.
    until("they wait for the key check", || gateway.in_flight() == 0).await;
    gate.open();
    for mut client in clients {
        is_502_of(&client.answer("GET").await, 403);
    }
    assert_eq!((upstream.count(), key_checks(&upstream)), (9, 1));
    assert_eq!(states(&gateway).await, ["ready"]);
}

/// What passes through as it comes says nothing of a key.
#[tokio::test]
async fn a_relayed_refusal_does_not_quarantine_the_key() {
    let upstream = Upstream::start();
    let plain = all_below("plain");
    let setup = Setup::before(&upstream).config(&format!("{ROUTES}\n{plain}"));
    let gateway = setup.keys("one,other").start();
    for status in [401, 403] {
        let body = r#"{"error":"not yours"}"#;
        upstream.always(Reply::status(status, body));
        for number in 0..6 {
            for method in ["GET", "POST"] {
                let target = format!("/plain/{status}/{number}");
                let answer = gateway.request(method, &target, &[]).await;
                assert_eq!((answer.status, answer.text()), (status, body));
            }
        }
    }
    assert_eq!(states(&gateway).await, ["ready"; 2]);
    assert_eq!(key_checks(&upstream), 0);
    upstream.always(Reply::json("{}"));
    assert_eq!(gateway.get(&token(0)).await.status, 200);
}

/// However many targets one client has refused, few key checks are sent, and
/// the honest client is served with every key.
#[tokio::test]
async fn many_refused_targets_cause_few_key_checks() {
    let upstream = refusing(403);
    let gateway = keyed(&upstream, "one");
    let mut number = 0;
    for (pause, checks) in [(0, 1), (59_999, 1), (1, 2)] {
        gateway.advance(pause);
        for _ in 0..10 {
            number += 1;
            is_502_of(&gateway.get(&forbidden(number)).await, 403);
        }
        assert_eq!(gateway.get(&token(number)).await.status, 200);
        assert_eq!(key_checks(&upstream), checks, "{pause}");
    }
    assert_eq!(states(&gateway).await, ["ready"]);
    let status = gateway.admin("/status").await.json();
    assert_eq!(status["upstream"]["sent_for"]["key_check"], 2);
    assert_eq!(status["upstream"]["breaker"]["state"], "closed");
}

/// After a quarantine the key is tried by whatever is asked next: what a client
/// has refused then does not make it longer.
#[tokio::test]
async fn a_refused_target_does_not_lengthen_a_quarantine() {
    let upstream = Upstream::start();
    upstream.always(Reply::status(401, "{}"));
    let gateway = keyed(&upstream, "one");
    is_502_of(&gateway.get(&token(0)).await, 401);
    assert_eq!(states(&gateway).await, ["quarantined"]);
    upstream.usually(|seen| match is_forbidden(&seen.target()) {
        true => Reply::status(403, "{}"),
        false => Reply::json("{}"),
    });
    gateway.advance(60_000);
    is_502_of(&gateway.get(&forbidden(0)).await, 403);
    assert_eq!(states(&gateway).await, ["ready"]);
    assert_eq!(gateway.get(&token(1)).await.status, 200);
}
