//! Faults on real processes: replicas, an engine and its copy, and everything between them
//! fails at random, while an upstream counts requests and an operator purges.
//!
//! Never may the upstream see more than the budget, and never may a replica that was said
//! to have applied a purge answer with what was purged.
//!
//! It takes 20 s. An hour:
//!
//!     ORDGATE_STORM_SECONDS=3600 cargo test --test shared storm -- --nocapture

mod faults;
mod fleet;
mod front;

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use self::faults::Weather;
use self::fleet::Fleet;
use super::servers::is_installed;
use super::support::PATIENCE;

/// The budget of the only key. In a short run nothing is limited for each minute: a
/// replica that starts would wait until nothing counts any more that another could have
/// sent before it.
const PER_MINUTE: usize = 300;
const PER_SECOND: usize = 20;
const LONG: u64 = 300;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_fails_no_budget_is_exceeded_and_no_purged_answer_comes_back() {
    if !is_installed() {
        return;
    }
    let seconds = std::env::var("ORDGATE_STORM_SECONDS").ok();
    let seconds = seconds.map_or(20, |seconds| seconds.parse().unwrap());
    let seed = std::env::var("ORDGATE_STORM_SEED").ok();
    let seed = seed.map_or(1, |seed| seed.parse().unwrap());
    let fleet = Arc::new(Fleet::start(seconds >= LONG).await);
    let clients = fleet.clients();
    let operator = tokio::spawn(fleet.clone().purge_on());
    let mut weather = Weather::new(seed);
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        weather.strike(&fleet).await;
        fleet.check();
    }
    // All is well again: a purge reaches everyone.
    weather.calm_down(&fleet).await;
    let end = Instant::now() + PATIENCE;
    while fleet.reached_all.load(SeqCst) <= fleet.purges_before_calm() {
        let last = fleet.last_purge.lock().unwrap().clone();
        assert!(Instant::now() < end, "{}: {last:#}", weather.said());
        sleep(Duration::from_millis(100)).await;
    }
    fleet.over.store(true, SeqCst);
    operator.await.unwrap();
    for client in clients {
        client.await.unwrap();
    }
    fleet.check();
    let [minute, second] = [60, 1].map(|seconds| fleet.busiest(seconds));
    eprintln!(
        "{seconds} s, seed {seed}: {}; {} upstream requests, at most {minute} in 60 s and {second} \
         in 1 s; {} purges, {} of them applied by all replicas; {} answers",
        weather.said(),
        fleet.upstream.count(),
        fleet.purges.load(SeqCst),
        fleet.reached_all.load(SeqCst),
        fleet.answers.load(SeqCst),
    );
    assert!(
        seconds < LONG || minute <= PER_MINUTE,
        "{minute} in a minute"
    );
    assert!(second <= PER_SECOND, "{second} in a second");
    assert!(fleet.answers.load(SeqCst) > 100, "clients are answered");
}
