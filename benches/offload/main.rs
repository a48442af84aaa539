//! What a cache spares the upstream on an explorer's day, against what an
//! oracle would need: `cargo bench --bench offload`.
//!
//! One trace goes to each subject (`subject`), each before a fresh sandbox of
//! the same seed whose chain changes at the same moments (`history`): a block
//! each four seconds, some with reorgs. `--seconds`, `--rate` and `--seed` make
//! it another; `--subject` (again and again) chooses. With `--walk` it is a
//! large block instead, walked page by page; with `--restart`, what is final
//! before and after a kill -9.
//!
//! Every answer is judged by its bytes (`judge`). Times are those of a real
//! clock, so the figures of two runs differ a little; the trace does not.

#![expect(clippy::print_stdout, reason = "a bench reports on standard output")]

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::Result;
use clap::Parser;
use ordgate::sandbox::{Api, Counts, Sandbox};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::history::{History, Truth};
use crate::judge::{Verdict, judge};
use crate::oracle::{Needs, Told};
use crate::subject::{Name, Subject};
use crate::trace::Trace;

mod ask;
mod chance;
mod history;
mod judge;
mod oracle;
mod ordgate_config;
mod play;
mod restart;
mod subject;
mod trace;
mod walk;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Plays an explorer's day to ordgate and to nginx, and counts what reaches the
/// upstream.
#[derive(Parser)]
struct Flags {
    /// How long the trace is.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// What the trace and the chain are made from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Requests a second. With a block each four seconds, 400 are what an explorer
    /// with under three a second has between real blocks.
    #[arg(long, default_value_t = 400.0)]
    rate: f64,
    /// What is measured; several: again. Unless said, all but none.
    #[arg(long, value_enum)]
    subject: Vec<Name>,
    /// Have a third of the requests ask for the rest of the API.
    #[arg(long)]
    rest: bool,
    /// Walk a block of 40,000 items instead.
    #[arg(long)]
    walk: bool,
    /// Kill ordgate and start it again with what it kept on disk instead.
    #[arg(long, conflicts_with = "walk")]
    restart: bool,
    /// What cargo passes to every bench.
    #[arg(long, hide = true)]
    bench: bool,
}

/// What a subject came to.
struct Row {
    name: Name,
    verdict: Verdict,
    counts: Counts,
}

fn main() -> Result<()> {
    let flags = Flags::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let lines = if flags.walk {
        runtime.block_on(walk::walk(flags.seed))?
    } else if flags.restart {
        let length = Duration::from_secs(flags.seconds);
        runtime.block_on(restart::restart(flags.seed, length, flags.rate))?
    } else {
        runtime.block_on(day(&flags))?
    };
    println!("{}", lines.join("\n"));
    Ok(())
}

async fn day(flags: &Flags) -> Result<Vec<String>> {
    let length = Duration::from_secs(flags.seconds);
    let history = History::new(flags.seed, length);
    let trace = Trace::new(&history, flags.seed, length, (flags.rate, flags.rest));
    eprintln!(
        "{} requests of {} clients for {} targets in {} s; {} changes of the chain",
        trace.requests.len(),
        trace.clients,
        trace.asks.len(),
        flags.seconds,
        history.changes().len(),
    );
    let names = match flags.subject.as_slice() {
        [] => &Name::ALL,
        chosen => chosen,
    };
    let mut truth = Truth::new(&history);
    let mut rows = Vec::new();
    let mut lines = Vec::new();
    for name in names {
        let sandbox = history.sandbox();
        let upstream = serve(&sandbox).await?;
        let Some(subject) = Subject::start(*name, upstream.address, flags.rest)? else {
            lines.push(format!("{} is not installed.", name.title()));
            continue;
        };
        let played = play::play(name.title(), &trace, &history, &sandbox, subject.address).await?;
        let counts = sandbox.counts();
        drop(subject);
        let verdict = judge(&trace, &played, &mut truth, name.bound());
        for note in &verdict.notes {
            eprintln!("{}: {note}", name.title());
        }
        rows.push(Row {
            name: *name,
            verdict,
            counts,
        });
    }
    let best = oracle::needs(&trace, &mut truth, Told::Answers);
    let chain = oracle::needs(&trace, &mut truth, Told::Chain);
    let requests = trace.requests.len();
    lines.push(heading());
    lines.push("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|".to_owned());
    lines.extend(rows.iter().map(Row::line));
    lines.push(needs_line("oracle, told of every answer", requests, best));
    lines.push(needs_line("oracle, told of blocks", requests, chain));
    lines.extend(goals(&rows, best, chain));
    Ok(lines)
}

