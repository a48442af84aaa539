//! Statuses that one replica asks for.

use std::sync::Arc;
use std::time::Duration;

use ordgate::shared::Shared;
use ordgate::shared::tip::{TipClaim, TipLook};

use super::replicas;
use super::server::Server;

const EVERY: Duration = Duration::from_secs(5);

async fn asks(replica: &Arc<Shared>, url: &str, most: Duration) -> TipClaim {
    match replica.tips.look(url, most).await {
        TipLook::Ask(claim) => claim,
        TipLook::Answer { .. } | TipLook::Absent => panic!("it does not ask"),
    }
}

async fn answer(replica: &Arc<Shared>) -> Vec<u8> {
    match replica.tips.look("http://tip", EVERY).await {
        TipLook::Answer { answer, .. } => answer,
        TipLook::Ask(_) | TipLook::Absent => panic!("it asks too"),
    }
}

#[tokio::test]
async fn one_replica_asks_and_the_others_take_its_answer() {
    let server = Server::start();
    let [one, others @ ..] = replicas::<4>(&server);
    let claim = asks(&one, "http://tip", EVERY).await;
    let waiting = others.clone();
    let waiting = waiting.map(|replica| tokio::spawn(async move { answer(&replica).await }));
    claim.store(b"800000 \"tag\"").await;
    for waiting in waiting {
        assert_eq!(waiting.await.unwrap(), b"800000 \"tag\"");
    }
    // Another base URL is another tip; an answer that is too old is asked for anew.
    asks(&others[0], "http://other", EVERY).await;
    asks(&others[1], "http://tip", Duration::ZERO).await;
}

#[tokio::test]
async fn who_claims_and_is_killed_is_replaced_and_its_late_answer_dropped() {
    let server = Server::start();
    let [one, other, third] = replicas(&server);
    let late = asks(&one, "http://tip", EVERY).await;
    let claim = asks(&other, "http://tip", EVERY).await;
    claim.store(b"new").await;
    late.store(b"old").await;
    assert_eq!(answer(&third).await, b"new");
}
