//! Replicas that share the probes of a tip, with a real engine and an upstream that counts
//! them. Each test prints its figures.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tempfile::NamedTempFile;
use tokio::time::Instant;

use super::servers::{Server, is_installed};
use super::support::{Client, Process, Reply, Upstream};

const STATUS: &str = "/runes/v1/";

/// How often a tip is probed.
const EVERY: Duration = Duration::from_secs(1);

/// An indexer whose height a test sets.
struct Indexer {
    upstream: Upstream,
    height: Arc<AtomicU64>,
}

impl Indexer {
    fn start() -> Self {
        let height = Arc::new(AtomicU64::new(840_000));
        let upstream = Upstream::start();
        let shown = height.clone();
        upstream.usually(move |_| {
            let height = shown.load(Ordering::SeqCst);
            Reply::json(format!(
                "{{\"status\":\"ready\",\"block_height\":{height}}}"
            ))
        });
        Self { upstream, height }
    }

    /// The probes of one tip so far.
    fn probes(&self) -> usize {
        let seen = self.upstream.targets();
        seen.iter().filter(|target| *target == STATUS).count()
    }

    /// The probes of one tip within this time.
    async fn probes_within(&self, time: Duration) -> usize {
        let before = self.probes();
        tokio::time::sleep(time).await;
        self.probes() - before
    }
}

/// One ordgate of several.
struct Replica {
    process: Process,
    admin: SocketAddr,
    _config: NamedTempFile,
}

impl Replica {
    fn start(indexer: &Indexer, engine: &Server) -> Self {
        let config = NamedTempFile::new().unwrap();
        let text = "shared = { replicas = 3, timeout = \"500ms\" }\n\
                    upstream.requests_per_minute = \"unlimited\"\n\
                    upstream.requests_per_second = \"unlimited\"\n\
                    chain.tip.ordinals.every = \"1s\"\nchain.tip.runes.every = \"1s\"\n";
        std::fs::write(config.path(), text).unwrap();
        let url = engine.url();
        let (process, _, admin) = Process::before(
            &indexer.upstream,
            &["--config", config.path().to_str().unwrap()],
            &[("ORDGATE_SHARED_URL", &url)],
        );
        Self {
            process,
            admin,
            _config: config,
        }
    }

    async fn status(&self) -> Value {
        Client::connect(self.admin)
            .await
            .get("/status")
            .await
            .json()
    }

    /// The tip that is probed at the path that the tests count.
    async fn tip(&self) -> Value {
        let status = self.status().await;
        let tips = status["chain"]["tips"].as_array().unwrap().iter();
        let mut found = tips.filter(|tip| tip["path"] == STATUS);
        found.next().unwrap_or_else(|| panic!("{status:#}")).clone()
    }

    /// Who probes it.
    async fn probed_by(&self) -> String {
        let status = self.status().await;
        let tips = &status["shared"]["engine"]["tips"];
        tips["runes"]["probed_by"]
            .as_str()
            .unwrap_or("nobody yet")
            .to_owned()
    }
}

