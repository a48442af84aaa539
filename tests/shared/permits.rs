//! Permits of the pool.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ordgate::clock::Clock;
use ordgate::shared::permits::{Limits, PermitDenied, Permits, PoolPermit};
use ordgate::shared::tip::TipLook;

use super::server::{Server, wait_for};
use super::{LONG, Shared, replicas, settings};

const SET: &str = "ordgate:permits:6b6579";
const POOL: Limits = Limits {
    per_minute: Some(12),
    per_second: Some(8),
};

type Outcome = Result<PoolPermit, PermitDenied>;

/// Takes a permit for a key that rests for so long at a host, as far as the replica knows.
async fn take(replica: &Arc<Shared>, pool: Limits, (host, rest): (&str, u64)) -> Outcome {
    let keys = Permits::keys(b"key", host);
    let rest = Duration::from_secs(rest);
    replica.permits.take(keys, pool, rest).await
}

async fn denied(replica: &Arc<Shared>) -> PermitDenied {
    let permit = take(replica, POOL, ("api.example", 0)).await;
    permit.err().expect("it is denied")
}

async fn is_absent(replica: &Arc<Shared>) -> bool {
    denied(replica).await.outcome == "absent"
}

async fn granted(replica: &Arc<Shared>, pool: Limits) -> PoolPermit {
    let permit = take(replica, pool, ("api.example", 0)).await;
    permit.unwrap_or_else(|denied| panic!("{denied:?}"))
}

/// Asserts that the pool is closed for two minutes, as soon as the engine answers.
async fn assert_closed(server: &Server, replica: &Arc<Shared>) {
    while is_absent(replica).await {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // What it tells is less: the engine is asked again soon.
    let denied = denied(replica).await;
    assert_eq!((&*denied.outcome, denied.wait.as_secs()), ("closed", 5));
    let life: Vec<String> = server.call(&["ZRANGE", SET, "0", "0", "WITHSCORES"]);
    let (now, _): (u64, u64) = server.call(&["TIME"]);
    let opens_in = life[1].parse::<u64>().unwrap() / 1000 - now;
    assert!((100..=122).contains(&opens_in), "{opens_in}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_pool_is_one_for_all_replicas_in_each_second_and_minute() {
    let server = Server::start();
    let replicas: [_; 3] = replicas(&server);
    assert_closed(&server, &replicas[0]).await;
    server.open_pool(SET);
    let mut held = Vec::new();
    for nth in 0..8 {
        held.push(granted(&replicas[nth % 3], POOL).await);
    }
    // A second's pool is in flight.
    for replica in &replicas {
        assert_eq!(denied(replica).await.outcome, "spent");
    }
    // Those that were never written are free at once, for all.
    for permit in held.drain(..2) {
        permit.never_written();
    }
    wait_for("they are given back", || {
        server.call::<u64>(&["ZCARD", SET]) == 7
    });
    let minute = Limits {
        per_second: None,
        ..POOL
    };
    for nth in 0..6 {
        held.push(granted(&replicas[nth % 3], minute).await);
    }
    let denied = take(&replicas[0], minute, ("api.example", 0)).await;
    assert_eq!(denied.err().unwrap().outcome, "spent");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_server_that_is_emptied_restarted_or_failed_over_closes_the_pool() {
    let (mut server, copy) = (Server::start(), Server::start());
    let [replica] = replicas(&server);
    assert_closed(&server, &replica).await;
    server.open_pool(SET);
    let _permit = granted(&replica, POOL).await;

    server.call::<()>(&["FLUSHALL"]);
    assert_closed(&server, &replica).await;
    server.open_pool(SET);
    server.call::<()>(&["SAVE"]);
    server.kill();
    server.start_again();
    wait_for("it has what was saved", || {
        server.call::<u64>(&["DBSIZE"]) == 1
    });
    assert_closed(&server, &replica).await;

    server.open_pool(SET);
    copy.follow(&server);
    copy.promote();
    // The old primary refuses what a replica has for it; back again, it is another life.
    server.follow(&copy);
    assert!(is_absent(&replica).await);
    server.promote();
    assert_closed(&server, &replica).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_rest_reaches_the_others_with_their_next_call() {
    let server = Server::start();
    let [one, other, third] = replicas(&server);
    assert_closed(&server, &one).await;
    server.open_pool(SET);
    let permit = granted(&one, POOL).await;
    permit.answered(Duration::from_secs(30));
    wait_for("it is there", || server.call::<u64>(&["DBSIZE"]) == 2);
    let rests = |denied: PermitDenied, least: u64| {
        let rests = denied.outcome == "resting" && denied.wait.as_secs() >= least;
        assert!(rests, "{denied:?}");
    };
    rests(denied(&other).await, 20);
    // Another host does not rest; and a longer rest that a caller knows of counts.
    assert!(take(&third, POOL, ("other.example", 0)).await.is_ok());
    let longer = take(&third, POOL, ("api.example", 90)).await;
    rests(longer.err().unwrap(), 80);
    rests(denied(&one).await, 80);
}

#[tokio::test]
#[allow(clippy::disallowed_methods, reason = "the time-out is of real time")]
async fn a_stopped_engine_costs_a_call_its_time_out_and_then_nothing() {
    let server = Server::start();
    let mut settings = settings(&server);
    settings.timeout = Duration::from_millis(50);
    let shared = Shared::new(settings, None, &Clock::machine());
    while is_absent(&shared).await {}
    server.stop();
    let began = Instant::now();
    // Until the breaker opens: then calls return at once.
    for _ in 0..1000 {
        assert!(is_absent(&shared).await);
        assert!(began.elapsed() < LONG, "{}", shared.snapshot());
    }
    let tip = shared.tips.look("http://tip", LONG).await;
    assert!(matches!(tip, TipLook::Absent));
    server.proceed();
    while is_absent(&shared).await {
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert!(began.elapsed() < LONG * 2, "{}", shared.snapshot());
    }
}
