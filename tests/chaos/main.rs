//! The chaos run: a gateway between misbehaving clients and misbehaving upstreams is
//! reloaded, purged and drained at random.
//!
//! Every request must get an answer of its own in time, or a clean end of its connection. No
//! key leaks, no budget is exceeded, and at the end all slots, connections, descriptors and
//! threads are released. What answers say of the chain is the simulation's matter.
//!
//! Random choices follow from a seed, which is printed. Their timing depends on the
//! machine, so a seed gives a similar run and not the same one:
//!
//! ```text
//! ORDGATE_CHAOS_SECONDS=60 cargo test --test engine chaos -- --nocapture
//! ORDGATE_CHAOS_SEED=17 cargo test --test engine chaos -- --nocapture
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::dice::Dice;
use crate::support::respect::all_below;
use crate::support::transport::tls_listener;
use crate::support::upstream::{Seen, usual_body};
use crate::support::{
    Answer, Client, Endpoint, Gateway, ROUTES, Reply, Setup, Transport, Upstream, token, until,
    within,
};

/// How long a run is, and which, unless the environment says otherwise.
const SECONDS: u64 = 10;
const SEED: u64 = 1;
/// The shortest run, in seconds, that must see each kind of fault.
const ENOUGH: u64 = 60;
/// Connections at once, about; each third of them uses one of these.
const CLIENTS: u64 = 24;
const TRANSPORTS: [Transport; 3] = [Transport::Http1, Transport::H2c, Transport::H2Tls];
/// What no answer may contain.
const SECRET: &str = "s3cret-of-ours";
/// The bounds of each key.
const MINUTE: usize = 1200;
const SECOND: usize = 60;

const CONFIG: &str = r#"
    server.workers = 2
    server.drain_timeout = "2s"
    limit.enabled = false
    cache.max_bytes = "2MiB"
    [upstream]
    requests_per_minute = 1200
    requests_per_second = 60
    first_byte_timeout = "300ms"
    timeout = "1s"
    queue_timeout = "300ms"
    max_in_flight = 24
    max_body_bytes = "64KiB"
    silence_timeout = "300ms"
"#;

/// What a reload sets, now and then; the last two are refused.
const SETTINGS: [&str; 8] = [
    "upstream.max_in_flight = 8",
    "upstream.max_in_flight = 24",
    "upstream.retry = false",
    "upstream.retry = true",
    "cache.stale_wait = \"10ms\"",
    "server.max_connections = 64",
    "upstream.max_in_flight = 0",
    "upstream.first_byte_timeout = \"soon\"",
];

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// What all share.
struct World {
    seed: u64,
    counts: Mutex<BTreeMap<String, u64>>,
    is_over: AtomicBool,
    is_calm: AtomicBool,
}

impl World {
    fn count(&self, what: impl Into<String>) {
        *self.counts.lock().unwrap().entry(what.into()).or_default() += 1;
    }
}

/// What an upstream does wrong with a request that has this key.
fn faults(key: &str) -> Vec<(&'static str, Reply)> {
    let cut = "HTTP/1.1 200 OK\r\ncontent-length: 90000\r\n\r\n{";
    let every = Duration::from_millis(3);
    let echo = format!("{{\"x-api-key\":\"{key}\"}}");
    vec![
        ("500", Reply::status(500, "{}")),
        ("503", Reply::with(503, "retry-after: 1\r\n", "{}")),
        ("429", Reply::with(429, "retry-after: 1\r\n", "{}")),
        ("401", Reply::status(401, "{}")),
        ("410", Reply::status(410, "{}")),
        ("redirect", Reply::with(302, "location: /\r\n", "")),
        ("an echoed key", Reply::json(echo)),
        (
            "HTML",
            Reply::with(200, "content-type: text/html\r\n", "<html>"),
        ),
        ("a large body", Reply::json(" ".repeat(100_000))),
        ("a truncated body", Reply::raw(cut).close()),
        ("a reset body", Reply::raw(cut).reset()),
        ("a stalled body", Reply::raw(cut).hang()),
        (
            "a dripping body",
            Reply::raw(cut).drip(" ".repeat(1000), every),
        ),
        ("a reset", Reply::nothing().reset()),
        ("a close", Reply::nothing().close()),
        ("silence", Reply::nothing().hang()),
        ("garbage", Reply::raw("garbage\r\n\r\n").close()),
    ]
}

