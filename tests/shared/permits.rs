//! Permits of the pool.

use std::time::Duration;

use ordgate::shared::permits::{Denied, Limits, PoolKey};

use super::server::{Server, wait_for};
use super::{Shared, replica};
use std::sync::Arc;

const SET: &str = "test:permits:digest";
const POOL: Limits = Limits {
    per_minute: Some(12),
    per_second: Some(8),
};

fn key() -> PoolKey {
    PoolKey {
        digest: "digest".into(),
        host: "api.example".into(),
    }
}

async fn denied(replica: &Arc<Shared>, pool: Limits) -> Denied {
    match replica.permits.take(&key(), pool, Duration::ZERO).await {
        Ok(_) => panic!("granted"),
        Err(denied) => denied,
    }
}

/// Asserts that the pool is closed for two minutes.
async fn assert_closed(replica: &Arc<Shared>) {
    let denied = denied(replica, POOL).await;
    let Denied::Closed { opens_in } = denied else {
        panic!("{denied:?}");
    };
    assert!((100..=121).contains(&opens_in.as_secs()), "{opens_in:?}");
}

#[tokio::test]
async fn the_pool_is_one_for_all_replicas_in_each_second_and_minute() {
    let server = Server::start();
    let replicas = [(); 3].map(|()| replica(&server));
    assert_closed(&replicas[0]).await;
    server.open_pool(SET);
    let mut held = Vec::new();
    for nth in 0..8 {
        let permit = replicas[nth % 3].permits.take(&key(), POOL, Duration::ZERO);
        held.push(permit.await.unwrap_or_else(|denied| panic!("{nth}: {denied:?}")));
    }
    // A second's pool is in flight.
    for replica in &replicas {
        let denied = denied(replica, POOL).await;
        assert!(matches!(denied, Denied::Spent { .. }), "{denied:?}");
    }
    // Those that were never written are free at once, for all.
    for permit in held.drain(..2) {
        permit.never_written();
    }
    wait_for("they are given back", || server.call(&["ZCARD", SET]).to_owned() == super::server::Answer::Number(7));
    let minute = Limits { per_second: None, ..POOL };
    for nth in 0..6 {
        let permit = replicas[nth % 3].permits.take(&key(), minute, Duration::ZERO);
        held.push(permit.await.unwrap_or_else(|denied| panic!("{nth}: {denied:?}")));
    }
    // An answered one leaves a minute after its answer; the others after two.
    let before = denied(&replicas[1], minute).await;
    assert!(matches!(before, Denied::Spent { retry_after } if retry_after.as_secs() > 61), "{before:?}");
    held.remove(3).answered(Duration::ZERO);
    let mut after = before;
    for _ in 0..500 {
        after = denied(&replicas[1], minute).await;
        if matches!(after, Denied::Spent { retry_after } if retry_after.as_secs() <= 60) {
            return;
        }
    }
    panic!("{after:?}");
}

#[tokio::test]
async fn a_server_that_is_emptied_restarted_or_failed_over_closes_the_pool() {
    let (mut server, copy) = (Server::start(), Server::start());
    let replica = replica(&server);
    assert_closed(&replica).await;
    server.open_pool(SET);
    let _permit = replica.permits.take(&key(), POOL, Duration::ZERO).await.ok().unwrap();

    server.call(&["FLUSHALL"]);
    assert_closed(&replica).await;
    server.open_pool(SET);
    server.call(&["SAVE"]);
    server.kill();
    server.start_again();
    wait_for("it has what was saved", || server.call(&["DBSIZE"]) == super::server::Answer::Number(1));
    let mut outcome = denied(&replica, POOL).await;
    while outcome == Denied::Absent {
        tokio::time::sleep(Duration::from_millis(20)).await;
        outcome = denied(&replica, POOL).await;
    }
    assert!(matches!(outcome, Denied::Closed { .. }), "{outcome:?}");

    server.open_pool(SET);
    copy.follow(&server);
    copy.promote();
    // The old primary refuses what a replica has for it; back again, it is another life.
    server.follow(&copy);
    assert_eq!(denied(&replica, POOL).await, Denied::Absent);
    server.promote();
    let mut outcome = denied(&replica, POOL).await;
    while outcome == Denied::Absent {
        tokio::time::sleep(Duration::from_millis(20)).await;
        outcome = denied(&replica, POOL).await;
    }
    assert!(matches!(outcome, Denied::Closed { .. }), "{outcome:?}");
}

#[tokio::test]
async fn a_rest_reaches_the_others_with_their_next_call() {
    let server = Server::start();
    let [one, other, third] = [(); 3].map(|()| replica(&server));
    assert_closed(&one).await;
    server.open_pool(SET);
    let permit = one.permits.take(&key(), POOL, Duration::ZERO).await.ok().unwrap();
    permit.answered(Duration::from_secs(30));
    wait_for("it is there", || server.call(&["DBSIZE"]) == super::server::Answer::Number(2));
    let resting = denied(&other, POOL).await;
    assert!(matches!(resting, Denied::Resting { rest } if rest.as_secs() >= 20), "{resting:?}");
    // Another host does not rest; and a longer rest that a caller knows of counts.
    let elsewhere = PoolKey { host: "other.example".into(), ..key() };
    assert!(third.permits.take(&elsewhere, POOL, Duration::ZERO).await.is_ok());
    let longer = third.permits.take(&key(), POOL, Duration::from_secs(90)).await;
    assert!(matches!(longer, Err(Denied::Resting { rest }) if rest.as_secs() >= 80));
    let resting = denied(&one, POOL).await;
    assert!(matches!(resting, Denied::Resting { rest } if rest.as_secs() >= 80), "{resting:?}");
}
