//! The chaos run: a gateway between misbehaving clients and a misbehaving
//! upstream is reloaded, purged, drained and restarted at random.
//!
//! Every request must get a well-formed answer in time or a clean end of its
//! connection. Nothing wrong is served, no key leaks, no budget is exceeded, and at
//! the end all slots, connections, descriptors and threads are released.
//!
//! Clients use HTTP/1.1, HTTP/2 in cleartext and HTTP/2 over TLS, each a third of them.
//! The gateway uses HTTP/1.1 and HTTP/2 towards the upstream, in turns. A run of
//! 60 s or more fails unless a freeze, a connection cap, a silent connection and
//! a stalled body have taken effect over both.
//!
//! Random choices follow from a seed, which is printed. Their timing depends on the
//! machine, so a seed gives a similar run and not the same one:
//!
//! ```text
//! ORDGATE_CHAOS_SECONDS=60 cargo test --test engine chaos -- --nocapture
//! ORDGATE_CHAOS_SEED=17 cargo test --test engine chaos -- --nocapture
//! ```

mod calm;
mod check;
mod crowd;
mod crowd_http2;
mod faults;
mod freeze;
mod front;
mod http1;
mod operator;
mod process;
mod questions;
mod world;

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use crate::support::Transport;
use front::{Front, Sky};
use operator::Operator;
use process::Process;
use tokio::task::JoinSet;
use tokio::time::Instant;
use world::World;

/// How long a run is, and which, unless the environment says otherwise.
const SECONDS: u64 = 10;
const SEED: u64 = 1;
/// The shortest run, in seconds, that must see each kind of fault.
const ENOUGH: u64 = 60;
/// Connections at once, about.
const CLIENTS: u64 = 32;
/// What they use, in turns.
const TRANSPORTS: [Transport; 3] = [Transport::Http1, Transport::H2c, Transport::H2Tls];
/// Front ends of the one upstream.
const FRONTS: usize = 2;
/// How much larger the process may have grown between the end of its warming up
/// and the end of the run: by its half, and by so much. Its allocator gives
/// little back, and each server that is started has threads of its own.
const GROWTH: u64 = 64 << 20;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// A client, until all is over.
async fn live(world: Arc<World>, client: u64) {
    match TRANSPORTS[(client % TRANSPORTS.len() as u64) as usize] {
        Transport::Http1 => crowd::live(world, client).await,
        transport @ (Transport::H2c | Transport::H2Tls) => {
            crowd_http2::live(world, client, transport).await;
        }
    }
}

/// The transports over which nothing was answered.
fn unanswered(world: &World) -> Vec<Transport> {
    let answered = world.names("answers by transport");
    let mut all = TRANSPORTS.to_vec();
    all.retain(|transport| !answered.contains(&format!("{transport:?}")));
    all
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

async fn run() {
    let seed = number("ORDGATE_CHAOS_SEED").unwrap_or(SEED);
    let seconds = number("ORDGATE_CHAOS_SECONDS").unwrap_or(SECONDS);
    eprintln!("ORDGATE_CHAOS_SEED={seed} ORDGATE_CHAOS_SECONDS={seconds}");
    let before = Process::now();
    let world = World::new(seed);
    let mut fronts: Vec<_> = (0..FRONTS).map(|at| Front::start(&world, at)).collect();
    let mut operator = Operator::start(&world, &fronts);

    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        clients.spawn(live(world.clone(), client));
    }
    let began = Instant::now();
    let span = Duration::from_secs(seconds);
    let mut warm = None;
    while began.elapsed() < span {
        operator.act().await;
        if began.elapsed() >= span / 3 && warm.is_none() {
            warm = Some(Process::now());
        }
    }
    let warm = warm.unwrap_or_else(Process::now);
    let end = Process::now();

    // The clients first, so that none is left that might be refused.
    world.over.send_replace(true);
    while let Some(ended) = clients.join_next().await {
        ended.unwrap();
    }
    for front in &mut fronts {
        front.turn(Sky::Calm).await;
    }
    calm::settle(&world, &mut operator, &mut fronts).await;
    operator.end().await;
    for front in fronts {
        front.end().await;
    }
    let over = Process::back_to(&before).await;

    let world = Arc::into_inner(world).expect("a task still holds the world");
    let mut table = world.table(&format!(
        "chaos run: {seconds} s, seed {seed}, {CLIENTS} clients"
    ));
    let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
    let sizes = [&before, &warm, &end, &over].map(|then| mib(then.resident));
    table.row("resident: before, warm, end, after", sizes.join(", "));
    let counts = [&before, &warm, &end, &over].map(|then| then.descriptors.to_string());
    table.row("descriptors", counts.join(", "));
    let counts = [&before, &warm, &end, &over].map(|then| then.threads.to_string());
    table.row("threads", counts.join(", "));
    table.print();

    let effects = world.effects();
    let unanswered = unanswered(&world);
    let violations = world.violations.into_inner().unwrap();
    assert!(
        violations.is_empty(),
        "ORDGATE_CHAOS_SEED={seed}: {} violations:\n{}",
        violations.len(),
        violations.join("\n")
    );
    assert!(unanswered.is_empty(), "no answers over {unanswered:?}");
    if seconds >= ENOUGH {
        let missing: Vec<_> = effects.iter().filter(|(_, count)| *count == 0).collect();
        assert!(missing.is_empty(), "not seen: {missing:?}");
    }
    assert!(
        end.resident <= warm.resident + warm.resident / 2 + GROWTH,
        "the process grows: {warm:?}, {end:?}"
    );
    assert_eq!(over.of_servers, 0, "threads of servers are left: {over:?}");
    assert!(
        over.descriptors <= before.descriptors && over.threads <= before.threads,
        "descriptors or threads are left: {before:?}, {over:?}"
    );
}
