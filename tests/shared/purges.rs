//! Purges that reach all replicas.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use ordgate::clock::Clock;
use ordgate::shared::Shared;
use ordgate::shared::purges::{Acknowledged, Generation};
use tokio::task::AbortHandle;

use super::server::Server;
use super::{replicas, settings};

/// A replica that follows, and what it has heard.
struct Follower {
    shared: Arc<Shared>,
    heard: Arc<Mutex<Vec<Vec<u8>>>>,
    task: AbortHandle,
}

impl Follower {
    fn new(shared: Arc<Shared>) -> Self {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let (own, follows, applies) = (heard.clone(), shared.clone(), shared.clone());
        let task = tokio::spawn(async move {
            follows
                .run(move |purges, _| {
                    // Until it is applied, nothing of the engine may be used.
                    assert_eq!(applies.purges.generation(), None);
                    own.lock().unwrap().extend(purges);
                    std::future::ready(())
                })
                .await;
        });
        let task = task.abort_handle();
        Self {
            shared,
            heard,
            task,
        }
    }

    /// One whose disk has applied so many purges, less than those of a generation.
    fn before(server: &Server, generation: Generation, missed: i64) -> Self {
        let number = generation.number.checked_add_signed(-missed).unwrap();
        let stored = Some(Generation {
            number,
            ..generation
        });
        Self::new(Shared::new(settings(server), stored, &Clock::machine()))
    }

    fn heard(&self) -> Vec<Vec<u8>> {
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

    /// Purges, and waits until so many replicas have applied it.
    async fn purge(&self, text: &str, replicas: u32) -> Acknowledged {
        let announced = self.shared.purges.announce(text.into());
        let mut limit = Duration::from_millis(100);
        loop {
            let acknowledged = self.shared.purges.acknowledged(announced, limit).await;
            if acknowledged.replicas >= replicas {
                return acknowledged;
            }
            limit *= 2;
        }
    }

    /// Waits until it has heard so many.
    async fn hears(&self, count: usize) -> Vec<Vec<u8>> {
        while self.heard().len() < count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.heard()
    }
}

/// What is heard where all is to be dropped.
const ALL: &[u8] = b"";

async fn followers(server: &Server) -> [Follower; 4] {
    let followers = replicas::<4>(server).map(Follower::new);
    for follower in &followers {
        follower.generation().await;
        // At its first call a replica drops what it may have stored before.
        let heard = std::mem::take(&mut *follower.heard.lock().unwrap());
        assert_eq!(heard, [ALL]);
    }
    followers
}

#[tokio::test]
async fn all_replicas_apply_a_purge_and_it_says_how_many_have() {
    let server = Server::start();
    let followers = followers(&server).await;
    let purge = followers[0].purge("one", 4);
    let of_others = async { followers[0].shared.purges.generation() };
    let (acknowledged, before_the_engine_has_it) = tokio::join!(purge, of_others);
    assert_eq!(before_the_engine_has_it, None);
    assert_eq!((acknowledged.replicas, acknowledged.missing), (4, 0));
    assert!(followers[0].heard().is_empty(), "its own is applied before");
    for follower in &followers[1..] {
        assert_eq!(follower.heard(), [b"one"]);
    }
    // One is gone: three have applied it.
    followers[3].task.abort();
    let acknowledged = followers[1].purge("two", 3).await;
    assert_eq!((acknowledged.replicas, acknowledged.missing), (3, 1));
    assert_eq!(followers[0].heard(), [b"two"]);
}

#[tokio::test]
async fn a_replica_that_was_cut_off_hears_what_it_has_missed_or_drops_all() {
    let server = Server::start();
    let followers = followers(&server).await;
    let before = followers[0].generation().await;
    let purges = &followers[0].shared.purges;
    for number in 0..1199 {
        purges.announce(number.to_string().into());
        while number % 100 == 99 && purges.generation().is_none() {
            tokio::task::yield_now().await;
        }
    }
    followers[0].purge("1199", 4).await;
    let last = followers[0].generation().await;
    assert_eq!(last.number, before.number + 1200);
    // One that has missed the last two, and one that the stream cannot bring forward.
    let late = Follower::before(&server, last, 2);
    assert_eq!(late.hears(2).await, [b"1198", b"1199"]);
    let lost = Follower::before(&server, last, 1200);
    assert_eq!(lost.hears(1).await, [ALL]);
    assert_eq!(lost.generation().await, last);
}

#[tokio::test]
async fn an_emptied_engine_costs_caches_only_where_a_purge_may_be_missed() {
    let server = Server::start();
    let followers = followers(&server).await;
    followers[0].purge("one", 4).await;
    let before = followers[0].generation().await;
    server.call::<()>(&["FLUSHALL"]);
    for follower in &followers {
        while follower.generation().await.life == before.life {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(follower.generation().await.number, before.number);
    }
    for follower in &followers[1..] {
        assert_eq!(follower.heard(), [b"one"], "nothing is dropped");
    }
    // One that knows a later generation of the life before: all drop all.
    let ahead = Follower::before(&server, before, -1);
    assert_eq!(ahead.hears(1).await, [ALL]);
    for (nth, follower) in followers.iter().enumerate() {
        let heard = follower.hears([1, 2, 2, 2][nth]).await;
        assert_eq!(heard.last(), Some(&ALL.to_vec()));
    }
    // One that knows an earlier one drops its own.
    let now = followers[0].generation().await;
    let behind = Follower::before(&server, before, 1);
    assert_eq!(behind.hears(1).await, [ALL]);
    assert_eq!(followers[0].generation().await, now);
}
