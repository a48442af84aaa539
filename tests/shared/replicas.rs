//! Whole replicas with a real engine: what they grant each other, what they say of it,
//! and what clients get without it.

use std::collections::BTreeMap;
use std::time::Duration;

use ordgate::clock::Clock;
use serde_json::Value;

use super::servers::{Server, is_installed, wait_for};
use super::support::{Gateway, Process, Setup, Upstream};

/// Requests of one client hardly wait for a permit, and are not limited.
const CONFIG: &str = r#"
    [shared]
    replicas = 2
    timeout = "1s"
    [upstream]
    requests_per_minute = 60
    requests_per_second = 60
    queue_timeout = "1ms"
    [limit]
    enabled = false
"#;

/// The sequence number of the last report of each process, about one budget.
fn reports(engine: &Server) -> BTreeMap<String, u64> {
    let keys = engine.call(&["KEYS", "*:b:*"]);
    // The engine lists them in any order.
    let Some(key) = keys.list().iter().map(|key| key.text()).min() else {
        return BTreeMap::new();
    };
    let all = engine.call(&["HGETALL", key]);
    let rows = all.list().chunks(2).filter_map(|row| {
        let process = row[0].text().strip_prefix("p:")?.to_owned();
        let sequence = row[1].text().split(',').next()?;
        Some((process, sequence.parse().ok()?))
    });
    rows.collect()
}

/// Time passes until each replica has reported.
fn pass(engine: &Server, gateways: &[Gateway], clock: &Clock, millis: u64) {
    let before = reports(engine);
    clock.advance(Duration::from_millis(millis));
    wait_for("all replicas report", || {
        // A report that was lost is not repeated before the next round.
        clock.advance(Duration::from_millis(20));
        let now = reports(engine);
        let later = now.iter().filter(|(process, sequence)| {
            let known = before.get(*process);
            known.is_none_or(|known| known < *sequence)
        });
        later.count() >= gateways.len()
    });
}

async fn shared(gateway: &Gateway) -> Value {
    gateway.admin("/status").await.json()["shared"].clone()
}

async fn metric(gateway: &Gateway, name: &str) -> f64 {
    let answer = gateway.admin("/metrics").await;
    let text = answer.text();
    let line = text.lines().find(|line| {
        line.strip_prefix(name)
            .is_some_and(|rest| rest.starts_with([' ', '{']))
    });
    let line = line.unwrap_or_else(|| panic!("no {name} in {text}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// How many of so many requests for different things are answered.
async fn answered(gateway: &Gateway, first: usize, requests: usize) -> usize {
    let mut answered = 0;
    for block in first..first + requests {
        let target = format!("/runes/v1/blocks/{block}/activity");
        let status = gateway.get(&target).await.status;
        assert!(status == 200 || status == 503, "{status}");
        answered += usize::from(status == 200);
    }
    answered
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_is_granted_what_the_other_does_not_need_and_has_its_floor_alone() {
    if !is_installed() {
        return;
    }
    let mut engine = Server::start();
    let clock = Clock::manual();
    let upstream = Upstream::start_by(&clock);
    let gateways = ["one", "two"].map(|name| {
        let name = format!("[shared]\nname = \"{name}\"");
        let setup = Setup::before(&upstream).config(CONFIG).config(&name);
        setup.engine(&engine.url()).clock(&clock).start()
    });
    pass(&engine, &gateways, &clock, 0);
    assert_eq!(
        answered(&gateways[0], 1, 1).await,
        0,
        "the predecessor counts"
    );
    for _ in 0..20 {
        pass(&engine, &gateways, &clock, 8_000);
    }
    // The first one alone has clients. Its budget is paced, so that all of it takes time.
    let mut sent = 0;
    for round in 0..80 {
        sent += answered(&gateways[0], 100 + 5 * round, 5).await;
        pass(&engine, &gateways, &clock, 2_500);
    }
    let status = shared(&gateways[0]).await;
    let key = &status["keys"][0];
    assert_eq!(key["floor"]["minute"], 15, "{status:#}");
    assert!(key["granted"]["minute"].as_u64().unwrap() > 3, "{status:#}");
    assert!(
        sent > 50,
        "{sent}: more than the floor in 200 s. {status:#}"
    );
    assert_eq!(status["engine"]["status"], "answers", "{status:#}");
    let budget = &status["engine"]["budgets"][0];
    assert_eq!(
        budget["processes"],
        serde_json::json!(["one", "two"]),
        "{status:#}"
    );
    assert_eq!(budget["floor_only"], false, "{status:#}");
    assert_eq!(metric(&gateways[0], "ordgate_shared_up").await, 1.0);
    assert_eq!(metric(&gateways[0], "ordgate_shared_floor_mode").await, 0.0);
    assert_eq!(metric(&gateways[0], "ordgate_shared_processes").await, 2.0);

    engine.kill();
    clock.advance(Duration::from_secs(4));
    for gateway in &gateways {
        for _ in 0..1500 {
            if shared(gateway).await["engine"]["status"] != "answers" {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let status = shared(gateway).await;
        assert_eq!(
            status["engine"]["budgets"][0]["floor_only"], true,
            "{status:#}"
        );
        assert_eq!(metric(gateway, "ordgate_shared_up").await, 0.0);
        assert_eq!(metric(gateway, "ordgate_shared_floor_mode").await, 1.0);
    }
    let floor = answered(&gateways[1], 1000, 30).await;
    assert!((8..=15).contains(&floor), "{floor} of its floor");
    assert_eq!(upstream.count(), sent + floor, "those that were answered");
    let cached = upstream.targets()[0].clone();
    assert_eq!(
        gateways[0].get(&cached).await.status,
        200,
        "it needs no engine"
    );
}

#[test]
fn a_wrong_url_is_refused_at_the_start_without_the_password() {
    for (url, words) in [
        ("http://:s3cret@127.0.0.1", "not a URL"),
        ("rediss://:s3cret@127.0.0.1/#insecure", "certificates"),
    ] {
        let variables = [
            ("ORDGATE_SHARED_URL", url),
            ("ORDGATE_SHARED_REPLICAS", "2"),
        ];
        let left = Process::run(&["check"], &variables);
        assert_eq!(left.code(), Some(2), "{}", left.errors);
        let said = left.errors + &left.out;
        assert!(
            said.contains("ORDGATE_SHARED_URL") && said.contains(words),
            "{said}"
        );
        assert!(!said.contains("s3cret"), "{said}");
    }
    let url = [("ORDGATE_SHARED_URL", "redis://:s3cret@10.0.0.1")];
    let left = Process::run(&["check"], &url);
    assert!(
        left.errors.contains("replicas is missing"),
        "{}",
        left.errors
    );
}
