//! Purges that reach all replicas.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ordgate::shared::Shared;
use ordgate::shared::purges::{Generation, HeardPurge};
use tokio::task::AbortHandle;

use super::server::Server;
use super::{LONG, replica, replica_with};

/// A replica that follows, and what it has heard.
struct Follower {
    shared: Arc<Shared>,
    heard: Arc<Mutex<Vec<HeardPurge>>>,
    task: AbortHandle,
}

impl Follower {
    fn new(shared: Arc<Shared>) -> Self {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let (own, follows) = (heard.clone(), shared.clone());
        let task = tokio::spawn(async move {
            follows.run(async |purges, _| own.lock().unwrap().extend(purges)).await;
        });
        let task = task.abort_handle();
        Self { shared, heard, task }
    }

    fn heard(&self) -> Vec<HeardPurge> {
        self.heard.lock().unwrap().clone()
    }

    async fn generation(&self) -> Generation {
        loop {
            if let Some(generation) = self.shared.purges.generation() {
                return generation;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until it has heard so many.
    async fn hears(&self, count: usize) -> Vec<HeardPurge> {
        while self.heard().len() < count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.heard()
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn record(text: &str) -> HeardPurge {
    HeardPurge::Record(text.into())
}

async fn followers(server: &Server) -> Vec<Follower> {
    let followers: Vec<_> = (0..4).map(|_| Follower::new(replica(server))).collect();
    for follower in &followers {
        follower.generation().await;
    }
    followers
}

#[tokio::test]
#[allow(clippy::disallowed_methods, reason = "it prints how long it took")]
async fn all_replicas_apply_a_purge_and_it_says_how_many_have() {
    let server = Server::start();
    let mut followers = followers(&server).await;
    let began = Instant::now();
    let announced = followers[0].shared.purges.announce(b"one".to_vec());
    assert_eq!(followers[0].shared.purges.generation(), None, "until the engine has it");
    let acknowledged = followers[0].shared.purges.acknowledged(announced, LONG).await;
    println!("applied by all in {:?}", began.elapsed());
    assert_eq!((acknowledged.replicas, acknowledged.missing), (4, 0));
    assert_eq!(followers[0].heard(), [], "its own is applied before");
    for follower in &followers[1..] {
        assert_eq!(follower.heard(), [record("one")]);
    }
    // One is gone: three have applied it.
    drop(followers.pop());
    let announced = followers[1].shared.purges.announce(b"two".to_vec());
    let mut limit = Duration::from_millis(100);
    let mut acknowledged = followers[1].shared.purges.acknowledged(announced, limit).await;
    while acknowledged.replicas < 3 {
        limit *= 2;
        acknowledged = followers[1].shared.purges.acknowledged(announced, limit).await;
    }
    assert_eq!((acknowledged.replicas, acknowledged.missing), (3, 1));
    assert_eq!(followers[0].heard(), [record("two")]);
}

#[tokio::test]
async fn a_replica_that_was_cut_off_hears_what_it_has_missed_or_drops_all() {
    let server = Server::start();
    let followers = followers(&server).await;
    let before = followers[0].generation().await;
    for number in 0..1200 {
        let announced = followers[0].shared.purges.announce(number.to_string().into_bytes());
        if number % 100 == 99 {
            followers[0].shared.purges.acknowledged(announced, LONG).await;
        }
    }
    let last = followers[0].generation().await;
    assert_eq!((last.life, last.number), (before.life, before.number + 1200));
    // One that has missed the last two, and one that the stream cannot bring forward.
    let late = Generation { number: last.number - 2, ..last };
    let late = Follower::new(replica_with(&server, late));
    assert_eq!(late.hears(2).await, [record("1198"), record("1199")]);
    let lost = Follower::new(replica_with(&server, before));
    assert_eq!(lost.hears(1).await, [HeardPurge::All]);
    assert_eq!(lost.generation().await, last);
}

#[tokio::test]
async fn an_emptied_engine_costs_caches_only_where_a_purge_may_be_missed() {
    let server = Server::start();
    let followers = followers(&server).await;
    let announced = followers[0].shared.purges.announce(b"one".to_vec());
    followers[0].shared.purges.acknowledged(announced, LONG).await;
    let before = followers[0].generation().await;
    server.call(&["FLUSHALL"]);
    for follower in &followers {
        while follower.generation().await.life == before.life {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(follower.generation().await.number, before.number);
    }
    for follower in &followers[1..] {
        assert_eq!(follower.heard(), [record("one")], "nothing is dropped");
    }
    // One that knows a later generation of the life before: all drop all.
    let ahead = Generation { number: before.number + 1, ..before };
    let ahead = Follower::new(replica_with(&server, ahead));
    assert_eq!(ahead.hears(1).await, [HeardPurge::All]);
    for follower in &followers {
        assert_eq!(follower.hears(1).await.last(), Some(&HeardPurge::All));
    }
    // One that knows an earlier one drops its own.
    let now = followers[0].generation().await;
    let behind = Generation { number: before.number - 1, ..before };
    let behind = Follower::new(replica_with(&server, behind));
    assert_eq!(behind.hears(1).await, [HeardPurge::All]);
    assert_eq!(followers[0].generation().await, now);
}