/// An upstream that answers two of three requests as it should.
fn upstream(world: &Arc<World>, number: u64) -> Upstream {
    let (upstream, world) = (Upstream::start(), world.clone());
    let dice = Mutex::new(Dice::new(world.seed + number));
    upstream.usually(move |seen: &Seen| {
        let mut dice = dice.lock().unwrap();
        if dice.percent(33) && !world.is_calm.load(SeqCst) {
            let mut faults = faults(&seen.field("x-api-key").unwrap());
            let (name, reply) = faults.swap_remove(dice.below(faults.len()));
            world.count(format!("fault: {name}"));
            return reply;
        }
        let body = usual_body(&seen.target());
        match dice.percent(20) {
            true => Reply::chunked(body, 7),
            false => Reply::json(body),
        }
    });
    upstream
}

fn keys(dice: &mut Dice) -> String {
    let first = dice.between(0, 3);
    let keys = (first..=first + dice.between(0, 2)).map(|number| format!("{SECRET}-{number}"));
    keys.collect::<Vec<_>>().join(",")
}

/// A target, and whether the upstream has it.
fn target(dice: &mut Dice) -> (String, bool) {
    match dice.below(10) {
        0 => ("/nowhere".to_owned(), false),
        1 => ("/runes/v1/blocks/x/activity".to_owned(), false),
        2 | 3 => (format!("/plain/{}", dice.below(20)), true),
        _ => (token(dice.below(200)), true),
    }
}

/// Sees that an answer may be given to this request.
fn judge(world: &World, method: &str, target: &str, exists: bool, answer: &Answer) {
    world.count(format!("status: {}", answer.status));
    let all = String::from_utf8_lossy(&answer.bytes()).into_owned();
    assert!(!all.contains(SECRET), "{target}: {all}");
    let is_plain = target.starts_with("/plain/");
    match answer.status {
        200 if exists && method == "GET" => {
            assert!(is_plain || answer.text() == usual_body(target), "{all}")
        }
        200 => assert!(exists, "{target}: {all}"),
        400 | 404 | 405 if !exists => {
            assert!(method == "HEAD" || answer.problem()["error"].is_string())
        }
        502..=504 if exists && !is_plain => {
            assert!(method == "HEAD" || answer.problem()["error"].is_string())
        }
        // A plain route passes on what its origin says.
        302 | 401 | 410 | 429 | 500 | 502..=504 if is_plain => {}
        status => panic!("{status} for {method} {target}: {all}"),
    }
    if answer.status == 503 && !is_plain {
        assert!(answer.number("retry-after") >= 1, "{all}");
    }
}

/// A client, until all is over: one that asks and reads, breaks off, sends half of
/// something, or does not read.
async fn live(world: Arc<World>, endpoint: Endpoint, number: u64) {
    let mut dice = Dice::new(world.seed + 1000 + number);
    let from = [127, 0, 0, 10 + number as u8];
    while !world.is_over.load(SeqCst) {
        let mut client = endpoint.client_from(from).await;
        for _ in 0..dice.between(1, 20) {
            let (target, exists) = target(&mut dice);
            let method = *dice.pick(&["GET", "GET", "GET", "HEAD"]);
            client.send_request(method, &target, &[]).await;
            if dice.percent(10) {
                break;
            }
            let Some(answer) = client.try_answer(method).await else {
                world.count("ends without an answer");
                break;
            };
            judge(&world, method, &target, exists, &answer);
        }
        drop(client);
        if endpoint.transport == Transport::Http1 {
            odd(&mut dice, from, endpoint).await;
        }
        sleep(Duration::from_millis(dice.between(0, 30))).await;
    }
}

