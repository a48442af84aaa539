//! A key that the upstream refuses is in quarantine, and tried again now and then.
//! The status path decides: it is requested with the key each time, so that no client can
//! put a key into quarantine by its choice of targets.

use serde_json::Value;

use super::{key, keyed, metric};
use crate::support::respect::all_below;
use crate::support::{
    Answer, BLOCK, Client, Gate, Gateway, Process, ROUTES, Reply, Setup, TX, Upstream, token, until,
};

const STATE: &str =
    "ordgate_upstream_key_state{key=\"key-1\",state=\"quarantined\",upstream=\"default\"}";

/// An upstream that refuses one key and takes the others.
fn refusing(status: u16, refused: &'static str) -> Upstream {
    let upstream = Upstream::start();
    upstream.usually(move |seen| match seen.field("x-api-key") {
        Some(key) if key == refused => Reply::status(status, r#"{"telling":"bad key"}"#),
        _ => Reply::json("{}"),
    });
    upstream
}

/// How often a key was used.
fn used(upstream: &Upstream, key: &str) -> usize {
    let seen = upstream.seen();
    let keys = seen.iter().filter_map(|seen| seen.field("x-api-key"));
    keys.filter(|used| used == key).count()
}

fn is_refused(answer: &Answer, status: u16) {
    assert_eq!(answer.status, 502, "{answer:?}");
    assert_eq!(
        answer.must("proxy-status"),
        format!("ordgate; error=http_protocol_error; received-status={status}")
    );
    assert_eq!(answer.field("retry-after"), None);
    assert!(!answer.problem().to_string().contains("telling"));
}

async fn state(gateway: &Gateway) -> String {
    key(gateway, 0).await["state"].as_str().unwrap().to_owned()
}

async fn states(gateway: &Gateway) -> Vec<Value> {
    let status = gateway.admin("/status").await.json();
    let keys = status["upstream"]["keys"].as_array().unwrap().iter();
    keys.map(|key| key["state"].clone()).collect()
}

/// The status paths of the shipped configuration.
const STATUS: [&str; 2] = ["/ordinals/v1/", "/runes/v1/"];

fn forbidden(number: usize) -> String {
    format!("{}-forbidden", token(number))
}

/// Refuses some targets to every key.
fn refusing_some(status: u16) -> Upstream {
    let upstream = Upstream::start();
    upstream.usually(move |seen| match seen.target().contains("forbidden") {
        true => Reply::status(status, r#"{"telling":"not this one"}"#),
        false => Reply::json("{}"),
    });
    upstream
}

fn key_checks(upstream: &Upstream) -> usize {
    let targets = upstream.targets();
    targets
        .iter()
        .filter(|target| STATUS.contains(&&***target))
        .count()
}

#[tokio::test]
async fn another_key_is_tried_at_once() {
    for status in [401, 403] {
        let upstream = refusing(status, "one");
        let gateway = keyed(&upstream, "one,other");
        for number in 0..6 {
            assert_eq!(gateway.get(&token(number)).await.status, 200, "{status}");
        }
        // The status path was requested with the refused key.
        assert_eq!((used(&upstream, "one"), used(&upstream, "other")), (2, 6));
        assert_eq!(state(&gateway).await, "quarantined");
        assert_eq!(key(&gateway, 1).await["state"], "ready");
        assert_eq!(metric(&gateway, STATE).await, "1.0");

        // It is tried each minute; no client sees it.
        for (round, pause) in [60_000, 60_000].into_iter().enumerate() {
            let targets = |step: usize| token(100 + 10 * round + step);
            gateway.advance(pause - 1);
            assert_eq!(gateway.get(&targets(0)).await.status, 200);
            assert_eq!(used(&upstream, "one"), 2 * (round + 1));
            gateway.advance(1);
            for step in 1..4 {
                assert_eq!(gateway.get(&targets(step)).await.status, 200);
            }
            assert_eq!(used(&upstream, "one"), 2 * (round + 2), "{pause}");
        }
    }
}

#[tokio::test]
async fn a_refused_single_key_is_not_used_repeatedly() {
    for status in [401, 403] {
        let upstream = refusing(status, "one");
        let gateway = keyed(&upstream, "one");
        let mut asked = 0;
        for pause in [60_u32; 3] {
            // One request tries; the others are answered at once.
            for number in 0..4 {
                is_refused(&gateway.get(&token(number)).await, status);
            }
            asked += 2;
            assert_eq!(upstream.count(), asked, "{pause}");
            assert_eq!(key(&gateway, 0).await["unusable_seconds"], f64::from(pause));
            gateway.advance(u64::from(pause) * 1000 - 1);
            is_refused(&gateway.get(&token(0)).await, status);
            assert_eq!(upstream.count(), asked);
            gateway.advance(1);
        }
        assert_eq!(metric(&gateway, STATE).await, "1.0");
        upstream.always(Reply::json("{}"));
        assert_eq!(gateway.get(&token(0)).await.status, 200);
        assert_eq!(state(&gateway).await, "ready");
        assert_eq!(metric(&gateway, STATE).await, "0.0");
    }
}

#[tokio::test]
async fn one_request_at_a_time_tries_a_quarantined_key() {
    let upstream = refusing(401, "one");
    let gateway = keyed(&upstream, "one");
    is_refused(&gateway.get(&token(0)).await, 401);
    gateway.advance(60_000);
    let gate = Gate::new();
    upstream.always(Reply::json("{}").behind(&gate));
    let _trying = gateway.start_get(&token(1)).await;
    upstream.until_requests(3).await;
    for number in 2..5 {
        is_refused(&gateway.get(&token(number)).await, 401);
    }
    assert_eq!(upstream.count(), 3);
    gate.open();
    crate::support::within("the trial", async {
        while state(&gateway).await != "ready" {}
    })
    .await;
    assert_eq!(gateway.get(&token(2)).await.status, 200);
}

#[tokio::test]
async fn a_quarantine_is_logged_once_with_the_keys_name() {
    let upstream = refusing(403, "bad-key-of-ours");
    let keys = "good-key-of-ours,bad-key-of-ours";
    let variables = [("ORDGATE_API_KEYS", keys)];
    let (process, public, _admin) = Process::before(&upstream, &[], &variables);
    let mut client = Client::connect(public).await;
    for number in 0..6 {
        client.get(&token(number)).await;
    }
    for target in [BLOCK, TX] {
        client.get(target).await;
    }
    process.signal(rustix::process::Signal::TERM);
    drop(client);
    let left = process.wait();
    let alarms = left
        .errors
        .lines()
        .filter(|line| line.contains("quarantine"));
    let alarms: Vec<_> = alarms.collect();
    // Of two upstreams, each says it once.
    assert_eq!(alarms.len(), 1, "{}", left.errors);
    assert!(alarms[0].contains("ERROR") && alarms[0].contains("key-2"));
    assert!(alarms[0].contains("403"), "{}", alarms[0]);
    assert!(!left.errors.contains("key-of-ours"), "{}", left.errors);
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
        is_refused(&client.answer("GET").await, 403);
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
    let upstream = refusing_some(403);
    let gateway = keyed(&upstream, "one");
    let mut number = 0;
    for (pause, checks) in [(0, 1), (59_999, 1), (1, 2)] {
        gateway.advance(pause);
        for _ in 0..10 {
            number += 1;
            is_refused(&gateway.get(&forbidden(number)).await, 403);
        }
        assert_eq!(gateway.get(&token(number)).await.status, 200);
        assert_eq!(key_checks(&upstream), checks, "{pause}");
    }
    assert_eq!(states(&gateway).await, ["ready"]);
    let status = gateway.admin("/status").await.json();
    let sent_for = status["upstream"]["sent_for"].as_array().unwrap();
    let checks = sent_for.iter().find(|row| row["reason"] == "key-check");
    assert_eq!(checks.unwrap()["requests"], 2);
    assert_eq!(status["upstream"]["endpoints"][0]["condition"], "sound");
}

/// A key that is withdrawn while a client has targets refused is found out, and
/// the honest client sees nothing of it.
#[tokio::test]
async fn a_revoked_key_is_detected() {
    let upstream = refusing_some(403);
    let gateway = keyed(&upstream, "one,other");
    for number in 0..4 {
        is_refused(&gateway.get(&forbidden(number)).await, 403);
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

/// After a quarantine the key is tried by whatever is asked next: what a client
/// has refused then does not make it longer.
#[tokio::test]
async fn a_refused_target_does_not_lengthen_a_quarantine() {
    let upstream = Upstream::start();
    upstream.always(Reply::status(401, "{}"));
    let gateway = keyed(&upstream, "one");
    is_refused(&gateway.get(&token(0)).await, 401);
    assert_eq!(states(&gateway).await, ["quarantined"]);
    upstream.usually(|seen| match seen.target().contains("forbidden") {
        true => Reply::status(403, "{}"),
        false => Reply::json("{}"),
    });
    gateway.advance(60_000);
    is_refused(&gateway.get(&forbidden(0)).await, 403);
    assert_eq!(states(&gateway).await, ["ready"]);
    assert_eq!(gateway.get(&token(1)).await.status, 200);
}
