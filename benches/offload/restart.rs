//! What a restart costs the upstream: the trace's requests for what is final,
//! before and after a kill -9, with a state directory.
//!
//! Both times the chain stands where it does at the end of the trace. The first
//! play starts cold; the second has what the first left on disk.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ordgate::sandbox::{Counts, Sandbox};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use toml::Table;

use crate::ask::{Ask, Page};
use crate::history::{History, Truth, digest_of};
use crate::ordgate_config;
use crate::play::Caller;
use crate::serve;
use crate::subject::{FRESH, Subject};
use crate::trace::Trace;

/// What is so far below the tip is final (`chain.final_depth` of the shipped proxy.toml).
const FINAL_DEPTH: u32 = 6;
/// What was written this long before a kill must be there after it: the bound of
/// what a kill may lose, and half as much again.
const WRITTEN: Duration = Duration::from_millis(1500);
/// Requests under way at a time.
const AT_A_TIME: usize = 16;

/// Plays it twice and says what reached the upstream.
pub(crate) async fn restart(seed: u64, length: Duration, rate: f64) -> Result<Vec<String>> {
    let history = History::new(seed, length);
    let trace = Trace::new(&history, seed, length, (rate, false));
    let last = history.versions().len() - 1;
    let chain = &history.versions()[last];
    let is_final = |ask: &Ask| {
        let page = Page::read(&history.answer(last, &ask.to_string()).body);
        let first = page.results.first();
        first.is_some_and(|item| item.location.block_height + FINAL_DEPTH <= chain.tip().height)
    };
    let finals: Vec<bool> = trace.asks.iter().map(is_final).collect();
    let targets: Vec<String> = trace
        .requests
        .iter()
        .filter(|request| finals[request.ask])
        .map(|request| trace.asks[request.ask].to_string())
        .collect();
    let state = TempDir::with_prefix("offload-state-")?;
    let upstream = serve(chain).await?;
    let config = with_state(upstream.address, &state)?;
    let mut truth = Truth::new(&history);
    let mut lines = vec![
        format!(
            "{} requests for {} final answers, of {} requests of the trace:",
            targets.len(),
            finals.iter().filter(|is_final| **is_final).count(),
            trace.requests.len()
        ),
        "| start                  | ready ms | upstream | blocks | txs | tip and block checks |"
            .to_owned(),
        "|---|--:|--:|--:|--:|--:|".to_owned(),
    ];
    let mut asked = Vec::new();
    for title in ["cold", "after a kill -9"] {
        let start = Instant::now();
        let subject = Subject::ordgate(&config)?;
        let ready = start.elapsed();
        let before = chain.counts();
        play(subject.address, &targets, last, &mut truth).await?;
        let counts = since(chain, before);
        sleep(WRITTEN).await;
        subject.kill()?;
        asked.push(counts.block + counts.transaction);
        lines.push(format!(
            "| {title:<22} | {:>8} | {:>8} | {:>6} | {:>3} | {:>20} |",
            ready.as_millis(),
            counts.total,
            counts.block,
            counts.transaction,
            counts.total - counts.block - counts.transaction,
        ));
    }
    let share = asked[1] as f64 / asked[0].max(1) as f64;
    lines.push(format!(
        "after / cold = {share:.4}; the goal is below 0.05: {}",
        if share < 0.05 { "met" } else { "NOT met" }
    ));
    Ok(lines)
}

/// The configuration of a run, with a state directory inside this one.
fn with_state(upstream: SocketAddr, directory: &TempDir) -> Result<String> {
    let path = directory.path().join("state");
    fs::create_dir(&path)?;
    let path = path
        .to_str()
        .context("the temporary directory's name is no UTF-8")?;
    let mut config: Table = ordgate_config::text(upstream, Some(FRESH), None)?.parse()?;
    config.insert(
        "state".to_owned(),
        Table::from_iter([("path".to_owned(), path.into())]).into(),
    );
    Ok(toml::to_string(&config)?)
}

/// Requests everything in order, some at a time, and compares each answer with
/// what the chain says.
async fn play(
    address: SocketAddr,
    targets: &[String],
    version: usize,
    truth: &mut Truth<'_>,
) -> Result<()> {
    let caller = Caller::new(address);
    let mut under_way = JoinSet::new();
    for target in targets {
        if under_way.len() >= AT_A_TIME {
            judge(under_way.join_next().await, version, truth)?;
        }
        let (caller, target) = (caller.clone(), target.clone());
        under_way.spawn(async move {
            let answer = caller.get(&target).await;
            (target, answer)
        });
    }
    while let Some(answered) = under_way.join_next().await {
        judge(Some(answered), version, truth)?;
    }
    Ok(())
}

type Answered = (String, Result<(u16, bytes::Bytes)>);

fn judge(
    answered: Option<Result<Answered, tokio::task::JoinError>>,
    version: usize,
    truth: &mut Truth<'_>,
) -> Result<()> {
    let (target, answer) = answered.context("nothing is under way")??;
    let (status, body) = answer.with_context(|| target.clone())?;
    ensure!(
        digest_of(status, &body) == truth.digest(&target, version),
        "{target}: {status}, and not what the upstream says"
    );
    Ok(())
}

fn since(sandbox: &Sandbox, before: Counts) -> Counts {
    let now = sandbox.counts();
    Counts {
        total: now.total - before.total,
        block: now.block - before.block,
        transaction: now.transaction - before.transaction,
        ..now
    }
}
