//! A key that the upstream refuses is in quarantine, and tried again now and then.
//! The status path decides: it is requested with the key each time.

use super::{key, keyed, metric, must_wait};
use crate::support::{
    Answer, BLOCK, Client, Gate, Gateway, Process, Reply, Setup, TX, Upstream, token,
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

        // It is tried after one minute, then two; no client sees it.
        for (round, pause) in [60_000, 120_000].into_iter().enumerate() {
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
        for pause in [60_u32, 120, 240, 480, 960, 1920, 3600, 3600] {
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
        // Its next quarantine begins anew.
        upstream.always(Reply::status(status, "{}"));
        is_refused(&gateway.get(&token(1)).await, status);
        assert_eq!(key(&gateway, 0).await["unusable_seconds"], 60.0);
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
async fn the_other_key_has_its_budget() {
    let upstream = refusing(401, "one");
    let gateway = Setup::before(&upstream)
        .keys("one,other")
        .manual()
        .config("upstream.queue_timeout = \"20ms\"\nupstream.requests_per_minute = 2")
        .start();
    for number in 0..2 {
        assert_eq!(gateway.get(&token(number)).await.status, 200);
    }
    must_wait(&gateway.get(&token(2)).await, 61);
    assert_eq!(upstream.count(), 4, "the key check is paid for");
}

#[tokio::test]
async fn all_keys_are_tried_and_no_more() {
    let upstream = Upstream::start();
    upstream.always(Reply::status(401, "{}"));
    let gateway = keyed(&upstream, "one,other,third");
    for number in 0..4 {
        is_refused(&gateway.get(&token(number)).await, 401);
    }
    for key in ["one", "other", "third"] {
        assert_eq!(used(&upstream, key), 2);
    }
}

#[tokio::test]
async fn hits_and_stale_answers_are_served_meanwhile() {
    let upstream = Upstream::start();
    let gateway = keyed(&upstream, "one");
    assert_eq!(gateway.get(&token(0)).await.status, 200);
    upstream.always(Reply::status(401, "{}"));
    is_refused(&gateway.get(&token(1)).await, 401);
    assert_eq!(gateway.get(&token(0)).await.status, 200);
    gateway.advance(11_000);
    let stale = gateway.get(&token(0)).await;
    assert_eq!(stale.status, 200);
    assert!(stale.must("cache-status").contains("stale-if-error"));
    assert_eq!(upstream.count(), 3);
}

#[tokio::test]
async fn a_403_for_one_target_does_not_quarantine_the_key() {
    let upstream = Upstream::start();
    let gateway = keyed(&upstream, "one");
    let page = "<html>telling</html>";
    let html = "content-type: text/html\r\n";
    upstream.once(&token(0), Reply::with(403, html, page));
    is_refused(&gateway.get(&token(0)).await, 403);
    assert_eq!(state(&gateway).await, "ready");
    assert_eq!(gateway.get(&token(0)).await.status, 200);
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
