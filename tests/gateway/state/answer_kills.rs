//! Kills at random moments, under load, purges and invalidations, with reorgs, damaged files and another
//! configuration in between. Whatever happens, an answer is what the upstream says at
//! the time, and never older than the last purge.
//!
//! `ORDGATE_KILLS` is the number of kills.

use std::collections::HashMap;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ordgate::sandbox::{Sandbox, Settings};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::answer_faults::files;
use super::answers::TIMED;
use crate::chain::{block, reply};
use crate::support::gateway::shipped_routes;
use crate::support::respect::{all_below, ok};
use crate::support::{Process, Reply, Upstream, within};

/// The names of the routes `timed` and `posted`.
const NAMES: usize = 40;

/// What is true, and what was acknowledged.
struct Model {
    sandbox: Sandbox,
    /// The blocks before a reorg of this run. ordgate hears of the reorg some time later.
    former: Mutex<HashMap<String, Vec<u8>>>,
    /// Of the route `timed`. An answer begins with the part of its target that another
    /// meaning of the route changes.
    timed: Versions,
    /// Of the route `posted`.
    posted: Versions,
}

struct Versions {
    /// The version that the upstream has of each name.
    now: Vec<AtomicU64>,
    /// The least version that may be answered: an older one was purged or invalidated.
    least: Vec<AtomicU64>,
}

impl Default for Versions {
    fn default() -> Self {
        let first = || (0..NAMES).map(|_| AtomicU64::new(1)).collect();
        Self {
            now: first(),
            least: first(),
        }
    }
}

impl Model {
    fn upstream(self: &Arc<Self>) -> Upstream {
        let (upstream, model) = (Upstream::start(), self.clone());
        upstream.usually(move |seen| {
            let target = seen.target();
            let body = |versions: &Versions, prefix: &str, name: &str| {
                let version = versions.now[name.parse::<usize>().unwrap()].load(SeqCst);
                format!("\"{prefix} {name} {version} {}\"", "x".repeat(1000))
            };
            if let Some((prefix, name)) = target.rsplit_once("/timed/") {
                return Reply::json(body(&model.timed, prefix, name));
            }
            match target.strip_prefix("/posted/") {
                Some(name) => ok(
                    &["cache-control: max-age=600"],
                    &body(&model.posted, "", name),
                ),
                None => reply(&model.sandbox, &target),
            }
        });
        upstream
    }

    async fn get(
        &self,
        public: SocketAddr,
        (path, versions): (&str, &Versions),
        prefix: &str,
        name: usize,
    ) {
        let least = versions.least[name].load(SeqCst);
        let target = format!("{path}{name}");
        let Some(answer) = ask(public, "GET", &target).await else {
            return;
        };
        assert_eq!(answer.status, 200, "{target}: {}", answer.head);
        let text = String::from_utf8(answer.body).unwrap();
        let mut parts = text.trim_matches('"').split(' ');
        assert_eq!(parts.next(), Some(prefix), "of another route: {target}");
        assert_eq!(parts.next(), Some(&*name.to_string()), "{target}");
        let version: u64 = parts.next().unwrap().parse().unwrap();
        let head = answer.head;
        assert!(
            least <= version,
            "{target}: {version} was purged, {least} not: {head}"
        );
        assert!(version <= versions.now[name].load(SeqCst));
    }

    async fn get_block(&self, public: SocketAddr, height: u32) {
        let target = block(height);
        let Some(answer) = ask(public, "GET", &target).await else {
            return;
        };
        assert_eq!(answer.status, 200, "{target}: {}", answer.head);
        let (no_fields, get) = (http::HeaderMap::new(), http::Method::GET);
        let truth = self.sandbox.answer(&get, &target, &no_fields);
        let is_stale = answer.head.contains("detail=stale-if-error");
        let former = self.former.lock().unwrap();
        let was_true = former.get(&target).is_some_and(|body| *body == answer.body);
        assert!(
            is_stale || was_true || answer.body == truth.body,
            "{target}: {}",
            answer.head
        );
    }

    /// A reorg while requests are answered.
    fn reorg(&self, depth: u32) {
        let tip = self.sandbox.tip().height;
        let (no_fields, get) = (http::HeaderMap::new(), http::Method::GET);
        let body = |target: &str| self.sandbox.answer(&get, target, &no_fields).body.to_vec();
        let targets = (0..40).map(|below| block(tip - below));
        let mut former = self.former.lock().unwrap();
        *former = targets
            .map(|target| (target.clone(), body(&target)))
            .collect();
        self.sandbox.reorg(depth);
    }

    /// Requests; where the operator's address is given, purges and perhaps a reorg too.
    async fn load(
        self: Arc<Self>,
        public: SocketAddr,
        admin: Option<SocketAddr>,
        is_other: bool,
        mut random: fastrand::Rng,
    ) {
        let tip = self.sandbox.tip().height;
        let prefix = if is_other { "/other" } else { "" };
        let reorg_at = admin.map_or(usize::MAX, |_| random.usize(..200));
        for number in 0..random.usize(30..120) {
            if number == reorg_at {
                self.reorg(random.u32(1..10));
            }
            let name = random.usize(..NAMES);
            match (random.u8(..10), admin) {
                (0, Some(admin)) => self.purge(admin, name).await,
                (1 | 2, _) => self.get_block(public, tip - random.u32(..40)).await,
                // One client alone, so that an answer is of a known version.
                (3, Some(_)) => self.post(public, name).await,
                (4 | 5, _) => self.get(public, ("/posted/", &self.posted), "", name).await,
                _ => {
                    let timed = ("/timed/", &self.timed);
                    self.get(public, timed, prefix, name).await;
                }
            }
        }
    }

