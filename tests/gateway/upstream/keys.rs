//! Keys that the upstream refuses or throttles, and limits that it reports. How long a key
//! rests, and which fields limit it, stands in `upstream::key` and `upstream::reported`.

use super::{endpoint, key, keyed, metric, must_wait};
use crate::support::respect::{self, all_below};
use crate::support::{
    Answer, BLOCK, Client, Gate, Gateway, Process, ROUTES, Reply, Setup, TX, Upstream, token, until,
};

/// An upstream that refuses one key and takes the others.
fn refusing(status: u16, refused: &'static str) -> Upstream {
    let upstream = Upstream::start();
    let fields = if status == 429 {
        "retry-after: 60\r\n"
    } else {
        ""
    };
    upstream.usually(move |seen| match seen.field("x-api-key") {
        Some(key) if key == refused => Reply::with(status, fields, r#"{"telling":"bad key"}"#),
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
    let expected = format!("ordgate; error=http_protocol_error; received-status={status}");
    assert_eq!(answer.must("proxy-status"), expected);
    assert!(!answer.problem().to_string().contains("telling"));
}

fn forbidden(number: usize) -> String {
    format!("{}-forbidden", token(number))
}

/// Requests of the status path, with the key that is checked.
fn key_checks(upstream: &Upstream) -> usize {
    let targets = upstream.targets().into_iter();
    targets.filter(|target| target.ends_with("/v1/")).count()
}

#[tokio::test]
async fn another_key_is_tried_at_once() {
    for (status, state, requests) in [
        (401, "quarantined", 2),
        (403, "quarantined", 2),
        (429, "cooling", 1),
    ] {
        let upstream = refusing(status, "one");
        let gateway = keyed(&upstream, "one,other").start();
        for round in 1..3 {
            for number in 0..6 {
                let answer = gateway.get(&token(10 * round + number)).await;
                assert_eq!(answer.status, 200, "{status}");
            }
            // The status path is requested with a refused key.
            assert_eq!(used(&upstream, "one"), round * requests, "{status}");
            assert_eq!(
                (
                    key(&gateway, 0)["state"].as_str(),
                    key(&gateway, 1)["state"].as_str()
                ),
                (Some(state), Some("ready"))
            );
            let labels = format!("{{upstream=\"default\",key=\"key-1\",state=\"{state}\"}}");
            let name = format!("ordgate_upstream_key_state{labels}");
            assert_eq!(metric(&gateway, &name).await, "1");
            // After a minute it is tried again; no client sees it.
            gateway.advance(60_000);
        }
    }
}

/// However many targets one client has refused, few key checks are sent, and another
/// client is served; a key that is withdrawn is found out.
#[tokio::test]
async fn a_target_costs_no_key() {
    let upstream = Upstream::start();
    upstream.usually(|seen| match seen.target().contains("forbidden") {
        true => Reply::status(403, r#"{"telling":"not this one"}"#),
        false => Reply::json("{}"),
    });
    let gateway = keyed(&upstream, "one").start();
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
    let state = || key(&gateway, 0)["state"].clone();
    assert_eq!(state(), "ready");
    let status = gateway.status();
    let sent_for = status["upstream"]["sent_for"].as_array().unwrap();
    let checks = sent_for.iter().find(|row| row["reason"] == "key-check");
    assert_eq!(checks.unwrap()["requests"], 2);
    assert_eq!(endpoint(&gateway, 0)["condition"], "sound");

    upstream.always(Reply::status(401, "{}"));
    gateway.advance(60_000);
    for number in 100..103 {
        is_refused(&gateway.get(&token(number)).await, 401);
    }
    assert_eq!(
        (state(), key(&gateway, 0)["unusable_seconds"].as_f64()),
        ("quarantined".into(), Some(60.0))
    );
    // It is tried by whatever is asked next, whose own refusal makes that no longer.
    upstream.usually(|seen| match seen.target().contains("forbidden") {
        true => Reply::status(403, "{}"),
        false => Reply::json("{}"),
    });
    gateway.advance(60_000);
    is_refused(&gateway.get(&forbidden(0)).await, 403);
    assert_eq!(state(), "ready");
    assert_eq!(gateway.get(&token(1)).await.status, 200);
}

/// Requests that are refused at the same time wait for one key check.
#[tokio::test]
async fn key_checks_run_one_at_a_time() {
    let upstream = Upstream::start();
    let gate = Gate::new();
    let held = gate.clone();
    upstream.usually(move |seen| match seen.target().ends_with("/v1/") {
        true => Reply::json("{}").behind(&held),
        false => Reply::status(403, "{}"),
    });
    let gateway = keyed(&upstream, "one").start();
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
    assert_eq!(key(&gateway, 0)["state"], "ready");
}

#[tokio::test]
async fn a_quarantine_is_logged_once_with_the_keys_name() {
    let upstream = refusing(403, "bad-key-of-ours");
    let variables = [("ORDGATE_API_KEYS", "good-key-of-ours,bad-key-of-ours")];
    let (process, public, _admin) = Process::before(&upstream, &[], &variables);
    for target in [&*token(1), &*token(2), BLOCK, TX] {
        Client::connect(public).await.get(target).await;
    }
    process.signal(rustix::process::Signal::TERM);
    let log = process.wait().errors;
    let alarms: Vec<_> = log
        .lines()
        .filter(|line| line.contains("quarantine"))
        .collect();
    assert_eq!(alarms.len(), 1, "{log}");
    for part in ["ERROR", "key-2", "403"] {
        assert!(alarms[0].contains(part), "{part}: {log}");
    }
    assert!(!log.contains("key-of-ours"), "{log}");
}

/// What passes through as it comes says nothing of a key.
#[tokio::test]
async fn a_relayed_refusal_does_not_quarantine_the_key() {
    let upstream = Upstream::start();
    let setup = Setup::before(&upstream).config(&format!("{ROUTES}\n{}", all_below("plain")));
    let gateway = setup.keys("one,other").start();
    for status in [401, 403] {
        let body = r#"{"error":"not yours"}"#;
        upstream.always(Reply::status(status, body));
        for method in ["GET", "POST", "GET"] {
            let answer = gateway.request(method, "/plain/a", &[]).await;
            assert_eq!((answer.status, answer.text()), (status, body));
        }
    }
    assert_eq!(
        (
            key(&gateway, 0)["state"].as_str(),
            key(&gateway, 1)["state"].as_str()
        ),
        (Some("ready"), Some("ready"))
    );
    assert_eq!(key_checks(&upstream), 0);
}

/// Whatever answer reports it, and whatever budget is configured.
#[tokio::test]
async fn a_reported_limit_holds_until_its_end() {
    let fields = "ratelimit-remaining: 1\r\nratelimit-reset: 30\r\n";
    for (status, expected) in [(200, 200), (404, 404), (500, 502)] {
        let upstream = Upstream::start();
        // It is reported once; answers without it loosen nothing.
        upstream.always(Reply::with(200, "", "{}"));
        upstream.once(&token(0), Reply::with(status, fields, "{}"));
        let gateway = keyed(&upstream, "one").start();
        let unlimited = "upstream.requests_per_minute = \"unlimited\"\n\
                         upstream.requests_per_second = \"unlimited\"";
        assert_eq!(gateway.reload(unlimited).await.status, 200);
        assert_eq!(key(&gateway, 0)["budget_left"].as_u64(), None);
        assert_eq!(gateway.get(&token(0)).await.status, expected);
        assert_eq!(key(&gateway, 0)["budget_left"], 1);
        assert_eq!(gateway.get(&token(1)).await.status, 200);
        must_wait(&gateway.get(&token(2)).await, 30);
        gateway.advance(29_900);
        must_wait(&gateway.get(&token(2)).await, 1);
        gateway.advance(100);
        assert_eq!(gateway.get(&token(2)).await.status, 200, "{status}");
    }
}

#[tokio::test]
async fn limits_in_a_relayed_answer_apply_to_the_key_of_the_request() {
    for keys in ["one", ""] {
        let upstream = Upstream::start();
        let setup = respect::plain(&upstream).manual().keys(keys);
        let gateway: Gateway = setup.config("upstream.queue_timeout = \"20ms\"").start();
        let fields = "ratelimit-remaining: 0\r\nratelimit-reset: 30\r\n";
        upstream.always(Reply::with(200, fields, "{}"));
        assert_eq!(gateway.get("/a").await.status, 200);
        let next = gateway.get("/b").await;
        match keys {
            "" => assert_eq!(next.status, 200, "the limit may be the client's own"),
            _ => must_wait(&next, 30),
        }
    }
}