async fn odd(dice: &mut Dice, from: [u8; 4], endpoint: Endpoint) {
    let mut client = Client::connect_narrow_from(from, endpoint.address).await;
    let head = "POST /plain/1 HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\nhalf";
    let bytes = match dice.below(4) {
        0 => head.to_owned(),
        1 => head[..dice.below(head.len())].to_owned(),
        2 => "GET \u{1} HTTP/1.1\r\n\r\n".to_owned(),
        _ => format!("GET {} HTTP/1.1\r\nhost: a\r\n\r\n", token(1)).repeat(50),
    };
    client.send(bytes).await;
    sleep(Duration::from_millis(dice.between(0, 100))).await;
}

/// Does something to the gateway, or to one of the upstreams.
async fn act(dice: &mut Dice, gateway: &Gateway, upstreams: &[Upstream; 2]) {
    let one = dice.pick(upstreams);
    match dice.below(7) {
        0 => assert_eq!(gateway.rekey(&keys(dice)).await.status, 200),
        1 | 2 => {
            let before = gateway.source.lock().unwrap().config.clone();
            let at = dice.below(SETTINGS.len());
            let done = gateway.reload(SETTINGS[at]).await;
            let expected = if at < SETTINGS.len() - 2 { 200 } else { 422 };
            assert_eq!(done.status, expected, "{}", done.text());
            if expected == 422 {
                gateway.source.lock().unwrap().config = before;
            }
        }
        3 => {
            let query = format!("url={}", token(dice.below(200)));
            let query = if dice.percent(20) { "all" } else { &query };
            assert_eq!(gateway.purge(query).await.status, 200);
        }
        4 => {
            one.freeze();
            sleep(Duration::from_millis(dice.around(300))).await;
            one.thaw();
        }
        5 => one.close_connections(),
        _ => {
            for page in ["/status", "/metrics", "/history"] {
                let answer = gateway.admin(page).await;
                assert_eq!(answer.status, 200);
                assert!(!answer.text().contains(SECRET), "{page}");
            }
        }
    }
    sleep(Duration::from_millis(dice.between(50, 300))).await;
}

/// Without clients' load and faults everything must have been released, and work.
async fn settles(gateway: &Gateway, upstreams: &[Upstream; 2], number: usize) {
    for upstream in upstreams {
        upstream.close_connections();
    }
    until("nothing is under way", || {
        gateway.in_flight() == 0 && gateway.queued() == 0 && gateway.fetching() == 0
    })
    .await;
    until("all connections are closed", || gateway.connections() == 0).await;
    assert_eq!(gateway.rekey("a-fresh-key").await.status, 200);
    let target = token(1_000 + number);
    // A breaker may be open for a while yet.
    let answered = async {
        while gateway.get(&target).await.status != 200 {
            sleep(Duration::from_millis(100)).await;
        }
    };
    within("it answers again", answered).await;
}

/// No key was used more often than it may be, as the upstreams saw it.
fn check_budget(upstreams: &[Upstream; 2]) {
    let mut uses: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for seen in upstreams.iter().flat_map(Upstream::seen) {
        let key = seen.field("x-api-key").expect("a key");
        uses.entry(key).or_default().push(seen.at);
    }
    for (key, mut times) in uses {
        times.sort_unstable();
        for (most, seconds) in [(MINUTE, 60), (SECOND, 1)] {
            for window in times.windows(most + 1) {
                let took = window[most].since(window[0]);
                assert!(took >= Duration::from_secs(seconds), "{key}: {took:?}");
            }
        }
    }
}

/// Descriptors and threads of this process, and its memory.
fn process() -> [usize; 3] {
    let count = |path| fs::read_dir(path).unwrap().count();
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    let memory = pages * rustix::param::page_size();
    [count("/proc/self/fd"), count("/proc/self/task"), memory]
}