/// A sandbox that is served until this is dropped.
struct Upstream {
    address: SocketAddr,
    _stop: oneshot::Sender<()>,
}

async fn serve(sandbox: &Sandbox) -> Result<Upstream> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    let (stop, stopped) = oneshot::channel();
    // A sender that is dropped resolves it as well.
    let stopped = async { drop(stopped.await) };
    tokio::spawn(sandbox.clone().serve(Api::Both, listener, stopped));
    Ok(Upstream {
        address,
        _stop: stop,
    })
}

fn heading() -> String {
    format!(
        "| {:<28} | {:>8} | {:>6} | {:>8} | {:>6} | {:>6} | {:>6} | {:>6} | {:>6} | {:>8} | {:>6} | {:>6} | {:>5} | {:>5} |",
        "",
        "requests",
        "errors",
        "upstream",
        "tokens",
        "txs",
        "blocks",
        "rest",
        "polls",
        "up/asked",
        "oldest",
        "bound",
        "late",
        "wrong"
    )
}

impl Row {
    fn line(&self) -> String {
        let Self {
            name,
            verdict,
            counts,
        } = self;
        format!(
            "| {:<28} | {:>8} | {:>6} | {:>8} | {:>6} | {:>6} | {:>6} | {:>6} | {:>6} | {:>8.3} | {:>6.2} | {:>6.2} | {:>5} | {:>5} |",
            name.title(),
            verdict.requests,
            verdict.errors,
            counts.total,
            counts.token,
            counts.transaction,
            counts.block,
            counts.other,
            counts.status,
            counts.total as f64 / verdict.requests as f64,
            verdict.oldest.as_secs_f64(),
            name.bound().as_secs_f64(),
            verdict.late,
            verdict.wrong,
        )
    }
}

fn needs_line(title: &str, requests: usize, needs: Needs) -> String {
    format!(
        "| {title:<28} | {requests:>8} | {:>6} | {:>8} | {:>6} | {:>6} | {:>6} | {:>6} | {:>6} | {:>8.3} | {:>6} | {:>6} | {:>5} | {:>5} |",
        "",
        needs.total(),
        needs.tokens,
        needs.transactions,
        needs.blocks,
        needs.rest,
        "",
        needs.total() as f64 / requests as f64,
        "",
        "",
        "",
        "",
    )
}

/// Whether the goals are met, where all that they compare was measured.
fn goals(rows: &[Row], best: Needs, chain: Needs) -> Vec<String> {
    let Some(ordgate) = rows.iter().find(|row| row.name == Name::Ordgate) else {
        return Vec::new();
    };
    let met = |met| if met { "met" } else { "NOT met" };
    let Verdict {
        wrong,
        errors,
        late,
        ..
    } = ordgate.verdict;
    let upstream = ordgate.counts.total as f64;
    let mut lines = vec![
        String::new(),
        format!(
            "ordgate has {wrong} wrong answers, {late} older than its bound and {errors} errors; the goal is none: {}",
            met(wrong + late + errors == 0)
        ),
    ];
    let fresh = |row: &&Row| {
        matches!(row.name, Name::NginxObey | Name::NginxFixed)
            && row.verdict.wrong == 0
            && row.verdict.oldest <= Name::Ordgate.bound()
    };
    let nginx = rows.iter().filter(fresh).map(|row| row.counts.total).min();
    if let Some(nginx) = nginx {
        let ratio = upstream / nginx as f64;
        lines.push(format!(
            "ordgate / best nginx as fresh = {ratio:.3}; the goal is 0.2: {}",
            met(ratio <= 0.2)
        ));
    }
    for (title, needs) in [("every answer", best), ("blocks", chain)] {
        let ratio = upstream / needs.total() as f64;
        let without = (ordgate.counts.total - ordgate.counts.status) as f64 / needs.total() as f64;
        lines.push(format!(
            "ordgate / oracle told of {title} = {ratio:.3} ({without:.3} without polls); the goal is 1.2: {}",
            met(ratio <= 1.2)
        ));
    }
    lines
}
