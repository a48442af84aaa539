//! A restart with much on disk: `cargo bench --bench state -- --gib 10`.
//!
//! Fills a state directory through ordgate, ends it with kill -9 while it
//! writes, starts it again, and measures the time until the first answer, the
//! memory it takes, and hits of what is on disk and not in memory. `--directory`
//! says where, by default the temporary directory, which should be on a disk.

#![expect(clippy::print_stdout, reason = "a bench reports on standard output")]

use std::collections::HashMap;
use std::convert::Infallible;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use clap::Parser;
use http::{Request, Response, Uri};
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::Instant;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Clients that fill it.
const CLIENTS: u64 = 32;
/// Bodies have 1 kB to so many bytes, of which half remain compressed.
const LARGEST: u64 = 15_000;
/// Starts after a kill.
const STARTS: usize = 5;
/// Hits that are timed after each start.
const HITS: u64 = 2_000;
/// More requests than the fill may need: it gives up there.
const MOST: u64 = 50_000_000;

/// Measures restarts with a filled state directory.
#[derive(Parser)]
struct Flags {
    /// `state.max_bytes` in GiB; it is filled to 90 %.
    #[arg(long, default_value_t = 1)]
    gib: u64,
    /// Where the state directory is made.
    #[arg(long)]
    directory: Option<PathBuf>,
    /// What cargo passes to every bench.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<()> {
    let flags = Flags::parse();
    let place = match &flags.directory {
        Some(directory) => TempDir::with_prefix_in("ordgate-state-", directory)?,
        None => TempDir::with_prefix("ordgate-state-")?,
    };
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?
        .block_on(measure(flags.gib, place.path()))
}

async fn measure(gib: u64, place: &Path) -> Result<()> {
    let asked = Arc::new(AtomicU64::new(0));
    let upstream = serve(Arc::clone(&asked)).await?;
    let config = configure(place, upstream, gib)?;
    let mut process = Process::start(&config)?;
    let began = Instant::now();
    let filled = fill(&process, (gib << 30) / 10 * 9).await?;
    println!(
        "filled by {filled} requests in {} s; {}",
        began.elapsed().as_secs(),
        process.account().await?
    );
    println!(
        "| start | ready ms | first answer ms | resident MB | hit from disk µs, median | p99 | found |"
    );
    println!("|---|--:|--:|--:|--:|--:|--:|");
    for start in 1..=STARTS {
        // New misses, so that the kill comes amid writes.
        let client = client();
        let late = filled + 1_000 * start as u64..filled + 1_000 * start as u64 + 1_000;
        for n in late {
            get(&client, process.address, n).await?;
        }
        process.kill()?;
        let began = Instant::now();
        process = Process::start(&config)?;
        let ready = began.elapsed();
        get(&client, process.address, filled / 2).await?;
        let first = began.elapsed();
        let resident = process.resident()?;
        let before = asked.load(Ordering::Relaxed);
        let times = hits(&process, filled, start as u64).await?;
        let found = HITS - (asked.load(Ordering::Relaxed) - before);
        println!(
            "| {start} | {:.0} | {:.0} | {:.0} | {} | {} | {found} of {HITS} |",
            ready.as_secs_f64() * 1e3,
            first.as_secs_f64() * 1e3,
            resident as f64 / 1e6,
            times[times.len() / 2].as_micros(),
            times[times.len() * 99 / 100].as_micros(),
        );
    }
    println!("then {}", process.account().await?);
    process.kill()
}

/// Requests 0, 1, 2... by several clients until so many bytes are on disk; returns how many.
async fn fill(process: &Process, bytes: u64) -> Result<u64> {
    let next = Arc::new(AtomicU64::new(0));
    loop {
        let mut clients = JoinSet::new();
        for _ in 0..CLIENTS {
            let (next, address) = (Arc::clone(&next), process.address);
            clients.spawn(async move {
                let client = client();
                for _ in 0..500 {
                    get(&client, address, next.fetch_add(1, Ordering::Relaxed)).await?;
                }
                anyhow::Ok(())
            });
        }
        while let Some(ended) = clients.join_next().await {
            ended??;
        }
        let asked = next.load(Ordering::Relaxed);
        if process.metrics().await?["ordgate_disk_bytes"] >= bytes as f64 {
            return Ok(asked);
        }
        ensure!(asked < MOST, "{asked} requests do not fill it");
    }
}

/// Times hits one after another, of answers spread over all that was stored.
async fn hits(process: &Process, filled: u64, seed: u64) -> Result<Vec<Duration>> {
    let client = client();
    let mut times = Vec::new();
    for n in 0..HITS {
        // What was stored first may be evicted: the later half.
        let target = filled / 2 + random(n ^ (seed << 32)) % (filled / 2);
        let began = Instant::now();
        get(&client, process.address, target).await?;
        times.push(began.elapsed());
    }
    times.sort_unstable();
    Ok(times)
}

type Client = Pool<HttpConnector, Empty<Bytes>>;

fn client() -> Client {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    Pool::builder(TokioExecutor::new()).build(connector)
}

/// Requests the n-th answer and compares it with what the upstream says.
async fn get(client: &Client, address: SocketAddr, n: u64) -> Result<()> {
    let (status, body) = fetch(client, format!("http://{address}/{n}").parse()?).await?;
    ensure!(
        status == 200 && body == body_of(n),
        "/{n}: {status}, or a wrong body"
    );
    Ok(())
}