/// Waits until it is so for each of the replicas. Returns how long that took.
async fn until(
    what: &str,
    replicas: &[Replica],
    is_so: impl AsyncFn(&Replica) -> bool,
) -> Duration {
    let began = Instant::now();
    for replica in replicas {
        while !is_so(replica).await {
            assert!(
                began.elapsed() < Duration::from_secs(30),
                "not within 30 s: {what}: {:#}",
                replica.status().await
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    began.elapsed()
}

/// Starts three replicas, and waits until one of them probes. It is the first.
async fn started(indexer: &Indexer, engine: &Server) -> Vec<Replica> {
    let mut replicas = Vec::new();
    for _ in 0..3 {
        replicas.push(Replica::start(indexer, engine));
        until("a replica knows the tip", &replicas, async |replica| {
            replica.tip().await["known"] == true && replica.probed_by().await != "nobody yet"
        })
        .await;
    }
    assert_eq!(replicas[0].probed_by().await, "this replica");
    for replica in &replicas[1..] {
        assert_eq!(replica.probed_by().await, "another replica");
    }
    replicas
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_replica_probes_for_all_and_a_new_tip_reaches_them() {
    if !is_installed() {
        return;
    }
    let (indexer, engine) = (Indexer::start(), Server::start());
    let replicas = started(&indexer, &engine).await;
    let probes = indexer.probes_within(EVERY * 6).await;
    eprintln!("three replicas: {probes} probes in 6 s, one a second is due");
    assert!((4..=8).contains(&probes), "{probes}");
    for replica in &replicas {
        let tip = replica.tip().await;
        assert_eq!(tip["known"], true, "{tip:#}");
        let ago = tip["confirmed_seconds_ago"].as_f64().unwrap();
        assert!(ago < 2.0, "{tip:#}");
    }
    let before = replicas[1].tip().await["epoch"].as_u64().unwrap();
    let mut slowest = Duration::ZERO;
    for height in 840_001..840_004 {
        indexer.height.store(height, Ordering::SeqCst);
        let time = until("all have the new tip", &replicas, async |replica| {
            replica.tip().await["height"] == height
        });
        slowest = slowest.max(time.await);
    }
    eprintln!("a new tip is known to all after {slowest:?} at the most");
    // The holder's next probe, the followers' next call, and some time for a busy machine.
    assert!(slowest < Duration::from_secs(4), "{slowest:?}");
    assert!(replicas[1].tip().await["epoch"].as_u64().unwrap() >= before + 3);
    let tip = replicas[1].tip().await;
    let own = tip["probes"].as_u64().unwrap();
    assert!(own <= 4, "a follower probes at its start: {tip:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_replica_probes_after_the_holder_was_killed_or_has_left() {
    if !is_installed() {
        return;
    }
    let (indexer, engine) = (Indexer::start(), Server::start());
    let mut replicas = started(&indexer, &engine).await;
    let one_holds = async |replicas: &[Replica]| {
        let began = Instant::now();
        loop {
            for replica in replicas {
                if replica.probed_by().await == "this replica" {
                    return began.elapsed();
                }
            }
            assert!(began.elapsed() < Duration::from_secs(30));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    replicas.remove(0).process.signal(Signal::KILL);
    let probes = indexer.probes();
    let killed = one_holds(&replicas).await;
    let probes = indexer.probes() - probes;
    eprintln!("killed: another holds the lease after {killed:?}, {probes} probes meanwhile");
    assert!(killed < Duration::from_secs(6), "a lease lasts 3 s");
    // While none was heard, followers have probed for all: the tip was never lost for long.
    assert!((1..=8).contains(&probes), "{probes}");
    replicas.push(Replica::start(&indexer, &engine));
    until("the tip is known", &replicas, async |replica| {
        replica.tip().await["known"] == true
    })
    .await;
    // An orderly end gives the lease back.
    let mut holder = 0;
    while replicas[holder].probed_by().await != "this replica" {
        holder += 1;
    }
    let leaving = replicas.remove(holder).process;
    leaving.signal(Signal::TERM);
    let left = leaving.wait();
    assert_eq!(left.code(), Some(0), "{}", left.errors);
    let after = one_holds(&replicas).await;
    eprintln!("left: another holds the lease {after:?} after the end");
    assert!(after < Duration::from_secs(2), "{after:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_engine_each_replica_probes_for_itself() {
    if !is_installed() {
        return;
    }
    let (indexer, mut engine) = (Indexer::start(), Server::start());
    let replicas = started(&indexer, &engine).await;
    engine.kill();
    until("each probes for itself", &replicas, async |replica| {
        replica.probed_by().await == "each replica for itself"
    })
    .await;
    let probes = indexer.probes_within(EVERY * 5).await;
    eprintln!("without an engine: {probes} probes in 5 s, three a second are due");
    assert!((10..=18).contains(&probes), "{probes}");
    for replica in &replicas {
        assert_eq!(replica.tip().await["known"], true);
    }
    engine.start_again();
    until("one probes again", &replicas, async |replica| {
        replica.probed_by().await != "each replica for itself"
    })
    .await;
    tokio::time::sleep(EVERY).await;
    let probes = indexer.probes_within(EVERY * 5).await;
    eprintln!("with it again: {probes} probes in 5 s");
    assert!((3..=8).contains(&probes), "{probes}");
}

/// A stopped engine is as good as none, and what it does afterwards with the calls that
/// came meanwhile harms nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_engine_is_not_waited_for() {
    if !is_installed() {
        return;
    }
    let (indexer, engine) = (Indexer::start(), Server::start());
    let replicas = started(&indexer, &engine).await;
    for _ in 0..2 {
        engine.stop();
        until("each probes for itself", &replicas, async |replica| {
            replica.probed_by().await == "each replica for itself"
        })
        .await;
        let mut unknown = 0;
        for _ in 0..20 {
            tokio::time::sleep(EVERY / 10).await;
            for replica in &replicas {
                unknown += usize::from(replica.tip().await["known"] != true);
            }
        }
        assert_eq!(unknown, 0, "the tip stays known");
        engine.proceed();
        until("one probes", &replicas, async |replica| {
            replica.probed_by().await != "each replica for itself"
        })
        .await;
    }
    tokio::time::sleep(EVERY).await;
    let probes = indexer.probes_within(EVERY * 4).await;
    eprintln!("after two stops: {probes} probes in 4 s");
    assert!((2..=6).contains(&probes), "{probes}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_of_another_endpoint_do_not_follow() {
    if !is_installed() {
        return;
    }
    let (one, other, engine) = (Indexer::start(), Indexer::start(), Server::start());
    other.height.store(839_990, Ordering::SeqCst);
    let replicas = [&one, &one, &other].map(|indexer| Replica::start(indexer, &engine));
    until("all know a tip", &replicas, async |replica| {
        replica.tip().await["known"] == true
    })
    .await;
    until("all have found who probes", &replicas, async |replica| {
        replica.probed_by().await != "nobody yet"
    })
    .await;
    let (before, probes) = (other.probes(), one.probes_within(EVERY * 5).await);
    let others = other.probes() - before;
    eprintln!("two replicas of one endpoint: {probes} probes in 5 s; one of another: {others}");
    assert!((3..=7).contains(&probes), "{probes}");
    assert!((3..=7).contains(&others), "{others}");
    assert_eq!(replicas[0].tip().await["height"], 840_000);
    assert_eq!(replicas[1].tip().await["height"], 840_000);
    assert_eq!(replicas[2].tip().await["height"], 839_990);
    assert_eq!(replicas[2].probed_by().await, "this replica");
}

/// A holder whose probes fail leaves the lease to others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn probes_that_fail_are_not_waited_for() {
    if !is_installed() {
        return;
    }
    let (indexer, engine) = (Indexer::start(), Server::start());
    let replicas = started(&indexer, &engine).await;
    // One probe fails, whoever sends it, and the next one does not.
    indexer.upstream.once(STATUS, Reply::status(500, "{}"));
    until("one probe has failed", &replicas[..1], async |replica| {
        replica.tip().await["failures"] == 1
    })
    .await;
    until("another probes", &replicas[..1], async |replica| {
        replica.probed_by().await == "another replica"
    })
    .await;
    tokio::time::sleep(EVERY * 2).await;
    for replica in &replicas {
        assert_eq!(replica.tip().await["known"], true);
    }
}
