//! Playing the trace to a subject: each request at its moment, whatever became
//! of those before, while the chain changes at its own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http::{Request, Uri};
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use ordgate::sandbox::Sandbox;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use crate::history::{Change, Digest, History, digest_of};
use crate::trace::Trace;

/// Nobody waits longer for an answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often a line tells how far it is.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// What came of a request; times count from the beginning.
pub(crate) struct Take {
    pub(crate) ask: usize,
    pub(crate) sent: Duration,
    pub(crate) done: Duration,
    /// Status and digest, unless there was no answer.
    pub(crate) answer: Option<(u16, Digest)>,
}

/// What came of all of them.
pub(crate) struct Played {
    pub(crate) takes: Vec<Take>,
    /// For each change of the chain, a moment shortly before and one after.
    pub(crate) changes: Vec<(Duration, Duration)>,
}

/// The clients' connections.
#[derive(Clone)]
pub(crate) struct Caller {
    pool: Pool<HttpConnector, Empty<Bytes>>,
    address: SocketAddr,
}

impl Caller {
    pub(crate) fn new(address: SocketAddr) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let pool = Pool::builder(TokioExecutor::new()).build(connector);
        Self { pool, address }
    }

    /// Asks for a target and reads the answer whole.
    pub(crate) async fn get(&self, target: &str) -> Result<(u16, Bytes)> {
        let uri: Uri = format!("http://{}{target}", self.address).parse()?;
        let request = Request::get(uri).body(Empty::new())?;
        let whole = async {
            let response = self.pool.request(request).await?;
            let status = response.status().as_u16();
            let body = response.into_body().collect().await?.to_bytes();
            Ok((status, body))
        };
        timeout(PATIENCE, whole)
            .await
            .context("no answer in time")?
    }
}

pub(crate) async fn play(
    name: &str,
    trace: &Trace,
    history: &History,
    sandbox: &Sandbox,
    address: SocketAddr,
) -> Result<Played> {
    let caller = Caller::new(address);
    let targets: Vec<Arc<str>> = trace
        .asks
        .iter()
        .map(|ask| Arc::from(ask.to_string()))
        .collect();
    let answered = Arc::new(AtomicUsize::new(0));
    let start = Instant::now();
    let chain = tokio::spawn(change(start, history.changes().to_vec(), sandbox.clone()));
    let mut under_way = JoinSet::new();
    let mut tell = TELL_EVERY;
    for request in &trace.requests {
        sleep_until(start + request.at).await;
        if request.at >= tell {
            tell += TELL_EVERY;
            eprintln!(
                "{name}: {} of {} s, {} requests answered, {} upstream",
                request.at.as_secs(),
                trace.length.as_secs(),
                answered.load(Ordering::Relaxed),
                sandbox.counts().total,
            );
        }
        let (ask, target) = (request.ask, targets[request.ask].clone());
        let (caller, answered) = (caller.clone(), answered.clone());
        under_way.spawn(async move {
            let sent = start.elapsed();
            let answer = caller.get(&target).await;
            let done = start.elapsed();
            answered.fetch_add(1, Ordering::Relaxed);
            Take {
                ask,
                sent,
                done,
                answer: answer
                    .ok()
                    .map(|(status, body)| (status, digest_of(status, &body))),
            }
        });
    }
    let takes = under_way.join_all().await;
    let changes = chain.await?;
    let last = history.versions().last().map(Sandbox::tip);
    ensure!(
        last == Some(sandbox.tip()),
        "the sandbox's history is another than the one that answers are judged by"
    );
    Ok(Played { takes, changes })
}

async fn change(
    start: Instant,
    changes: Vec<(Duration, Change)>,
    sandbox: Sandbox,
) -> Vec<(Duration, Duration)> {
    let mut moments = Vec::new();
    for (at, change) in changes {
        sleep_until(start + at).await;
        let before = start.elapsed();
        change.apply(&sandbox);
        moments.push((before, start.elapsed()));
    }
    moments
}