async fn fetch(client: &Client, uri: Uri) -> Result<(u16, Bytes)> {
    let response = client
        .request(Request::get(uri).body(Empty::new())?)
        .await?;
    let status = response.status().as_u16();
    Ok((status, response.into_body().collect().await?.to_bytes()))
}

/// splitmix64: the same numbers each time.
fn random(n: u64) -> u64 {
    let mut z = n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A string of hexadecimal digits, which compress to half.
fn body_of(n: u64) -> Bytes {
    let length = 1_000 + random(n) % (LARGEST - 1_000);
    let mut body = String::with_capacity(LARGEST as usize + 32);
    body.push('"');
    let mut word = random(n);
    while (body.len() as u64) < length {
        word = random(word);
        body.push_str(&format!("{word:016x}"));
    }
    body.push('"');
    body.into()
}

/// An upstream whose answers are fresh for a day, and which counts.
async fn serve(asked: Arc<AtomicU64>) -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let asked = Arc::clone(&asked);
            let answer = service_fn(move |request: Request<Incoming>| {
                asked.fetch_add(1, Ordering::Relaxed);
                let n = request.uri().path()[1..].parse().unwrap_or_default();
                let response = Response::builder()
                    .header("cache-control", "max-age=86400")
                    .header("content-type", "application/json")
                    .body(Full::new(body_of(n)));
                async move { Ok::<_, Infallible>(response.unwrap_or_default()) }
            });
            // A connection that ends is opened again by who needs it.
            tokio::spawn(
                hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), answer),
            );
        }
    });
    Ok(address)
}

fn configure(place: &Path, upstream: SocketAddr, gib: u64) -> Result<PathBuf> {
    let state = place.join("state");
    fs::create_dir(&state)?;
    let file = place.join("proxy.toml");
    let text = format!(
        r#"
[server]
listen = "127.0.0.1:0"
[admin]
listen = "127.0.0.1:0"
[limit]
enabled = false
[cache]
max_bytes = "64MiB"
[state]
path = {state:?}
max_bytes = "{gib}GiB"
[upstream]
url = "http://{upstream}"
requests_per_minute = 1000000
requests_per_second = 1000000
max_in_flight = 256
[log]
level = "warn"
[[route]]
name = "all"
path = "/{{rest:*}}"
cache = {{ mode = "respect" }}
"#
    );
    fs::write(&file, text)?;
    Ok(file)
}

/// ordgate, as a process; it is killed when this is dropped.
struct Process {
    child: Child,
    address: SocketAddr,
    admin: SocketAddr,
    /// Nothing more is read, but someone must hold the other end.
    _stdout: BufReader<ChildStdout>,
}

impl Process {
    /// Starts it and waits until it says that it is ready.
    fn start(config: &Path) -> Result<Self> {
        let mut child = Command::new(env!("CARGO_BIN_EXE_ordgate"))
            .args(["serve", "--config"])
            .arg(config)
            .env_remove("ORDGATE_API_KEYS")
            .env_remove("ORDGATE_ADMIN_TOKEN")
            .stdout(Stdio::piped())
            .spawn()
            .context("ordgate does not start")?;
        let mut stdout = BufReader::new(child.stdout.take().context("no standard output")?);
        let mut line = String::new();
        stdout.read_line(&mut line)?;
        let mut addresses = line.split("http://").skip(1).map(|rest| {
            let address: String = rest
                .chars()
                .take_while(|c| c.is_ascii_digit() || ".:".contains(*c))
                .collect();
            address
                .parse::<SocketAddr>()
                .with_context(|| format!("ordgate is not ready: {line:?}"))
        });
        let mut next = || {
            addresses
                .next()
                .with_context(|| format!("ordgate is not ready: {line:?}"))?
        };
        let (address, admin) = (next()?, next()?);
        Ok(Self {
            child,
            address,
            admin,
            _stdout: stdout,
        })
    }

    /// Kill -9.
    fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Its gauges and counters without labels.
    async fn metrics(&self) -> Result<HashMap<String, f64>> {
        let uri = format!("http://{}/metrics", self.admin).parse()?;
        let (_, body) = fetch(&client(), uri).await?;
        let text = std::str::from_utf8(&body)?;
        let line = |line: &str| {
            let (name, value) = line.split_once(' ')?;
            Some((name.trim_end_matches("{}").to_owned(), value.parse().ok()?))
        };
        Ok(text.lines().filter_map(line).collect())
    }

    async fn account(&self) -> Result<String> {
        let metrics = self.metrics().await?;
        let of = |name: &str| metrics.get(name).copied().unwrap_or(f64::NAN);
        Ok(format!(
            "{:.0} entries, {:.2} GiB of {:.2} on disk; {:.0} MB resident",
            of("ordgate_disk_entries"),
            of("ordgate_disk_bytes") / f64::from(1 << 30),
            of("ordgate_disk_max_bytes") / f64::from(1 << 30),
            self.resident()? as f64 / 1e6,
        ))
    }

    /// Bytes of memory of its own, which the page cache's are not.
    fn resident(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:"));
        let kib = line.and_then(|line| line.split_whitespace().next());
        Ok(kib.context("no RssAnon")?.parse::<u64>()? << 10)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Where it is gone already, both have nothing to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
