//! Purges of one replica are in force in all others: whole replicas with a real engine.

use std::io::Write;
use std::net::SocketAddr;
use std::time::Duration;

use ordgate::clock::Clock;
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::NamedTempFile;

use super::servers::{Answer, Cluster, Server, is_installed, wait_for};
use super::support::{Client, Gateway, Process, Setup, Upstream, encoded};

/// A route whose answers are fresh for long, and no budget in the way.
const CONFIG: &str = r#"
    [shared]
    replicas = 3
    timeout = "500ms"
    [upstream]
    requests_per_minute = "unlimited"
    requests_per_second = "unlimited"
    [limit]
    enabled = false
    [[route]]
    name = "timed"
    path = "/timed/{name}"
    params.name = { type = "string" }
    cache = { mode = "override", times = { 200 = "1h" } }
"#;

fn setup(upstream: &Upstream, engine: &str, name: &str) -> Setup {
    let name = format!("shared.name = \"{name}\"");
    let setup = Setup::before(upstream).chain().config(CONFIG);
    setup.config(&name).engine(engine)
}

/// Two replicas that know each other.
async fn pair(upstream: &Upstream, engine: &str) -> [Gateway; 2] {
    let pair = ["one", "two"].map(|name| setup(upstream, engine, name).start());
    for (gateway, other) in pair.iter().zip(["two", "one"]) {
        until_known(gateway.admin, other).await;
    }
    pair
}

async fn journal_at(admin: SocketAddr) -> Value {
    let answer = Client::connect(admin).await.get("/status").await;
    answer.json()["shared"]["journal"].clone()
}

