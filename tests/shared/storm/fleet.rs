//! The replicas, the engine with its copy, the clients and the operator.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::super::servers::{Server, wait_for};
use super::super::support::{Process, Reply, Turnstile, Upstream};
use super::front::Front;
use super::{PER_MINUTE, PER_SECOND};

const NAMES: [&str; 3] = ["one", "two", "three"];
/// How many different resources are asked for all the time. Others are asked for once.
const ITEMS: u64 = 8;

/// The replicas and all that they need.
pub(super) struct Fleet {
    pub(super) upstream: Upstream,
    replicas: Vec<Replica>,
    engines: Mutex<Engines>,
    directory: TempDir,
    /// The version that the upstream answers with.
    version: Arc<AtomicU64>,
    pub(super) purges: AtomicUsize,
    pub(super) reached_all: AtomicUsize,
    before_calm: AtomicUsize,
    pub(super) answers: AtomicUsize,
    /// The answer to the last purge.
    pub(super) last_purge: Mutex<Value>,
    pub(super) over: AtomicBool,
    /// What went wrong, if anything.
    wrong: Mutex<Vec<String>>,
}

struct Replica {
    name: &'static str,
    front: Front,
    running: Mutex<Running>,
    /// The lowest version that it may answer with.
    least: AtomicU64,
}

struct Running {
    process: Process,
    public: SocketAddr,
    admin: SocketAddr,
}

/// The primary, then its copy.
pub(super) struct Engines([Server; 2]);

impl Engines {
    fn start() -> Self {
        let engines = [(); 2].map(|()| Server::start());
        engines[1].follow(&engines[0]);
        Self(engines)
    }

    pub(super) fn pause(&self, millis: &str) {
        self.0[0].call(&["CLIENT", "PAUSE", millis]);
    }

    pub(super) fn stop(&self) {
        self.0[0].stop();
    }

    pub(super) fn proceed(&self) {
        self.0[0].proceed();
    }

    pub(super) fn flush(&self) {
        self.0[0].call(&["FLUSHALL"]);
    }

    pub(super) fn save(&self) {
        self.0[0].call(&["SAVE"]);
    }

    pub(super) fn kill(&mut self) {
        self.0[0].kill();
    }

    pub(super) fn start_again(&mut self) {
        self.0[0].start_again();
    }
}