    async fn purge(&self, admin: SocketAddr, name: usize) {
        let next = self.timed.now[name].fetch_add(1, SeqCst) + 1;
        let target = format!("/purge?url=/timed/{name}");
        if let Some(answer) = ask(admin, "POST", &target).await {
            assert_eq!(answer.status, 200, "{}", answer.head);
            self.timed.least[name].fetch_max(next, SeqCst);
        }
    }

    async fn post(&self, public: SocketAddr, name: usize) {
        let next = self.posted.now[name].fetch_add(1, SeqCst) + 1;
        if let Some(answer) = ask(public, "POST", &format!("/posted/{name}")).await {
            assert_eq!(answer.status, 200, "{}", answer.head);
            self.posted.least[name].fetch_max(next, SeqCst);
        }
    }
}

/// A whole answer.
struct Whole {
    status: u16,
    head: String,
    body: Vec<u8>,
}

/// Asks on a connection of its own; `None` where the process was killed before the
/// answer was whole.
async fn ask(address: SocketAddr, method: &str, target: &str) -> Option<Whole> {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await.ok()?;
        let fields = "host: localhost\r\nconnection: close\r\ncontent-length: 0";
        let request = format!("{method} {target} HTTP/1.1\r\n{fields}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).await.ok()?;
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
        let body = bytes.split_off(end + 4);
        let head = String::from_utf8(bytes).unwrap();
        let length = head
            .split("content-length: ")
            .nth(1)?
            .split("\r\n")
            .next()?;
        let status = head.split(' ').nth(1)?.parse().unwrap();
        let is_whole = body.len() == length.parse::<usize>().unwrap();
        is_whole.then_some(Whole { status, head, body })
    };
    within("an answer, or its end", exchange).await
}

/// The configuration; every fourth run has another meaning of the route.
fn configuration(is_other: bool) -> String {
    // Where nothing is limited, nothing is waited out after the journal was damaged.
    let fast = "[upstream]\nrequests_per_minute = \"unlimited\"\nrequests_per_second = \"unlimited\"\n[chain.tip.runes]\nevery = \"1s\"\n[chain.tip.ordinals]\nevery = \"1s\"\n";
    let timed = match is_other {
        true => TIMED.replace(
            "/timed/{name}\"",
            "/timed/{name}\"\nupstream_path = \"/other/timed/{name}\"",
        ),
        false => TIMED.to_owned(),
    };
    let posted = all_below("posted");
    format!("{fast}{}{timed}{posted}", shipped_routes())
}

/// Damages a file: of the answers, the spend journal, or the format.
fn damage(directory: &std::path::Path, random: &mut fastrand::Rng) {
    let mut files = files(directory);
    files.retain(|file| !file.ends_with("lock"));
    let path = &files[random.usize(..files.len())];
    let len = fs::metadata(path).unwrap().len();
    match random.u8(..3) {
        0 => {
            let file = File::options().write(true).open(path).unwrap();
            file.set_len(len.saturating_sub(random.u64(1..200)))
                .unwrap();
        }
        1 if len > 0 => {
            let mut bytes = fs::read(path).unwrap();
            let at = random.usize(..bytes.len());
            bytes[at] ^= 1 << random.u8(..8);
            fs::write(path, bytes).unwrap();
        }
        _ => {}
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_lose_no_purge_and_make_no_answer_wrong() {
    let kills = std::env::var("ORDGATE_KILLS").ok();
    let kills = kills.and_then(|kills| kills.parse().ok()).unwrap_or(20);
    let seed = std::env::var("ORDGATE_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    eprintln!("ORDGATE_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    let model = Arc::new(Model {
        sandbox: Sandbox::new(Settings::default()),
        former: Mutex::default(),
        timed: Versions::default(),
        posted: Versions::default(),
    });
    let upstream = model.upstream();
    let mut from_disk = 0;
    for kill in 0..kills {
        let is_other = kill % 4 == 3;
        let config = directory.path().join("proxy.toml");
        fs::write(&config, configuration(is_other)).unwrap();
        let flags = [
            "--state",
            state.to_str().unwrap(),
            "--config",
            config.to_str().unwrap(),
        ];
        model.former.lock().unwrap().clear();
        let (process, public, admin) = Process::before(&upstream, &flags, &[]);
        let mut load = JoinSet::new();
        for worker in 0..3 {
            let random = fastrand::Rng::with_seed(random.u64(..));
            let purges = (worker == 0).then_some(admin);
            load.spawn(model.clone().load(public, purges, is_other, random));
        }
        let pause = Duration::from_millis(random.u64(5..600));
        let _ended = tokio::time::timeout(pause, async {
            while let Some(ended) = load.join_next().await {
                ended.unwrap();
            }
        })
        .await;
        let status = ask(admin, "GET", "/status").await.unwrap();
        let status: Value = serde_json::from_slice(&status.body).unwrap();
        let hits = status["state_directory"]["answers"]["hits"].as_u64();
        from_disk += hits.unwrap_or_else(|| panic!("run {kill}: {status}"));
        process.signal(rustix::process::Signal::KILL);
        let left = process.wait();
        assert!(
            !left.errors.contains("panicked"),
            "run {kill}: {}",
            left.errors
        );
        while let Some(ended) = load.join_next().await {
            ended.unwrap_or_else(|error| panic!("run {kill}: {error}"));
        }
        if random.u8(..3) == 0 {
            damage(&state, &mut random);
        }
        match random.u8(..4) {
            0 => drop(model.sandbox.reorg(random.u32(1..10))),
            1 => model.sandbox.advance(random.u32(1..5)),
            _ => {}
        }
    }
    assert!(from_disk > 0, "nothing was ever read from disk");
}
