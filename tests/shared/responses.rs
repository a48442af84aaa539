//! Responses that replicas keep for each other.

use std::sync::Arc;
use std::time::Duration;

use ordgate::clock::Clock;
use ordgate::shared::Shared;
use ordgate::shared::purges::Generation;
use ordgate::shared::responses::{LookUp, SharedResponse};

use super::server::Server;
use super::{replica, settings};

const GENERATION: Generation = Generation { life: 1, number: 5 };
const KEY: &[u8] = b"route /a\xff";

fn response(tip: &str) -> SharedResponse {
    SharedResponse {
        tip: tip.into(),
        value: b"value \x00\xff".to_vec(),
    }
}

async fn look_up(replica: &Arc<Shared>, generation: Generation) -> LookUp {
    let is_usable = |found: &SharedResponse| found.tip == b"now";
    replica.responses.look_up(KEY, generation, is_usable).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_replica_fetches_and_the_others_wait_for_its_response() {
    let server = Server::start();
    let replicas: Vec<_> = (0..4).map(|_| replica(&server)).collect();
    let LookUp::Lead(fill) = look_up(&replicas[0], GENERATION).await else {
        panic!("nobody leads");
    };
    let waiting: Vec<_> = replicas[1..]
        .iter()
        .cloned()
        .map(|replica| {
            tokio::spawn(async move {
                let found = look_up(&replica, GENERATION).await;
                matches!(found, LookUp::Found(found) if found == response("now"))
            })
        })
        .collect();
    while replicas[1..]
        .iter()
        .any(|replica| replica.snapshot().responses.waited == 0)
    {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    fill.put(&response("now"), Duration::from_secs(60)).await;
    for waiting in waiting {
        assert!(waiting.await.unwrap());
    }
    assert!(matches!(
        look_up(&replicas[0], GENERATION).await,
        LookUp::Found(_)
    ));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_response_of_another_generation_or_tip_is_fetched_anew() {
    let server = Server::start();
    let replica = replica(&server);
    let lasts = Duration::from_secs(60);
    replica
        .responses
        .put(KEY, GENERATION, &response("now"), lasts)
        .await;
    for other in [
        Generation {
            number: 6,
            ..GENERATION
        },
        Generation {
            number: 4,
            ..GENERATION
        },
        Generation {
            life: 2,
            ..GENERATION
        },
    ] {
        let found = look_up(&replica, other).await;
        assert!(matches!(found, LookUp::Lead(_)), "{other:?}");
        drop(found);
        // The lock is given back.
        while server.call::<u64>(&["EXISTS", "test:fill:route /a\u{fffd}"]) != 0 {}
        while !matches!(look_up(&replica, GENERATION).await, LookUp::Found(_)) {}
    }
    replica
        .responses
        .put(KEY, GENERATION, &response("before"), lasts)
        .await;
    assert!(matches!(
        look_up(&replica, GENERATION).await,
        LookUp::Lead(_)
    ));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn when_the_leader_is_killed_another_one_leads() {
    let server = Server::start();
    let mut settings = settings(&server);
    settings.fill_wait = Duration::from_secs(2);
    let [one, other] = [(); 2].map(|()| Shared::new(settings.clone(), None, &Clock::machine()));
    let LookUp::Lead(fill) = look_up(&one, GENERATION).await else {
        panic!("nobody leads");
    };
    // A killed process gives nothing back.
    std::mem::forget(fill);
    let mut looks = 0;
    while !matches!(look_up(&other, GENERATION).await, LookUp::Lead(_)) {
        looks += 1;
        assert!(looks < 3, "the lock outlives fill_wait");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nobody_waits_for_a_response_that_is_not_stored_and_a_failed_leader_hands_over() {
    let server = Server::start();
    let [one, other] = [(); 2].map(|()| replica(&server));
    let LookUp::Lead(fill) = look_up(&one, GENERATION).await else {
        panic!("nobody leads");
    };
    drop(fill);
    let LookUp::Lead(fill) = look_up(&other, GENERATION).await else {
        panic!("the lock is not given back");
    };
    fill.not_stored().await;
    for _ in 0..3 {
        assert!(matches!(look_up(&one, GENERATION).await, LookUp::Alone));
    }
}