/// One gateway's life, which ends by draining under load.
async fn life(world: &Arc<World>, dice: &mut Dice, span: Duration) {
    let upstreams = [upstream(world, 1), upstream(world, 2)];
    let [one, other] = &upstreams;
    let (tls, _files) = tls_listener();
    let setup = Setup::before_all(&[one, other])
        .keys(&keys(dice))
        .config(CONFIG);
    let setup = setup.config(&format!("{ROUTES}\n{}", all_below("plain")));
    let gateway = setup.config(&tls).start();
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        let endpoint = gateway.endpoint(TRANSPORTS[number as usize % TRANSPORTS.len()]);
        clients.spawn(live(world.clone(), endpoint, number));
    }
    let began = Instant::now();
    while began.elapsed() < span {
        act(dice, &gateway, &upstreams).await;
    }
    world.is_over.store(true, SeqCst);
    while let Some(ended) = clients.join_next().await {
        ended.unwrap();
    }
    world.is_calm.store(true, SeqCst);
    settles(&gateway, &upstreams, dice.below(1_000)).await;
    // Requests under way are answered, and then it ends.
    let mut clients = JoinSet::new();
    for number in 0..4 {
        let mut client = gateway.start_get(&token(3_000 + number)).await;
        clients.spawn(async move { client.try_answer("GET").await });
    }
    gateway.end().await;
    while let Some(answer) = clients.join_next().await {
        if let Some(answer) = answer.unwrap() {
            assert!(matches!(answer.status, 200 | 503), "{answer:?}");
        }
    }
    check_budget(&upstreams);
}

async fn run() {
    let seed = number("ORDGATE_CHAOS_SEED").unwrap_or(SEED);
    let seconds = number("ORDGATE_CHAOS_SECONDS").unwrap_or(SECONDS);
    eprintln!("ORDGATE_CHAOS_SEED={seed} ORDGATE_CHAOS_SECONDS={seconds}");
    let mut dice = Dice::new(seed);
    let mut counts = BTreeMap::new();
    let mut after = Vec::new();
    let before = process();
    for part in 0..3 {
        let world = Arc::new(World {
            seed: seed + 100_000 * part,
            counts: Mutex::default(),
            is_over: AtomicBool::new(false),
            is_calm: AtomicBool::new(false),
        });
        life(&world, &mut dice, Duration::from_millis(seconds * 1000 / 3)).await;
        for (name, count) in world.counts.lock().unwrap().iter() {
            *counts.entry(name.clone()).or_insert(0) += count;
        }
        until("descriptors and threads are released", || {
            let now = process();
            now[0] <= before[0] && now[1] <= before[1]
        })
        .await;
        after.push(process()[2]);
    }
    eprintln!(
        "{counts:#?}\nbytes of memory: before {}, after {after:?}",
        before[2]
    );
    // An allocator gives little back; each gateway may not take more than the first has.
    assert!(
        after[2] <= after[0] + after[0] / 2 + (32 << 20),
        "{after:?}"
    );
    for expected in ["status: 200", "status: 404", "status: 502", "status: 503"] {
        assert!(counts.contains_key(expected), "no {expected}");
    }
    if seconds >= ENOUGH {
        for (name, _) in faults("") {
            assert!(counts.contains_key(&format!("fault: {name}")), "no {name}");
        }
    }
}

/// It measures its whole process, so it gets one in which no other test runs.
#[test]
fn every_request_ends_well_under_random_faults() {
    const ALONE: &str = "ORDGATE_CHAOS_ALONE";
    if std::env::var_os(ALONE).is_some() {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
        return runtime.block_on(run());
    }
    let mut alone = Command::new(std::env::current_exe().unwrap());
    let name = "chaos::every_request_ends_well_under_random_faults";
    alone.args(["--exact", name, "--nocapture"]).env(ALONE, "1");
    let left = alone.output().unwrap();
    eprintln!("{}", String::from_utf8_lossy(&left.stderr));
    assert!(left.status.success(), "see its output above");
}
