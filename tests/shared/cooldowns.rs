//! What an upstream asks of one replica about a key, all of them obey.

use std::time::Duration;

use ordgate::clock::Clock;

use super::servers::{Server, is_installed};
use super::support::{self, Gateway, Reply, Setup, Upstream};
use super::tier::{heard, replicas};

/// For how long a replica does not use its first key.
async fn unusable(gateway: &Gateway) -> f64 {
    let status = gateway.admin("/status").await.json();
    let keys = &status["upstream"]["keys"];
    keys[0]["unusable_seconds"].as_f64().unwrap()
}

/// Waits until a replica does not use its first key.
async fn cooled_down(gateway: &Gateway) {
    let cooled = async {
        while unusable(gateway).await <= 0.0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let cooled = tokio::time::timeout(support::PATIENCE, cooled).await;
    assert!(cooled.is_ok(), "the key is used still");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_one_replica_may_not_use_for_a_while_is_used_by_none() {
    if !is_installed() {
        return;
    }
    let (engine, clock, upstream) = (Server::start(), Clock::manual(), Upstream::start());
    let setup = || Setup::before(&upstream).keys("one-key-of-all");
    let gateways = replicas(2, &engine, &clock, setup);
    let other = replicas(1, &engine, &clock, || {
        Setup::before(&upstream).keys("another-key")
    });
    heard(&gateways).await;
    heard(&other).await;
    let throttled = Reply::with(429, "retry-after: 300\r\n", "{}");
    upstream.once(&support::token(1), throttled);
    assert_eq!(gateways[0].get(&support::token(1)).await.status, 503);
    cooled_down(&gateways[1]).await;
    assert!(unusable(&gateways[1]).await <= 301.0);
    let before = upstream.count();
    let refused = gateways[1].get(&support::token(2)).await;
    assert_eq!((refused.status, upstream.count()), (503, before));
    // So does one that comes later.
    let late = replicas(1, &engine, &clock, setup);
    heard(&late).await;
    cooled_down(&late[0]).await;
    // It is a matter of this key alone.
    assert_eq!(other[0].get(&support::token(3)).await.status, 200);
    assert!(unusable(&other[0]).await <= 0.0);
    clock.advance(Duration::from_secs(302));
    assert_eq!(gateways[1].get(&support::token(2)).await.status, 200);
}
