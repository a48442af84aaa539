//! Responses that replicas keep for each other.

use std::sync::Arc;
use std::time::Duration;

use ordgate::clock::Clock;
use ordgate::shared::Shared;
use ordgate::shared::purges::Generation;
use ordgate::shared::responses::{FillLock, LookUp, SharedResponse};

use super::server::Server;
use super::{LONG, replicas, settings};

const GENERATION: Generation = Generation { life: 1, number: 5 };
const KEY: &[u8] = b"route /a\xff";

fn response(tip: &str) -> SharedResponse {
    SharedResponse {
        tip: tip.into(),
        value: b"value \x00\xff".to_vec(),
    }
}

async fn look_up(replica: &Arc<Shared>, generation: Generation) -> LookUp<SharedResponse> {
    let usable = |found: &SharedResponse| (found.tip == b"now").then(|| found.clone());
    replica.responses.look_up(KEY, generation, usable).await
}

async fn finds(replica: &Arc<Shared>) -> bool {
    let found = look_up(replica, GENERATION).await;
    matches!(found, LookUp::Found(found) if found == response("now"))
}

async fn lead(replica: &Arc<Shared>) -> FillLock {
    match look_up(replica, GENERATION).await {
        LookUp::Lead(fill) => fill,
        LookUp::Found(_) | LookUp::Alone => panic!("it does not lead"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_replica_fetches_and_the_others_wait_for_its_response() {
    let server = Server::start();
    let [one, others @ ..] = replicas::<4>(&server);
    let fill = lead(&one).await;
    let waiting = others.clone();
    let waiting = waiting.map(|replica| tokio::spawn(async move { finds(&replica).await }));
    let has_waited = |replica: &Arc<Shared>| replica.snapshot()["responses"]["waited"] != 0;
    while !others.iter().all(has_waited) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    fill.put(&response("now"), LONG).await;
    for waiting in waiting {
        assert!(waiting.await.unwrap());
    }
    assert!(finds(&one).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_response_of_another_generation_or_tip_is_fetched_anew() {
    let server = Server::start();
    let [replica] = replicas(&server);
    let put = async |tip| {
        let response = response(tip);
        let put = replica.responses.put(KEY, GENERATION, &response, LONG);
        put.await;
    };
    put("now").await;
    for (life, number) in [(1, 6), (1, 4), (2, 5)] {
        let found = look_up(&replica, Generation { life, number }).await;
        assert!(matches!(found, LookUp::Lead(_)), "{life} {number}");
        drop(found);
        // The lock is given back.
        while server.call::<u64>(&["EXISTS", "ordgate:fill:route /a\u{fffd}"]) != 0 {}
        while !finds(&replica).await {}
    }
    put("before").await;
    lead(&replica).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn when_the_leader_is_killed_another_one_leads() {
    let server = Server::start();
    let mut settings = settings(&server);
    settings.fill_wait = Duration::from_secs(2);
    let [one, other] = [(); 2].map(|()| Shared::new(settings.clone(), None, &Clock::machine()));
    // A killed process gives nothing back.
    std::mem::forget(lead(&one).await);
    let mut looks = 0;
    while !matches!(look_up(&other, GENERATION).await, LookUp::Lead(_)) {
        looks += 1;
        assert!(looks < 3, "the lock outlives fill_wait");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nobody_waits_for_a_response_that_is_not_stored_and_a_failed_leader_hands_over() {
    let server = Server::start();
    let [one, other] = replicas(&server);
    drop(lead(&one).await);
    lead(&other).await.not_stored().await;
    for _ in 0..3 {
        assert!(matches!(look_up(&one, GENERATION).await, LookUp::Alone));
    }
}
