//! A process is killed and started again under a flood of misses: the upstreams count
//! by their own clock, and never more than the budget.
//!
//! In CI this lasts for more than a minute. More kills, with the usual budget and longer
//! lives:
//!
//!     ORDGATE_KILLS=50 cargo test --test gateway state::kills -- --nocapture

use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Duration;

use rustix::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::support::{Process, Reply, Turnstile, Upstream};

/// An upstream that answers after 0 to 300 ms.
pub(super) fn counting(seed: u64) -> Upstream {
    let upstream = Upstream::start();
    let random = Mutex::new(fastrand::Rng::with_seed(seed));
    upstream.usually(move |_| {
        let mut random = random.lock().unwrap();
        let late = match random.u8(..4) {
            0 => random.u64(..300),
            _ => random.u64(..10),
        };
        Reply::json("{}").in_turn(&Turnstile::default(), Duration::from_millis(late))
    });
    upstream
}

/// The most requests that arrived within any span of this length.
pub(super) fn busiest(upstream: &Upstream, seconds: u64) -> usize {
    let arrived: Vec<_> = upstream.seen().iter().map(|seen| seen.at).collect();
    let from = |at: usize| {
        let end = arrived[at] + Duration::from_secs(seconds);
        arrived[at..].iter().take_while(|time| **time < end).count()
    };
    (0..arrived.len()).map(from).max().unwrap_or(0)
}

/// Requests on one connection, each for something else, until it ends.
pub(super) async fn flood(address: SocketAddr, prefix: &'static str, seed: u64) {
    let Ok(mut stream) = TcpStream::connect(address).await else {
        return;
    };
    let (mut random, mut room) = (fastrand::Rng::with_seed(seed), [0; 4096]);
    let mut pace = tokio::time::interval(Duration::from_millis(5));
    loop {
        pace.tick().await;
        let request = format!(
            "GET /{prefix}/{} HTTP/1.1\r\nhost: a\r\n\r\n",
            random.u64(..)
        );
        if stream.write_all(request.as_bytes()).await.is_err() {
            return;
        }
        match stream.read(&mut room).await {
            Ok(1..) => {}
            Ok(0) | Err(_) => return,
        }
    }
}

fn config(first: &Upstream, other: &Upstream, per_minute: usize, per_second: usize) -> String {
    format!(
        r#"
        limit.enabled = false
        admin.ready_needs_tips = false
        upstream.url = "{}"
        upstream.requests_per_minute = {per_minute}
        upstream.requests_per_second = {per_second}
        upstream.queue_timeout = "500ms"
        upstreams.other.url = "{}"
        [[route]]
        name = "first"
        path = "/first/{{id}}"
        params.id = {{ type = "string" }}
        cache = {{ mode = "off" }}
        [[route]]
        name = "other"
        path = "/other/{{id}}"
        params.id = {{ type = "string" }}
        cache = {{ mode = "off" }}
        upstream = "other"
        "#,
        first.url(),
        other.url()
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_and_started_again_under_a_flood_no_window_is_exceeded() {
    let by_hand = std::env::var("ORDGATE_KILLS").ok();
    let kills: u64 = by_hand.as_ref().map_or(10, |kills| kills.parse().unwrap());
    let is_long = by_hand.is_none() && std::env::var_os("ORDGATE_CI").is_some();
    // What was in flight at a kill counts as that until the next process has run for a
    // second: if none ever does, nothing more is sent.
    let (per_minute, per_second, longest) = match by_hand {
        Some(_) => (60, 10, 6000),
        None if is_long => (20, 4, 3000),
        None => (20, 4, 900),
    };
    // In CI for more than a minute, so that the windows before and after its end count
    // too: until each upstream has seen requests of the second minute. How soon that is
    // depends on how fast processes start.
    let [least, most] = [if is_long { 70 } else { 0 }, 180].map(Duration::from_secs);
    let (first, other) = (counting(1), counting(2));
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("proxy.toml");
    let text = config(&first, &other, per_minute, per_second);
    std::fs::write(&file, text).unwrap();
    let [file, state] =
        [file, directory.path().join("state")].map(|path| path.display().to_string());
    let keys = [
        ("ORDGATE_API_KEYS", "one-key"),
        ("ORDGATE_API_KEYS_OTHER", "other-key"),
    ];
    let mut random = fastrand::Rng::with_seed(kills);
    let began = Instant::now();
    let mut kill = 0;
    let is_second_minute_seen = || {
        !is_long
            || [&first, &other]
                .iter()
                .all(|seen| seen.count() > per_minute)
    };
    while kill < kills
        || began.elapsed() < least
        || (!is_second_minute_seen() && began.elapsed() < most)
    {
        kill += 1;
        let (process, public, _) = Process::serve(&["--config", &file, "--state", &state], &keys);
        let clients = (0..8).map(|client| {
            let prefix = if client % 2 == 0 { "first" } else { "other" };
            tokio::spawn(flood(public, prefix, kill << 8 | client))
        });
        let clients: Vec<_> = clients.collect();
        tokio::time::sleep(Duration::from_millis(random.u64(20..longest))).await;
        process.signal(Signal::KILL);
        let left = process.wait();
        assert!(!left.errors.contains("not known"), "{}", left.errors);
        for client in clients {
            client.await.unwrap();
        }
    }
    let took = began.elapsed();
    for (name, upstream) in [("first", first), ("other", other)] {
        let [minute, second] = [60, 1].map(|seconds| busiest(&upstream, seconds));
        let all = upstream.count();
        eprintln!(
            "{name}: {kill} kills in {took:.1?}, {all} requests, at most {minute} in 60 s and {second} in 1 s"
        );
        assert!(minute <= per_minute, "{name}: {minute} in a minute");
        assert!(second <= per_second, "{name}: {second} in a second");
        // The journal costs little: much of the first minute's budget was used.
        assert!(all * 4 > per_minute, "{name}: {all} requests");
        assert!(!is_long || all > per_minute, "{name}: {all} requests");
    }
}
