//! Statuses that one replica asks for.

use std::time::Duration;

use ordgate::shared::tip::TipLook;

use super::replica;
use super::server::Server;

const EVERY: Duration = Duration::from_secs(5);

#[tokio::test]
async fn one_replica_asks_and_the_others_take_its_answer() {
    let server = Server::start();
    let replicas: Vec<_> = (0..4).map(|_| replica(&server)).collect();
    let TipLook::Ask(claim) = replicas[0].tips.look("http://tip", EVERY).await else {
        panic!("nobody asks");
    };
    let waiting: Vec<_> = replicas[1..]
        .iter()
        .cloned()
        .map(|replica| {
            tokio::spawn(async move {
                match replica.tips.look("http://tip", EVERY).await {
                    TipLook::Answer { answer, .. } => answer,
                    TipLook::Ask(_) | TipLook::Absent => panic!("it asks too"),
                }
            })
        })
        .collect();
    claim.store(b"800000 \"tag\"").await;
    for waiting in waiting {
        assert_eq!(waiting.await.unwrap(), b"800000 \"tag\"");
    }
    // Another base URL is another tip; an answer that is too old is asked for anew.
    let other = replicas[1].tips.look("http://other", EVERY).await;
    assert!(matches!(other, TipLook::Ask(_)));
    let urgent = replicas[2].tips.look("http://tip", Duration::ZERO).await;
    assert!(matches!(urgent, TipLook::Ask(_)));
}

#[tokio::test]
async fn who_claims_and_is_killed_is_replaced_and_its_late_answer_dropped() {
    let server = Server::start();
    let [one, other, third] = [(); 3].map(|()| replica(&server));
    let TipLook::Ask(late) = one.tips.look("http://tip", EVERY).await else {
        panic!("nobody asks");
    };
    let TipLook::Ask(claim) = other.tips.look("http://tip", EVERY).await else {
        panic!("the claim does not end");
    };
    claim.store(b"new").await;
    late.store(b"old").await;
    let TipLook::Answer { answer, .. } = third.tips.look("http://tip", EVERY).await else {
        panic!("there is no answer");
    };
    assert_eq!(answer, b"new");
}
