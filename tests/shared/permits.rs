//! Permits of the pool.

use std::sync::Arc;
use std::time::Duration;

use ordgate::shared::permits::{PermitDenied, PoolKey, PoolLimits, PoolPermit};

use super::server::{Server, wait_for};
use super::{Shared, replica};

const SET: &str = "test:permits:digest";
const POOL: PoolLimits = PoolLimits {
    per_minute: Some(12),
    per_second: Some(8),
};

fn key() -> PoolKey {
    PoolKey {
        digest: "digest".into(),
        host: "api.example".into(),
    }
}

async fn denied(replica: &Arc<Shared>, pool: PoolLimits) -> PermitDenied {
    match replica.permits.take(&key(), pool, Duration::ZERO).await {
        Ok(_) => panic!("granted"),
        Err(denied) => denied,
    }
}

async fn granted(replica: &Arc<Shared>, pool: PoolLimits) -> PoolPermit {
    let permit = replica.permits.take(&key(), pool, Duration::ZERO).await;
    permit.unwrap_or_else(|denied| panic!("{denied:?}"))
}

/// Asserts that the pool is closed for two minutes, as soon as the engine answers.
async fn assert_closed(replica: &Arc<Shared>) {
    let mut outcome = denied(replica, POOL).await;
    while outcome == PermitDenied::Absent {
        tokio::time::sleep(Duration::from_millis(20)).await;
        outcome = denied(replica, POOL).await;
    }
    let PermitDenied::Closed { opens_in } = outcome else {
        panic!("{outcome:?}");
    };
    assert!((100..=121).contains(&opens_in.as_secs()), "{opens_in:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_pool_is_one_for_all_replicas_in_each_second_and_minute() {
    let server = Server::start();
    let replicas = [(); 3].map(|()| replica(&server));
    assert_closed(&replicas[0]).await;
    server.open_pool(SET);
    let mut held = Vec::new();
    for nth in 0..8 {
        held.push(granted(&replicas[nth % 3], POOL).await);
    }
    // A second's pool is in flight.
    for replica in &replicas {
        let denied = denied(replica, POOL).await;
        assert!(matches!(denied, PermitDenied::Spent { .. }), "{denied:?}");
    }
    // Those that were never written are free at once, for all.
    for permit in held.drain(..2) {
        permit.never_written();
    }
    wait_for("they are given back", || {
        server.call::<u64>(&["ZCARD", SET]) == 7
    });
    let minute = PoolLimits {
        per_second: None,
        ..POOL
    };
    for nth in 0..6 {
        held.push(granted(&replicas[nth % 3], minute).await);
    }
    // An answered one leaves a minute after its answer; the others after two.
    let last: Vec<(String, u64)> = server.call(&["ZRANGE", SET, "-1", "-1", "WITHSCORES"]);
    let sooner = (last[0].1 - 50_000).to_string();
    let leave_sooner = || server.call::<u64>(&["ZCOUNT", SET, "(1", &sooner]);
    assert_eq!(leave_sooner(), 0);
    held.remove(3).answered(Duration::ZERO);
    wait_for("it leaves sooner", || leave_sooner() == 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_server_that_is_emptied_restarted_or_failed_over_closes_the_pool() {
    let (mut server, copy) = (Server::start(), Server::start());
    let replica = replica(&server);
    assert_closed(&replica).await;
    server.open_pool(SET);
    let _permit = granted(&replica, POOL).await;

    server.call::<()>(&["FLUSHALL"]);
    assert_closed(&replica).await;
    server.open_pool(SET);
    server.call::<()>(&["SAVE"]);
    server.kill();
    server.start_again();
    wait_for("it has what was saved", || {
        server.call::<u64>(&["DBSIZE"]) == 1
    });
    assert_closed(&replica).await;

    server.open_pool(SET);
    copy.follow(&server);
    copy.promote();
    // The old primary refuses what a replica has for it; back again, it is another life.
    server.follow(&copy);
    assert_eq!(denied(&replica, POOL).await, PermitDenied::Absent);
    server.promote();
    assert_closed(&replica).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_rest_reaches_the_others_with_their_next_call() {
    let server = Server::start();
    let [one, other, third] = [(); 3].map(|()| replica(&server));
    assert_closed(&one).await;
    server.open_pool(SET);
    let permit = granted(&one, POOL).await;
    permit.answered(Duration::from_secs(30));
    wait_for("it is there", || server.call::<u64>(&["DBSIZE"]) == 2);
    let resting = denied(&other, POOL).await;
    assert!(
        matches!(resting, PermitDenied::Resting { rest } if rest.as_secs() >= 20),
        "{resting:?}"
    );
    // Another host does not rest; and a longer rest that a caller knows of counts.
    let elsewhere = PoolKey {
        host: "other.example".into(),
        ..key()
    };
    let other_host = third.permits.take(&elsewhere, POOL, Duration::ZERO).await;
    assert!(other_host.is_ok());
    let longer = third
        .permits
        .take(&key(), POOL, Duration::from_secs(90))
        .await;
    assert!(matches!(longer, Err(PermitDenied::Resting { rest }) if rest.as_secs() >= 80));
    let resting = denied(&one, POOL).await;
    assert!(
        matches!(resting, PermitDenied::Resting { rest } if rest.as_secs() >= 80),
        "{resting:?}"
    );
}