impl Fleet {
    /// Starts all of it, perhaps with a budget for each minute.
    pub(super) async fn start(is_long: bool) -> Self {
        let version = Arc::new(AtomicU64::new(1));
        let upstream = Upstream::start();
        let (own, random) = (version.clone(), Mutex::new(fastrand::Rng::with_seed(3)));
        upstream.usually(move |_| {
            let late = random.lock().unwrap().u64(..60);
            // What it answers was so when the request came.
            let body = format!("{{\"version\":{}}}", own.load(SeqCst));
            Reply::json(body).in_turn(&Turnstile::default(), Duration::from_millis(late))
        });
        let engines = Engines::start();
        let directory = tempfile::tempdir().unwrap();
        let text = config(&upstream, is_long);
        std::fs::write(directory.path().join(CONFIG), text).unwrap();
        let mut replicas = Vec::new();
        for name in NAMES {
            let front = Front::start(engines.0[0].port).await;
            let running = start(directory.path(), name, &front);
            replicas.push(Replica {
                name,
                front,
                running: Mutex::new(running),
                least: AtomicU64::new(0),
            });
        }
        Self {
            upstream,
            replicas,
            engines: Mutex::new(engines),
            directory,
            version,
            purges: AtomicUsize::new(0),
            reached_all: AtomicUsize::new(0),
            before_calm: AtomicUsize::new(0),
            answers: AtomicUsize::new(0),
            last_purge: Mutex::default(),
            over: AtomicBool::new(false),
            wrong: Mutex::default(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.replicas.len()
    }

    pub(super) fn front(&self, replica: usize) -> &Front {
        &self.replicas[replica].front
    }

    pub(super) fn engine(&self) -> MutexGuard<'_, Engines> {
        self.engines.lock().unwrap()
    }

    pub(super) fn signal(&self, replica: usize, signal: Signal) {
        self.replicas[replica].running().process.signal(signal);
    }

    /// Kills a replica, and starts another in its place with its state directory.
    pub(super) async fn replace(&self, replica: usize) {
        let replica = &self.replicas[replica];
        let directory = self.directory.path();
        tokio::task::block_in_place(|| {
            let mut running = replica.running();
            running.process.signal(Signal::KILL);
            running.process.reap();
            *running = start(directory, replica.name, &replica.front);
        });
    }

    /// The copy becomes the primary, with what it has; the primary becomes its copy.
    pub(super) fn promote(&self) {
        let mut engines = self.engine();
        engines.0.swap(0, 1);
        let [primary, copy] = &engines.0;
        primary.promote();
        for replica in &self.replicas {
            replica.front.lead_to(primary.port);
        }
        copy.call(&["REPLICAOF", "127.0.0.1", &primary.port.to_string()]);
        wait_for("the copy follows", || {
            copy.info("master_link_status") == "up"
        });
    }

    pub(super) fn have_calm(&self) {
        self.before_calm
            .store(self.reached_all.load(SeqCst), SeqCst);
    }

    pub(super) fn purges_before_calm(&self) -> usize {
        self.before_calm.load(SeqCst)
    }

    /// Clients of each replica.
    pub(super) fn clients(self: &Arc<Self>) -> Vec<JoinHandle<()>> {
        let clients =
            (0..self.len()).flat_map(|replica| (0..3).map(move |client| (replica, client)));
        let spawn = |(replica, client)| tokio::spawn(self.clone().ask_on(replica, client));
        clients.map(spawn).collect()
    }

    /// Asks a replica for one thing after the other.
    async fn ask_on(self: Arc<Self>, replica: usize, client: u64) {
        let replica = &self.replicas[replica];
        let mut random = fastrand::Rng::with_seed(client);
        let mut connection: Option<TcpStream> = None;
        while !self.over.load(SeqCst) {
            tokio::time::sleep(Duration::from_millis(10)).await;
            let path = match client {
                // It uses what there is of the budget.
                0 => format!("/other/{}", random.u64(..)),
                _ => format!("/item/{}", random.u64(..ITEMS)),
            };
            let least = replica.least.load(SeqCst);
            let open = match connection.take() {
                Some(open) => Some(open),
                None => {
                    let public = replica.address(|running| running.public);
                    TcpStream::connect(public).await.ok()
                }
            };
            let Some(mut open) = open else {
                continue;
            };
            let exchange = exchange(&mut open, "GET", &path);
            let Ok(Some((status, body))) = tokio::time::timeout(PATIENCE, exchange).await else {
                continue;
            };
            connection = Some(open);
            if status != 200 {
                continue;
            }
            self.answers.fetch_add(1, SeqCst);
            let body: Value = serde_json::from_slice(&body).unwrap();
            let version = body["version"].as_u64().unwrap();
            if client > 0 && version < least {
                let what = format!(
                    "{}: {path} is of version {version}, and {least} had been purged for",
                    replica.name
                );
                self.wrong.lock().unwrap().push(what);
            }
        }
    }

    /// Changes what the upstream answers, and purges it, all the time.
    pub(super) async fn purge_on(self: Arc<Self>) {
        let mut random = fastrand::Rng::with_seed(9);
        while !self.over.load(SeqCst) {
            tokio::time::sleep(Duration::from_millis(200)).await;
            let new = self.version.fetch_add(1, SeqCst) + 1;
            let replica = &self.replicas[random.usize(..self.len())];
            let admin = replica.address(|running| running.admin);
            let Ok(mut open) = TcpStream::connect(admin).await else {
                continue;
            };
            let exchange = exchange(&mut open, "POST", "/purge?route=item");
            let Ok(Some((200, body))) = tokio::time::timeout(PATIENCE, exchange).await else {
                continue;
            };
            self.purges.fetch_add(1, SeqCst);
            let body: Value = serde_json::from_slice(&body).unwrap();
            let applied = body["replicas"]["applied"].as_array();
            let applied = applied.unwrap_or_else(|| panic!("{body}"));
            let own = |name: &'static str| (name, name == replica.name);
            let mut reached: BTreeMap<_, _> = NAMES.map(own).into();
            for name in applied.iter().filter_map(Value::as_str) {
                if let Some(reached) = reached.get_mut(name) {
                    *reached = true;
                }
            }
            for reached in self.replicas.iter().filter(|one| reached[one.name]) {
                reached.least.fetch_max(new, SeqCst);
            }
            if reached.values().all(|reached| *reached) {
                self.reached_all.fetch_add(1, SeqCst);
            }
            *self.last_purge.lock().unwrap() = body;
        }
    }

    /// Fails if anything went wrong.
    pub(super) fn check(&self) {
        let wrong = self.wrong.lock().unwrap();
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    /// The most requests that arrived within so many seconds.
    pub(super) fn busiest(&self, seconds: u64) -> usize {
        let arrived: Vec<_> = self.upstream.seen().iter().map(|seen| seen.at).collect();
        let mut first = 0;
        let mut most = 0;
        for (last, at) in arrived.iter().enumerate() {
            while arrived[first] + Duration::from_secs(seconds) <= *at {
                first += 1;
            }
            most = most.max(last + 1 - first);
        }
        most
    }
}

impl Replica {
    fn running(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap()
    }

    /// One of its addresses. It waits while the process is replaced.
    fn address(&self, of: impl Fn(&Running) -> SocketAddr) -> SocketAddr {
        tokio::task::block_in_place(|| of(&self.running()))
    }
}

/// How long an answer may take before a client goes away.
const PATIENCE: Duration = Duration::from_secs(4);

/// The name of the configuration file.
const CONFIG: &str = "proxy.toml";

fn config(upstream: &Upstream, is_long: bool) -> String {
    let per_minute = match is_long {
        true => PER_MINUTE.to_string(),
        false => "\"unlimited\"".to_owned(),
    };
    format!(
        r#"
        limit.enabled = false
        admin.ready_needs_tips = false
        upstream.url = "{}"
        upstream.requests_per_minute = {per_minute}
        upstream.requests_per_second = {PER_SECOND}
        upstream.queue_timeout = "200ms"
        shared.replicas = {}
        shared.timeout = "50ms"
        [[route]]
        name = "item"
        path = "/item/{{id}}"
        params.id = {{ type = "string" }}
        cache = {{ mode = "override", times.200 = "1h" }}
        [[route]]
        name = "other"
        path = "/other/{{id}}"
        params.id = {{ type = "string" }}
        cache = {{ mode = "off" }}
        "#,
        upstream.url(),
        NAMES.len(),
    )
}

fn start(directory: &Path, name: &'static str, front: &Front) -> Running {
    let file = directory.join(CONFIG);
    let [file, state] = [file, directory.join(name)].map(|path| path.display().to_string());
    let variables = [
        ("ORDGATE_API_KEYS", "one-key"),
        ("ORDGATE_SHARED_NAME", name),
        ("ORDGATE_SHARED_URL", &front.url()),
    ];
    let arguments = ["--config", &file, "--state", &state];
    let (process, public, admin) = Process::serve(&arguments, &variables);
    Running {
        process,
        public,
        admin,
    }
}

/// One request and its answer: status and body. `None` if the connection ends.
async fn exchange(stream: &mut TcpStream, method: &str, path: &str) -> Option<(u16, Vec<u8>)> {
    let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n");
    stream.write_all(head.as_bytes()).await.ok()?;
    let (mut came, mut room) = (Vec::new(), [0; 4096]);
    loop {
        if let Some(end) = came.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&came[..end]).to_lowercase();
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "))?;
            let length: usize = length.trim().parse().ok()?;
            if came.len() >= end + 4 + length {
                let status = head.split(' ').nth(1)?.parse().ok()?;
                return Some((status, came[end + 4..end + 4 + length].to_vec()));
            }
        }
        match stream.read(&mut room).await {
            Ok(read @ 1..) => came.extend_from_slice(&room[..read]),
            Ok(0) | Err(_) => return None,
        }
    }
}