/// Waits until the journal of a replica is in a state.
async fn until_journal(admin: SocketAddr, what: &str, holds: impl Fn(&Value) -> bool) {
    let mut last = Value::Null;
    for _ in 0..1500 {
        last = journal_at(admin).await;
        if holds(&last) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("it does not happen within 30 s: {what}: {last:#}");
}

/// Waits until a replica is in sync with the journal and knows another one.
async fn until_known(admin: SocketAddr, other: &str) {
    until_journal(admin, other, |journal| {
        let mut replicas = journal["replicas"].as_array().into_iter().flatten();
        journal["heard"] == true && replicas.any(|replica| replica["name"] == other)
    })
    .await;
}

/// Purges a target, and returns what the answer says of other replicas.
async fn purge(admin: SocketAddr, target: &str) -> Value {
    let url = format!("/purge?url={}", encoded(target));
    let mut client = Client::connect(admin).await;
    let answer = client.request("POST", &url, &[]).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["replicas"].clone()
}

/// Purges a target on a replica, and waits until another one has applied it. Returns
/// whether the answer said so; on a busy machine it may take longer than an answer waits.
async fn purge_both(gateway: &Gateway, other: (&Gateway, &str), target: &str) -> bool {
    let replicas = purge(gateway.admin, target).await;
    let (other, name) = other;
    if replicas == json!({ "applied": [name], "not_reached": [] }) {
        return true;
    }
    let late = json!({ "applied": [], "not_reached": [name] });
    if replicas["engine"].is_null() {
        assert_eq!(replicas, late);
    }
    let sent = |journal: &Value| journal["waiting"] == 0;
    until_journal(gateway.admin, "it is sent", sent).await;
    let tail = journal_at(gateway.admin).await["tail"].clone();
    let applied = |journal: &Value| journal["applied"].as_u64() >= tail.as_u64();
    until_journal(other.admin, "it is applied", applied).await;
    false
}

/// Whether an answer needs no request to the upstream.
async fn is_stored(public: SocketAddr, upstream: &Upstream, target: &str) -> bool {
    // Probes of the tip do not count.
    let requests = || {
        upstream
            .targets()
            .iter()
            .filter(|one| *one == target)
            .count()
    };
    let before = requests();
    let answer = Client::connect(public).await.get(target).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    requests() == before
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purge_is_in_force_in_all_replicas_when_it_is_answered() {
    if !is_installed() {
        return;
    }
    let (engine, upstream) = (Server::start(), Upstream::start());
    let [one, two] = pair(&upstream, &engine.url()).await;
    let (mut times, mut named, clock) = (Vec::new(), 0, Clock::machine());
    for round in 0..100 {
        let target = format!("/timed/{}", round % 7);
        is_stored(two.public, &upstream, &target).await;
        assert!(is_stored(two.public, &upstream, &target).await, "{round}");
        let began = clock.now();
        named += usize::from(purge_both(&one, (&two, "two"), &target).await);
        times.push(clock.now().since(began));
        assert!(!is_stored(two.public, &upstream, &target).await, "{round}");
    }
    assert!(named > 80, "{named} of 100 answers name the other replica");
    times.sort_unstable();
    eprintln!("a purge takes {:?}, p99 {:?}", times[50], times[98]);
    for (gateway, sent, received) in [(&one, 100, 0), (&two, 0, 100)] {
        let journal = journal_at(gateway.admin).await;
        assert_eq!(journal["records"]["sent"], sent, "{journal:#}");
        assert_eq!(journal["records"]["received"], received, "{journal:#}");
        assert_eq!(journal["gaps"], 0, "{journal:#}");
        assert_eq!(journal["waiting"], 0, "{journal:#}");
    }
    // One that leaves is not waited for, nor named.
    two.end().await;
    let replicas = purge(one.admin, "/timed/1").await;
    assert_eq!(replicas, json!({ "applied": [], "not_reached": [] }));
}

/// A replica as a process, which can be stopped.
struct Stoppable {
    process: Process,
    public: SocketAddr,
    admin: SocketAddr,
    _config: NamedTempFile,
}

impl Stoppable {
    fn start(upstream: &Upstream, engine: &Server) -> Self {
        let mut config = NamedTempFile::new().unwrap();
        config.write_all(CONFIG.as_bytes()).unwrap();
        let path = config.path().display().to_string();
        let engine = engine.url();
        let variables = [
            ("ORDGATE_SHARED_URL", &*engine),
            ("ORDGATE_SHARED_NAME", "two"),
        ];
        let (process, public, admin) = Process::before(upstream, &["--config", &path], &variables);
        Self {
            process,
            public,
            admin,
            _config: config,
        }
    }

    fn stop(&self) {
        self.process.signal(Signal::STOP);
        wait_for("the process is stopped", || self.process.state() == 'T');
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_replica_is_named_and_purges_when_it_goes_on() {
    if !is_installed() {
        return;
    }
    let (engine, upstream) = (Server::start(), Upstream::start());
    let one = setup(&upstream, &engine.url(), "one").start();
    let two = Stoppable::start(&upstream, &engine);
    until_known(one.admin, "two").await;
    until_known(two.admin, "one").await;
    for target in ["/timed/a", "/timed/b"] {
        is_stored(two.public, &upstream, target).await;
        assert!(is_stored(two.public, &upstream, target).await);
    }
    two.stop();
    let clock = Clock::machine();
    let began = clock.now();
    let replicas = purge(one.admin, "/timed/a").await;
    assert_eq!(replicas, json!({ "applied": [], "not_reached": ["two"] }));
    assert!(
        clock.now().since(began) > Duration::from_millis(400),
        "it may go on"
    );
    until_journal(one.admin, "it is silent", |journal| {
        journal["replicas"][0]["reached"] == false
    })
    .await;
    let replicas = purge(one.admin, "/timed/b").await;
    assert_eq!(replicas, json!({ "applied": [], "not_reached": ["two"] }));
    two.process.signal(Signal::CONT);
    let applied = |journal: &Value| journal["applied"] == 2 && journal["heard"] == true;
    until_journal(two.admin, "both are applied", applied).await;
    for target in ["/timed/a", "/timed/b"] {
        assert!(!is_stored(two.public, &upstream, target).await, "{target}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_engine_a_purge_says_so_and_is_sent_later() {
    if !is_installed() {
        return;
    }
    let (mut engine, upstream) = (Server::start(), Upstream::start());
    let [one, two] = pair(&upstream, &engine.url()).await;
    is_stored(two.public, &upstream, "/timed/a").await;
    engine.kill();
    until_journal(one.admin, "it is out of sync", |journal| {
        journal["heard"] == false
    })
    .await;
    let replicas = purge(one.admin, "/timed/a").await;
    assert_eq!(replicas["not_reached"], json!(["two"]), "{replicas}");
    assert!(replicas["engine"].is_string(), "{replicas}");
    assert!(
        is_stored(two.public, &upstream, "/timed/a").await,
        "a standalone ordgate"
    );
    engine.start_again();
    let applied = |journal: &Value| journal["applied"] == 1 && journal["heard"] == true;
    until_journal(two.admin, "it is applied", applied).await;
    assert!(!is_stored(two.public, &upstream, "/timed/a").await);
    assert_eq!(journal_at(two.admin).await["generations"], 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emptied_engine_loses_no_purge() {
    if !is_installed() {
        return;
    }
    let (engine, upstream) = (Server::start(), Upstream::start());
    let [one, two] = pair(&upstream, &engine.url()).await;
    for round in 1..=5_u64 {
        is_stored(two.public, &upstream, "/timed/a").await;
        assert!(is_stored(two.public, &upstream, "/timed/a").await);
        engine.call(&["FLUSHALL"]);
        purge_both(&one, (&two, "two"), "/timed/a").await;
        assert!(
            !is_stored(two.public, &upstream, "/timed/a").await,
            "{round}"
        );
        // All purges so far are there again.
        let all = |journal: &Value| journal["applied"] == round && journal["waiting"] == 0;
        until_journal(one.admin, "they are sent again", all).await;
        until_journal(two.admin, "they are read again", all).await;
    }
    for gateway in [&one, &two] {
        let journal = journal_at(gateway.admin).await;
        assert_eq!(journal["gaps"], 0, "{journal:#}");
        assert!(journal["generations"].as_u64().unwrap() >= 5, "{journal:#}");
    }
    assert_eq!(
        journal_at(two.admin).await["records"]["received"],
        5,
        "each once"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_purged_while_a_replica_was_down_does_not_come_back_from_its_disk() {
    if !is_installed() {
        return;
    }
    let (engine, upstream) = (Server::start(), Upstream::start());
    let directory = tempfile::tempdir().unwrap();
    let state = format!("state.path = {:?}", directory.path());
    let one = setup(&upstream, &engine.url(), "one").start();
    let start = || {
        setup(&upstream, &engine.url(), "two")
            .config(&state)
            .start()
    };
    let mut two = start();
    for round in 1..=3_u64 {
        until_known(one.admin, "two").await;
        for target in ["/timed/purged", "/timed/kept"] {
            is_stored(two.public, &upstream, target).await;
        }
        let saved = directory.path().join("journal");
        wait_for("the position is saved", || saved.exists());
        two.end().await;
        purge(one.admin, "/timed/purged").await;
        if round == 3 {
            // The new generation has it too.
            engine.call(&["FLUSHALL"]);
        }
        two = start();
        if round == 3 {
            let applied = |journal: &Value| journal["applied"] == round;
            until_journal(two.admin, "they are sent again", applied).await;
        }
        // Otherwise it has caught up before it serves.
        assert!(
            !is_stored(two.public, &upstream, "/timed/purged").await,
            "{round}"
        );
        assert!(
            is_stored(two.public, &upstream, "/timed/kept").await,
            "{round}"
        );
    }
}

/// All rights that docs/replicas.md lists, and no more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rights_of_the_documentation_suffice() {
    if !is_installed() {
        return;
    }
    let (engine, upstream) = (Server::start(), Upstream::start());
    let rights = "on >pass ~ordgate* ~{ordgate* -@all +@read +@write +@scripting -@dangerous +info +select +time";
    let user: Vec<_> = ["ACL", "SETUSER", "replica"]
        .into_iter()
        .chain(rights.split(' '))
        .collect();
    engine.call(&user);
    let url = format!("redis://replica:pass@127.0.0.1:{}", engine.port);
    let [one, two] = pair(&upstream, &url).await;
    purge_both(&one, (&two, "two"), "/timed/a").await;
    two.end().await;
    let refused = engine.call(&["ACL", "LOG"]);
    assert_eq!(refused, Answer::List(Vec::new()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_position_that_cannot_be_read_purges_everything() {
    if !is_installed() {
        return;
    }
    let (engine, upstream) = (Server::start(), Upstream::start());
    let directory = tempfile::tempdir().unwrap();
    let state = format!("state.path = {:?}", directory.path());
    let start = || {
        setup(&upstream, &engine.url(), "two")
            .config(&state)
            .start()
    };
    let two = start();
    is_stored(two.public, &upstream, "/timed/a").await;
    let saved = directory.path().join("journal");
    wait_for("the position is saved", || saved.exists());
    two.end().await;
    let two = start();
    assert!(is_stored(two.public, &upstream, "/timed/a").await);
    two.end().await;
    std::fs::write(saved, "damaged").unwrap();
    // Or it would be in the engine.
    engine.call(&["FLUSHALL"]);
    let two = start();
    assert!(!is_stored(two.public, &upstream, "/timed/a").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn purges_go_through_a_cluster() {
    if !is_installed() {
        return;
    }
    let (cluster, upstream) = (Cluster::start(), Upstream::start());
    let [one, two] = pair(&upstream, &cluster.url()).await;
    for round in 0..5 {
        is_stored(two.public, &upstream, "/timed/a").await;
        purge_both(&one, (&two, "two"), "/timed/a").await;
        assert!(
            !is_stored(two.public, &upstream, "/timed/a").await,
            "{round}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_takes_over_loses_no_purge() {
    if !is_installed() {
        return;
    }
    let (cluster, upstream) = (Cluster::start(), Upstream::start());
    let [one, two] = pair(&upstream, &cluster.url()).await;
    is_stored(two.public, &upstream, "/timed/a").await;
    purge(one.admin, "/timed/b").await;
    let key = "{ordgate:j}";
    let holds = |server: &&Server| server.call(&["EXISTS", key]) == Answer::Number(1);
    let at = cluster.servers[..3]
        .iter()
        .position(|server| holds(&server))
        .unwrap();
    cluster.servers[at].stop();
    cluster.servers[at + 3].call(&["CLUSTER", "FAILOVER", "TAKEOVER"]);
    purge(one.admin, "/timed/a").await;
    let both = |journal: &Value| journal["applied"] == 2 && journal["heard"] == true;
    until_journal(two.admin, "both are applied", both).await;
    assert!(!is_stored(two.public, &upstream, "/timed/a").await);
    cluster.servers[at].proceed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_command_names_who_was_not_reached() {
    if !is_installed() {
        return;
    }
    let (engine, upstream) = (Server::start(), Upstream::start());
    let one = setup(&upstream, &engine.url(), "one").start();
    let two = Stoppable::start(&upstream, &engine);
    until_known(one.admin, "two").await;
    let admin = one.admin.to_string();
    let command = |wanted: &str| {
        let arguments = ["purge", "--admin", &admin, "--url", wanted];
        Process::run(&arguments, &[])
    };
    // On a busy machine it may be late.
    let is_silent = || {
        let left = command("/timed/a");
        assert_eq!(left.code(), Some(0), "{}", left.errors);
        left.errors.is_empty()
    };
    wait_for("all are reached", is_silent);
    two.stop();
    let left = command("/timed/a");
    assert_eq!(left.code(), Some(0), "{}", left.errors);
    assert!(
        left.errors.contains("not purged yet by two"),
        "{}",
        left.errors
    );
    two.process.signal(Signal::CONT);
}

#[tokio::test]
async fn an_engine_that_answers_is_said_to_though_no_key_has_a_limit() {
    if !is_installed() {
        return;
    }
    let (mut engine, upstream) = (Server::start(), Upstream::start());
    let gateway = setup(&upstream, &engine.url(), "one").start();
    until_journal(gateway.admin, "it is in sync", |now| now["heard"] == true).await;
    let status = async || gateway.admin("/status").await.json()["shared"]["engine"].clone();
    let answers = status().await;
    assert_eq!(answers["status"], "answers", "{answers:#}");
    engine.kill();
    until_journal(gateway.admin, "it is out of sync", |now| {
        now["heard"] == false
    })
    .await;
    let gone = status().await;
    assert_ne!(gone["status"], "answers", "{gone:#}");
}
